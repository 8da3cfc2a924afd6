"""The theorems hold where their conditions do, the constants are right, and a run's verdict says which is the case."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from torch import nn

import normec
from conftest import FailsAt, Outcome, checkpoint_of
from normec.models import FlatModel
from normec.theory.bounds import Setting, bound, conditions, corollary, largest_eta
from normec.theory.constants import constants, largest_eigenvalue
from normec.theory.plan import Goal, plan
from normec.theory.problems import RegularisedLogistic, half_squares, linear, quadratics

Command = Callable[..., Outcome]
Array = np.ndarray
GENERATED = settings(
    max_examples=25, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=[HealthCheck.filter_too_much], derandomize=True
)  # fmt: skip


class Problem(NamedTuple):
    """f_ij(x) = ½ (x − c_ij)ᵀ H_i (x − c_ij) with diagonal H_i, for M clients of N parts."""

    curvature: Array  # (M, d)
    centres: Array  # (M, N, d)

    def gradient(self, x: Array) -> Array:
        """∇f at points (S, d)."""
        return (self.curvature * (x[:, None] - self.centres.mean(1))).mean(1)

    def infimum(self, x: Array) -> float:
        return float(np.mean([0.5 * h @ ((x - c) ** 2).mean(0) for h, c in zip(self.curvature, self.centres, strict=True)]))

    def constants(self) -> tuple[float, float, float, float]:
        """L, F at zero, Δ^inf, mean Δ_i^inf, exactly."""
        best = (self.curvature * self.centres.mean(1)).mean(0) / self.curvature.mean(0)
        own = np.array([0.5 * h @ ((c.mean(0) - c) ** 2).mean(0) for h, c in zip(self.curvature, self.centres, strict=True)])
        infimum = self.infimum(best)
        return float(self.curvature.max()), self.infimum(np.zeros_like(best)) - infimum, infimum - own.mean(), own.mean()


def a_problem(seed: int, clients: int, parts: int, d: int, spread: float) -> Problem:
    rng = np.random.default_rng(seed)
    return Problem(rng.uniform(0.2, 2.0, (clients, d)), spread * rng.uniform(-1, 1, (clients, parts, d)) + 2 * rng.uniform(-1, 1, d))


class Measured(NamedTuple):
    gradients: Array  # (K + 1, seeds): ‖∇f(x^k)‖
    residuals: Array  # (K + 1,): the largest ‖g_i − v_i‖


def run(problem: Problem, s: Setting, seeds: int, seed: int = 0) -> Measured:
    """Algorithm 1 with the normalized step, for many seeds at once, from x⁰ = 0 and v_i⁰ = g_i(x⁰) + R e."""
    rng = np.random.default_rng(seed)
    clients, parts, d = problem.centres.shape
    x = np.zeros((seeds, d))

    def update(x: Array) -> Array:
        y = np.repeat(x[:, None], clients, axis=1)
        if s.method == "ig":
            for j in range(parts):
                y = y - s.gamma / parts * problem.curvature * (y - problem.centres[:, j])
        else:
            for _ in range(s.steps):
                y = y - s.gamma / s.steps * problem.curvature * (y - problem.centres.mean(1))
        return (x[:, None] - y) / s.gamma

    v = update(x)
    offset = rng.uniform(-1, 1, d)
    v = v + s.R * offset / np.linalg.norm(offset)
    estimate = v.mean(1)
    gradients, residuals = [], []
    for _ in range(s.K + 1):
        gradients.append(np.linalg.norm(problem.gradient(x), axis=1))
        residual = update(x) - v
        length = np.linalg.norm(residual, axis=2, keepdims=True)
        residuals.append(length.max())
        message = residual / (s.alpha + length)
        v = v + s.beta * message
        taken = rng.random((seeds, clients, 1)) < s.p
        noise = rng.standard_normal((seeds, clients, d)) * s.sigma if s.trust == "local" else 0.0
        total = (taken * (message + noise)).sum(1)
        if s.trust == "central":
            total = total + rng.standard_normal((seeds, d)) * s.sigma
        estimate = estimate + s.beta / (s.p * clients) * total
        norm = np.linalg.norm(estimate, axis=1, keepdims=True)
        x = x - s.eta * np.divide(estimate, norm, out=np.zeros_like(estimate), where=norm > 0)
    return Measured(np.array(gradients), np.array(residuals))


def admissible(problem: Problem, rounds: int, **choices: Any) -> Setting:
    """Parameters that meet every condition: γ a share of 1/(2L), η a share of the largest."""
    share_gamma, share_eta = choices.pop("share_gamma", 1.0), choices.pop("share_eta", 1.0)
    L, F, heterogeneity, order = problem.constants()
    s = Setting(
        K=rounds - 1, M=len(problem.curvature), d=problem.centres.shape[2], eta=1.0, gamma=share_gamma / (2 * L), L=L, F=F,
        heterogeneity=max(heterogeneity, 1e-6), order_heterogeneity=order, **choices,
    )  # fmt: skip
    return replace(s, eta=share_eta * largest_eta(s))


@GENERATED
@given(
    seed=st.integers(0, 10**6), clients=st.integers(1, 6), parts=st.integers(1, 4), d=st.integers(1, 5), spread=st.floats(0, 5),
    method=st.sampled_from(["gd", "ig"]), steps=st.integers(1, 4), p=st.floats(0.2, 1), alpha=st.floats(1e-3, 1), ratio=st.floats(0.01, 30),
    R=st.floats(0.01, 3), trust=st.sampled_from(["none", "central", "local"]), sigma=st.floats(0.1, 3), rounds=st.integers(2, 60),
    share_gamma=st.floats(0.05, 1), share_eta=st.floats(0.05, 1),
)  # fmt: skip
def test_the_theorems_hold(
    seed: int,
    clients: int,
    parts: int,
    d: int,
    spread: float,
    alpha: float,
    ratio: float,
    trust: str,
    sigma: float,
    rounds: int,
    **choices: Any,
) -> None:
    """For every admissible choice: the mean over seeds, less three standard errors, is below both forms of the bound."""
    problem = a_problem(seed, clients, parts, d, spread)
    noise = 0.0 if trust == "none" else sigma
    s = admissible(problem, rounds, alpha=alpha, beta=alpha * ratio, sigma=noise, trust=trust, **choices)
    assume(all(condition.holds for condition in conditions(s)))
    measured = run(problem, s, seeds=60, seed=seed)
    mean, error = measured.gradients.mean(1), measured.gradients.std(1, ddof=1) / math.sqrt(60)
    sharper, paper = bound(s, "sharper").total, bound(s, "paper").total
    assert (mean - 3 * error).min() <= sharper * (1 + 1e-9) and sharper <= paper * (1 + 1e-12)
    assert measured.residuals.max() <= s.R * (1 + 1e-9)  # the invariant


def test_the_bound_is_not_vacuous() -> None:
    """One problem on which the sharper bound is below ‖∇f(x⁰)‖, and within a factor of 12 of what is measured."""
    problem = a_problem(3, 5, 1, 3, 1.0)
    s = admissible(problem, 20_000, alpha=0.01, beta=0.009, R=0.05, p=1.0)
    assert all(condition.holds for condition in conditions(s))
    measured = run(problem, s, seeds=1).gradients[:, 0]
    assert measured.min() <= bound(s, "sharper").total < min(measured[0], 12 * max(measured.min(), s.R))


def test_beta_above_alpha_needs_the_sharper_condition() -> None:
    """β/(α + R) < 1 and the invariant's η, as the paper asks, and yet a residual of √(αβ) − α overshoots to above R.

    f_A = f_B = ½ (x + 10)², x⁰ = 0, α = 0.01, β = 1: B's residual 0.09 becomes −0.81, and the step moves it by −Lη.
    """
    alpha, beta, R, L = 0.01, 1.0, 1.0, 1.0
    s = Setting(K=1, M=2, p=1.0, eta=1.0, gamma=1 / (2 * L), alpha=alpha, beta=beta, R=R, L=L, F=50.0)
    s = replace(s, eta=largest_eta(s))
    assert beta / (alpha + R) < 1 and s.eta == pytest.approx(0.25 / 1.01)
    broken = [condition for condition in conditions(s) if not condition.holds]
    assert len(broken) == 1 and "√β − √α" in broken[0].name and "times too large" in str(broken[0])
    x, v = 0.0, np.array([10.0 - 1.0, 10.0 - 0.09])
    residual = (x + 10) - v
    assert np.abs(residual).max() == R
    v = v + beta * residual / (alpha + np.abs(residual))
    x = x - s.eta * np.sign(v.mean())
    assert np.abs((x + 10) - v).max() > 1.05 * R
    safe = replace(s, beta=0.3)
    assert all(condition.holds for condition in conditions(replace(safe, eta=largest_eta(safe))))


def test_terms_by_hand() -> None:
    """K + 1 = 100, M = 4, p = ½, η = 0.1, γ = ¼, α = β = 1, R = 2, L = 2, F = 3, D = 9, mean Δ_i = 4, d = 8, σ = 3."""
    s = Setting(
        K=99, M=4, p=0.5, eta=0.1, gamma=0.25, alpha=1.0, beta=1.0, R=2.0, L=2.0, F=3.0, heterogeneity=9.0, order_heterogeneity=4.0, d=8,
        sigma=3.0, trust="local", steps=5,
    )  # fmt: skip
    spread = 2 * 0.25 / 0.5 + 2 * 0.5 + 2 * 72 / 0.5
    paper = bound(s)
    assert paper == pytest.approx((3 * 3 / 10, 4.0, 2 * math.sqrt(spread * 100 / 4), 0.1, 0.25 * 8 * 2 * 2 * 3, 0.0))
    sharper = bound(s, "sharper")
    assert sharper == pytest.approx((0.9, 4.0, 2 * math.sqrt((0.5 + 72) / 0.5 * 25), 0.1, 12.0, 0.0))
    assert bound(replace(s, steps=1), "sharper")[:1] == pytest.approx((0.3,)) and bound(replace(s, steps=1)).drift == 0
    assert bound(replace(s, method="ig")).order == pytest.approx(0.25 * 4 * 2 * 2 * 2)
    central = bound(replace(s, trust="central"))
    assert central.noise == pytest.approx(2 * math.sqrt((2 + 2 * 72 / (0.5 * 4) / 0.5) * 25))
    found = {condition.name.split(" ")[0]: condition for condition in conditions(s)}
    assert found["γ"].limit == 0.25 and found["η"].limit == pytest.approx(0.125 * 2 / 3)
    assert found["ηγ"].limit == pytest.approx(3 / (4 * 2 * 2 * 100)) and not found["ηγ"].holds
    assert paper.dominant == "noise" and paper.total == pytest.approx(sum(paper))


@pytest.mark.parametrize("name", ["M", "p", "eta", "gamma", "alpha", "beta", "R", "L", "F", "sigma"])
def test_settings_are_checked(name: str) -> None:
    good: dict[str, Any] = {"K": 9, "M": 4, "p": 0.5, "eta": 0.1, "gamma": 0.1, "alpha": 1.0, "beta": 1.0, "R": 1.0, "L": 1.0, "F": 1.0}
    for value in (math.nan, math.inf, -1.0):
        with pytest.raises(normec.BadInput, match=f"^{name}="):
            Setting(**good | {name: value})
    with pytest.raises(normec.BadInput, match="D > 0"):
        Setting(**good, steps=2)


@pytest.mark.parametrize(
    ("number", "rate", "choices"),
    [
        (4, 1 / 6, {"steps": 1}),
        (2, 1 / 8, {"steps": 3}),
        (5, 1 / 8, {"method": "ig"}),
        (1, 0, {"steps": 1, "sigma": 1.0}),
        (3, 0, {"steps": 3, "sigma": 1.0}),
    ],
)
def test_corollaries_have_their_rates(number: int, rate: float, choices: Any) -> None:
    """On a log-log fit over K the bound falls with the corollary's rate; the private ones tend to a utility."""
    rounds, totals = np.array([10**8, 10**9, 10**10, 10**11]), []
    for n in rounds:
        drifting = choices.get("method") == "ig" or choices["steps"] > 1
        private = {"sigma": 0.01 * math.sqrt(n), "trust": "local"} if "sigma" in choices else {}
        s = Setting(
            **{"p": 0.5} | choices | private, K=int(n) - 1, M=10, eta=1.0, gamma=0.25, alpha=1.0, beta=0.2, R=0.5, L=1.0, F=1.0,
            heterogeneity=1.0 if drifting else 0.0, order_heterogeneity=0.5,
        )  # fmt: skip
        found = corollary(s)
        assert found.number == number and found.rate == rate
        totals.append(bound(found.setting).total)
        held = [c.holds for c in conditions(found.setting)]
        assert all(held)
    slope = np.polyfit(np.log(rounds), np.log(totals), 1)[0]
    assert slope == pytest.approx(-rate, abs=0.01)


