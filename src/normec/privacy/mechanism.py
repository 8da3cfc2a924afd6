"""The one object that says sensitivity, noise, where noise is added and how clients are sampled.

Noise, aggregation, accounting and reports all read it, so they cannot disagree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from normec.errors import BadInput
from normec.privacy.noise import LATTICE_GAP, seeded_gaussian, with_secure_gaussian
from normec.privacy.participation import OWN, Full, Participation, scheme_of
from normec.settings import Count, OpenUnit, Settings
from normec.streams import Streams

Epsilon = Annotated[float, Field(ge=1e-9, le=1e4, description="a number > 0, from 1e-9 to 10000")]
NoiseMultiplier = Annotated[float, Field(ge=0, le=1e9, description="a number >= 0, up to 1e9")]
Colluders = Annotated[int, Field(ge=0, le=10**12, description="a whole number >= 0")]
SMALLEST_NOISE = 1e-6
"""A smaller noise multiplier is added like any other, and counts as none."""

Trust = Literal["central", "secagg", "local", "none"]
Adjacency = Literal["zero-out", "replace-one"]

PER_CLIENT: tuple[Trust, ...] = ("secagg", "local")
"""Where each participant adds noise, and the adversary knows who takes part."""


def default_delta(clients: int) -> float:
    """min(1e-5, M^(−1.1)): below one over the clients."""
    delta: float = min(1e-5, clients**-1.1)
    return delta


class Privacy(Settings):
    """What is promised: the `[privacy]` section.

    trust: who adds noise. "central": a trusted server, once on the sum of the messages. "secagg": each participant, and a
    secure sum hides all but the total. "local": each participant, and every message is seen. "none": nobody, ε = ∞.
    epsilon: ε of the whole run, or noise_multiplier: σ/C, the standard deviation of the noise (on the sum under "central",
    of each participant under "secagg" and "local") over the norm bound of one message.
    noise: "seeded" draws noise and cohorts from the run's seed, for simulation; "secure" from the operating system.
    delta: δ, by default min(1e-5, M^(−1.1)). stop_at: an ε at which the run ends before the round that would exceed it.
    min_honest, colluders: of "secagg"; a round is given up before its sum is opened where survivors − colluders < min_honest.
    client_limit: of "secagg" and "local": the ε that each client's own rounds may spend; a client that has reached it stays
    silent.
    adjacency: neighbouring runs differ by one client's message set to zero ("zero-out"), or replaced ("replace-one").
    """

    trust: Trust
    epsilon: Epsilon | None = None
    noise_multiplier: NoiseMultiplier | None = None
    delta: OpenUnit | None = None
    adjacency: Adjacency = "zero-out"
    noise: Literal["seeded", "secure"] = "seeded"
    stop_at: Epsilon | None = None
    client_limit: Epsilon | None = None
    min_honest: Count | None = None
    colluders: Colluders = 0

    def __init__(self, /, **values: object) -> None:
        super().__init__(**values)
        if self.trust == "secagg" and self.min_honest is None:
            raise BadInput("min_honest", " is missing: with trust='secagg' a client hides among the honest. Say how many at least.")
        if self.trust != "secagg" and (self.min_honest is not None or self.colluders):
            key = "colluders" if self.min_honest is None else "min_honest"
            raise BadInput(key, f"={getattr(self, key)} acts only with trust='secagg'. Remove it, or change trust.")
        if self.trust not in PER_CLIENT and self.client_limit is not None:
            problem = f"={self.client_limit} acts only with trust='local' or 'secagg', where clients know what they spend."
            raise BadInput("client_limit", f"{problem} Use stop_at, or change trust.")
        given = [key for key in ("epsilon", "noise_multiplier") if getattr(self, key) is not None]
        moot = [*given, *(key for key in ("delta", "stop_at") if getattr(self, key) is not None)]
        moot += ["noise"] if self.noise == "secure" else []
        if self.trust == "none" and moot:
            raise BadInput(moot[0], f"={getattr(self, moot[0])} has no meaning with trust='none'. Remove it, or change trust.")
        if self.trust != "none" and len(given) != 1:
            problem = "Give epsilon or noise_multiplier." if not given else "Give only one of epsilon and noise_multiplier."
            raise BadInput("epsilon", f"={self.epsilon}, noise_multiplier={self.noise_multiplier}: {problem}")

    def delta_for(self, clients: int) -> float:
        """δ: the given one, or the default."""
        return self.delta if self.delta is not None else default_delta(clients)


@dataclass(frozen=True)
class Mechanism:
    """K releases of the sum of bounded messages, of the cohort that `participation` samples, plus Gaussian noise.

    bound: C, the largest norm of one message. noise_multiplier: σ/C, 0 for no noise: of the noise on the sum under trust
    "central", of each participant's under "secagg" and "local". clients: M. rounds: K. min_honest, colluders: of "secagg".
    lattice: the step on which messages and secure noise live, 0 for seeded noise. most_exposure: the Σ 1/h_k over its rounds
    at which a client stays silent, where participants add the noise. cohort_memories: whether clients keep memories that move only
    in the cohort, so that they depend on cohorts that are secret.
    """

    trust: Trust
    adjacency: Adjacency
    bound: float
    noise_multiplier: float
    participation: Participation
    clients: int
    rounds: int
    min_honest: int = 1
    colluders: int = 0
    lattice: float = 0.0
    most_exposure: float = math.inf
    cohort_memories: bool = False

    def in_units_of_the_bound(self) -> Mechanism:
        """The same for messages of norm 1, which spends the same: ε depends on the bound through σ/C alone."""
        return replace(self, bound=1.0, lattice=float(self.lattice > 0))

    @property
    def gap(self) -> float:
        """κ: (ε, δ) of Gaussian noise are (ε + 2κ, δ e^κ) of noise on the lattice; 0 for seeded noise."""
        return LATTICE_GAP if self.lattice else 0.0

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
        """σ: the standard deviation of each coordinate of one draw: on the sum, or of each participant."""
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
        """How the accountant may treat the cohorts: poisson, fixed, full (p = 1 is full for both), or own, of which nothing is known."""
        scheme = scheme_of(self.participation)
        return Full.scheme if self.rate == 1 and scheme != OWN else scheme

    @property
    def private(self) -> bool:
        return self.trust != "none" and self.noise_multiplier >= SMALLEST_NOISE

    @property
    def honest(self) -> int:
        """h: how many participants' noises protect a client in a release of which the adversary knows the participants."""
        return self.min_honest if self.trust == "secagg" else 1

    def silent(self, exposure: Tensor) -> Tensor:
        """Which clients (bool, (M,)) keep out of the next round: another one may take their Σ 1/h_k past `most_exposure`."""
        return exposure + 1.0 / self.honest > self.most_exposure

    @property
    def silences_all(self) -> bool:
        """Whether no client may take part in even one round."""
        return 1.0 / self.honest > self.most_exposure

    def cohort(self, exposure: Tensor, k: int, streams: Streams) -> np.ndarray:
        """Who transmits in round k, as a mask (M,): the sampled clients that are not silent."""
        sampled = self.participation.cohort(self.clients, k, streams)
        if self.most_exposure < math.inf:
            sampled[self.silent(exposure).numpy()] = False
        return sampled

    def gives_up(self, participants: int) -> bool:
        """Whether a round with so many survivors ends before its sum is opened."""
        return self.trust == "secagg" and participants - self.colluders < self.min_honest

    def exposure(self, participants: int) -> float:
        """1 / h_k: what a participant of this round adds to (μ_i z / distance)², where participants add the noise."""
        return 1.0 / (participants - self.colluders if self.trust == "secagg" else 1)

    def std_of_sum(self, participants: int) -> float:
        """The standard deviation of each coordinate of the noise on the sum of a round: σ, or σ √n of n participants."""
        return self.noise_std * (math.sqrt(participants) if self.trust in PER_CLIENT else 1.0)

    def release(self, total: Tensor, participants: int, streams: Streams, k: int) -> Tensor:
        """The released mean (d,) of round k from the sum of messages (d,) in float64: (sum + noise) / (pM)."""
        return self.mean(self.noised(total, participants, streams, k))

    def mean(self, total: Tensor) -> Tensor:
        """The one place where a sum becomes a mean: by the public denominator."""
        return total / self.expected

    def noised(self, total: Tensor, participants: int, streams: Streams, k: int) -> Tensor:
        """The one place where noise is added: to the sum (d,), in float64, of the messages of round k.

        The noises of n participants are drawn at once, as one of √n times the standard deviation; a participant that adds
        its own takes its message for the sum of one.
        """
        std = self.std_of_sum(participants)
        if std > 0 and self.lattice:
            total = with_secure_gaussian(total, std, self.lattice)
        elif std > 0:
            total = total + seeded_gaussian(tuple(total.shape), std, streams, k, total.device)
        return total

    def noise_to_bound(self, d: int) -> float:
        """The expected norm of the noise on the mean, std √d / (pM), over the norm bound C of the mean's messages."""
        return self.std_of_sum(round(self.expected)) * math.sqrt(d) / (self.expected * self.bound)
