"""DP-NormFedAvg (Das, Hashemi, Sanghavi, Dhillon: Differentially Private Federated Learning with Normalized Updates)."""

from __future__ import annotations

from typing import ClassVar

from normec.algorithms.about import About, Coverage
from normec.algorithms.averaging import Averaging
from normec.algorithms.base import register
from normec.operators import SmoothedNormalization


@register("dp-normfedavg")
class DPNormFedAvg(Averaging):
    """FedAvg on unit updates: x ← x − η (1 / pM) Σ_{i ∈ S} (u_i / ‖u_i‖ + z_i); a zero update stays zero.

    server_lr: η, the paper's server stepsize times its scale C. on: without effect, since every length is one.

    Guarantees: client-level DP by the Gaussian mechanism, the message norm being 1. Convergence for convex smooth losses,
    with a stepsize that depends on f_i(x*) − min f_i, which nobody knows; best where the model can fit every client.
    """

    about: ClassVar[About] = About(
        paper="Das, Hashemi, Sanghavi, Dhillon: Differentially Private Federated Learning with Normalized Updates",
        year=2022,
        guarantee="convex smooth losses, with a stepsize that depends on f_i(x*) − min f_i, which nobody knows",
        coverage=Coverage({"gd": None}, noise=True),
    )

    @property
    def operator(self) -> SmoothedNormalization:
        return SmoothedNormalization(0.0)
