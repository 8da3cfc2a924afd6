"""What a run amounts to, in numbers and in one sentence that an auditor can check."""

from __future__ import annotations

import math
import platform
from typing import Any

import torch

from normec.experiment import Plan
from normec.privacy import PER_CLIENT, Mechanism, Spent, by_group_privacy, realised
from normec.version import __version__

SEEDED = "Seeded noise: for simulation, not for release."


WHO_ADDS_NOISE = {
    "central": "a trusted server adds the noise, once on the sum",
    "secagg": "each participant adds noise, and a secure sum hides all but the total, of at least {honest} honest participants",
    "local": "each participant adds noise; the server sees every message",
}


def privacy_sentence(mechanism: Mechanism, claim: Spent, delta: float, beside: str) -> str:
    """The claim in words: unit, ε, δ, adjacency, trust, sampling, rounds and accountant; or that there is none.

    beside: what is to be read with the claim: a second bound, or the realised ε.
    """
    if not mechanism.private:
        reason = "nobody adds noise" if mechanism.trust == "none" else f"a noise multiplier of {mechanism.noise_multiplier:g} is none"
        return f"Not private: {reason}, ε = ∞."
    rate = "" if mechanism.sampling == "full" else f" at rate {mechanism.rate:g}"
    who = WHO_ADDS_NOISE[mechanism.trust].format(honest=mechanism.honest)
    return (
        f"Client-level (ε = {upper(claim.epsilon)}, δ = {delta!r}) differential privacy under {mechanism.adjacency} adjacency, "
        f"trust {mechanism.trust} ({who}), {mechanism.sampling} sampling{rate}, "
        f"{mechanism.rounds} rounds, accountant: {claim.accountant}{beside}. {SEEDED}"
    )


def upper(epsilon: float) -> str:
    """ε with three decimals, rounded up, so that the printed number is still a bound."""
    return "∞" if math.isinf(epsilon) else f"{math.ceil(epsilon * 1000 - 1e-9) / 1000:.3f}"


def summarize(plan: Plan, last: dict[str, Any], description: dict[str, Any], given_up: int, exposure: float) -> dict[str, Any]:
    """The content of summary.json. ε is null where it is infinite.

    last: the last line of the metrics. given_up: rounds that released nothing. exposure: the largest of the clients'.
    """
    mechanism, claim = plan.mechanism, plan.spent.planned
    private, delta = mechanism.private, plan.delta or 0.0
    substitution = private and mechanism.sampling == "poisson" and mechanism.adjacency == "replace-one"
    careful = by_group_privacy(mechanism, delta).epsilon if substitution else None
    busiest = realised(mechanism, delta, exposure).epsilon if private and mechanism.trust in PER_CLIENT else None
    beside = f" (without relying on how substitution acts under sampling: ε = {upper(careful)})" if careful is not None else ""
    if busiest is not None:
        beside = f" (before sampling, without amplification; realised by the busiest client: ε = {upper(busiest)})"
    return {
        "claim": privacy_sentence(mechanism, claim, delta, beside),
        "algorithm": plan.experiment.algorithm.name,
        "convergence": plan.experiment.algorithm.convergence,
        "private": private,
        "epsilon": claim.epsilon if private else None,
        "epsilon_by_group_privacy": careful,
        "epsilon_realised_max": busiest,
        "delta": plan.delta if private else None,
        "unit": "client",
        "adjacency": mechanism.adjacency if private else None,
        "trust": mechanism.trust,
        "sampling": mechanism.sampling,
        "rate": mechanism.rate,
        "accountant": claim.accountant if private else None,
        "noise_multiplier": mechanism.noise_multiplier,
        "noise_std": mechanism.noise_std,
        "sensitivity": mechanism.sensitivity if math.isfinite(mechanism.sensitivity) else None,
        "noise": plan.experiment.privacy.noise if private else None,
        "test_accuracy": last["test_accuracy"],
        "test_loss": last["test_loss"],
        "train_loss": last["train_loss"],
        "rounds": last["round"],
        "given_up_rounds": given_up,
        "transmissions": last["transmissions"],
        "bytes_up": last["bytes_up"],
        "bytes_down": last["bytes_down"],
        "seconds": last["seconds"],
        "notes": plan.federation.notes,
        "classes": plan.federation.classes,
        "settings": description,
        "versions": {"normec": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }
