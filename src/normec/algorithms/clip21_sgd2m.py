"""Clip21-SGD2M (Islamov et al.: Double Momentum and Error Feedback for Clipping with Fast Rates and Differential Privacy)."""

from __future__ import annotations

from typing import ClassVar

from normec.algorithms.about import About, Coverage
from normec.algorithms.base import register
from normec.algorithms.error_feedback import MomentumErrorFeedback
from normec.operators import ClipNorm, Clipping
from normec.settings import Probability


@register("clip21-sgd2m")
class Clip21SGD2M(MomentumErrorFeedback):
    """Error feedback with clipping and two momenta; the paper's v_i and g_i are m_i and v_i here.

        m_i ← (1 − μ) m_i + μ g_i,   Δ_i = Clip_C(m_i − v_i),   v_i ← v_i + μ̂ Δ_i
        v̂ ← v̂ + (μ̂ / M) Σ_i (Δ_i + z_i),   x ← x − η v̂

    clip_norm: C. momentum: μ in (0, 1], the weight of the new gradient. server_momentum: μ̂ in (0, 1], the step of the
    memories and of v̂. server_lr: η. Both momenta 1 give Clip21.

    Guarantees: client-level DP by the Gaussian mechanism, the message norm being at most C. For T = 1, p = 1 and L-smooth
    f_i of any heterogeneity: O(1/K) of the squared gradient norm with full gradients, Õ(1/√(MK)) with stochastic ones of
    sub-Gaussian noise, with high probability, and a near optimal neighbourhood under local noise; for μ, μ̂ and η chosen from the
    horizon.
    """

    about: ClassVar[About] = About(
        paper="Islamov et al.: Double Momentum and Error Feedback for Clipping with Fast Rates and Differential Privacy",
        year=2025,
        guarantee=(
            "smooth losses, T = 1, p = 1, momenta chosen from the horizon: O(1/K) of the squared gradient norm with full gradients, "
            "Õ(1/√(MK)) with sub-Gaussian ones, a neighbourhood with noise"
        ),
        coverage=Coverage({"gd": 1, "sgd": 1}, noise=True),
    )
    tuned: ClassVar[dict[str, tuple[float, float]]] = {"clip_norm": (0.003, 0.3), "server_lr": (1.0, 100.0)}

    clip_norm: ClipNorm = 0.1
    server_momentum: Probability = 0.5

    @property
    def operator(self) -> Clipping:
        return Clipping(self.clip_norm)

    @property
    def memory_step(self) -> float:
        return self.server_momentum
