"""Fed-α-NormEC (Shulgin, Malinovsky, Khirirat, Richtárik: First Provable Guarantees for Practical Private FL)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from normec.algorithms.base import Algorithm, ClientStep, Slots, register
from normec.algorithms.server_steps import descend, descend_normalized
from normec.operators import SmoothedNormalization
from normec.settings import NonNegative, Positive, Switch


@register("fed-normec")
class FedNormEC(Algorithm):
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

    client_slots: ClassVar[tuple[str, ...]] = ("v",)
    server_slots: ClassVar[tuple[str, ...]] = ("v_hat",)

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
    def everyone_computes(self) -> bool:
        return not self.lazy

    @property
    def convergence(self) -> str:
        outside = [name for name, chosen in {"lazy variant": self.lazy, "plain server step": not self.server_normalize}.items() if chosen]
        if outside:
            return f"outside the theorems ({', '.join(outside)})"
        return "Theorems 1 and 2, where their conditions on the stepsizes hold (not checked)"

    @property
    def starts_from_updates(self) -> bool:
        return self.init == "local"

    def start(self, update: Tensor) -> Slots:
        v = update.clone()
        v[:, 0] += self.init_offset
        return (v,)

    def client(self, update: Tensor, memory: Slots) -> ClientStep:
        (v,) = memory
        residual = update - v
        message = self.operator(residual)
        return ClientStep(message, (torch.add(v, message, alpha=self.beta),), residual)

    def server(self, x: Tensor, state: Slots, mean: Tensor, rate: float) -> tuple[Tensor, Slots]:
        (v_hat,) = state
        v_hat = v_hat + self.beta * (rate if self.lazy else 1.0) * mean
        step = descend_normalized if self.server_normalize else descend
        return step(x, v_hat, self.server_lr), (v_hat,)
