"""Theorems 1 and 2 as functions: the bound on min_k E‖∇f(x^k)‖, and its conditions.

Reference: Shulgin et al., *First Provable Guarantees for Practical Private FL*, Theorems 1 and 2, with the normalized server
step and every client moving its memory. "paper" is the paper's form; "sharper" the same proof with less given away:
the sampling part of B is (1 − p)/p, the noise is not doubled, the factor 3 is 1 for one local step, and 8L√(2L) is 4L√(2L).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypedDict

from normec.errors import BadInput
from normec.privacy.trust import Trust

Form = Literal["paper", "sharper"]
FORMS: tuple[Form, ...] = ("paper", "sharper")
Term = Literal["optimization", "memory", "noise", "step", "drift", "order"]
TERMS: tuple[Term, ...] = ("optimization", "memory", "noise", "step", "drift", "order")
"""Of a bound; `Bound` says what each is."""
SLACK = 1e-6
"""Relative rounding that a condition forgives."""


class Condition(NamedTuple):
    """One condition of a theorem: `value` must be at most `limit`."""

    name: str
    value: float
    limit: float

    @property
    def holds(self) -> bool:
        """Written so that NaN fails."""
        return self.value <= self.limit * (1 + SLACK)

    def __str__(self) -> str:
        if self.holds:
            return f"{self.name}: {self.value:.4g} <= {self.limit:.4g}"
        by = f" ({self.value / self.limit:.4g} times too large)" if self.limit > 0 else ""
        return f"{self.name}: {self.value:.4g} is above {self.limit:.4g}{by}"


class BoundTable(TypedDict):
    """A bound as plain values: its terms, and their total."""

    optimization: float
    memory: float
    noise: float
    step: float
    drift: float
    order: float
    total: float


class Bound(NamedTuple):
    """The bound on min_k E‖∇f(x^k)‖ (a norm), term by term.

    optimization: F over the way that K + 1 steps can go. memory: 2R. noise: sampling and privacy noise that v̂ collects.
    step: ηL/2. drift: local steps away from x, for T > 1 or IG. order: incremental steps within a client, for IG.
    """

    optimization: float
    memory: float
    noise: float
    step: float
    drift: float
    order: float

    @property
    def total(self) -> float:
        return sum(self)

    def table(self) -> BoundTable:
        """The terms and their total, by name."""
        return {
            "optimization": self.optimization,
            "memory": self.memory,
            "noise": self.noise,
            "step": self.step,
            "drift": self.drift,
            "order": self.order,
            "total": self.total,
        }

    @property
    def dominant(self) -> Term:
        """The name of the largest term."""
        return max(TERMS, key=lambda term: float(getattr(self, term)))


@dataclass(frozen=True)
class Setting:
    """A problem, the parameters of Fed-α-NormEC on it, and the privacy noise.

    K: the theorems' K, rounds − 1. M: clients. p: participation. eta: η. gamma: γ. alpha, beta: α, β. R: max_i ‖v_i⁰ − g_i(x⁰)‖
    (norm). L: smoothness, of every f_i for GD, of every f_ij for IG. F: f(x⁰) − f^inf. heterogeneity: D >= Δ^inf.
    order_heterogeneity: the mean of the Δ_i^inf, of IG. d: parameters. sigma: σ, the standard deviation of one coordinate of
    the noise, on the sum for trust "central" and of each participant otherwise. steps: T. method: "gd" or "ig".
    """

    K: int
    M: int
    p: float
    eta: float
    gamma: float
    alpha: float
    beta: float
    R: float
    L: float
    F: float
    heterogeneity: float = 0.0
    order_heterogeneity: float = 0.0
    d: int = 1
    sigma: float = 0.0
    trust: Trust = "none"
    steps: int = 1
    method: Literal["gd", "ig"] = "gd"

    def __post_init__(self) -> None:
        positive = ("M", "p", "eta", "gamma", "alpha", "beta", "R", "L", "d", "steps")
        for name in (*positive, "K", "F", "heterogeneity", "order_heterogeneity", "sigma"):
            value = getattr(self, name)
            if not (0 <= value < math.inf) or (name in positive and not value > 0):
                raise BadInput(name, value=value, must=f"be a finite number {('> 0' if name in positive else '>= 0')}")
        if not self.p <= 1:
            raise BadInput("p", value=self.p, must="be in (0, 1]")
        if self.drifts and not self.heterogeneity > 0:
            raise BadInput(
                "heterogeneity", ": with more than one local step the theorems need a D > 0, at least Δ^inf", value=0, remedy="Give any"
            )

    @property
    def drifts(self) -> bool:
        """Whether a local update takes more than one gradient step."""
        return self.method == "ig" or self.steps > 1

    @property
    def noise_per_client(self) -> float:
        """E‖z_i‖² as the theorems count it, per participant: d σ², or d σ² / (pM) where noise is added once on the sum."""
        squared = self.d * self.sigma**2
        return squared / (self.p * self.M) if self.trust == "central" else squared


def largest_eta(s: Setting) -> float:
    """The largest η that the conditions on the server's step allow, for the other parameters of a setting."""
    invariant = 0.5 * s.gamma * s.beta * s.R / (s.alpha + s.R)
    return min(invariant, _drift_limit(s) / s.gamma) if s.drifts else invariant


