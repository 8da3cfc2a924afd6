"""The front door: one federated training run, round by round."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from normec.algorithms import Algorithm, Descent, Server, ServerStep, server_round
from normec.data import Federation
from normec.engine import Clients, Engine, Ranks, Workers
from normec.engine.memory import Memory
from normec.errors import BadInput, plural
from normec.evaluation import Evaluation
from normec.local import LocalMethod
from normec.models import Factory, Loss
from normec.privacy import Privacy
from normec.privacy.participation import Participation
from normec.privacy.promise import shown_epsilon
from normec.runs.experiment import Experiment, Plan, Schedule, Theory, prepare
from normec.runs.folder import Output, RunFolder
from normec.runs.interrupts import deferred_interrupt
from normec.runs.observers import Audience, Observer
from normec.runs.recorder import Recorder, State
from normec.runs.written import MetricsRow, Summary
from normec.streams import global_generators_kept


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run. metrics: one dict a round, as in metrics.jsonl. epsilon: the claim for the whole run, or ∞."""

    model: nn.Module
    metrics: list[MetricsRow]
    summary: Summary
    epsilon: float
    folder: Path | None

    def __repr__(self) -> str:
        said = self.summary
        if not said:
            return "Run(of another rank)"
        score = "" if said["test_accuracy"] is None else f", test accuracy {said['test_accuracy']:.1%}"
        spent = "not private" if math.isinf(self.epsilon) else f"(ε, δ) = ({shown_epsilon(self.epsilon)}, {said['delta']!r})"
        return f"Run({said['algorithm']}, {plural(said['rounds'], 'round')}{score}, {spent}, folder={self.folder and str(self.folder)!r})"


def train(
    *,
    model: Factory,
    data: Federation,
    algorithm: Algorithm,
    local: LocalMethod,
    participation: Participation,
    privacy: Privacy,
    rounds: int,
    seed: int = 42,
    server: ServerStep | None = None,
    loss: Loss = functional.cross_entropy,
    engine: Engine | None = None,
    theory: Theory | None = None,
    evaluation: Evaluation | None = None,
    start: Path | str | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    observer: Observer | Sequence[Observer] | None = None,
) -> Run:
    """Trains a model on a federation, with the privacy that is asked for.

    server: the server's step on the model, `normec.ServerMomentum()` or `normec.ServerAdam()`; by default the plain one.
    model: a torch.nn.Module, which is copied and stays as it is; or a function that makes one, and may ask for `input_shape` and
    `classes`. loss: (outputs, targets) → batch mean.
    evaluation: `normec.Evaluation(metrics=("torchmetrics.classification:MulticlassF1Score",))` adds metrics to loss and accuracy.
    theory: `normec.Theory(check=True)` puts a verdict of the convergence theorems into the summary.
    start: the folder of a run, a .safetensors file or a state dict, whose weights the model starts from.
    out: a folder for metrics, checkpoints, model and summary. resume: go on from the checkpoint in it.
    observer: who watches, one `normec.Observer` or several; `normec.ConsoleObserver()` shows progress.

    Raises:
        BadInput: before any training, for settings or data that cannot be used.
        TrainingFailed: where an update, a loss or the model stops being finite, naming the round.
        KeyboardInterrupt: at the end of the round in which Ctrl-C was pressed, with a checkpoint.
    """
    chosen = Experiment(
        model=model,
        data=data,
        algorithm=algorithm,
        local=local,
        participation=participation,
        privacy=privacy,
        schedule=Schedule(rounds=rounds, seed=seed),
        server=server or Descent(),
        loss=loss,
        engine=engine or Engine(),
        theory=theory or Theory(),
        evaluation=evaluation or Evaluation(),
        start=None if start is None else Path(start),
    )
    if resume and out is None:
        raise BadInput("resume", "needs the folder of the run", value=True, remedy="Give out")
    with Ranks.joined() as ranks:
        folder = RunFolder(Path(out)) if out is not None and ranks.first else None
        if folder:
            folder.check(resume)
        plan = prepare(chosen)
        return execute(plan, folder.open(resume) if folder else None, observer, ranks)


