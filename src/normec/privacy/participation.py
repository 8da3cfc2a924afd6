"""Who takes part in a round: the cohort, and the sampling half of the privacy mechanism."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from normec.errors import BadInput
from normec.genuine import unchanged
from normec.settings import Probability, Settings, Tree, choose
from normec.streams import Streams


class Participation(Settings):
    """Base: draws the clients that transmit in a round."""

    scheme: ClassVar[str]

    def expected(self, clients: int) -> float:
        """The public denominator pM of every mean: the expected number of participants, never the realised one."""
        raise NotImplementedError

    def cohort(self, clients: int, k: int, streams: Streams) -> np.ndarray:
        """The participants of round k as a boolean mask of shape (clients,)."""
        raise NotImplementedError


class _Sampled(Participation):
    """A cohort that is a share of the clients. rate: p."""

    rate: Probability

    def __init__(self, /, rate: float, **unknown: Any) -> None:
        Settings.__init__(self, rate=rate, **unknown)


class Poisson(_Sampled):
    """Each client independently with probability `rate` in each round (Algorithm 1, step 3).

    A cohort may be empty: under DP the round then releases noise alone.
    """

    scheme: ClassVar[str] = "poisson"

    def expected(self, clients: int) -> float:
        return self.rate * clients

    def cohort(self, clients: int, k: int, streams: Streams) -> np.ndarray:
        return streams.generator("participation", k).random(clients) < self.rate


class Fixed(_Sampled):
    """A cohort of exactly `rate` · M clients (rounded), uniformly without replacement.

    Another mechanism than Poisson sampling, with its own accounting.
    """

    scheme: ClassVar[str] = "fixed"

    def expected(self, clients: int) -> float:
        size = round(self.rate * clients)
        if size < 1:
            raise BadInput("participation.rate", f"of {clients} clients is nobody", value=self.rate, remedy=f"Use at least {1 / clients:g}")
        return float(size)

    def cohort(self, clients: int, k: int, streams: Streams) -> np.ndarray:
        chosen = streams.generator("participation", k).permutation(clients)[: int(self.expected(clients))]
        cohort = np.zeros(clients, dtype=bool)
        cohort[chosen] = True
        return cohort


class Full(Participation):
    """Every client in every round."""

    scheme: ClassVar[str] = "full"

    def expected(self, clients: int) -> float:
        return float(clients)

    def cohort(self, clients: int, k: int, streams: Streams) -> np.ndarray:
        return np.ones(clients, dtype=bool)


OWN = "own"
"""What cohorts are called that no scheme of this library draws."""


def scheme_of(participation: Participation) -> str:
    """The scheme of a participation of exactly one of these classes; `OWN` for any other, whatever it says of itself.

    A subclass, or an object of which a function was replaced, may draw other cohorts, so that no amplification is claimed for it, nor
    any theorem.
    """
    known = SCHEMES.get(participation.scheme) is type(participation) and unchanged(participation)
    return participation.scheme if known else OWN


DEFAULT_RATE = 0.5
"""Of a configuration that names none."""

SCHEMES: dict[str, type[Participation]] = {kind.scheme: kind for kind in (Poisson, Fixed, Full)}


def participation_from_table(table: Tree) -> Participation:
    """The `[participation]` section: `scheme`, and `rate` for the schemes that have one."""
    table = dict(table)
    kind = choose("participation.scheme", table.pop("scheme", "poisson"), SCHEMES)
    if kind is not Full:
        table.setdefault("rate", DEFAULT_RATE)
    elif table.pop("rate", 1) != 1:
        raise BadInput("participation.rate", must="be 1 with scheme='full'", remedy="Remove it, or use poisson or fixed")
    return kind.from_table("participation", table)
