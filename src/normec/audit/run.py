"""`normec audit`: a run with canaries inside, and the verdict on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from normec.audit.canaries import LENGTH, Canaries, CanaryBackend, WithCanaries
from normec.audit.evidence import Evidence, Watching, Witness
from normec.audit.judge import judge
from normec.audit.verdict import Verdict
from normec.errors import BadInput
from normec.experiment import Experiment, Plan, prepare
from normec.folder import RunFolder
from normec.privacy import SpentSoFar
from normec.recorder import Observer
from normec.settings import Settings
from normec.training import execute


class Audit(Settings):
    """canaries: k, the canary clients, and as many held-out directions."""

    canaries: Annotated[int, Field(ge=2, le=10**6, description="a whole number >= 2")] = 20


class _OnlyPlanned(SpentSoFar):
    """ε of the whole plan in every round: an upper bound there, too, and nobody reads it in an audit."""

    def after(self, rounds: int) -> float:
        return self.planned.epsilon


@dataclass(frozen=True)
class Prepared:
    """A plan with canaries inside, its witness, and what the verdict needs of the run that is audited."""

    plan: Plan
    witness: Witness
    audited: Plan

    def execute(self, folder: RunFolder | None = None, observer: Observer | None = None) -> None:
        """Trains."""
        execute(self.plan, folder, observer, tap=self.witness)

    def verdict(self) -> tuple[Verdict, Evidence]:
        """The verdict, and what it rests on.

        Raises:
            BadInput: where fewer than two rounds released something, or no canary took part in them.
        """
        evidence = self.witness.evidence()
        return judge(evidence, self.audited.mechanism, self.audited.delta or 0.0), evidence


def prepare_audit(experiment: Experiment, settings: Audit) -> Prepared:
    """An experiment, checked, with canaries inside.

    The noise is that of the run as it is, with its number of clients; the canaries come on top.

    Raises:
        BadInput: for a run that promises nothing, or that has no room for the directions.
    """
    if experiment.privacy.trust == "none":
        raise BadInput("privacy.trust", "='none' promises nothing that could be audited. Choose central, secagg or local.")
    audited = prepare(experiment)
    if not audited.mechanism.private:
        problem = f"={audited.mechanism.noise_multiplier:g} promises nothing that could be audited. Raise it."
        raise BadInput("privacy.noise_multiplier", problem)
    if audited.mechanism.rounds < 2:
        raise BadInput("rounds", f"={audited.mechanism.rounds}: an audit compares rounds. Use 2 or more.")
    d, number = audited.model.d, settings.canaries
    if 2 * number > d:
        raise BadInput("canaries", f"={number} need {2 * number} directions, and the model has {d} parameters. Use at most {d // 2}.")
    canaries = Canaries.draw(number, d, experiment.schedule.seed)
    participation = WithCanaries(own=experiment.participation, canaries=number)
    privacy = experiment.privacy.model_copy(
        update={"epsilon": None, "stop_at": None, "noise_multiplier": audited.mechanism.noise_multiplier, "delta": audited.delta}
    )
    schedule = experiment.schedule.model_copy(update={"rounds": audited.mechanism.rounds})
    engine = experiment.engine.model_copy(update={"checkpoint_every": 1})  # so that a resumed run is at most one round back
    changed = {"participation": participation, "privacy": privacy, "schedule": schedule, "engine": engine}
    inside = replace(experiment, data=canaries.join(experiment.data), **changed)  # type: ignore[arg-type]
    plan = prepare(inside)
    mechanism, backend = Watching.over(plan.mechanism), CanaryBackend(plan.backend, canaries, _length(experiment))
    plan = replace(plan, mechanism=mechanism, backend=backend, spent=_OnlyPlanned(plan.mechanism, plan.delta or 0.0))
    witness = Witness(experiment.algorithm, experiment.server, experiment.local, mechanism, backend, plan.federation.ids, plan.layout)
    return Prepared(plan, witness, audited)


def _length(experiment: Experiment) -> float:
    """So that a canary's update, in the unit that the algorithm bounds, is much longer than what the bound compares it with."""
    algorithm = experiment.algorithm
    compared = max(1.0, algorithm.operator.bound, float(getattr(algorithm, "alpha", 1.0)))
    return min(LENGTH * compared / algorithm.update_scale(experiment.local.lr), 1e25)
