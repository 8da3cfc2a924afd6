"""The one object that says sensitivity, noise, where noise is added and how clients are sampled.

Noise, aggregation, accounting and reports all read it, so they cannot disagree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from normec.algorithms import Slots
from normec.errors import BadInput
from normec.genuine import unchanged
from normec.imports import load_object, looks_like_import_path
from normec.privacy.aggregation import Aggregation
from normec.privacy.noise import LATTICE_GAP, NOISES, Draw, Noise, Seeded, is_independent
from normec.privacy.participation import OWN, Fixed, Full, Participation, Poisson, scheme_of
from normec.privacy.trust import Dropouts, Trust, TrustModel, check_honest, trust_model
from normec.settings import Count, OpenUnit, Settings, Text
from normec.streams import Streams

Epsilon = Annotated[float, Field(ge=1e-9, le=1e4, description="a number > 0, from 1e-9 to 10000")]
NoiseMultiplier = Annotated[float, Field(ge=0, le=1e9, description="a number >= 0, up to 1e9")]
Colluders = Annotated[int, Field(ge=0, le=10**12, description="a whole number >= 0")]
SMALLEST_NOISE = 1e-6
"""A smaller noise multiplier is added like any other, and counts as none."""

Adjacency = Literal["zero-out", "replace-one"]


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
    noise: "seeded" draws noise and cohorts from the run's seed, for simulation; "secure" from the operating system; or the import
    path of a class of one's own (`privacy.noise.Noise`), for simulation under "central".
    delta: δ, by default min(1e-5, M^(−1.1)). stop_at: an ε at which the run ends before the round that would exceed it.
    min_honest, colluders: of "secagg"; a round is given up before its sum is opened where survivors − colluders < min_honest.
    dropouts: of "secagg"; "none" supposes that no adversary makes clients drop out, so that the cohorts' own sizes count and not
    min_honest in each of them.
    client_limit: of "secagg" and "local": the ε that each client's own rounds may spend; a client that has reached it stays
    silent.
    adjacency: neighbouring runs differ by one client's message set to zero ("zero-out"), or replaced ("replace-one").
    """

    trust: Trust
    epsilon: Epsilon | None = None
    noise_multiplier: NoiseMultiplier | None = None
    delta: OpenUnit | None = None
    adjacency: Adjacency = "zero-out"
    noise: Text = "seeded"
    stop_at: Epsilon | None = None
    client_limit: Epsilon | None = None
    min_honest: Count | None = None
    colluders: Colluders = 0
    dropouts: Dropouts = "adversarial"

    def __init__(self, /, **values: object) -> None:
        super().__init__(**values)
        check_honest(self.trust, self.min_honest, self.colluders, self.dropouts)
        if self.noise not in NOISES and not looks_like_import_path(self.noise):
            raise BadInput("noise", value=self.noise, must="be 'seeded', 'secure', or the import path of a class, as in 'module:Name'")
        if self.noise not in NOISES and self.trust != "central":
            raise BadInput(
                "noise", "of your own acts only with trust='central'", value=self.noise, remedy="Use 'seeded' or 'secure', or change trust"
            )
        if not self.trust_model.per_client and self.client_limit is not None:
            raise BadInput(
                "client_limit",
                "acts only with trust='local' or 'secagg', where clients know what they spend",
                value=self.client_limit,
                remedy="Use stop_at, or change trust",
            )
        given = [key for key in ("epsilon", "noise_multiplier") if getattr(self, key) is not None]
        moot = [*given, *(key for key in ("delta", "stop_at") if getattr(self, key) is not None)]
        moot += ["noise"] if self.noise != "seeded" else []
        if self.trust == "none" and moot:
            raise BadInput(moot[0], "has no meaning with trust='none'", value=getattr(self, moot[0]), remedy="Remove it, or change trust")
        if self.trust != "none" and len(given) != 1:
            problem = "Give epsilon or noise_multiplier." if not given else "Give only one of epsilon and noise_multiplier."
            raise BadInput("epsilon", f", noise_multiplier={self.noise_multiplier}: {problem}", value=self.epsilon)

    @property
    def trust_model(self) -> TrustModel:
        """The trust model with its fields."""
        return trust_model(self.trust, self.min_honest, self.colluders, self.dropouts)

    def noise_model(self) -> Noise:
        """The noise.

        Raises:
            BadInput: for an import path at which there is none.
        """
        if self.noise in NOISES:
            return NOISES[self.noise]
        kind = load_object("privacy.noise", self.noise)
        if not (isinstance(kind, type) and issubclass(kind, Noise)):
            raise BadInput("privacy.noise", "is not a class of noise", value=self.noise, remedy="Derive it from normec.privacy.noise.Noise")
        if kind.secure:
            raise BadInput(
                "privacy.noise", "calls itself secure, which noise of your own is not", value=self.noise, remedy="Leave `secure` out"
            )
        made: Noise = kind()
        return made

    def delta_for(self, clients: int) -> float:
        """δ: the given one, or the default."""
        return self.delta if self.delta is not None else default_delta(clients)


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """K releases of the sum of bounded messages, of the cohort that `participation` samples, plus Gaussian noise.

    trust: who adds the noise. bound: C, the largest norm of one message. noise_multiplier: σ/C, 0 for no noise: of one draw of the
    noise, on the sum under trust "central", of each participant under "secagg" and "local". clients: M. rounds: K. noise: how the
    noise is drawn, and the event that it is accounted by. aggregation: how messages become a sum. most_exposure: the Σ 1/h_k over
    its rounds at which a client stays silent, where participants add the noise. cohort_memories: whether clients keep memories that
    move only in the cohort, so that they depend on cohorts that are secret. server_draws: whether the server draws Poisson cohorts
    where participants add the noise, in place of each client's own coin.
    """

    trust: TrustModel
    adjacency: Adjacency = "zero-out"
    bound: float = 1.0
    noise_multiplier: float = 0.0
    participation: Participation
    clients: int
    rounds: int
    noise: Noise = Seeded()  # noqa: RUF009 (immutable)
    aggregation: Aggregation = Aggregation()  # noqa: RUF009 (immutable)
    most_exposure: float = math.inf
    cohort_memories: bool = False
    server_draws: bool = False
    _as_defined: tuple[bool, bool] = field(init=False, repr=False)
    """Whether cohorts and noise are drawn as their classes define it: equal mechanisms, whose ε is kept, agree in that too."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_as_defined", (unchanged(self.participation), unchanged(self.noise)))

    def in_units_of_the_bound(self) -> Mechanism:
        """The same for messages of norm 1, which spends the same: ε depends on the bound through σ/C alone."""
        return replace(self, bound=1.0, aggregation=self.aggregation.in_units_of_the_bound)

    @property
    def lattice(self) -> float:
        """The step on which messages and noise live, 0 for none."""
        return self.aggregation.lattice

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
    def own_coins(self) -> bool:
        """Whether each client draws for itself who takes part, so that a server that is the adversary has no say in it."""
        return self.trust.per_client and self.sampling == Poisson.scheme and not self.server_draws

    @property
    def trusts_the_draw(self) -> bool:
        """Whether ε averages over cohorts that the server draws, where it is the adversary."""
        return self.trust.per_client and self.sampling in (Poisson.scheme, Fixed.scheme) and not self.own_coins

    @property
    def private(self) -> bool:
        """Whether an ε can be claimed: somebody adds noise, and it says by which event it is accounted."""
        return self.trust.promises and self.noise_multiplier >= SMALLEST_NOISE and self.accountable

    @property
    def accountable(self) -> bool:
        """Whether the noise names the event that it is accounted by."""
        return is_independent(self.noise) or self.noise.dp_event(self) is not None

    @property
    def honest(self) -> int:
        """h: how many participants' noises protect a client in a release of which the adversary knows the participants."""
        return self.trust.honest

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

    def std_of_sum(self, participants: int) -> float:
        """The standard deviation of each coordinate of a draw of noise on the sum of a round: σ, or σ √n of n participants."""
        return self.noise_std * math.sqrt(self.trust.draws(participants))

    def release(self, total: Tensor, participants: int, state: Slots, streams: Streams, k: int) -> tuple[Tensor, Slots]:
        """The released mean (d,) of round k from the sum of messages (d,) in float64, (sum + noise) / (pM); and the noise's slots."""
        noised, state = self.noised(total, participants, state, streams, k)
        return self.mean(noised), state

    def mean(self, total: Tensor) -> Tensor:
        """The one place where a sum becomes a mean: by the public denominator."""
        return total / self.expected

    def noised(self, total: Tensor, participants: int, state: Slots, streams: Streams, k: int) -> tuple[Tensor, Slots]:
        """The one place where noise is added: to the sum (d,), in float64, of the messages of round k. state: the noise's slots.

        The noises of n participants are drawn at once, as one of √n times the standard deviation; a participant that adds
        its own takes its message for the sum of one.
        """
        std = self.std_of_sum(participants)
        return self.noise.next(state, total, Draw(std, self.lattice, streams, k)) if std > 0 else (total, state)

    def noise_to_bound(self, d: int) -> float:
        """The expected norm of the noise on the mean, std √d / (pM), over the norm bound C of the mean's messages."""
        return self.std_of_sum(round(self.expected)) * math.sqrt(d) / (self.expected * self.bound)
