"""EF21-SGDM (Fatkhullin, Tyurin, Richtárik: Momentum Provably Improves Error Feedback!)."""

from __future__ import annotations

from typing import ClassVar

from normec.algorithms.about import About, Coverage
from normec.algorithms.base import register
from normec.algorithms.error_feedback import MomentumErrorFeedback
from normec.operators import Compressed


@register("ef21-sgdm")
class EF21SGDM(Compressed, MomentumErrorFeedback):
    """EF21 on a momentum estimate, Algorithm 1: m_i ← (1 − μ) m_i + μ g_i, Δ_i = C(m_i − v_i), v_i ← v_i + Δ_i, x ← x − η v̂.

    compressor, k: C, a contraction. momentum: μ in (0, 1], the weight of the new gradient (the paper's η); 1 gives EF21.
    server_lr: η. m_i starts at zero, where the paper takes a first gradient. Not private: a message has no bound.

    Guarantees: for T = 1, p = 1 and L-smooth f_i with stochastic gradients, the optimal O(1/√(MK)) of the squared gradient
    norm for any batch size (Theorem 3), where EF21 needs large batches; for bounded variance, a momentum chosen from K, L, σ
    and M, and m_i⁰, v_i⁰ from a first gradient: with zero starts and a fixed μ nothing is proven.
    """

    about: ClassVar[About] = About(
        paper="Fatkhullin, Tyurin, Richtárik: Momentum Provably Improves Error Feedback!",
        year=2023,
        guarantee=(
            "smooth losses, T = 1, p = 1, gradients of bounded variance, a momentum chosen from the horizon and memories started at a "
            "first gradient: O(1/√(MK)) of the squared gradient norm"
        ),
        coverage=Coverage({"gd": 1, "sgd": 1}),
    )

    @property
    def uncovered(self) -> tuple[str, ...]:
        return ("memories that start at zero, with a momentum that is fixed",)
