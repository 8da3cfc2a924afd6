"""DP-FedAvg with clipping (McMahan et al.: Learning Differentially Private Recurrent Language Models)."""

from __future__ import annotations

from typing import ClassVar

from normec.algorithms.about import About
from normec.algorithms.averaging import Averaging
from normec.algorithms.base import register
from normec.operators import ClipNorm, Clipping


@register("dp-fedavg-clip")
class DPFedAvgClip(Averaging):
    """FedAvg on clipped updates: x ← x − η (1 / pM) Σ_{i ∈ S} (Clip_C(u_i) + z_i).

    clip_norm: C. server_lr: η. on: what is clipped, see `Averaging`.

    Guarantees: client-level DP by the Gaussian mechanism, the message norm being at most C. No convergence without
    bounded heterogeneity or gradients: clipping is biased (Zhang et al. 2022, Claim 2.1).
    """

    about: ClassVar[About] = About(
        paper="McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent Language Models",
        year=2018,
        guarantee="none without bounded gradients or heterogeneity",
    )
    tuned: ClassVar[dict[str, tuple[float, float]]] = {"clip_norm": (0.03, 3.0), "server_lr": (0.5, 50.0)}

    clip_norm: ClipNorm = 1.0

    @property
    def operator(self) -> Clipping:
        return Clipping(self.clip_norm)