@pytest.mark.parametrize(
    ("rate", "choices"), [(1 / 6, {"steps": 1, "p": 0.5}), (1 / 8, {"steps": 3, "p": 0.5}), (1 / 8, {"method": "ig", "p": 0.5})]
)
def test_measured_slopes_are_at_least_the_rates(rate: float, choices: Any) -> None:
    """With constants large enough that the runs arrive: D is any number above Δ^inf, and a large one lets η be larger."""
    problem, rounds, totals = a_problem(1, 8, 3, 4, 2.0), [100, 300, 1000, 3000, 10_000], []
    for n in rounds:
        start = replace(admissible(problem, n, alpha=1.0, beta=15.0, R=5.0, **choices), heterogeneity=1e4)
        s = corollary(start).setting
        assert all(condition.holds for condition in conditions(s))
        totals.append(run(problem, s, seeds=4).gradients.mean(1).min())
    assert np.polyfit(np.log(rounds), np.log(totals), 1)[0] <= -rate


@settings(max_examples=8, deadline=None, phases=[Phase.explicit, Phase.generate], derandomize=True)
@given(
    clients=st.integers(2, 10**5), rate=st.sampled_from([0.05, 0.5, 1.0]), parameters=st.integers(1, 10**4), smoothness=st.floats(0.01, 100),
    gap=st.floats(0.01, 100), heterogeneity=st.floats(0, 10), steps=st.integers(1, 5), method=st.sampled_from(["gd", "ig"]),
    alpha=st.floats(1e-3, 1), start=st.none() | st.floats(0.01, 10), rounds=st.integers(2, 300), epsilon=st.none() | st.floats(0.5, 10),
)  # fmt: skip
def test_plans_satisfy_their_conditions(epsilon: float | None, **choices: Any) -> None:
    if choices["method"] == "ig":
        choices["steps"] = 1
    given = {key: value for key, value in choices.items() if not (key == "steps" and choices["method"] == "ig")}
    found = plan(Goal(trust="none" if epsilon is None else "local", epsilon=epsilon, **given))
    assert found["chosen"]["conditions"] and all(each["holds"] for each in found["chosen"]["conditions"])
    best, closed = found["chosen"]["bound"]["sharper"]["total"], found["corollary"]
    if choices["method"] == "ig" or choices["steps"] > 1:
        assert found["chosen"]["heterogeneity"] >= choices["heterogeneity"]
    if choices["start"] is None and all(each["holds"] for each in closed["conditions"]):
        assert best <= closed["bound"]["sharper"]["total"] * (1 + 1e-3)
    assert all(found["more"][name] <= best * (1 + 1e-3) for name in ("twice the clients",))


