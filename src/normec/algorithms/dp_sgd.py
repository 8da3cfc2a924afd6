"""DP-SGD at client level (Abadi et al.: Deep Learning with Differential Privacy)."""

from __future__ import annotations

from typing import ClassVar

from normec.algorithms.about import About
from normec.algorithms.base import register
from normec.algorithms.dp_fedavg_clip import DPFedAvgClip


@register("dp-sgd")
class DPSGD(DPFedAvgClip):
    """One clipped gradient per client, Algorithm 1: x ← x − η (1 / pM) Σ_{i ∈ S} (Clip_C(∇f_i(x)) + z_i).

    A client's whole data is the unit, where Abadi et al. have one example. clip_norm: C. server_lr: η.

    Guarantees: client-level DP by the Gaussian mechanism, the message norm being at most C. No convergence without
    bounded gradients or heterogeneity, as for `dp-fedavg-clip`.
    """

    about: ClassVar[About] = About(
        paper="Abadi et al.: Deep Learning with Differential Privacy",
        year=2016,
        guarantee="none without bounded gradients or heterogeneity",
    )
    one_gradient: ClassVar[bool] = True
