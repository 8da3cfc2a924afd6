"""What a theorem says about a run: its conditions, its bound, and what was measured. Of a simulation only."""

from __future__ import annotations

import math
from typing import Literal

from normec.algorithms import AlphaNormEC, FedNormEC
from normec.algorithms.base import REGISTRY
from normec.data import Federation
from normec.engine.clients import SimulationOnly
from normec.genuine import genuine
from normec.runs.experiment import Plan
from normec.runs.written import Certificate, MetricsRow
from normec.theory.bounds import FORMS, Setting, bound, conditions
from normec.theory.constants import Constants, constants
from normec.theory.guarantees import guarantee
from normec.theory.regular import irregular

WOULD = {
    "conditions met": "bounds",
    "estimated: conditions met": "would, were the loss everywhere as smooth as it was seen to be and nowhere below zero, bound",
}
ROUNDING = 1e-5
"""Relative: what float32 may add to a measured norm."""


def certificate(plan: Plan, metrics: list[MetricsRow]) -> Certificate:
    """The verdict on a run from its metrics, which hold ‖∇f(x^k)‖ and max_i ‖g_i(x^k) − v_i^k‖ of every round.

    verdict: "conditions met" (the theorem applies), "conditions not met" (which, by how much), "estimated" (for a model whose
    constants are not proven), "outside the theorems" (why), or "contradicted", which would be a fault of this library.
    """
    seen: list[SimulationOnly] = [row["simulation_only"] or {} for row in metrics]
    gradients, errors = _known(seen[:-1], "gradient_norm"), _known(seen[1:], "memory_error")
    reasons = outside(plan) + _happened(metrics, seen, gradients, errors)
    found: Certificate = {
        "simulation_only": True,
        "verdict": "outside the theorems",
        "reasons": reasons,
        "gradient_norm_first": gradients[0] if gradients else None,
        "gradient_norm_min": min(gradients, default=None),
        "memory_error_first": errors[0] if errors else None,
        "memory_error_max": max(errors, default=None),
        "invariant_held": max(errors) <= errors[0] * (1 + ROUNDING) if errors else None,
    }
    if reasons:
        return found
    known = constants(plan.model, plan.federation, plan.experiment.local, plan.start)
    odd = [] if known.certified else irregular(plan.model, plan.federation, plan.experiment.local, plan.start)
    if odd:
        return found | {"reasons": odd}
    estimates = _known(seen, "smoothness_seen")
    smoothness = known.L if known.certified else max(estimates, default=0.0)
    if not smoothness > 0:
        return found | {"reasons": ["no L: the features are zero, or no two models of the run differ"]}
    objectives = _known(seen, "objective")
    setting = _setting(plan, known, rounds=len(metrics) - 1, first=objectives[0], error=errors[0], smoothness=smoothness)
    tests = conditions(setting)
    failed = [str(test) for test in tests if not test.holds]
    verdict = "conditions not met" if failed else "conditions met"
    contradictions = [] if failed or not known.certified else _contradictions(setting, max(errors), max(estimates, default=0.0))
    if not failed and known.certified:
        contradictions += _below(known.infimum, min(objectives)) + _above(setting, min(gradients))
    if contradictions:
        verdict, failed = "contradicted", contradictions
    return {
        **found,
        "verdict": verdict if known.certified else f"estimated: {verdict}",
        "reasons": failed,
        "theorem": 2 if setting.method == "ig" else 1,
        "invariant_held": max(errors) <= setting.R * (1 + ROUNDING),
        "conditions": [str(test) for test in tests],
        "bound": {form: bound(setting, form).table() for form in FORMS},
        "constants": {
            "how": known.how,
            "L": setting.L,
            "F": setting.F,
            "R": setting.R,
            "heterogeneity": known.heterogeneity,
            "D": setting.heterogeneity,
            "order_heterogeneity": known.order_heterogeneity,
            "sigma": setting.sigma,
        },
    }


def _known(seen: list[SimulationOnly], key: Literal["objective", "gradient_norm", "memory_error", "smoothness_seen"]) -> list[float]:
    """A number of each round that has it."""
    return [value for each in seen if (value := each.get(key)) is not None]


def _happened(metrics: list[MetricsRow], seen: list[SimulationOnly], gradients: list[float], errors: list[float]) -> list[str]:
    """What took a run outside the theorems on its way."""
    rounds, reasons = len(metrics) - 1, []
    if len(errors) < rounds:
        reasons.append(f"{rounds - len(errors)} of {rounds} rounds released nothing, or no client of theirs computed")
    if any(each.get("dropped") for each in seen):
        reasons.append("clients whose updates were not finite were left out")
    objectives = _known(seen, "objective")
    if len(gradients) < rounds or len(objectives) < len(seen):
        reasons.append("the loss or its gradient was not finite")
    elif min(objectives) < 0:
        reasons.append("the loss is negative: no lower bound of it is known")
    return reasons