@pytest.mark.parametrize(
    ("choices", "known"),
    [
        ({"rate": 0.5, "rounds": 1000, "steps": 5, "heterogeneity": 0.1}, 2.21),
        ({"rate": 0.5, "rounds": 40, "clients": 15, "alpha": 7.106e-4, "smoothness": 55.77, "gap": 33.15, "steps": 5, "heterogeneity": 0.1}, 244.0),
    ],
)  # fmt: skip
def test_plan_finds_what_a_fine_search_finds(choices: Any, known: float) -> None:
    goal = Goal(trust="none", **choices)
    found = plan(goal)["chosen"]["bound"]["sharper"]["total"]
    assert found <= known
    rng, best = np.random.default_rng(0), math.inf
    start = goal.setting(choices["rounds"], 0.0)
    for beta, R, gamma, extra in 10.0 ** rng.uniform([-4, -3, -3, -3], [1.5, 1.5, 0, 2], (20_000, 4)):
        s = replace(start, beta=beta, R=R, gamma=gamma / (2 * start.L), heterogeneity=0.1 + extra)
        s = replace(s, eta=largest_eta(s))
        if all(condition.holds for condition in conditions(s)):
            best = min(best, bound(s, "sharper").total)
    assert found <= best


def test_plan_says_what_has_no_rate_or_no_closed_form() -> None:
    assert plan(Goal(trust="none", rate=1.0))["corollary"]["rate"] == 0.5
    assert plan(Goal(trust="none", rate=0.5, start=0.5))["corollary"] is None
    assert plan(Goal(epsilon=8.0, start=0.5))["corollary"]["start"] == 0.5
    doubled = plan(Goal(epsilon=8.0, clients=40_000))
    assert doubled["more"]["twice the clients"] < doubled["chosen"]["bound"]["sharper"]["total"]


