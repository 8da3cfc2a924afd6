"""`normec audit`: a run with canaries inside, and the verdict on it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated

from pydantic import Field

from normec.algorithms import Context, Server, client_step
from normec.audit.canaries import LEAST_RATE, LENGTH, Canaries, CanaryBackend, WithCanaries
from normec.audit.evidence import Evidence
from normec.audit.judge import judge
from normec.audit.releases import Seen, released
from normec.audit.verdict import Verdict
from normec.audit.witness import Witness, refuse_to_draw
from normec.errors import BadInput
from normec.machine import available
from normec.privacy import Privacy, SecAgg, SpentSoFar
from normec.runs.experiment import Experiment, Plan, prepare
from normec.runs.folder import RunFolder
from normec.runs.loop import Run, execute
from normec.runs.observers import Observer
from normec.settings import Settings, Switch

STEPS = 20
"""After how many rounds, evenly spaced, ε is computed."""
REACH = 0.99
"""The least length of a canary's message, over the bound."""
LARGEST_UPDATE = 1e25
"""Of a canary (norm): far from float32's largest number."""


class Audit(Settings):
    """canaries: k, the canary clients, and as many held-out directions. resumable: save every round, so that `Prepared.execute` can be
    called again after an interruption.
    """

    canaries: Annotated[int, Field(ge=2, le=10**6, description="a whole number from 2 to 1000000")] = 20
    resumable: Switch = False


