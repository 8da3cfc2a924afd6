"""α-NormEC (Shulgin, Khirirat, Richtárik: Smoothed Normalization for Efficient Distributed Private Optimization)."""

from __future__ import annotations

from typing import ClassVar

from normec.algorithms.about import About, Coverage
from normec.algorithms.base import register
from normec.algorithms.fed_normec import FedNormEC
from normec.settings import Positive, Switch


@register("alpha-normec")
class AlphaNormEC(FedNormEC):
    """Fed-α-NormEC with one gradient per round, T = 1. With every client taking part (p = 1) this is α-NormEC.

        Δ_i = Norm_α(∇f_i(x) − v_i),   v_i ← v_i + β Δ_i,   v̂ ← v̂ + (β / M) Σ_i (Δ_i + z_i),   x ← x − η v̂ / ‖v̂‖

    The settings are those of `fed-normec`; the server step is normalized unless `server_normalize` is off.

    Guarantees: client-level DP by the Gaussian mechanism, the message norm being < 1. For L-smooth f_i, without bounded
    gradients or heterogeneity, min_k ‖∇f(x^k)‖ falls as O(1/√K) without noise up to 2R, R = max_i ‖v_i⁰ − ∇f_i(x⁰)‖; with
    noise Corollary 1.
    """

    about: ClassVar[About] = About(
        paper="Shulgin, Khirirat, Richtárik: Smoothed Normalization for Efficient Distributed Private Optimization",
        year=2025,
        guarantee=(
            "smooth losses, normalized server step, not lazy: min ‖∇f‖ = O(1/√K) + 2R for p = 1 without noise, R being how far the "
            "memories start from the gradients; else Theorem 1 and Corollaries 1 and 4 of Fed-α-NormEC"
        ),
        coverage=Coverage({"gd": 1}, ("full", "poisson"), noise=True),
    )
    one_gradient: ClassVar[bool] = True
    tuned: ClassVar[dict[str, tuple[float, float]]] = {"beta": (0.001, 0.1), "server_lr": (0.1, 10.0)}

    server_lr: Positive = 0.3
    server_normalize: Switch = True