@pytest.mark.parametrize(
    ("choices", "key"),
    [
        ({"trust": "secagg", "epsilon": 8.0}, "min_honest is missing"), ({"epsilon": 8.0, "min_honest": 3}, "min_honest=3 acts only"),
        ({"trust": "local", "epsilon": 8.0, "colluders": 3}, "colluders=3"), ({"trust": "none", "delta": 1e-6}, "delta=1e-06"),
        ({"epsilon": 8.0, "order_heterogeneity": 1.0}, "order_heterogeneity"), ({"epsilon": 8.0, "method": "ig", "steps": 3}, "steps=3"),
        ({"trust": "secagg", "epsilon": 8.0, "min_honest": 99, "colluders": 2}, "gives up every round"),
    ],
)  # fmt: skip
def test_goals_with_keys_that_would_be_ignored(choices: Any, key: str) -> None:
    with pytest.raises(normec.BadInput, match=key):
        Goal(**choices)


def test_plan_command(command: Command) -> None:
    done = command("plan", "epsilon=8", "clients=1000", "rate=0.1", "parameters=100", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["noise_multiplier"] > 0 and found["chosen"]["bound"]["paper"]["total"] > found["chosen"]["bound"]["sharper"]["total"]
    assert found["more"]["twice the clients"] < found["chosen"]["bound"]["sharper"]["total"]
    private = json.loads(command("privacy", "epsilon=8", "clients=1000", "rate=0.1", "--json").out)
    assert found["noise_multiplier"] == private[0]["noise_multiplier"]
    shown = command("plan", "epsilon=8", "clients=1000000", "rate=0.01", "rounds=choose")
    assert shown.code == 0 and "largest term" in shown.out and "rounds chosen among" in shown.out and "a release of its own" in shown.out
    for arguments, word in (
        (["epsilon=8", "trust=none"], "epsilon"),
        (["trust=local"], "epsilon"),
        (["trust=none", "rounds=choose"], "rounds"),
        (["epsilon=8", "smoothness=nan"], "smoothness"),
    ):
        refused = command("plan", *arguments)
        assert refused.code == 2 and word in refused.err


def test_a_plan_is_a_run_that_meets_the_conditions(command: Command) -> None:
    """The last line of a plan, on quadratics with the constants that it was made for."""
    planned = command(
        "plan", "trust=none", "clients=10", "rate=1", "parameters=5", "smoothness=1", "gap=2", "rounds=30", "alpha=0.5", "--json"
    )
    arguments = json.loads(planned.out)["run"].split()[2:]
    where = "normec.theory.problems"
    problem = [f"data.source={where}:quadratics", f"model.name={where}:linear", f"model.loss={where}:half_squares", "theory.check=true"]
    done = command("train", *problem, *arguments, "engine.dtype=float64")
    assert done.code == 0 and "theory: conditions met" in done.out, (done.out, done.err)


def test_quadratics_have_the_chosen_constants() -> None:
    federation = quadratics(clients=7, d=4, smoothness=3.0, heterogeneity=0.7, samples=9, noise=0.5)
    model = FlatModel(linear((4,)), half_squares, torch.device("cpu"), torch.float64)
    found = constants(model, federation, normec.GD())
    assert found.certified and pytest.approx(3.0) == found.L and found.heterogeneity == pytest.approx(0.7)
    batched = constants(model, federation, normec.IG(batch_size=3))
    assert batched.L > 3.0 and batched.order_heterogeneity > 0 and batched.heterogeneity == pytest.approx(0.7)
    values = []
    for client in range(7):
        a, b = (part.double().numpy() for part in federation.client(client))
        values.append(np.square(a @ np.linalg.lstsq(a, b, rcond=None)[0] - b).mean() / 2)
    assert found.infimum == pytest.approx(0.7 + np.mean(values))
    assert quadratics(heterogeneity=0.0).y.abs().max() < 1e-12
    with pytest.raises(normec.BadInput, match="samples=2"):
        quadratics(samples=2)


def smoothness_by_hessians(module: nn.Module, loss: Any, samples: tuple[torch.Tensor, torch.Tensor], points: int = 30) -> float:
    """The largest curvature at random points, by autograd."""
    model = FlatModel(module, loss, torch.device("cpu"), torch.float64)
    names = [name for name, _ in module.named_parameters()]
    shapes = [p.shape for p in module.parameters()]

    def value(vector: torch.Tensor) -> torch.Tensor:
        parts = torch.split(vector, [int(torch.Size(shape).numel()) for shape in shapes])
        named = {name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        total = loss(torch.func.functional_call(module, named, (samples[0],)), samples[1])
        if isinstance(module, RegularisedLogistic):
            total = total + module.strength * (vector**2 / (1 + vector**2)).sum()
        return total

    rng = np.random.default_rng(0)
    hessians = [
        torch.autograd.functional.hessian(value, torch.from_numpy(rng.uniform(-1, 1, model.d) * 10.0 ** rng.uniform(-3, 1)))
        for _ in range(points)
    ]
    return max(float(torch.linalg.eigvalsh(hessian)[-1]) for hessian in hessians)


@pytest.mark.parametrize("kind", ["logistic", "softmax", "regularised", "squares", "mse"])
def test_smoothness_against_hessians(kind: str) -> None:
    rng = np.random.default_rng(0)
    classes, x = (2 if kind == "logistic" else 4), rng.uniform(-2, 2, (30, 3))
    y: Array = rng.integers(0, classes, 30) if kind in ("logistic", "softmax", "regularised") else rng.uniform(-1, 1, 30)
    federation = normec.Federation.from_arrays(x, y, np.arange(30) % 3)
    module, loss = {
        "squares": (linear((3,)), half_squares), "mse": (nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)), nn.functional.mse_loss),
        "regularised": (RegularisedLogistic((3,), classes, strength=0.3), nn.functional.cross_entropy),
    }.get(kind, (nn.Linear(3, classes), nn.functional.cross_entropy))  # fmt: skip
    module = module.double()
    found = constants(FlatModel(module, loss, torch.device("cpu"), torch.float64), federation, normec.GD())
    seen = max(smoothness_by_hessians(module, loss, (federation.client(i)[0].double(), federation.client(i)[1])) for i in range(3))
    exact = kind in ("squares", "mse")
    assert found.certified and seen <= found.L * (1 + 1e-9) and (seen == pytest.approx(found.L) if exact else 4 * seen >= found.L)


