"""DP-NormFedAvg (Das, Hashemi, Sanghavi, Dhillon: Differentially Private Federated Learning with Normalized Updates)."""

from __future__ import annotations

from typing import ClassVar

from normec.algorithms.averaging import Averaging
from normec.algorithms.base import Coverage, register
from normec.operators import SmoothedNormalization


@register("dp-normfedavg")
class DPNormFedAvg(Averaging):
    """FedAvg on unit updates: x ← x − η (1 / pM) Σ_{i ∈ S} (u_i / ‖u_i‖ + z_i); a zero update stays zero.

    server_lr: η, the paper's server stepsize times its scale C. on: without effect, since every length is one.

    Guarantees: client-level DP by the Gaussian mechanism, the message norm being 1. Convergence for convex smooth losses,
    with a stepsize that depends on f_i(x*) − min f_i, which nobody knows; best where the model can fit every client.
    """

    paper: ClassVar[str] = "Das, Hashemi, Sanghavi, Dhillon: Differentially Private Federated Learning with Normalized Updates"
    year: ClassVar[int | None] = 2022
    guarantee: ClassVar[str] = "convex smooth losses, with a stepsize that depends on f_i(x*) − min f_i, which nobody knows"
    coverage: ClassVar[Coverage | None] = Coverage({"gd": None}, noise=True)

    @property
    def operator(self) -> SmoothedNormalization:
        return SmoothedNormalization(0.0)
