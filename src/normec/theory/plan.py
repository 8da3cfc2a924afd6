"""Parameters that a theorem covers: from a promise (ε, δ, trust) and a problem to σ, β, η, γ, and the bound they give."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal, TypedDict

from normec.algorithms import Descent, FedNormEC
from normec.errors import BadInput
from normec.local import GD, IG, LocalMethod
from normec.privacy import Mechanism, calibrate
from normec.privacy.mechanism import Adjacency, Colluders, Epsilon, default_delta
from normec.privacy.participation import Full, Poisson
from normec.privacy.trust import Dropouts, Trust, check_honest, check_rounds_are_opened, trust_model
from normec.settings import Count, NonNegative, OpenUnit, Positive, Probability, Rounds, Settings
from normec.theory.bounds import FORMS, BoundTable, Form, Setting, Term, bound, conditions, corollary, largest_eta
from normec.theory.guarantees import guarantee
from normec.theory.minimise import minimise

ROUNDS_TO_CHOOSE = (10, 30, 100, 300, 1000, 3000, 10_000)


class Goal(Settings):
    """The arguments of `normec plan`.

    epsilon, delta, trust, adjacency, min_honest, colluders, dropouts: the promise. clients: M. rate: p. parameters: d. smoothness: L.
    gap: F = f(x⁰) − f^inf. heterogeneity: Δ^inf. order_heterogeneity: the mean of the Δ_i^inf, for method "ig".
    method, steps: "gd" with T steps, or "ig". alpha: α. rounds: K + 1, or "choose". start: R = max_i ‖v_i⁰ − g_i(x⁰)‖ where it is
    given, for memories that start at zero the largest ‖g_i(x⁰)‖; else R is chosen, and the memories start R away from g_i(x⁰).
    """

    trust: Trust = "central"
    epsilon: Epsilon | None = None
    delta: OpenUnit | None = None
    adjacency: Adjacency = "zero-out"
    min_honest: Count | None = None
    colluders: Colluders = 0
    dropouts: Dropouts = "adversarial"
    clients: Count = 100
    rate: Probability = 0.5
    parameters: Count = 650
    smoothness: Positive = 1.0
    gap: Positive = 1.0
    heterogeneity: NonNegative = 0.0
    order_heterogeneity: NonNegative = 0.0
    method: Literal["gd", "ig"] = "gd"
    steps: Count = 1
    alpha: Positive = 0.01
    start: Positive | None = None
    rounds: Rounds | Literal["choose"] = 60

    def __init__(self, /, **values: object) -> None:
        super().__init__(**values)
        if (self.trust == "none") != (self.epsilon is None):
            raise BadInput("epsilon", "has no meaning with trust='none'" if self.epsilon else "is missing: give it, or trust='none'")
        self._check_moot()
        if self.rounds == "choose" and self.trust == "none":
            raise BadInput(
                "rounds", "has no end without privacy: the bound only falls with more rounds", value="choose", remedy="Give a number"
            )

    def _check_moot(self) -> None:
        """Refuses keys that would be ignored."""
        given, advice = self.model_fields_set, "Remove it"
        if self.trust == "secagg":
            check_honest(self.trust, self.min_honest, self.colluders, self.dropouts)
            check_rounds_are_opened("min_honest", trust_model(self.trust, self.min_honest, self.colluders), self.clients)
        moot = [(key, "trust='secagg'") for key in ("min_honest", "colluders", "dropouts") if self.trust != "secagg"]
        moot += [(key, "a trust that is not 'none'") for key in ("delta", "adjacency") if self.trust == "none"]
        moot += [("order_heterogeneity", "method='ig'")] if self.method == "gd" else [("steps", "method='gd'")]
        for key, acts in moot:
            if key in given:
                raise BadInput(key, f"acts only with {acts}", value=getattr(self, key), remedy=f"{advice}, or change that")

    @property
    def chosen_delta(self) -> float:
        """δ: the given one, or the default."""
        return self.delta if self.delta is not None else default_delta(self.clients)

    def noise(self, rounds: int) -> float:
        """σ for messages of norm 1: on the sum under "central", from each participant under "secagg" and "local"; 0 under "none"."""
        if self.epsilon is None:
            return 0.0
        return calibrate(self.mechanism(rounds), self.epsilon, self.chosen_delta)

    def mechanism(self, rounds: int) -> Mechanism:
        """The mechanism of these rounds, still without noise."""
        participation = Full() if self.rate == 1 else Poisson(rate=self.rate)
        trust = trust_model(self.trust, self.min_honest, self.colluders, self.dropouts)
        return Mechanism(trust=trust, adjacency=self.adjacency, participation=participation, clients=self.clients, rounds=rounds)

    def setting(self, rounds: int, sigma: float) -> Setting:
        """The problem and its noise, with parameters to start from."""
        gamma = 1 / (2 * self.smoothness)
        R = self.start or 0.1 * math.sqrt(2 * self.smoothness * self.gap)
        drifts = self.method == "ig" or self.steps > 1
        first = Setting(
            K=rounds - 1,
            M=self.clients,
            p=self.rate,
            eta=1.0,
            gamma=gamma,
            alpha=self.alpha,
            beta=self.alpha,
            R=R,
            L=self.smoothness,
            F=self.gap,
            heterogeneity=max(self.heterogeneity, 1e-6 * self.gap) if drifts else self.heterogeneity,
            order_heterogeneity=self.order_heterogeneity,
            d=self.parameters,
            sigma=sigma,
            trust=self.trust,
            steps=self.steps,
            method=self.method,
        )
        return replace(first, eta=largest_eta(first))


class PlannedBound(BoundTable):
    """A bound of a plan. dominant: its largest term."""

    dominant: Term


class CheckedCondition(TypedDict):
    """A condition of the theorem, as `Condition`."""

    name: str
    value: float
    limit: float
    holds: bool


class Parameters(TypedDict):
    """Parameters, under the names of a run's settings, with the bound that they give and the conditions that they meet.

    start: R. heterogeneity: D, None where a client takes one gradient step.
    """

    alpha: float
    beta: float
    server_lr: float
    local_lr: float
    start: float
    heterogeneity: float | None
    bound: dict[Form, PlannedBound]
    conditions: list[CheckedCondition]


class CorollaryParameters(Parameters):
    """The parameters of a corollary, as `Corollary`."""

    number: int
    rate: float


class Advice(TypedDict):
    """What `normec plan` says.

    chosen: the parameters of the smallest sharper bound. coverage, outside: what is proven of such a run, and why it is not about it.
    more: the bound for twice the clients, and for twice the rounds. run: the command that trains it.
    """

    rounds: int
    delta: float | None
    epsilon: float | None
    trust: Trust
    noise_multiplier: float
    coverage: str
    outside: list[str]
    chosen: Parameters
    corollary: CorollaryParameters | None
    more: dict[str, float]
    own_coins: bool
    notes: list[str]
    run: str


def plan(goal: Goal) -> Advice:
    """The parameters with the smallest sharper bound that meet every condition, beside the closed form of the corollaries.

    Raises:
        BadInput: for an ε that no noise reaches.
    """
    rounds = goal.rounds if isinstance(goal.rounds, int) else _best_rounds(goal)
    sigma = goal.noise(rounds)
    best = minimise(goal.setting(rounds, sigma), free_start=goal.start is None, least=goal.heterogeneity)
    free = goal.start is None or sigma > 0  # without noise the corollaries choose R too
    closed = corollary(goal.setting(rounds, sigma)) if free else None
    local: LocalMethod = GD(steps=goal.steps) if goal.method == "gd" else IG(steps=1)
    proven = guarantee(FedNormEC(server_normalize=True), Descent(), local, replace(goal.mechanism(rounds), noise_multiplier=sigma))
    return {
        "rounds": rounds,
        "delta": goal.chosen_delta if goal.epsilon is not None else None,
        "epsilon": goal.epsilon,
        "trust": goal.trust,
        "noise_multiplier": sigma,
        "coverage": str(proven),
        "outside": list(proven.outside or ()),
        "chosen": _shown(best),
        "corollary": {"number": closed.number, "rate": closed.rate, **_shown(closed.setting)} if closed else None,
        "more": _more(goal, rounds, sigma),
        "own_coins": goal.mechanism(rounds).own_coins,
        "notes": _notes(goal, best),
        "run": _command(goal, best, rounds),
    }


def _best_rounds(goal: Goal) -> int:
    def total(rounds: int) -> float:
        best = minimise(goal.setting(rounds, goal.noise(rounds)), goal.start is None, goal.heterogeneity)
        return bound(best, "sharper").total

    return min(ROUNDS_TO_CHOOSE, key=total)


def _more(goal: Goal, rounds: int, sigma: float) -> dict[str, float]:
    """The smallest sharper bounds for twice the clients and twice the rounds, at the same ε and δ.

    sigma: the noise of `rounds` rounds, which at one δ does not depend on the clients.
    """
    totals = {}
    for name, changed, k, noise in (
        ("twice the clients", {"clients": 2 * goal.clients}, rounds, sigma),
        ("twice the rounds", {}, 2 * rounds, goal.noise(2 * rounds)),
    ):
        setting = goal.changed(**changed).setting(k, noise)
        totals[name] = bound(minimise(setting, goal.start is None, goal.heterogeneity), "sharper").total
    return totals


def _shown(s: Setting) -> Parameters:
    bounds = {form: bound(s, form) for form in FORMS}
    return {
        "alpha": s.alpha,
        "beta": s.beta,
        "server_lr": s.eta,
        "local_lr": s.gamma,
        "start": s.R,
        "heterogeneity": s.heterogeneity if s.drifts else None,
        "bound": {form: {**each.table(), "dominant": each.dominant} for form, each in bounds.items()},
        "conditions": [{"name": c.name, "value": c.value, "limit": c.limit, "holds": c.holds} for c in conditions(s)],
    }


def _command(goal: Goal, s: Setting, rounds: int) -> str:
    """The plan as settings of a run; with a chosen R only a run without privacy can start its memories there."""
    numbers = {"algorithm.alpha": s.alpha, "algorithm.beta": s.beta, "algorithm.server_lr": s.eta, "local.lr": s.gamma}
    parts = ["normec train algorithm.server_normalize=true", *(f"{key}={value:.10g}" for key, value in numbers.items())]
    parts += [f"local.method={goal.method}", f"local.steps={goal.steps}", f"participation.rate={goal.rate:g}", f"rounds={rounds}"]
    parts.append(f"privacy.trust={goal.trust}" + ("" if goal.epsilon is None else f" privacy.epsilon={goal.epsilon:g}"))
    if goal.start is None and goal.epsilon is None:
        parts.append(f"algorithm.init=local algorithm.init_offset={s.R:.10g}")
    given = [("delta", goal.delta), ("min_honest", goal.min_honest), ("colluders", goal.colluders or None)]
    parts += [f"privacy.{key}={value!r}" for key, value in given if value is not None]
    parts += ["privacy.dropouts=none"] if goal.dropouts == "none" else []
    return " ".join([*parts, f"privacy.adjacency={goal.adjacency}"] if goal.adjacency != "zero-out" else parts)


def _notes(goal: Goal, best: Setting) -> list[str]:
    lines = ["the bound is on min_k E‖∇f(x^k)‖, for the normalized server step, with every client moving its memory"]
    if bound(best, "sharper").total >= math.sqrt(2 * best.L * best.F):
        lines.append(f"the bound says nothing: ‖∇f(x⁰)‖ is at most √(2LF) = {math.sqrt(2 * best.L * best.F):.4g} already")
    if goal.start is None:
        lines.append(f"R is chosen: memories start at v_i⁰ = g_i(x⁰) + e with ‖e‖ = {best.R:.4g}")
        if goal.epsilon is not None:
            start = "such a start is a release of its own, which ε here does not include and no run makes"
            lines.append(f"{start}: give start= for memories at zero")
    if goal.rounds == "choose":
        lines.append(f"rounds chosen among {', '.join(map(str, ROUNDS_TO_CHOOSE))}")
    return lines