def execute(
    plan: Plan,
    folder: RunFolder | None = None,
    observer: Observer | Sequence[Observer] | None = None,
    ranks: Ranks | None = None,
) -> Run:
    """Runs a plan: Algorithm 1, and what is written down about it. Several ranks run it together; rank 0 alone has a folder."""
    chosen, mechanism, streams = plan.experiment, plan.mechanism, plan.streams
    ranks = ranks or Ranks()
    recorder = Recorder(plan, folder, Audience.of(observer), ranks)
    with _room_to_work(plan, folder) as (workers, interrupted):
        state = _start(plan, ranks)
        clients = _clients(plan, state.memory, workers, ranks, recorder.audience)
        if not _stand_together(state, recorder.resume(state), ranks):
            _first_updates(state, clients)
        recorder.started(state)

        for k in range(state.rounds_done, mechanism.rounds):
            if ranks.agree(recorder.journal.budget_is_spent(k)):
                break
            stored = recorder.journal.begin(k)
            cohort = ranks.agree(stored.cohort if stored else mechanism.cohort(state.exposure, k, streams))
            participants, released, statistics = int(cohort.sum()), None, None
            if not mechanism.trust.gives_up(participants):
                total, state.buffers, statistics = clients.round(state.server.x, state.buffers, state.server.slots, cohort, k)
                released, state.noise = ranks.agree(
                    (stored.released, state.noise) if stored else mechanism.release(total, participants, state.noise, streams, k)
                )
                recorder.journal.commit(k, Output(cohort, released))
                mean = released.to(state.server.x.dtype)
                state.server = server_round(chosen.algorithm, chosen.server, state.server, mean, mechanism.rate)
            state.ended(mechanism, cohort, len(clients.computing(cohort)), given_up=statistics is None)
            recorder.round(state, cohort, released, statistics)
            if ranks.agree(interrupted()) and state.rounds_done < mechanism.rounds:
                recorder.checkpoint(state)
                raise KeyboardInterrupt

        summary = recorder.finish(state)
    path = folder.path if folder else None
    return Run(plan.model.module, recorder.journal.rows, summary, recorder.journal.spent().epsilon, path)


@contextlib.contextmanager
def _room_to_work(plan: Plan, folder: RunFolder | None) -> Iterator[tuple[Workers, Callable[[], bool]]]:
    """Keeps others out of the folder, torch's generators as they were, and Ctrl-C off; yields the workers and whether it was pressed."""
    with (
        folder or contextlib.nullcontext(),
        global_generators_kept(plan.model.vector.device),
        Workers(plan.model, plan.experiment.engine.workers) as workers,
        deferred_interrupt() as interrupted,
    ):
        yield workers, interrupted


def _clients(plan: Plan, memory: Memory, workers: Workers, ranks: Ranks, audience: Audience) -> Clients:
    """The clients of a plan, whose local updates are shown to those who want to see them."""
    private = plan.mechanism.trust.promises
    return Clients(
        federation=plan.federation,
        local=plan.experiment.local,
        algorithm=plan.experiment.algorithm,
        memory=memory,
        workers=workers,
        streams=plan.streams,
        backend=plan.backend,
        ranks=ranks,
        strict=not private,
        counters=plan.model.counters,
        aggregation=plan.mechanism.aggregation,
        bound=plan.mechanism.bound if private and plan.checks_bound else math.inf,
        computed=audience.computed,
    )


def _first_updates(state: State, clients: Clients) -> None:
    """Moves memories and server slots to where the algorithm starts, which takes a local computation and a message of each client."""
    start = clients.algorithm.start
    if start is not None:
        state.server = state.server._replace(slots=clients.start(state.server.x, start))
        state.transmissions = state.computations = len(clients.federation)


def _start(plan: Plan, ranks: Ranks) -> State:
    """The model as its factory made it; memories at zero. Of several ranks each keeps its clients' rows."""
    algorithm, x = plan.experiment.algorithm, plan.start.clone()
    layout = plan.layout._replace(lazy=plan.layout.lazy or ranks.size > 1)
    memory = Memory(algorithm.client_slots, plan.mechanism.clients, x, layout)
    exposure = torch.zeros(plan.mechanism.clients, dtype=torch.float64, device="cpu")
    server, noise = Server.start(algorithm, plan.experiment.server, x), plan.mechanism.noise.start(x)
    return State(plan.buffers.clone(), memory, exposure, noise, server=server)


def _stand_together(state: State, resumed: bool, ranks: Ranks) -> bool:
    """Moves every rank to where rank 0 stands, after it has resumed or not; says which."""
    if ranks.size == 1:
        return resumed
    resumed, found, memory = ranks.agree((resumed, replace(state, memory=None), state.memory.state()))  # type: ignore[arg-type]
    if resumed:
        for name in vars(found).keys() - {"memory"}:
            setattr(state, name, _placed(getattr(found, name), getattr(state, name)))
        state.memory.load(memory, ranks.own(np.arange(len(state.exposure))))
    return resumed


def _placed(value: Any, like: Any) -> Any:
    """What another rank sent, where this one keeps the like: each may have a device of its own."""
    if isinstance(value, tuple) and not isinstance(value, Server):
        return tuple(_placed(each, kept) for each, kept in zip(value, like, strict=True))
    if isinstance(value, Server):
        return value.map(lambda vector: vector.to(like.x.device))
    return value.to(like.device) if isinstance(value, torch.Tensor) else value