class Cubed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 5 * self.linear(x) ** 3


class Loud(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 10 * super().forward(x)


class Bent(Cubed):
    penalty_smoothness = 0.0

    def penalty(self) -> torch.Tensor:
        return -self.linear.weight.square().sum()


def hooked() -> nn.Module:
    layer = nn.Linear(3, 2)
    layer.register_forward_hook(lambda module, inputs, outputs: 10 * outputs)
    return layer


def twice() -> nn.Module:
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, layer)


def half_frozen() -> nn.Module:
    layer = nn.Linear(3, 2)
    layer.bias.requires_grad_(False)
    return layer


@pytest.mark.parametrize(
    "make", [Cubed, lambda: nn.Sequential(nn.Flatten(), Cubed()), lambda: Loud(3, 2), Bent, hooked, twice, half_frozen, lambda: nn.Sequential(nn.Linear(3, 2), nn.Tanh())],
)  # fmt: skip
def test_models_that_are_not_linear_are_not_certified(make: Callable[[], nn.Module]) -> None:
    federation = normec.Federation.from_arrays(np.random.default_rng(0).uniform(-1, 1, (12, 3)), np.arange(12) % 2, np.arange(12) % 3)
    assert not constants(
        FlatModel(make(), nn.functional.cross_entropy, torch.device("cpu"), torch.float32), federation, normec.GD()
    ).certified


