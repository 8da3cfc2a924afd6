"""What a run amounts to, in numbers and in one sentence that an auditor can check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from normec.evaluation import spread
from normec.evaluation.clients import ClientScores
from normec.runs.experiment import Plan
from normec.runs.journal import RunJournal
from normec.runs.written import BestTable, Certificate, Summary
from normec.settings import Tree
from normec.theory.guarantees import guarantee


class End(NamedTuple):
    """How a run ended.

    given_up: rounds that released nothing. exposure: the clients' (M,). theory: the verdict of the theorems, if it was asked
    for. clients: how each one fares, as `evaluation.by_client`. best: the best model, as `Best.table`.
    """

    given_up: int
    exposure: Tensor
    theory: Certificate | None
    clients: Sequence[ClientScores]
    best: BestTable | None = None


def summarize(plan: Plan, journal: RunJournal, end: End, description: Tree) -> Summary:
    """The content of summary.json. ε is null where it is infinite."""
    chosen, mechanism, last = plan.experiment, plan.mechanism, journal.rows[-1]
    covered = str(guarantee(chosen.algorithm, chosen.server, chosen.local, mechanism, plan.model))
    return {
        **journal.summary(journal.claim(float(end.exposure.max()))),
        "algorithm": chosen.algorithm.name,
        "convergence": _checked(end.theory["verdict"]) if end.theory else covered,
        "clients_at_limit": int(mechanism.silent(end.exposure).sum()),
        "theory": end.theory,
        "simulation_only": {"spread": spread(end.clients)},
        "best": end.best,
        "metrics": last.get("metrics"),
        "test_largest_class": plan.model.reading.largest_share(plan.scored.test[1]) if plan.scored.test else None,
        "train_loss": last["train_loss"],
        "given_up_rounds": end.given_up,
        "notes": plan.federation.notes,
        "classes": plan.federation.classes,
        "settings": description,
    }


def _checked(verdict: str) -> str:
    """A verdict in few words, which say where its constants are none that were proven."""
    return f"{verdict} ({'L and the lower bound are not proven' if verdict.startswith('estimated') else 'checked'})"
