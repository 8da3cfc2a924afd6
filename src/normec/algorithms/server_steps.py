"""The server's step on the model, which any algorithm can use: the `[server]` section.

x: the model (d,). direction: what the algorithm's server returned (d,). lr: η, the algorithm's `server_lr`.
Reference: Reddi et al. 2020, Adaptive Federated Optimization, Algorithm 2, with −direction for its Δ.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from normec.errors import BadInput
from normec.settings import Fraction, Positive, Settings, Tree, choose

Slots = tuple[Tensor, ...]


class ServerStep(Settings):
    """Base of the server's steps. `slots` names the vectors (d,) that the step remembers."""

    optimizer: ClassVar[str]
    slots: ClassVar[tuple[str, ...]] = ()

    def start(self, x: Tensor) -> Slots:
        """The slots before the first round."""
        return tuple(torch.zeros_like(x) for _ in self.slots)

    def check_dtype(self, dtype: torch.dtype) -> None:
        """Raises BadInput where a number that the step computes from its settings alone is beyond a dtype."""

    def step(self, x: Tensor, direction: Tensor, lr: float, state: Slots) -> tuple[Tensor, Slots]:
        """The new model and slots; its inputs stay as they are."""
        raise NotImplementedError

    def searched(self, ends: tuple[float, float]) -> tuple[float, float]:
        """The ends of the range of η that a search covers; `ends` are those of the plain step."""
        return ends


class Descent(ServerStep):
    """Plain step: x ← x − η direction."""

    optimizer: ClassVar[str] = "sgd"

    def step(self, x: Tensor, direction: Tensor, lr: float, state: Slots) -> tuple[Tensor, Slots]:
        return x - lr * direction, ()


class ServerMomentum(ServerStep):
    """FedAvgM: m ← μ m + direction, x ← x − η m. Reference: Hsu et al. 2019.

    momentum: μ in [0, 1); 0 is the plain step.
    """

    optimizer: ClassVar[str] = "momentum"
    slots: ClassVar[tuple[str, ...]] = ("m",)

    momentum: Fraction = 0.9

    def step(self, x: Tensor, direction: Tensor, lr: float, state: Slots) -> tuple[Tensor, Slots]:
        (m,) = state
        m = self.momentum * m + direction
        return x - lr * m, (m,)

    def searched(self, ends: tuple[float, float]) -> tuple[float, float]:
        """(1 − μ) times the ends of the plain step: against a constant direction the steps grow to η / (1 − μ)."""
        return ends[0] * (1 - self.momentum), ends[1] * (1 - self.momentum)


class ServerAdam(ServerStep):
    """FedAdam: m ← β₁ m + (1 − β₁) direction, v ← β₂ v + (1 − β₂) direction², x ← x − η m / (√v + τ).

    v starts at τ² and m at zero, without bias correction (Reddi et al. 2020, Algorithm 2). beta1, beta2: in [0, 1).
    tau: τ > 0, the degree of adaptivity.
    """

    optimizer: ClassVar[str] = "adam"
    slots: ClassVar[tuple[str, ...]] = ("m", "v")

    beta1: Fraction = 0.9
    beta2: Fraction = 0.99
    tau: Positive = 1e-3

    def start(self, x: Tensor) -> Slots:
        return torch.zeros_like(x), torch.full_like(x, self.tau**2)

    def check_dtype(self, dtype: torch.dtype) -> None:
        if not torch.finfo(dtype).tiny <= self.tau**2 <= torch.finfo(dtype).max:
            raise BadInput("server.tau", f": its square is beyond {dtype}", value=self.tau, remedy="Give a milder number")

    def step(self, x: Tensor, direction: Tensor, lr: float, state: Slots) -> tuple[Tensor, Slots]:
        m, v = state
        m = self.beta1 * m + (1 - self.beta1) * direction
        v = self.beta2 * v + (1 - self.beta2) * direction.square()
        return x - lr * m / (v.sqrt() + self.tau), (m, v)

    def searched(self, ends: tuple[float, float]) -> tuple[float, float]:
        """0.001 to 0.1: a step moves each coordinate by about η, however long the direction is."""
        return 0.001, 0.1


SERVER_STEPS: dict[str, type[ServerStep]] = {kind.optimizer: kind for kind in (Descent, ServerMomentum, ServerAdam)}


def server_step_from_table(table: Tree) -> ServerStep:
    """The `[server]` section: `optimizer`, and its settings."""
    table = dict(table)
    return choose("server.optimizer", table.pop("optimizer", "sgd"), SERVER_STEPS).from_table("server", table)
