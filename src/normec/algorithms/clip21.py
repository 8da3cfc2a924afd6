"""Clip21 (Khirirat et al.: Clip21: Error Feedback for Gradient Clipping)."""

from __future__ import annotations

from typing import ClassVar

from normec.algorithms.about import About, Coverage
from normec.algorithms.base import register
from normec.algorithms.error_feedback import ErrorFeedback
from normec.operators import ClipNorm, Clipping
from normec.settings import Positive


@register("clip21")
class Clip21(ErrorFeedback):
    """Error feedback with clipping: Δ_i = Clip_C(g_i − v_i), v_i ← v_i + Δ_i, x ← x − η v̂ with v̂ the mean of the v_i.

    With C → ∞ it is gradient descent. clip_norm: C. server_lr: η.

    Guarantees: client-level DP by the Gaussian mechanism, the message norm being at most C. Without noise, for T = 1,
    p = 1 and L-smooth f_i, E‖∇f‖² falls as O(1/K), as for gradient descent. With noise v̂ is a running sum of all the
    noise, and no convergence guarantee is known.
    """

    about: ClassVar[About] = About(
        paper="Khirirat et al.: Clip21: Error Feedback for Gradient Clipping",
        year=2023,
        guarantee="smooth losses, T = 1, p = 1: O(1/K) of the squared gradient norm without noise; none with noise",
        coverage=Coverage({"gd": 1}),
    )
    tuned: ClassVar[dict[str, tuple[float, float]]] = {"clip_norm": (0.003, 0.3), "server_lr": (0.5, 50.0)}

    server_lr: Positive = 3.0
    clip_norm: ClipNorm = 0.02

    @property
    def operator(self) -> Clipping:
        return Clipping(self.clip_norm)