def test_losses_that_are_not_known_squares_are_not_certified() -> None:
    def half_squares(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return 50 * (outputs - targets).square().sum()

    class Steeper(nn.MSELoss):
        def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return 50 * super().forward(outputs, targets)

    federation = quadratics(clients=3, d=3)
    for loss in (half_squares, nn.MSELoss(reduction="sum"), Steeper(), nn.functional.l1_loss):
        assert not constants(FlatModel(linear((3,)), loss, torch.device("cpu"), torch.float32), federation, normec.GD()).certified
    for module, certified in (
        (nn.Linear(3, 1), False),
        (nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)), True),
    ):  # (n, 1) − (n,) would broadcast
        known = constants(FlatModel(module, nn.MSELoss(), torch.device("cpu"), torch.float32), federation, normec.GD())
        assert known.certified is certified
    images = normec.Federation.from_arrays(np.ones((6, 4, 3)), np.arange(6) % 2, np.arange(6))
    rows = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Flatten())
    assert not constants(FlatModel(rows, nn.functional.cross_entropy, torch.device("cpu"), torch.float32), images, normec.GD()).certified


def test_constants_with_a_client_that_holds_nothing() -> None:
    """Its f_i is zero: means are over all clients."""
    full = quadratics(clients=2, d=2, samples=4, noise=0.4)
    arrays = (full.x.numpy(), full.y.numpy(), np.repeat([0, 1], 4))
    empty = normec.Federation.from_arrays(*arrays, empty_clients=[2, 3])
    model = FlatModel(linear((2,)), half_squares, torch.device("cpu"), torch.float64)
    one, other = (constants(model, federation, normec.IG(batch_size=2)) for federation in (full, empty))
    for name in ("infimum", "heterogeneity", "order_heterogeneity"):
        assert getattr(other, name) == pytest.approx(getattr(one, name) / 2)


def test_the_penalty_bends_by_twice_its_strength() -> None:
    federation = normec.Federation.from_arrays(np.random.default_rng(0).uniform(-1, 1, (12, 3)), np.arange(12) % 2, np.arange(12) % 3)
    plain, bent = (
        constants(FlatModel(module, nn.functional.cross_entropy, torch.device("cpu"), torch.float64), federation, normec.GD())
        for module in (nn.Linear(3, 2), RegularisedLogistic((3,), 2, strength=0.3))
    )
    assert pytest.approx(plain.L + 0.6) == bent.L


def test_power_iteration_is_above_the_exact_value(monkeypatch: pytest.MonkeyPatch) -> None:
    features = np.random.default_rng(0).uniform(-1, 1, (60, 40))
    exact = largest_eigenvalue(features)
    monkeypatch.setattr("normec.theory.constants.LARGEST_EXACT", 10)
    assert exact <= largest_eigenvalue(features) <= 1.06 * exact


def checked(**choices: Any) -> normec.Run:
    defaults: dict[str, Any] = {
        "model": linear, "loss": half_squares, "data": quadratics(clients=6, d=3, smoothness=1.0, heterogeneity=0.2),
        "algorithm": normec.FedNormEC(alpha=1.0, beta=0.5, server_lr=0.05, server_normalize=True), "local": normec.GD(steps=1, lr=0.5),
        "participation": normec.Full(), "privacy": normec.Privacy(trust="none"), "rounds": 30, "theory": normec.Theory(check=True),
        "engine": normec.Engine(dtype="float64", checkpoint_every=1),
    }  # fmt: skip
    return normec.train(**(defaults | choices))


def test_a_run_within_the_theorem_is_certified() -> None:
    run = checked()
    found = run.summary["theory"]
    assert found["verdict"] == "conditions met" and found["simulation_only"] and found["invariant_held"] and found["theorem"] == 1
    assert found["gradient_norm_min"] <= found["bound"]["sharper"]["total"] <= found["bound"]["paper"]["total"]
    gradients = [row["simulation_only"]["gradient_norm"] for row in run.metrics]
    assert found["gradient_norm_min"] == min(gradients[:-1])  # k = 0 … K: the last model is x^{K+1}
    assert found["memory_error_first"] == max(row["simulation_only"]["memory_error"] for row in run.metrics[1:])
    first = run.metrics[0]["train_loss"]
    assert found["constants"]["F"] == pytest.approx(first - 0.2) and found["constants"]["L"] == pytest.approx(1.0)


