"""Evaluation by the clients, on data of their own: what is asked, and the mechanism that protects the answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from normec.errors import BadInput
from normec.privacy import Mechanism, Privacy, calibrate
from normec.privacy.aggregation import Aggregation, lattice_for
from normec.privacy.mechanism import SMALLEST_NOISE, Epsilon, NoiseMultiplier
from normec.privacy.noise import Secure, Seeded
from normec.privacy.participation import Full
from normec.privacy.promise import check_lattice
from normec.settings import Count, OpenUnit, Positive, Settings

WEIGHT = "num-examples"
"""Of the metrics that an evaluate function returns, the number of samples they were taken over."""

Ranges = Annotated[
    dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")], Positive],
    Field(min_length=1, max_length=64, description="names of metrics with the largest value of each, such as {loss = 5.0, accuracy = 1.0}"),
]


class ClientEvaluation(Settings):
    """Every so many rounds, and after the last, the clients' evaluate functions are asked for metrics of the model.

    every: rounds from one evaluation to the next. metrics: the names that count, each with the largest value it may have.
    Without privacy (trust "none") the result is the mean over samples, whose number (`num-examples`) each client says, and
    the ranges do not matter. Otherwise each client clips its values into [0, largest] and sends x / √m of the m values over
    their largest ones: a vector of norm at most 1, noised as the trust model of the training says and accounted by itself. The
    result is the mean over clients.
    epsilon: ε of all evaluations together, or noise_multiplier: σ, on the sum under "central", of each client under "local".
    delta: δ, by default that of the training.
    """

    every: Count = 1
    metrics: Ranges = Field(default_factory=lambda: {"loss": 5.0, "accuracy": 1.0})
    epsilon: Epsilon | None = None
    noise_multiplier: NoiseMultiplier | None = None
    delta: OpenUnit | None = None

    def settled(self, privacy: Privacy, clients: int, rounds: int) -> ClientEvaluation:
        """The same with the noise multiplier that a promised ε needs, and its δ.

        Raises:
            BadInput: where nothing protects the answers of a private training, or something is promised without one.
        """
        given = [name for name in ("epsilon", "noise_multiplier") if getattr(self, name) is not None]
        if privacy.trust == "none":
            if given or self.delta is not None:
                name = given[0] if given else "delta"
                raise BadInput(
                    f"evaluation.{name}",
                    "has no meaning with privacy.trust='none'",
                    value=getattr(self, name),
                    remedy="Remove it, or change trust",
                )
            return self
        if len(given) != 1:
            raise BadInput(
                "evaluation.epsilon",
                (
                    f", noise_multiplier={self.noise_multiplier}: give one of the two, since privacy.trust={privacy.trust!r} "
                    "protects what the clients answer"
                ),
                value=self.epsilon,
            )
        found = self.changed(delta=self.delta if self.delta is not None else privacy.delta_for(clients))
        if self.epsilon is not None:
            silent = found.mechanism(privacy, clients, rounds)
            found = found.changed(epsilon=None, noise_multiplier=calibrate(silent, self.epsilon, found.delta or 0.0))
        found.mechanism(privacy, clients, rounds)
        return found

    def check(self, privacy: Privacy, clients: int, rounds: int) -> None:
        """Refuses what a server has not settled, or may not ask for.

        Raises:
            BadInput: naming the setting.
        """
        if self.epsilon is not None or (privacy.trust != "none" and self.delta is None):
            raise BadInput("evaluation", "names an ε to be calibrated", remedy="Give the noise multiplier and δ")
        if (privacy.trust == "none") != (self.noise_multiplier is None):
            raise BadInput("evaluation.noise_multiplier", f"does not go with privacy.trust={privacy.trust!r}", value=self.noise_multiplier)
        if privacy.trust != "none" and not (self.noise_multiplier or 0.0) >= SMALLEST_NOISE:
            raise BadInput(
                "evaluation.noise_multiplier", "counts as no noise", value=self.noise_multiplier, remedy="Raise it, or leave evaluation out"
            )
        self.mechanism(privacy, clients, rounds)

    @property
    def ranges(self) -> tuple[tuple[str, float], ...]:
        """The metrics with their largest values, in the order of a message: by name, as server and client must agree."""
        return tuple(sorted(self.metrics.items()))

    def number(self, rounds: int) -> int:
        """How many evaluations so many rounds have."""
        return math.ceil(rounds / self.every)

    def due(self, rounds_done: int, rounds: int) -> bool:
        """Whether there is one after so many of the rounds."""
        return rounds_done > 0 and (rounds_done % self.every == 0 or rounds_done == rounds)

    def mechanism(self, privacy: Privacy, clients: int, rounds: int) -> Mechanism:
        """All evaluations as releases: every client in each, messages of norm at most 1 and their rounding.

        Raises:
            BadInput: for noise that its lattice cannot hold.
        """
        aggregation = lattice_for(1.0) if privacy.trust != "none" else Aggregation()
        mechanism = Mechanism(
            trust=privacy.trust_model,
            adjacency=privacy.adjacency,
            bound=1.0 + aggregation.lattice * math.sqrt(len(self.metrics)) / 2,
            noise_multiplier=self.noise_multiplier or 0.0,
            participation=Full(),
            clients=clients,
            rounds=self.number(rounds),
            noise=Secure() if privacy.trust != "none" else Seeded(),
            aggregation=aggregation,
        )
        delta = self.delta if self.delta is not None else privacy.delta_for(clients)
        check_lattice(mechanism, len(self.metrics), delta, "evaluation.noise_multiplier")
        return mechanism

    def message(self, values: Mapping[str, object] | None, mechanism: Mechanism) -> Tensor:
        """A client's message, before any noise: (m,) of norm at most 1, or (1 + m,), its weight and metrics, without privacy.

        values: what its evaluate function has returned; None where it failed, which counts as zeros under privacy, and so does
        a number that is missing or not finite: an error would tell of the data.

        Raises:
            BadInput: without privacy, for metrics that are missing or no numbers.
        """
        if not mechanism.trust.promises:
            return torch.tensor([_number(values or {}, name) for name in (WEIGHT, *(name for name, _ in self.ranges))], dtype=torch.float64)
        shares = [_share((values or {}).get(name), largest) for name, largest in self.ranges]
        return mechanism.aggregation.encode(torch.tensor(shares) / math.sqrt(len(shares)))

    def result(self, messages: Sequence[Tensor], mechanism: Mechanism, noised: Tensor | None) -> dict[str, float]:
        """The metrics of all clients that have answered. noised: the sum (m,) of their messages with its noise, under privacy."""
        if noised is None:
            rows = torch.stack(list(messages))
            means = (rows[:, 1:] * rows[:, :1]).sum(0) / rows[:, 0].sum()
            return {name: mean for (name, _), mean in zip(self.ranges, means.tolist(), strict=True)}
        means = noised / len(messages) * math.sqrt(len(self.metrics))
        return {name: float(mean) * largest for (name, largest), mean in zip(self.ranges, means, strict=True)}

    def noise_std(self, mechanism: Mechanism, answered: int) -> dict[str, float]:
        """The standard deviation of the noise on each metric of a result."""
        std = mechanism.std_of_sum(answered) / answered * math.sqrt(len(self.metrics))
        return {name: std * largest for name, largest in self.ranges}


def _number(values: Mapping[str, object], name: str) -> float:
    value = values.get(name)
    if not isinstance(value, int | float) or not math.isfinite(value) or (name == WEIGHT and value < 0):
        raise BadInput(f"evaluation: the evaluate function has returned {name}", ", and a number is wanted", value=value)
    return float(value)


def _share(value: object, largest: float) -> float:
    """A value over its largest one, in [0, 1]."""
    if not isinstance(value, int | float) or math.isnan(value):
        return 0.0
    return min(max(value / largest, 0.0), 1.0)
