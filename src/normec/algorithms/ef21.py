"""EF21 (Richtárik, Sokolov, Fatkhullin: EF21: A New, Simpler, Theoretically Better, and Practically Faster Error Feedback)."""

from __future__ import annotations

from typing import ClassVar

from normec.algorithms.about import About, Coverage
from normec.algorithms.base import register
from normec.algorithms.error_feedback import ErrorFeedback
from normec.operators import Compressed


@register("ef21")
class EF21(Compressed, ErrorFeedback):
    """Error feedback with compression, Algorithm 2: Δ_i = C(g_i − v_i), v_i ← v_i + Δ_i, x ← x − η v̂, v̂ the mean of the v_i.

    compressor, k: C, a contraction: "top-k", "rand-k" or "natural". server_lr: η. Not private: a message has no bound.

    Guarantees: for T = 1, p = 1 and L-smooth f_i of any heterogeneity, E‖∇f‖² falls as O(1/K) (Theorem 1); with partial
    participation of Fatkhullin et al. 2021 as well.
    """

    about: ClassVar[About] = About(
        paper="Richtárik, Sokolov, Fatkhullin: EF21: A New, Simpler, Theoretically Better, and Practically Faster Error Feedback",
        year=2021,
        guarantee="smooth losses, T = 1: O(1/K) of the squared gradient norm",
        coverage=Coverage({"gd": 1}, ("full", "poisson")),
    )
