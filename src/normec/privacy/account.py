"""What a run has spent, by its ledger: the one place from which every reader has a run's ε."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, ClassVar

from normec.participation import OWN, Full, Participation, participation_from_table
from normec.privacy.accountant import SpentSoFar, epsilon, realised, within_limit
from normec.privacy.gaussian import Spent
from normec.privacy.ledger import Ledger
from normec.privacy.mechanism import PER_CLIENT, Mechanism


@dataclass(frozen=True)
class Account:
    """A verified ledger with a first line, and the mechanism that it names.

    mechanism: of the planned rounds. accounted: the same for those to whom something is promised, which an audit's canaries are not.
    """

    ledger: Ledger
    mechanism: Mechanism
    accounted: Mechanism
    delta: float

    @classmethod
    def of(cls, ledger: Ledger) -> Account:
        """Of a ledger with a first line."""
        header = ledger.lines[0]
        return cls(ledger, mechanism_of(header), mechanism_of({**header, **header.get("accounted", {})}), float(header["delta"]))

    @property
    def counted(self) -> int:
        """How many releases count."""
        return self.ledger.counted()

    @property
    def spent(self) -> Spent:
        """ε of all releases that count, and its accountant."""
        return epsilon(replace(self.accounted, rounds=self.counted), self.delta)

    @property
    def planned(self) -> Spent:
        """ε of all planned rounds, and its accountant."""
        return epsilon(self.accounted, self.delta)

    @property
    def client_limit(self) -> float | None:
        """What each client's own rounds may spend before it stays silent."""
        limit = self.ledger.lines[0]["client_limit"]
        return None if limit is None else float(limit)

    @cached_property
    def largest_exposure(self) -> float:
        """Of all clients, the largest Σ 1/h_k over its rounds that count, where participants add the noise."""
        return float(self.ledger.exposures(self.mechanism).max())

    @property
    def realised_max(self) -> float | None:
        """ε of the client whose own rounds spent most, where participants add the noise; None elsewhere."""
        per_client = self.mechanism.trust in PER_CLIENT
        return realised(self.mechanism, self.delta, self.largest_exposure).epsilon if per_client else None

    def at_least_after(self, rounds: int) -> float:
        """What a run must have spent after so many rounds: ε of the attempts up to the end of those, on a run's own coarser grid."""
        if self.ledger.seeded:
            return _after(self.accounted, self.delta, min(rounds, self.counted))
        begun = [line["round"] for line in self.ledger.lines if line["kind"] == "intent"]
        return _after(self.accounted, self.delta, bisect_right(list(accumulate(begun, max)), rounds - 1))


def mechanism_of(header: dict[str, Any]) -> Mechanism:
    """The mechanism that the first line of a ledger names, for the planned rounds."""
    names = ("trust", "adjacency", "noise_multiplier", "clients", "rounds", "min_honest", "colluders")
    mechanism = Mechanism(
        bound=1.0,
        participation=_participation(header["scheme"], header["rate"]),
        **{name: header[name] for name in names},
    )
    mechanism = replace(
        mechanism,
        bound=header["sensitivity"] / mechanism.distance,
        lattice=float(header["noise"] == "secure"),
        cohort_memories=bool(header.get("cohort_memories", False)),
    )
    return within_limit(mechanism, header["client_limit"], header["delta"]) if header["client_limit"] else mechanism


class _Own(Participation):
    """Cohorts of which only the rate is known."""

    scheme: ClassVar[str] = OWN
    known: float

    def expected(self, clients: int) -> float:
        return self.known * clients


def _participation(scheme: str, rate: float) -> Participation:
    if scheme == OWN:
        return _Own(known=rate)
    return participation_from_table({"scheme": scheme} | ({} if scheme == Full.scheme else {"rate": rate}))


@lru_cache(maxsize=4096)
def _so_far(mechanism: Mechanism, delta: float) -> SpentSoFar:
    return SpentSoFar(mechanism, delta)


@lru_cache(maxsize=65536)
def _after(mechanism: Mechanism, delta: float, releases: int) -> float:
    return _so_far(mechanism, delta).after(releases)