def test_several_steps_private_and_incremental_runs_are_certified_too() -> None:
    choices: dict[str, Any] = {
        "algorithm": normec.FedNormEC(alpha=1.0, beta=0.5, server_lr=1e-3, server_normalize=True), "participation": normec.Poisson(0.5),
        "privacy": normec.Privacy(trust="central", epsilon=5.0), "local": normec.GD(steps=4, lr=0.3),
    }  # fmt: skip
    several = checked(**choices).summary["theory"]
    assert several["verdict"] == "conditions met" and several["bound"]["paper"]["drift"] > 0 and several["constants"]["sigma"] > 0
    incremental = checked(**choices | {"local": normec.IG(steps=1, lr=0.05, batch_size=5)}).summary["theory"]
    assert incremental["theorem"] == 2 and incremental["verdict"] == "conditions met" and incremental["constants"]["L"] > 1.0


def test_a_run_outside_its_conditions_says_which_and_by_how_much() -> None:
    found = checked(algorithm=normec.FedNormEC(alpha=1.0, beta=0.5, server_lr=3.0, server_normalize=True)).summary["theory"]
    assert found["verdict"] == "conditions not met" and any(
        "η <= (γ/2) βR/(α + R)" in reason and "times too large" in reason for reason in found["reasons"]
    )
    assert not found["invariant_held"] and found["memory_error_max"] > found["memory_error_first"]


class Climbs(normec.FedNormEC):
    """A subclass is another method."""

    def server(self, state: Any, mean: torch.Tensor, rate: float) -> Any:
        direction, state = super().server(state, mean, rate)
        return -direction, state


def test_a_runs_bound_is_that_of_its_own_numbers() -> None:
    """From M = 7 of which one holds nothing, p = ½, 30 rounds, the noise and T, written out."""
    base = quadratics(clients=6, d=3, smoothness=1.0, heterogeneity=0.2)
    data = normec.Federation.from_arrays(base.x.numpy(), base.y.numpy(), np.repeat(np.arange(6), 10), empty_clients=[6])
    run = checked(
        data=data, algorithm=normec.FedNormEC(alpha=1.0, beta=0.5, server_lr=1e-3, server_normalize=True), participation=normec.Poisson(0.5),
        privacy=normec.Privacy(trust="local", noise_multiplier=2.0), local=normec.GD(steps=4, lr=0.3),
    )  # fmt: skip
    found = run.summary["theory"]
    F, D, R = run.metrics[0]["train_loss"] * 6 / 7 - 0.2 * 6 / 7, found["constants"]["D"], found["constants"]["R"]
    spread = 2 * 0.25 / 0.5 + 2 * 0.5 + 2 * 3 * 4.0 / 0.5
    right = 3 * F / (30 * 1e-3) + 2 * R + 2 * math.sqrt(0.25 * spread * 30 / 7) + 1e-3 / 2 + 0.3 * 8 * math.sqrt(2) * math.sqrt(D)
    assert found["bound"]["paper"]["total"] == pytest.approx(right, rel=1e-6)
    assert max(0.2 * 6 / 7, (1e-3 * 0.3 * 4 * math.sqrt(2) * 30) ** 2) == pytest.approx(D, rel=1e-6)


def test_a_contradiction_is_never_called_met(monkeypatch: pytest.MonkeyPatch) -> None:
    from normec.runs import verdict as module

    true = constants(
        FlatModel(linear((3,)), half_squares, torch.device("cpu"), torch.float64),
        quadratics(clients=6, d=3, heterogeneity=0.2),
        normec.GD(),
    )
    monkeypatch.setattr(module, "constants", lambda *arguments: replace(true, L=0.05))
    found = checked(algorithm=normec.FedNormEC(alpha=1.0, beta=0.5, server_lr=0.05, server_normalize=True)).summary["theory"]
    assert found["verdict"] == "contradicted" and "above L" in found["reasons"][-1]


def test_a_start_at_the_gradients_is_the_best_and_is_certified() -> None:
    """‖v_i⁰ − g_i(x⁰)‖ = 0: any R above is admissible, and the smallest that η allows is taken."""
    algorithm = normec.FedNormEC(alpha=1.0, beta=0.5, server_lr=0.05, server_normalize=True, init="local")
    found = checked(algorithm=algorithm).summary["theory"]
    assert found["verdict"] == "conditions met" and found["invariant_held"]
    assert found["constants"]["R"] == pytest.approx(2 * 0.05 / (0.25 - 0.1), rel=1e-6)


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({"algorithm": Climbs(server_normalize=True)}, "not"),
        ({"privacy": normec.Privacy(trust="secagg", min_honest=2, noise_multiplier=0.1), "participation": normec.Poisson(0.5)}, "given up"),
        ({"privacy": normec.Privacy(trust="local", noise_multiplier=1.0, client_limit=8.0)}, "client_limit"),
        ({"algorithm": normec.FedNormEC()}, "plain server step"),
        ({"algorithm": normec.FedNormEC(server_normalize=True, lazy=True)}, "lazy"),
        ({"algorithm": normec.Clip21()}, "not clip21"),
        ({"local": normec.SGD(steps=1)}, "local method sgd"),
        ({"local": normec.PoissonBatches(steps=1)}, "local method poisson with one step"),
        ({"local": normec.IG(steps=2)}, "ig with 2 passes"),
        ({"local": normec.IG(steps=1, batch_size=4)}, "mini-batches of unequal size"),
        ({"server": normec.ServerMomentum()}, "server optimizer momentum"),
        ({"participation": normec.Fixed(0.5)}, "fixed size"),
    ],
)  # fmt: skip
def test_runs_outside_the_theorems_say_why(choices: dict[str, Any], reason: str) -> None:
    found = checked(**choices).summary["theory"]
    assert found["verdict"] == "outside the theorems" and any(reason in each for each in found["reasons"]) and "bound" not in found