def _contradictions(s: Setting, largest_error: float, seen: float) -> list[str]:
    """What cannot be where the conditions hold and the constants are right; to be reported as a fault of this library."""
    found = []
    if not largest_error <= s.R * (1 + ROUNDING):
        found.append(f"‖g_i − v_i‖ reached {largest_error:.4g}, above R = {s.R:.4g}")
    if not seen <= s.L * (1 + 1e-3):
        found.append(f"a smoothness of {seen:.4g} was seen, above L = {s.L:.4g}")
    return found


def _below(infimum: float, smallest: float) -> list[str]:
    short = infimum - smallest
    return [f"f reached {smallest:.6g}, below f^inf = {infimum:.6g}"] if short > 1e-3 * max(infimum, 1e-6) else []


def _above(s: Setting, smallest: float) -> list[str]:
    """A run in which nothing is drawn is its own expectation, and its smallest gradient must lie under the bound."""
    limit = bound(s, "sharper").total
    drawn = s.p < 1 or s.sigma > 0
    return [] if drawn or smallest <= limit * (1 + 1e-3) else [f"‖∇f‖ fell to {smallest:.4g} only, above the bound {limit:.4g}"]


def outside(plan: Plan) -> list[str]:
    """Why no theorem here is about a run, whatever its stepsizes; empty where one is."""
    chosen = plan.experiment
    kind = type(chosen.algorithm)
    if kind not in (FedNormEC, AlphaNormEC):
        name = kind.name if REGISTRY.get(kind.name) is kind else kind.__name__
        return [f"the theorems are about fed-normec and alpha-normec, not {name}"]
    reasons = list(guarantee(chosen.algorithm, chosen.server, chosen.local, plan.mechanism, plan.model).outside or ())
    sizes, batch = plan.federation.sizes, chosen.local.batch_size
    if chosen.local.method == "ig" and bool(((sizes > batch) & (sizes % batch > 0)).any()):
        reasons.append("mini-batches of unequal size, which the theorem's f_i weighs alike (choose a local.batch_size that divides)")
    if not (type(plan.federation) is Federation and genuine(plan.federation)):
        reasons.append(f"a user-defined federation ({type(plan.federation).__name__})")
    return reasons


def lines(found: Certificate) -> list[str]:
    """A certificate in words."""
    text = [f"theory: {found['verdict']}{': ' if found['reasons'] else ''}{'; '.join(found['reasons'])}"]
    if "bound" in found:
        totals = " and ".join(f"{found['bound'][form]['total']:.4g} ({form} form)" for form in FORMS)
        measured = f"theory: ‖∇f(x^k)‖ fell from {found['gradient_norm_first']:.4g} to {found['gradient_norm_min']:.4g}"
        would = WOULD.get(found["verdict"], "would, were its conditions met, bound")
        text.append(f"{measured}; Theorem {found['theorem']} {would} the expectation of the smallest by {totals}")
    if found["invariant_held"] is not None:
        held = "held in every round" if found["invariant_held"] else f"did not always hold: it reached {found['memory_error_max']:.4g}"
        R = found.get("constants", {}).get("R", found["memory_error_first"])
        text.append(f"theory: ‖g_i − v_i‖ <= R = {R:.4g} {held} (in simulation only)")
    return text


def _setting(plan: Plan, known: Constants, *, rounds: int, first: float, error: float, smoothness: float) -> Setting:
    """The run as the theorems see it, with the smallest D >= Δ^inf and R >= max ‖v_i⁰ − g_i(x⁰)‖ that η's conditions allow."""
    chosen, mechanism = plan.experiment, plan.mechanism
    algorithm = chosen.algorithm.table()
    eta, gamma = algorithm["server_lr"], chosen.local.lr
    alpha, beta, method = algorithm["alpha"], algorithm["beta"], chosen.local.method
    drifts = method == "ig" or chosen.local.steps > 1
    needed = (eta * gamma * 4 * smoothness * math.sqrt(2 * smoothness) * rounds) ** 2 if drifts else 0.0
    allowed = 2 * eta * alpha / (gamma * beta - 2 * eta) if gamma * beta > 2 * eta else 0.0
    return Setting(
        K=rounds - 1,
        M=mechanism.clients,
        p=mechanism.rate,
        eta=eta,
        gamma=gamma,
        alpha=alpha,
        beta=beta,
        R=max(error, allowed, 1e-300),
        L=smoothness,
        F=max((first if known.start is None else known.start) - known.infimum, 0.0),
        heterogeneity=max(known.heterogeneity, needed),
        order_heterogeneity=known.order_heterogeneity,
        d=plan.model.d,
        sigma=mechanism.noise_std,
        trust=mechanism.trust.name,
        steps=chosen.local.steps,
        method="ig" if method == "ig" else "gd",
    )