class _InSteps(SpentSoFar):
    """ε after a round as that after one of STEPS, the next: an upper bound, too, and much sooner computed."""

    def after(self, rounds: int) -> float:
        planned = self.mechanism.rounds
        step = -(-planned // STEPS)
        return self._after(min(planned, -(-rounds // step) * step))

    @cache  # noqa: B019 (one a run, and it ends with it)
    def _after(self, rounds: int) -> float:
        return super().after(rounds)


@dataclass(frozen=True)
class Prepared:
    """A plan with canaries inside, its witness, and what the verdict needs of the run that is audited."""

    plan: Plan
    witness: Witness
    audited: Plan

    def execute(self, folder: RunFolder | None = None, observer: Observer | None = None) -> Run:
        """Trains the run with its canaries."""
        return execute(self.plan, folder, [self.witness] if observer is None else [self.witness, observer])

    def verdict(self) -> tuple[Verdict, Evidence]:
        """The verdict, and the evidence on which it rests.

        Raises:
            NormecError: where the run shows nothing.
        """
        evidence = self.witness.evidence()
        return judge(evidence, self.audited.mechanism, self.audited.delta or 0.0), evidence


def check_promise(privacy: Privacy) -> None:
    """Raises BadInput for a run that promises nothing."""
    if privacy.trust == "none":
        raise BadInput("privacy.trust", "promises nothing that could be audited", value="none", remedy="Choose central, secagg or local")


def prepare_audit(experiment: Experiment, settings: Audit) -> Prepared:
    """Checks an experiment and puts canaries inside.

    The noise is that of the run as it is, with its number of clients; the canaries come on top.

    Raises:
        BadInput: for a run that promises nothing, that has no room for the directions, or of which an audit would show nothing.
    """
    check_promise(experiment.privacy)
    audited = prepare(experiment)
    mechanism, number = audited.mechanism, settings.canaries
    _check(audited, number)
    canaries = Canaries.draw(number, audited.model.d, experiment.schedule.seed, experiment.data.ids)
    length = _length(experiment)
    start = _start(audited)
    _check_algorithm(audited, canaries, length, start)
    privacy = experiment.privacy.changed(epsilon=None, stop_at=None, noise_multiplier=mechanism.noise_multiplier, delta=audited.delta)
    inside = replace(
        experiment,
        data=canaries.join(experiment.data),
        participation=WithCanaries(own=experiment.participation, canaries=number),
        privacy=privacy,
        schedule=experiment.schedule.changed(rounds=mechanism.rounds),
        engine=experiment.engine.changed(checkpoint_every=1 if settings.resumable else mechanism.rounds),
    )
    plan = prepare(inside)
    backend, spent = CanaryBackend(plan.backend, canaries, length), _InSteps(mechanism, audited.delta or 0.0)
    witness = Witness(
        algorithm=experiment.algorithm,
        optimizer=experiment.server,
        scale=experiment.algorithm.local_rule.scale(experiment.local.lr),
        mechanism=plan.mechanism,
        canaries=canaries,
        names=plan.federation.ids,
        layout=plan.layout,
        start=start,
        resumable=settings.resumable,
        most_numbers=backend.most_numbers,
    )
    return Prepared(replace(plan, backend=backend, spent=spent, checks_bound=False), witness, audited)


def _check(audited: Plan, number: int) -> None:
    mechanism, d, asked = audited.mechanism, audited.model.d, audited.experiment.schedule.rounds
    if not mechanism.private:
        raise BadInput(
            "privacy.noise_multiplier", "promises nothing that could be audited", value=mechanism.noise_multiplier, remedy="Raise it"
        )
    if mechanism.rounds < 2 <= asked:
        raise BadInput(
            "privacy.stop_at", "leaves one round, and an audit compares rounds", value=audited.experiment.privacy.stop_at, remedy="Raise it"
        )
    if mechanism.rounds < 2:
        raise BadInput("rounds", ": an audit compares rounds", value=mechanism.rounds, remedy="Use 2 or more")
    if 2 * number > d:
        raise BadInput(
            "canaries", f"need {2 * number} directions, and the model has {d} parameters", value=number, remedy=f"Use at most {d // 2}"
        )
    needed, free = 6 * number * d * 8, available() // 2  # the directions, and what making them orthonormal takes
    if needed > free:
        raise BadInput(
            "canaries", f"need {needed:,} bytes for their directions, and {free:,} are to be had", value=number, remedy="Use fewer"
        )
    trust, expected = mechanism.trust, mechanism.expected + number * max(mechanism.rate, LEAST_RATE)
    if isinstance(trust, SecAgg) and (honest := expected - trust.colluders) < trust.min_honest:
        raise BadInput(
            "privacy.min_honest",
            f"gives up most rounds, of which about {honest:.0f} honest clients and canaries are expected",
            value=trust.min_honest,
            remedy="Lower it, or raise participation.rate",
        )


def _start(audited: Plan) -> Seen:
    """The model as its factory made it, which no data has touched, and the server's vectors at zero."""
    chosen = audited.experiment
    return Seen.of(Server.start(chosen.algorithm, chosen.server, audited.start))


def _check_algorithm(audited: Plan, canaries: Canaries, length: float, start: Seen) -> None:
    """Whether releases can be recovered and messages made again, and whether a canary's message comes near its bound."""
    algorithm, optimizer = audited.experiment.algorithm, audited.experiment.server
    x = start.server.x
    released(algorithm, optimizer, start, start, audited.mechanism.rate)
    memory = tuple(x.new_zeros(1, len(x)) for _ in algorithm.client_slots)
    direction = canaries.directions[:1].to(x.device)
    update = length * algorithm.local_rule.scale(audited.experiment.local.lr) * direction
    message = client_step(algorithm, update, memory, Context(start.server.slots, refuse_to_draw(algorithm))).message
    reach = float((message * direction).sum()) / algorithm.operator.bound
    if not reach >= REACH:
        problem = f": the longest canary that float32 holds sends {reach:.3g} of the bound {algorithm.operator.bound:g}"
        remedy = "Choose a smaller bound or alpha, or let an operator of your own state its `threshold`"
        raise BadInput("algorithm.name", f"{problem}, and would show nothing", value=algorithm.name, remedy=remedy)


def _length(experiment: Experiment) -> float:
    """So that a canary's update, in the unit that the algorithm bounds, is much longer than what the bound compares it with."""
    algorithm, operator = experiment.algorithm, experiment.algorithm.operator
    compared = max(1.0, operator.bound, operator.threshold if operator.threshold < math.inf else 0.0)
    return min(LENGTH * compared / algorithm.local_rule.scale(experiment.local.lr), LARGEST_UPDATE)
