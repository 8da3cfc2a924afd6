"""What a theorem says about a run: its conditions, its bound, and what was measured. Of a simulation only."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from normec.algorithms import Descent, FedNormEC
from normec.experiment import Plan
from normec.theory.bounds import FORMS, Setting, bound, conditions
from normec.theory.constants import Constants, constants

ROUNDING = 1e-5
"""Relative: what float32 may add to a measured norm."""


def certificate(plan: Plan, metrics: list[dict[str, Any]]) -> dict[str, Any]:
    """The verdict on a run from its metrics, which hold ‖∇f(x^k)‖ and max_i ‖g_i(x^k) − v_i^k‖ of every round.

    verdict: "conditions met" (the theorem applies), "conditions not met" (which, by how much), "estimated" (for a model whose
    constants are not proven), or "outside the theorems" (why).
    """
    seen = [row["simulation_only"] or {} for row in metrics]
    gradients = [each["gradient_norm"] for each in seen[:-1] if each.get("gradient_norm") is not None]
    errors = [each["memory_error"] for each in seen[1:] if each.get("memory_error") is not None]
    reasons = outside(plan)
    found: dict[str, Any] = {
        "simulation_only": True,
        "verdict": "outside the theorems" if reasons else "",
        "reasons": reasons,
        "gradient_norm_min": min(gradients, default=None),
        "memory_error_first": errors[0] if errors else None,
        "memory_error_max": max(errors, default=None),
        "invariant_held": max(errors) <= errors[0] * (1 + ROUNDING) if errors else None,
    }
    if reasons or not errors:
        return found
    known = constants(plan.model, plan.federation, plan.experiment.local)
    setting = _setting(plan, known, metrics, R=errors[0], smoothness=_smoothness(known, seen))
    if setting is None:
        return found | {"verdict": "outside the theorems", "reasons": ["no two models of the run differ, so that no L can be estimated"]}
    tests = conditions(setting)
    failed = [str(test) for test in tests if not test.holds]
    verdict = "conditions not met" if failed else "conditions met"
    return found | {
        "verdict": verdict if known.certified else f"estimated: {verdict}",
        "reasons": failed,
        "theorem": 2 if setting.method == "ig" else 1,
        "conditions": [str(test) for test in tests],
        "bound": {form: {**bound(setting, form)._asdict(), "total": bound(setting, form).total} for form in FORMS},
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


def outside(plan: Plan) -> list[str]:
    """Why no theorem here is about a run, whatever its stepsizes; empty where one is."""
    chosen, reasons = plan.experiment, []
    algorithm = chosen.algorithm
    if not isinstance(algorithm, FedNormEC):
        return [f"the theorems are about fed-normec and alpha-normec, not {algorithm.name}"]
    if algorithm.lazy:
        reasons.append("the lazy variant")
    if not algorithm.server_normalize:
        reasons.append("the plain server step (set algorithm.server_normalize = true)")
    if chosen.server.optimizer != Descent.optimizer:
        reasons.append(f"the server optimizer {chosen.server.optimizer}")
    if chosen.local.method not in ("gd", "ig") or (chosen.local.method == "ig" and chosen.local.steps != 1):
        reasons.append(f"the local method {chosen.local.method} with {chosen.local.steps} steps (gd, or ig with one pass)")
    if chosen.local.method == "ig" and bool((plan.federation.sizes % chosen.local.batch_size).any()):
        reasons.append("mini-batches of unequal size, which the theorem's f_i weighs alike (choose a local.batch_size that divides)")
    if chosen.participation.scheme == "fixed":
        reasons.append("cohorts of a fixed size")
    return reasons


def lines(found: dict[str, Any]) -> list[str]:
    """A certificate in words."""
    text = [f"theory: {found['verdict']}{': ' if found['reasons'] else ''}{'; '.join(found['reasons'])}"]
    if "bound" in found:
        totals = " and ".join(f"{found['bound'][form]['total']:.4g} ({form} form)" for form in FORMS)
        measured = f"theory: min ‖∇f(x^k)‖ was {found['gradient_norm_min']:.4g}"
        text.append(f"{measured}; Theorem {found['theorem']} bounds its expectation by {totals}")
    if found["invariant_held"] is not None:
        held = "in every round" if found["invariant_held"] else f"not always: up to {found['memory_error_max']:.4g}"
        text.append(f"theory: ‖g_i − v_i‖ <= R = {found['memory_error_first']:.4g} held {held} (in simulation only)")
    return text


def _smoothness(known: Constants, seen: list[dict[str, Any]]) -> float:
    estimates = [each["smoothness_seen"] for each in seen if each.get("smoothness_seen") is not None]
    return known.L if known.certified else max(estimates, default=math.nan)


def _setting(plan: Plan, known: Constants, metrics: list[dict[str, Any]], R: float, smoothness: float) -> Setting | None:
    """The run as the theorems see it, with the smallest D >= Δ^inf that the drift's condition allows."""
    chosen, mechanism = plan.experiment, plan.mechanism
    if not smoothness > 0 or not isinstance(chosen.algorithm, FedNormEC):
        return None
    filled = float(np.mean(plan.federation.sizes > 0))
    eta, gamma, n = chosen.algorithm.server_lr, chosen.local.lr, mechanism.rounds
    method = "ig" if chosen.local.method == "ig" else "gd"
    drifts = method == "ig" or chosen.local.steps > 1
    needed = (eta * gamma * 4 * smoothness * math.sqrt(2 * smoothness) * n) ** 2 if drifts else 0.0
    return Setting(
        K=n - 1,
        M=mechanism.clients,
        p=mechanism.rate,
        eta=eta,
        gamma=gamma,
        alpha=chosen.algorithm.alpha,
        beta=chosen.algorithm.beta,
        R=max(R, 1e-300),
        L=smoothness,
        F=max(metrics[0]["train_loss"] * filled - known.infimum, 0.0),
        heterogeneity=max(known.heterogeneity, needed),
        order_heterogeneity=known.order_heterogeneity,
        d=plan.model.d,
        sigma=mechanism.noise_std,
        trust=mechanism.trust,
        steps=chosen.local.steps,
        method=method,  # type: ignore[arg-type]
    )
