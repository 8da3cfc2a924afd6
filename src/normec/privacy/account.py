"""What a run has spent, by its ledger: the one place from which every reader has a run's ε."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import NamedTuple

from normec.privacy.accountant import SpentSoFar, epsilon, realised
from normec.privacy.gaussian import Spent
from normec.privacy.header import Header
from normec.privacy.ledger import Ledger
from normec.privacy.mechanism import Mechanism


class Evaluated(NamedTuple):
    """What evaluations by the clients add to what a training spends of the same data.

    Both are bounds at their own δ, and together they add up, ε with ε and δ with δ. number: how many there are. spent: ε of
    all of them at delta, infinite without noise.
    """

    number: int
    noise_multiplier: float
    spent: Spent
    delta: float

    def with_training(self, training: Spent) -> Spent:
        """ε of training and evaluations, and the accountants."""
        own = self.spent
        names = [training.accountant] if training.accountant == own.accountant else [f"{training.accountant} for training", own.accountant]
        every = None if training.every_round is None else training.every_round + own.epsilon  # each client is in each evaluation
        return Spent(training.epsilon + own.epsilon, names[0] if len(names) == 1 else f"{names[0]}, {names[1]} for evaluation", every)

    def with_delta(self, training: float) -> float:
        """δ of training and evaluations, as people add decimals up."""
        return float(Decimal(repr(training)) + Decimal(repr(self.delta)))


@dataclass(frozen=True, kw_only=True)
class Account:
    """A verified ledger with a first line, its header, and the mechanism that it names.

    mechanism: of the planned rounds. accounted: the same for those to whom something is promised, which an audit's canaries are not.
    own_delta: δ of the ledger. evaluations: the account of the clients' evaluations, whose releases are of the same data: what
    is spent, and the claim, are of both.
    """

    ledger: Ledger
    header: Header
    mechanism: Mechanism
    accounted: Mechanism
    own_delta: float
    evaluations: Account | None = None

    @classmethod
    def of(cls, ledger: Ledger, evaluations: Ledger | None = None) -> Account:
        """Of a ledger with a first line, and that of the evaluations beside it."""
        header, beside = Header.read(ledger.lines[0]), cls.of(evaluations) if evaluations else None
        return cls(
            ledger=ledger,
            header=header,
            mechanism=header.mechanism(),
            accounted=header.of_promised.mechanism(),
            own_delta=float(header.delta or 0.0),
            evaluations=beside,
        )

    @property
    def counted(self) -> int:
        """How many releases count."""
        return self.ledger.counted() + (self.evaluations.counted if self.evaluations else 0)

    @property
    def delta(self) -> float:
        """δ of all that is spent."""
        return self.evaluations.evaluated(planned=False).with_delta(self.own_delta) if self.evaluations else self.own_delta

    @property
    def spent(self) -> Spent:
        """ε of all releases that count, and its accountant."""
        own = self.training(planned=False)
        return self.evaluations.evaluated(planned=False).with_training(own) if self.evaluations else own

    @property
    def planned_evaluations(self) -> Evaluated | None:
        """All planned evaluations; a server claims them from the start."""
        return self.evaluations.evaluated(planned=True) if self.evaluations else None

    def training(self, planned: bool) -> Spent:
        """ε of this ledger alone: of all planned rounds, or of the releases that count."""
        rounds = self.accounted.rounds if planned else self.ledger.counted()
        return epsilon(replace(self.accounted, rounds=rounds), self.own_delta)

    def evaluated(self, planned: bool) -> Evaluated:
        """The releases of this ledger as evaluations: all that are planned, or those that count where these are more."""
        number = max(self.mechanism.rounds, self.ledger.counted()) if planned else self.ledger.counted()
        spent = epsilon(replace(self.accounted, rounds=number), self.own_delta)
        return Evaluated(number, self.mechanism.noise_multiplier, spent, self.own_delta)

    @property
    def client_limit(self) -> float | None:
        """What each client's own rounds may spend before it stays silent."""
        return self.header.client_limit

    @cached_property
    def largest_exposure(self) -> float:
        """Of all clients, the largest Σ 1/h_k over its rounds that count, where participants add the noise."""
        return float(self.ledger.exposures(self.mechanism).max())

    @property
    def realised_max(self) -> float | None:
        """ε of the client whose own rounds spent most, where participants add the noise; None elsewhere."""
        if not self.mechanism.trust.per_client:
            return None
        beside = self.evaluations.evaluated(planned=False).spent.epsilon if self.evaluations else 0.0  # every client takes part
        return realised(self.mechanism, self.own_delta, self.largest_exposure).epsilon + beside

    def at_least_after(self, rounds: int) -> float:
        """What a run must have spent after so many rounds: ε of the attempts up to the end of those, on a run's own coarser grid."""
        beside = self.evaluations.at_least_after(rounds) if self.evaluations else 0.0
        if self.ledger.seeded:
            return _after(self.accounted, self.own_delta, min(rounds, self.ledger.counted())) + beside
        begun = [line["round"] for line in self.ledger.lines if line["kind"] == "intent"]
        return _after(self.accounted, self.own_delta, bisect_right(list(accumulate(begun, max)), rounds - 1)) + beside


@lru_cache(maxsize=4096)
def _so_far(mechanism: Mechanism, delta: float) -> SpentSoFar:
    return SpentSoFar(mechanism, delta)


@lru_cache(maxsize=65536)
def _after(mechanism: Mechanism, delta: float, releases: int) -> float:
    return _so_far(mechanism, delta).after(releases)