def test_broken_clients_and_losses_are_outside() -> None:
    data = quadratics(clients=3, d=2, samples=4)
    x, y = data.x.numpy().copy(), data.y.numpy().copy()
    y[0] = 1e200
    broken = normec.Federation.from_arrays(x, y, np.repeat(np.arange(3), 4))
    private = normec.Privacy(trust="central", noise_multiplier=0.1)
    found = checked(data=broken, privacy=private).summary["theory"]
    assert found["verdict"] == "outside the theorems" and any("not finite" in reason for reason in found["reasons"])
    whole = normec.Federation.from_arrays(x, np.full(12, 1e200), np.repeat(np.arange(3), 4))
    found = checked(data=whole, privacy=private).summary["theory"]
    assert found["verdict"] == "outside the theorems" and found["gradient_norm_min"] is None
    negative = checked(
        loss=lambda out, y: -half_squares(out, y), rounds=3, algorithm=normec.FedNormEC(server_normalize=True, server_lr=1e-4)
    )
    assert any("negative" in reason for reason in negative.summary["theory"]["reasons"])


def test_neural_networks_are_estimated() -> None:
    federation = normec.Federation.from_arrays(np.random.default_rng(0).uniform(-1, 1, (40, 3)), np.arange(40) % 2, np.arange(40) % 4)
    model = partial(nn.Sequential, nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    run = checked(model=lambda: model(), loss=nn.functional.cross_entropy, data=federation)
    found = run.summary["theory"]
    seen = [row["simulation_only"]["smoothness_seen"] for row in run.metrics[1:]]
    assert found["verdict"].startswith("estimated: ") and "estimated along the run" in found["constants"]["how"]
    assert found["constants"]["L"] == max(seen)


def test_the_regularised_logistic_problem_runs_on_a_data_file(command: Command) -> None:
    rng = np.random.default_rng(0)
    rows = "\n".join(",".join(f"{value:.4f}" for value in rng.uniform(-1, 1, 3)) + f",{i % 2},{i % 5}" for i in range(60))
    Path("d.csv").write_text("a,b,c,label,client\n" + rows + "\n")
    arguments = [
        "data.source=d.csv",
        "data.partition=column",
        "model.name=normec.theory.problems:regularised_logistic",
        "privacy.trust=none",
    ]
    done = command(
        "train", *arguments, "theory.check=true", "algorithm.name=alpha-normec", "algorithm.server_lr=0.01", "local.lr=0.3", "algorithm.alpha=1",
        "algorithm.beta=0.5", "participation.rate=1", "rounds=10", "--out", "r",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert (
        "theory: conditions met" in done.out
        and "Theorem 1 bounds the expectation of the smallest by" in done.out
        and "in simulation only" in done.out
    )
    loss = json.loads(Path("r/metrics.jsonl").read_text().splitlines()[0])["train_loss"]
    assert loss == pytest.approx(math.log(2))  # at zero weights the penalty is zero
    assert json.loads(Path("r/summary.json").read_text())["theory"]["constants"]["how"] == "bounded from above for softmax regression"


@pytest.mark.parametrize("kind", ["certified", "estimated", "with dropout"])
def test_a_resumed_run_has_the_same_verdict(tmp_path: Path, kind: str) -> None:
    layers = [
        nn.Flatten(),
        nn.Linear(3, 4),
        nn.Tanh(),
        *([nn.Dropout(0.3)] if kind == "with dropout" else []),
        nn.Linear(4, 1),
        nn.Flatten(0),
    ]
    choices: dict[str, Any] = (
        {} if kind == "certified" else {"model": lambda: nn.Sequential(*[__import__("copy").deepcopy(layer) for layer in layers])}
    )
    whole = checked(out=tmp_path / "a", **choices)
    with pytest.raises(OSError, match="stopped"):
        checked(out=tmp_path / "b", observer=FailsAt(11), **choices)
    resumed = checked(out=tmp_path / "b", resume=True, **choices)
    assert resumed.summary["theory"] == whole.summary["theory"]
    np.testing.assert_array_equal(checkpoint_of(resumed)["x"], checkpoint_of(whole)["x"])


def test_without_a_check_nothing_is_measured() -> None:
    run = checked(theory=normec.Theory())
    assert run.summary["theory"] is None and "gradient_norm" not in run.metrics[1]["simulation_only"]
