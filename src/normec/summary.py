"""What a run amounts to, in numbers and in one sentence that an auditor can check."""

from __future__ import annotations

import math
import platform
from typing import Any

import torch

from normec.experiment import Plan
from normec.privacy import Mechanism, Spent, by_group_privacy
from normec.version import __version__

SEEDED = "Seeded noise: for simulation, not for release."


def privacy_sentence(mechanism: Mechanism, claim: Spent, delta: float, careful: Spent | None) -> str:
    """The claim in words: unit, ε, δ, adjacency, trust, sampling, rounds and accountant; or that there is none.

    careful: a second bound with fewer premises, printed beside the claim.
    """
    if not mechanism.private:
        reason = "nobody adds noise" if mechanism.trust == "none" else f"a noise multiplier of {mechanism.noise_multiplier:g} is none"
        return f"Not private: {reason}, ε = ∞."
    rate = "" if mechanism.sampling == "full" else f" at rate {mechanism.rate:g}"
    beside = f" (without relying on how substitution acts under sampling: ε = {upper(careful.epsilon)})" if careful else ""
    return (
        f"Client-level (ε = {upper(claim.epsilon)}, δ = {delta!r}) differential privacy under {mechanism.adjacency} adjacency, "
        f"trust {mechanism.trust} (a trusted server adds the noise, once on the sum), {mechanism.sampling} sampling{rate}, "
        f"{mechanism.rounds} rounds, accountant: {claim.accountant}{beside}. {SEEDED}"
    )


def upper(epsilon: float) -> str:
    """ε with three decimals, rounded up, so that the printed number is still a bound."""
    return "∞" if math.isinf(epsilon) else f"{math.ceil(epsilon * 1000 - 1e-9) / 1000:.3f}"


def summarize(plan: Plan, last: dict[str, Any], description: dict[str, Any]) -> dict[str, Any]:
    """The content of summary.json; `last` is the last line of the metrics. ε is null where it is infinite."""
    mechanism, claim = plan.mechanism, plan.spent.planned
    private, delta = mechanism.private, plan.delta or 0.0
    substitution = private and mechanism.sampling == "poisson" and mechanism.adjacency == "replace-one"
    careful = by_group_privacy(mechanism, delta) if substitution else None
    return {
        "claim": privacy_sentence(mechanism, claim, delta, careful),
        "algorithm": plan.experiment.algorithm.name,
        "convergence": plan.experiment.algorithm.convergence,
        "private": private,
        "epsilon": claim.epsilon if private else None,
        "epsilon_by_group_privacy": careful.epsilon if careful else None,
        "delta": plan.delta if private else None,
        "unit": "client",
        "adjacency": mechanism.adjacency if private else None,
        "trust": mechanism.trust,
        "sampling": mechanism.sampling,
        "rate": mechanism.rate,
        "accountant": claim.accountant if private else None,
        "noise_multiplier": mechanism.noise_multiplier,
        "noise_std_on_sum": mechanism.noise_std,
        "sensitivity": mechanism.sensitivity if math.isfinite(mechanism.sensitivity) else None,
        "noise": plan.experiment.privacy.noise if private else None,
        "test_accuracy": last["test_accuracy"],
        "test_loss": last["test_loss"],
        "train_loss": last["train_loss"],
        "rounds": last["round"],
        "transmissions": last["transmissions"],
        "bytes_up": last["bytes_up"],
        "bytes_down": last["bytes_down"],
        "seconds": last["seconds"],
        "notes": plan.federation.notes,
        "classes": plan.federation.classes,
        "settings": description,
        "versions": {"normec": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }
