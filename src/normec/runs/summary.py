"""What a run amounts to, in numbers and in one sentence that an auditor can check."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from normec.evaluation import spread
from normec.privacy import Spent
from normec.privacy.promise import claim_table, state_claim
from normec.runs.experiment import Plan
from normec.theory.guarantees import guarantee
from normec.version import versions


class End(NamedTuple):
    """How a run ended.

    last: the last line of the metrics. given_up: rounds that released nothing. exposure: the clients' (M,). theory: the
    verdict of the theorems, if it was asked for. clients: how each one fares, as `evaluation.by_client`. best: the best
    model, as `Best.table`.
    """

    claim: Spent
    last: dict[str, Any]
    given_up: int
    exposure: Tensor
    theory: dict[str, Any] | None
    clients: Sequence[dict[str, Any]]
    best: dict[str, Any] | None = None


def summarize(plan: Plan, end: End, description: dict[str, Any]) -> dict[str, Any]:
    """The content of summary.json. ε is null where it is infinite."""
    mechanism, privacy, last = plan.mechanism, plan.experiment.privacy, end.last
    claim = state_claim(mechanism, end.claim, plan.delta or 0.0, float(end.exposure.max()), privacy.client_limit)
    chosen = plan.experiment
    covered = str(guarantee(chosen.algorithm, chosen.server, chosen.local, mechanism))
    return {
        **claim_table(mechanism, claim, privacy.noise),
        "algorithm": chosen.algorithm.name,
        "convergence": f"{end.theory['verdict']} (checked)" if end.theory else covered,
        "clients_at_limit": int(mechanism.silent(end.exposure).sum()),
        "theory": end.theory,
        "simulation_only": {"spread": spread(end.clients)},
        "best": end.best,
        "metrics": last.get("metrics"),
        "test_accuracy": last["test_accuracy"],
        "test_largest_class": plan.model.reading.largest_share(plan.scored.test[1]) if plan.scored.test else None,
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
