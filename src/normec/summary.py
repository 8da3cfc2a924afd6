"""What a run amounts to, in numbers and in one sentence that an auditor can check."""

from __future__ import annotations

import math
import platform
from importlib.metadata import version
from typing import Any, NamedTuple

import torch
from torch import Tensor

from normec.algorithms import Descent
from normec.evaluation import spread
from normec.experiment import Plan
from normec.privacy import PER_CLIENT, Mechanism, Spent, by_group_privacy, realised
from normec.version import __version__

SEEDED = "Seeded noise: for simulation, not for release."
SECURE = "Secure noise, from the operating system's generator."


WHO_ADDS_NOISE = {
    "central": "a trusted server adds the noise, once on the sum",
    "secagg": "each participant adds noise, and a secure sum hides all but the total, of at least {honest} honest participants "
    "besides {colluders} colluders",
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
    exposed = f" Warning: δ is not below 1/clients = {1 / mechanism.clients:g}." if delta >= 1 / mechanism.clients else ""
    who = WHO_ADDS_NOISE[mechanism.trust].format(honest=mechanism.honest, colluders=mechanism.colluders)
    return (
        f"Client-level (ε = {upper(claim.epsilon)}, δ = {delta!r}) differential privacy under {mechanism.adjacency} adjacency, "
        f"trust {mechanism.trust} ({who}), {mechanism.sampling} sampling{rate}, "
        f"{mechanism.rounds} rounds, accountant: {claim.accountant}{beside}. {SECURE if mechanism.lattice else SEEDED}{exposed}"
    )


def upper(epsilon: float) -> str:
    """ε with three decimals (from 1,000 on with none), rounded up, so that the printed number is still a bound."""
    if epsilon >= 1000:
        return "∞" if math.isinf(epsilon) else f"{math.ceil(epsilon - 1e-9):,}"
    return f"{math.ceil(epsilon * 1000 - 1e-9) / 1000:.3f}"


class End(NamedTuple):
    """How a run ended.

    last: the last line of the metrics. given_up: rounds that released nothing. exposure: the clients' (M,). theory: the
    verdict of the theorems, if it was asked for. clients: how each one fares, as `evaluation.by_client`.
    """

    claim: Spent
    last: dict[str, Any]
    given_up: int
    exposure: Tensor
    theory: dict[str, Any] | None
    clients: list[dict[str, Any]]


def versions() -> dict[str, str]:
    """Those that a run's numbers depend on, and without which it cannot be resumed exactly."""
    return {"normec": __version__, "torch": str(torch.__version__)}


def ledger_header(plan: Plan) -> dict[str, Any]:
    """What the ledger of a run says of its mechanism, before the first round."""
    mechanism = plan.mechanism
    return {
        "trust": mechanism.trust,
        "adjacency": mechanism.adjacency,
        "sensitivity": mechanism.sensitivity,
        "delta": plan.delta,
        "clients": mechanism.clients,
        "scheme": mechanism.participation.scheme,
        "rate": mechanism.rate,
        "rounds": mechanism.rounds,
        "noise_multiplier": mechanism.noise_multiplier,
        "noise_std": mechanism.noise_std,
        "denominator": mechanism.expected,
        "min_honest": mechanism.min_honest,
        "colluders": mechanism.colluders,
        "client_limit": plan.experiment.privacy.client_limit,
        "noise": plan.experiment.privacy.noise,
        "accountant": plan.spent.planned.accountant,
        "dp-accounting": version("dp-accounting"),
    }


def _convergence(plan: Plan) -> str:
    """Which guarantee covers the run: that of its algorithm, for the plain server step alone."""
    optimizer = plan.experiment.server.optimizer
    outside = f" (outside: server optimizer {optimizer})" if optimizer != Descent.optimizer else ""
    return plan.experiment.algorithm.convergence + outside


def summarize(plan: Plan, end: End, description: dict[str, Any]) -> dict[str, Any]:
    """The content of summary.json. ε is null where it is infinite."""
    mechanism, claim, last = plan.mechanism, end.claim, end.last
    private, delta = mechanism.private, plan.delta or 0.0
    careful = by_group_privacy(mechanism, delta).epsilon if mechanism.relies_on_substitution else None
    busiest = realised(mechanism, delta, float(end.exposure.max())).epsilon if private and mechanism.trust in PER_CLIENT else None
    beside = f" (without relying on how substitution acts under sampling: ε = {upper(careful)})" if careful is not None else ""
    if busiest is not None:
        limit = plan.experiment.privacy.client_limit
        silent = f"; each client is silent before its own rounds spend more than ε = {limit:g}" if limit else ""
        beside = f" (before sampling, without amplification; realised by the busiest client: ε = {upper(busiest)}{silent})"
    return {
        "claim": privacy_sentence(mechanism, claim, delta, beside),
        "algorithm": plan.experiment.algorithm.name,
        "convergence": f"{end.theory['verdict']} (checked)" if end.theory else _convergence(plan),
        "private": private,
        "epsilon": claim.epsilon if private else None,
        "epsilon_by_group_privacy": careful,
        "epsilon_realised_max": busiest,
        "clients_at_limit": int(mechanism.silent(end.exposure).sum()),
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
        "theory": end.theory,
        "simulation_only": {"spread": spread(end.clients)},
        "metrics": last.get("metrics"),
        "test_accuracy": last["test_accuracy"],
        "test_loss": last["test_loss"],
        "train_loss": last["train_loss"],
        "rounds": last["round"],
        "given_up_rounds": end.given_up,
        "transmissions": last["transmissions"],
        "bytes_up": last["bytes_up"],
        "bytes_down": last["bytes_down"],
        "seconds": last["seconds"],
        "notes": plan.federation.notes,
        "classes": plan.federation.classes,
        "settings": description,
        "versions": {**versions(), "python": platform.python_version()},
    }
