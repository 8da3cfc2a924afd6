"""DP-FedAvg (McMahan et al. 2018) with a bounded local update, and no error feedback."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from normec.algorithms.base import Algorithm, ClientStep, Slots, register
from normec.algorithms.server_steps import descend
from normec.operators import ClipNorm, Clipping, Operator, SmoothedNormalization
from normec.settings import Positive


class _DPFedAvg(Algorithm):
    """x ← x − η s (1 / pM) [ Σ_{i ∈ S} (Ψ(u_i) + z_i) ]: the wiring that all variants share.

    on: the bounded quantity u_i is "gradient", the scaled local update g_i = (x − T_i(x)) / γ, or "update", x − T_i(x)
    as in the paper's equation 3. The denominator pM is public and fixed, never the realised count.
    """

    server_lr: Positive = 1.0
    on: Literal["gradient", "update"] = "gradient"

    def update_scale(self, local_lr: float) -> float:
        return local_lr if self.on == "update" else 1.0

    @property
    def convergence(self) -> str:
        return "no guarantee without bounded gradients or heterogeneity"

    def client(self, update: Tensor, memory: Slots) -> ClientStep:
        return ClientStep(self.operator(update), (), update)

    def server(self, x: Tensor, state: Slots, mean: Tensor, rate: float) -> tuple[Tensor, Slots]:
        return descend(x, mean, self.server_lr * self.message_scale), ()

    @property
    def message_scale(self) -> float:
        """s: what multiplies a unit message after its release."""
        return 1.0


@register("dp-fedavg-clip")
class DPFedAvgClip(_DPFedAvg):
    """DP-FedAvg with clipping: Ψ = Clip_C, s = 1.

    clip_norm: C. server_lr: η.
    Guarantees: client-level DP by the Gaussian mechanism, the message norm being at most C. Convergence is not
    guaranteed without bounded heterogeneity or gradients: clipping is biased (Zhang et al. 2022, Claim 2.1).
    """

    clip_norm: ClipNorm = 1.0

    @property
    def operator(self) -> Operator:
        return Clipping(self.clip_norm)


@register("dp-fedavg-norm")
class DPFedAvgNorm(_DPFedAvg):
    """DP-FedAvg with smoothed normalization: Ψ = Norm_α, s = β (the paper's appendix A.1).

    alpha: α > 0. beta: β, which only multiplies the server's stepsize. server_lr: η.
    Guarantees: client-level DP by the Gaussian mechanism, the message norm being < 1. No convergence guarantee is known
    without bounded heterogeneity: normalization is biased and nothing corrects it.
    """

    alpha: Positive = 0.01
    beta: Positive = 1.0

    @property
    def operator(self) -> Operator:
        return SmoothedNormalization(self.alpha)

    @property
    def message_scale(self) -> float:
        return self.beta