def conditions(s: Setting) -> list[Condition]:
    """The conditions under which the theorems hold; with T = 1 (GD) the conditions on the drift fall away.

    The memory condition is sharper than the paper's β/(α + R) < 1. With β <= α it follows from the others; with β > α one move
    of a residual r, to r times the size of 1 − β/(α + r), is not monotone, and peaks at (√β − √α)² where it overshoots.
    """
    moved, name = s.R * (1 - s.beta / (s.alpha + s.R)), "R(1 − β/(α + R)) + 2Lη <= R"
    if s.beta > s.alpha:
        moved, name = max(moved, (math.sqrt(s.beta) - math.sqrt(s.alpha)) ** 2), "max(R(1 − β/(α + R)), (√β − √α)²) + 2Lη <= R"
    required = [
        Condition("γ <= 1/(2L)", s.gamma, 1 / (2 * s.L)),
        Condition("η <= (γ/2) βR/(α + R)", s.eta, 0.5 * s.gamma * s.beta * s.R / (s.alpha + s.R)),
        Condition(name, moved + 2 * s.L * s.eta, s.R),
    ]
    if s.drifts:
        required.append(Condition("ηγ <= √D / (4L√(2L) (K + 1))", s.eta * s.gamma, _drift_limit(s)))
    return required


def bound(s: Setting, form: Form = "paper") -> Bound:
    """Theorem 1 (GD) or 2 (IG), whether or not its conditions hold: see `conditions`.

    min_k E‖∇f(x^k)‖ <= (3/(K + 1)) F/η + 2R + 2√(β² B (K + 1)/M) + ηL/2 + γ 8L√(2L) √D + γ 4L√(2L) √(mean Δ_i^inf)
    """
    paper = form == "paper"
    squared = s.noise_per_client
    spread = 2 * (1 - s.p) ** 2 / s.p + 2 * (1 - s.p) + 2 * squared / s.p if paper else (1 - s.p + squared) / s.p
    curvature = s.L * math.sqrt(2 * s.L)
    return Bound(
        optimization=(3 if paper or s.drifts else 1) * s.F / ((s.K + 1) * s.eta),
        memory=2 * s.R,
        noise=2 * s.beta * math.sqrt(spread * (s.K + 1) / s.M),
        step=s.eta * s.L / 2,
        drift=(8 if paper else 4) * s.gamma * curvature * math.sqrt(s.heterogeneity) if s.drifts else 0.0,
        order=4 * s.gamma * curvature * math.sqrt(s.order_heterogeneity) if s.method == "ig" else 0.0,
    )


def _drift_limit(s: Setting) -> float:
    return math.sqrt(s.heterogeneity) / (4 * s.L * math.sqrt(2 * s.L) * (s.K + 1))


class Corollary(NamedTuple):
    """Closed-form parameters, and the rate in K that the theorem then has.

    number: of the paper. rate: the exponent r of O((K + 1)^−r), 0 for a private utility that more rounds do not improve.
    """

    number: int
    setting: Setting
    rate: float


def corollary(s: Setting) -> Corollary:
    """The paper's choice of β, γ, η (and for no noise R) that fits a setting, with its β, γ, R as the constants at K = 0.

    Without noise: for p = 1 and T = 1 (number 0: Section 5.1 of the paper) O(1/√(K + 1)); else Corollary 4 (T = 1), 2 (T > 1) and
    5 (IG): O((K + 1)^−1/6) and O((K + 1)^−1/8). With noise: Corollaries 1, 3
    and 6, where σ ∝ √(K + 1) makes β ∝ 1/(K + 1). Here p, M, d, α, L, F, D and σ are those of the setting.
    """
    n = s.K + 1
    gamma = min(s.gamma, 1 / (2 * s.L))
    if s.sigma > 0:
        spread = 2 * s.noise_per_client / s.p
        beta = math.sqrt(3 * (s.alpha + s.R) * s.F / (gamma * s.R)) * (s.M / (spread * n)) ** 0.25 / math.sqrt(n)
        chosen, number, rate = replace(s, gamma=gamma, beta=beta), 6 if s.method == "ig" else 3 if s.drifts else 1, 0.0
    elif s.p == 1 and not s.drifts:
        chosen, number, rate = replace(s, gamma=gamma, R=s.R / math.sqrt(n)), 0, 1 / 2
    elif s.drifts:
        chosen = replace(s, gamma=gamma * n ** (-1 / 8), beta=s.beta * n ** (-5 / 8), R=s.R * n ** (-1 / 8))
        number, rate = 5 if s.method == "ig" else 2, 1 / 8
    else:
        chosen = replace(s, gamma=gamma, beta=s.beta * n ** (-2 / 3), R=s.R * n ** (-1 / 6))
        number, rate = 4, 1 / 6
    return Corollary(number, replace(chosen, eta=largest_eta(chosen)), rate)
