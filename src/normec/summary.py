"""What a run amounts to, in numbers and in one sentence that an auditor can check."""

from __future__ import annotations

import math
import platform
from typing import Any, NamedTuple

import torch
from torch import Tensor

from normec.evaluation import spread
from normec.experiment import Plan
from normec.privacy import Spent
from normec.promise import convergence, state_claim
from normec.version import __version__


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


def summarize(plan: Plan, end: End, description: dict[str, Any]) -> dict[str, Any]:
    """The content of summary.json. ε is null where it is infinite."""
    mechanism, claim, last = plan.mechanism, end.claim, end.last
    private, limit = mechanism.private, plan.experiment.privacy.client_limit
    stated = state_claim(mechanism, claim, plan.delta or 0.0, float(end.exposure.max()), limit)
    covered = convergence(plan.experiment.algorithm, plan.experiment.server)
    return {
        "claim": stated.sentence,
        "algorithm": plan.experiment.algorithm.name,
        "convergence": f"{end.theory['verdict']} (checked)" if end.theory else covered,
        "private": private,
        "epsilon": claim.epsilon if private else None,
        "epsilon_by_group_privacy": stated.by_group_privacy,
        "epsilon_realised_max": stated.realised_max,
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
