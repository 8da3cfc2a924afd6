"""DP-FedAvg with smoothed normalization (Shulgin et al.: First Provable Guarantees for Practical Private FL, appendix A.1)."""

from __future__ import annotations

from typing import ClassVar

from normec.algorithms.about import About
from normec.algorithms.averaging import Averaging
from normec.algorithms.base import register
from normec.operators import SmoothedNormalization
from normec.settings import Positive


@register("dp-fedavg-norm")
class DPFedAvgNorm(Averaging):
    """FedAvg on normalized updates: x ← x − η β (1 / pM) Σ_{i ∈ S} (Norm_α(u_i) + z_i).

    alpha: α > 0. beta: β, which only multiplies the server's stepsize. server_lr: η. on: what is normalized.

    Guarantees: client-level DP by the Gaussian mechanism, the message norm being < 1. No convergence guarantee is known
    without bounded heterogeneity: normalization is biased and nothing corrects it.
    """

    about: ClassVar[About] = About(
        paper="Shulgin, Malinovsky, Khirirat, Richtárik: First Provable Guarantees for Practical Private FL",
        year=2025,
        guarantee="none without bounded gradients or heterogeneity",
    )

    alpha: Positive = 0.01
    beta: Positive = 1.0

    @property
    def operator(self) -> SmoothedNormalization:
        return SmoothedNormalization(self.alpha)

    @property
    def message_scale(self) -> float:
        return self.beta
