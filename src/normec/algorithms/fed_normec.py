"""Fed-α-NormEC (Shulgin, Malinovsky, Khirirat, Richtárik: First Provable Guarantees for Practical Private FL)."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from torch import Tensor

from normec.algorithms.about import About, Coverage
from normec.algorithms.base import Slots, register
from normec.algorithms.error_feedback import ErrorFeedback
from normec.operators import SmoothedNormalization
from normec.settings import NonNegative, Positive, Switch, Tree


@register("fed-normec")
class FedNormEC(ErrorFeedback):
    """Error feedback (EF21) on local updates with smoothed normalization, Algorithm 1.

    In round k, with g_i = (x − T_i(x)) / γ the scaled local update of client i:

        Δ_i = Norm_α(g_i − v_i),   v_i ← v_i + β Δ_i                     (step 2; every client)
        v̂ ← v̂ + (β / M) Σ_{i ∈ S} (Δ_i + z_i) / p                        (step 4)
        x ← x − η v̂ / ‖v̂‖  if `server_normalize`,  else  x − η v̂          (step 5)

    `lazy`: only the cohort computes and moves its memory, and the factor 1/p is left out, so that v̂ stays the mean of
    the memories plus noise. It costs p·M instead of M local computations a round.

    alpha: smoothing α > 0. beta: step of the memories β. server_lr: η.
    init: "zero", or "local" for v_i⁰ = g_i(x⁰) + init_offset · e₁, without privacy only (v̂⁰ would be a release).

    Guarantees: client-level DP by the Gaussian mechanism, the message norm being < 1. Convergence by Theorems 1 and 2
    for L-smooth f_ij, without bounded gradients or heterogeneity, for the normalized server step and not lazy; the plain
    step (which the paper's experiments use) and the lazy variant are outside the theorems.
    """

    about: ClassVar[About] = About(
        paper="Shulgin, Malinovsky, Khirirat, Richtárik: First Provable Guarantees for Practical Private FL",
        year=2025,
        guarantee=(
            "with server_normalize, not lazy, memories started near g_i(x⁰), smooth losses: min ‖∇f‖ = O(K^−1/8), for T = 1 O(K^−1/6), "
            "without noise; private utility by Corollaries 1, 3, 6"
        ),
        coverage=Coverage({"gd": None, "ig": 1}, ("full", "poisson"), noise=True),
    )
    tuned: ClassVar[dict[str, tuple[float, float]]] = {"beta": (0.001, 0.1), "server_lr": (1.0, 100.0)}
    exact: ClassVar[Tree] = {"server_normalize": False}

    alpha: Positive = 0.01
    beta: Positive = 0.01
    server_lr: Positive = 3.0
    server_normalize: Switch = False
    lazy: Switch = False
    init: Literal["zero", "local"] = "zero"
    init_offset: NonNegative = 0.0

    @property
    def operator(self) -> SmoothedNormalization:
        return SmoothedNormalization(self.alpha)

    @property
    def memory_step(self) -> float:
        return self.beta

    @property
    def everyone_computes(self) -> bool:
        return not self.lazy

    @property
    def uncovered(self) -> tuple[str, ...]:
        plain = "the plain server step, not algorithm.server_normalize=true"
        return tuple(reason for reason, chosen in (("the lazy variant", self.lazy), (plain, not self.server_normalize)) if chosen)

    @property
    def start(self) -> Callable[[Tensor], Slots] | None:
        return self._near_the_updates if self.init == "local" else None

    def _near_the_updates(self, update: Tensor) -> Slots:
        v = update.clone()
        v[:, 0] += self.init_offset
        return (v,)

    def server(self, state: Slots, mean: Tensor, rate: float) -> tuple[Tensor, Slots]:
        v_hat, state = super().server(state, mean, rate)
        return unit(v_hat) if self.server_normalize else v_hat, state


def unit(direction: Tensor) -> Tensor:
    """V / ‖v‖, with the norm in float64; zero for a zero v."""
    exact = direction.double()
    norm = torch.linalg.vector_norm(exact)
    return torch.where(norm > 0, exact / norm, 0.0).to(direction.dtype)
