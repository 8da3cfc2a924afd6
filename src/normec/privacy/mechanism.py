"""The one object that says sensitivity, noise, where noise is added and how clients are sampled.

Noise, aggregation, accounting and reports all read it, so they cannot disagree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from normec.errors import BadInput
from normec.noise import seeded_gaussian
from normec.participation import Full, Participation
from normec.settings import OpenUnit, Settings
from normec.streams import Streams

Epsilon = Annotated[float, Field(ge=1e-9, le=1e4, description="a number > 0, from 1e-9 to 10000")]
NoiseMultiplier = Annotated[float, Field(ge=0, le=1e9, description="a number >= 0, up to 1e9")]
SMALLEST_NOISE = 1e-6
"""A smaller noise multiplier is added like any other, and counts as none."""

Trust = Literal["central", "none"]
Adjacency = Literal["zero-out", "replace-one"]

LATER = {
    "trust": {"local": "use central or none", "secagg": "use central or none"},
    "noise": {"secure": "use seeded, for simulation"},
}
"""Choices of the interface that this version refuses by name."""


class Privacy(Settings):
    """What is promised: the `[privacy]` section.

    trust: who adds noise. "central": a trusted server, once on the sum of the messages. "none": nobody, ε = ∞.
    epsilon: ε of the whole run, or noise_multiplier: σ/C, the standard deviation of the noise on the sum over the norm
    bound of one message. delta: δ, by default min(1e-5, M^(−1.1)).
    adjacency: neighbouring runs differ by one client's message set to zero ("zero-out"), or replaced ("replace-one").
    """

    trust: Trust
    epsilon: Epsilon | None = None
    noise_multiplier: NoiseMultiplier | None = None
    delta: OpenUnit | None = None
    adjacency: Adjacency = "zero-out"
    noise: Literal["seeded"] = "seeded"

    def __init__(self, /, **values: object) -> None:
        for key, choices in LATER.items():
            value = values.get(key)
            if isinstance(value, str) and value in choices:
                raise BadInput(key, f"={value!r} is not available in this version: {choices[value]}.")
        super().__init__(**values)
        given = [key for key in ("epsilon", "noise_multiplier") if getattr(self, key) is not None]
        if self.trust == "none" and (given or self.delta is not None):
            key = (given or ["delta"])[0]
            raise BadInput(key, f"={getattr(self, key)} has no meaning with trust='none'. Remove it, or use trust='central'.")
        if self.trust != "none" and len(given) != 1:
            problem = "Give epsilon or noise_multiplier." if not given else "Give only one of epsilon and noise_multiplier."
            raise BadInput("epsilon", f"={self.epsilon}, noise_multiplier={self.noise_multiplier}: {problem}")

    def delta_for(self, clients: int) -> float:
        """δ: the given one, or min(1e-5, M^(−1.1))."""
        return self.delta if self.delta is not None else min(1e-5, clients**-1.1)


@dataclass(frozen=True)
class Mechanism:
    """K releases of the sum of bounded messages, of the cohort that `participation` samples, plus Gaussian noise.

    bound: C, the largest norm of one message. noise_multiplier: σ/C, 0 for no noise. clients: M. rounds: K.
    """

    trust: Trust
    adjacency: Adjacency
    bound: float
    noise_multiplier: float
    participation: Participation
    clients: int
    rounds: int

    @property
    def distance(self) -> float:
        """How far one client moves the sum, in units of the bound: 1 (zero-out) or 2 (replace-one)."""
        return 2.0 if self.adjacency == "replace-one" else 1.0

    @property
    def sensitivity(self) -> float:
        """How far one client moves the sum (norm)."""
        return self.distance * self.bound

    @property
    def noise_std(self) -> float:
        """σ: the standard deviation of each coordinate of the noise on the sum."""
        return self.noise_multiplier * self.bound if self.noise_multiplier else 0.0

    @property
    def expected(self) -> float:
        """pM: the public denominator that turns the sum into a mean."""
        return self.participation.expected(self.clients)

    @property
    def rate(self) -> float:
        """p: the share of the clients that transmit in a round, in expectation."""
        return self.expected / self.clients

    @property
    def sampling(self) -> str:
        """How the accountant may treat the cohorts: poisson, fixed or full (p = 1 is full whatever the scheme)."""
        return Full.scheme if self.rate == 1 else self.participation.scheme

    @property
    def private(self) -> bool:
        return self.trust != "none" and self.noise_multiplier >= SMALLEST_NOISE

    def release(self, total: Tensor, streams: Streams, k: int) -> Tensor:
        """The released mean (d,) of round k from the sum of messages (d,) in float64: (sum + noise) / (pM).

        The one place where noise is added, and the one place where a sum becomes a mean.
        """
        if self.noise_std > 0:
            total = total + seeded_gaussian(tuple(total.shape), self.noise_std, streams, k, total.device)
        return total / self.expected

    def noise_to_bound(self, d: int) -> float:
        """The expected norm of the noise on the mean, z C √d / (pM), over the norm bound C of the mean's messages."""
        return self.noise_multiplier * math.sqrt(d) / self.expected
