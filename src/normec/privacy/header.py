"""The first line of a ledger: the mechanism that was accounted, written by the one that releases and read by everyone else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from typing import Any, ClassVar, TypedDict

from normec.errors import BadInput
from normec.privacy.accountant import within_limit
from normec.privacy.aggregation import Aggregation, LatticeSum
from normec.privacy.events import to_table
from normec.privacy.mechanism import Adjacency, Mechanism, Privacy
from normec.privacy.noise import NOISES, Accounted, is_independent
from normec.privacy.participation import OWN, Full, Participation, participation_from_table, scheme_of
from normec.privacy.trust import Dropouts, SecAgg, Trust, trust_model

LIBRARY = "dp-accounting"


class Promised(TypedDict):
    """The clients to whom something is promised, where others participate as well: those of a run that an audit's canaries join."""

    clients: int
    scheme: str
    rate: float


@dataclass(frozen=True, kw_only=True)
class Header:
    """A mechanism as plain values.

    sensitivity: how far one client moves the sum (norm). noise_std: of each coordinate of one draw of noise. denominator: pM.
    client_limit: ε at which a client stays silent. own_coins: whether each client draws for itself who takes part, where participants
    add the noise; a ledger that does not say so is of cohorts that the server draws. noise: "seeded", "secure" or an import path,
    whose event stands beside it. accountant: of the planned ε. library: the version of dp-accounting.
    """

    trust: Trust
    adjacency: Adjacency
    sensitivity: float
    delta: float | None
    clients: int
    scheme: str
    rate: float
    rounds: int
    noise_multiplier: float
    noise_std: float
    denominator: float
    min_honest: int
    colluders: int
    dropouts: Dropouts = "adversarial"
    cohort_memories: bool = False
    client_limit: float | None
    own_coins: bool = False
    noise: str = "seeded"
    event: str | None = None
    accountant: str
    library: str
    accounted: Promised | None = None

    @classmethod
    def of(cls, mechanism: Mechanism, privacy: Privacy, delta: float | None, accountant: str, promised: Mechanism | None = None) -> Header:
        """promised: the mechanism of those to whom something is promised, where it is another."""
        secagg = mechanism.trust if isinstance(mechanism.trust, SecAgg) else SecAgg()
        own = None if is_independent(mechanism.noise) else mechanism.noise.dp_event(mechanism)
        accounted: Promised | None = None
        if promised is not None and promised.clients != mechanism.clients:
            accounted = {"clients": promised.clients, "scheme": scheme_of(promised.participation), "rate": promised.rate}
        return cls(
            trust=mechanism.trust.name,
            adjacency=mechanism.adjacency,
            sensitivity=mechanism.sensitivity,
            delta=delta,
            clients=mechanism.clients,
            scheme=scheme_of(mechanism.participation),
            rate=mechanism.rate,
            rounds=mechanism.rounds,
            noise_multiplier=mechanism.noise_multiplier,
            noise_std=mechanism.noise_std,
            denominator=mechanism.expected,
            min_honest=secagg.min_honest,
            colluders=secagg.colluders,
            dropouts=secagg.dropouts,
            cohort_memories=mechanism.cohort_memories,
            client_limit=privacy.client_limit,
            own_coins=mechanism.own_coins,
            noise=privacy.noise,
            event=None if own is None else to_table(own),
            accountant=accountant,
            library=version(LIBRARY),
            accounted=accounted,
        )

    @classmethod
    def read(cls, line: Mapping[str, Any]) -> Header:
        """Of a ledger's first line; fields that came later may be missing.

        Raises:
            BadInput: where it names no mechanism.
        """
        known = {**line, "library": line.get(LIBRARY)}
        try:
            return cls(**{field.name: known[field.name] for field in fields(cls) if field.name in known})
        except TypeError as error:
            raise BadInput("ledger", f": its first line names no mechanism ({error})") from None

    def table(self) -> dict[str, object]:
        """As the ledger holds it. Fields that most mechanisms lack stand there only where they have a value."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        found[LIBRARY] = found.pop("library")
        rare = {name: found.pop(name) for name in ("own_coins", "event", "accounted")}
        if found["dropouts"] == "adversarial":
            del found["dropouts"]
        return found | {name: value for name, value in rare.items() if value}

    @property
    def of_promised(self) -> Header:
        """The same for those to whom something is promised."""
        return replace(self, **self.accounted) if self.accounted else self

    def mechanism(self, rounds: int | None = None) -> Mechanism:
        """The mechanism, for the planned rounds or for so many."""
        mechanism = Mechanism(
            trust=trust_model(self.trust, self.min_honest, self.colluders, self.dropouts),
            adjacency=self.adjacency,
            noise_multiplier=self.noise_multiplier,
            participation=_participation(self.scheme, self.rate),
            clients=self.clients,
            rounds=self.rounds if rounds is None else rounds,
            noise=NOISES[self.noise] if self.noise in NOISES else Accounted(self.noise, self.event),
            aggregation=LatticeSum(1.0) if self.noise == "secure" else Aggregation(),
            cohort_memories=self.cohort_memories,
            server_draws=not self.own_coins,
        )
        mechanism = replace(mechanism, bound=self.sensitivity / mechanism.distance)
        return within_limit(mechanism, self.client_limit, self.delta or 0.0) if self.client_limit else mechanism


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
