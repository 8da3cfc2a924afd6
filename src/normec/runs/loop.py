"""The front door: one federated training run, round by round."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from normec.algorithms import Algorithm, Descent, ServerStep
from normec.data import Federation
from normec.engine import Clients, Engine, Ranks, Workers
from normec.errors import BadInput
from normec.evaluation import Evaluation
from normec.runs.experiment import Experiment, Plan, Schedule, Theory, prepare
from normec.runs.folder import Output, RunFolder
from normec.runs.interrupts import deferred_interrupt
from normec.local import LocalMethod
from normec.engine.memory import Memory
from normec.models import Factory, Loss
from normec.privacy.participation import Participation
from normec.privacy import PER_CLIENT, Privacy
from normec.runs.recorder import Observer, Recorder, State


@dataclass(frozen=True)
class Run:
    """A finished run. metrics: one dict a round, as in metrics.jsonl. epsilon: the claim for the whole run, or ∞."""

    model: nn.Module = field(repr=False)
    metrics: list[dict[str, Any]] = field(repr=False)
    summary: dict[str, Any] = field(repr=False)
    epsilon: float
    folder: Path | None


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
    observer: Observer | None = None,
) -> Run:
    """Trains a model on a federation, with the privacy that is asked for.

    server: the server's step on the model, `normec.ServerMomentum()` or `normec.ServerAdam()`; by default the plain one.
    model: a torch.nn.Module, which is copied and stays as it is; or a function that makes one, and may ask for `input_shape` and
    `classes`. loss: (outputs, targets) → batch mean.
    evaluation: `normec.Evaluation(metrics=("torchmetrics.classification:MulticlassF1Score",))` adds metrics to loss and accuracy.
    theory: `normec.Theory(check=True)` puts a verdict of the convergence theorems into the summary.
    start: the folder of a run, a .safetensors file or a state dict, whose weights the model starts from.
    out: a folder for metrics, checkpoints, model and summary. resume: go on from the checkpoint in it.
    observer: who watches; `normec.ConsoleObserver()` shows progress.

    Raises:
        BadInput: before any training, for settings or data that cannot be used.
        TrainingFailed: where an update, a loss or the model stops being finite, naming the round.
        KeyboardInterrupt: at the end of the round in which Ctrl-C was pressed, with a checkpoint.
    """
    schedule, step = Schedule(rounds=rounds, seed=seed), server or Descent()
    how = engine or Engine(), theory or Theory(), evaluation or Evaluation()
    chosen = Experiment(
        model, data, algorithm, local, participation, privacy, schedule, step, loss, *how, None if start is None else Path(start)
    )
    if resume and out is None:
        raise BadInput("resume", "=True needs the folder of the run. Give out.")
    with Ranks.joined() as ranks:
        folder = RunFolder(Path(out)) if out is not None and ranks.first else None
        if folder:
            folder.check(resume)
        plan = prepare(chosen)
        return execute(plan, folder.open(resume) if folder else None, observer, ranks)


def execute(
    plan: Plan,
    folder: RunFolder | None = None,
    observer: Observer | None = None,
    ranks: Ranks | None = None,
    tap: Callable[[State], None] | None = None,
) -> Run:
    """Runs a plan: Algorithm 1, and what is written down about it. Several ranks run it together; rank 0 alone has a folder.

    tap: is shown the state before the first round of this process, after each one, and when all is over, for audits.
    """
    chosen, mechanism, streams = plan.experiment, plan.mechanism, plan.streams
    algorithm, rounds = chosen.algorithm, mechanism.rounds
    ranks = ranks or Ranks()
    recorder = Recorder(plan, folder, observer, ranks)
    state = _start(plan, ranks)
    with (
        folder or contextlib.nullcontext(),
        torch.random.fork_rng(devices=[]),
        Workers(plan.model, chosen.engine.workers) as workers,
        deferred_interrupt() as interrupted,
    ):
        clients = Clients(
            federation=plan.federation,
            local=chosen.local,
            algorithm=algorithm,
            memory=state.memory,
            workers=workers,
            streams=streams,
            backend=plan.backend,
            ranks=ranks,
            strict=mechanism.trust == "none",
            counters=plan.model.counters,
            lattice=mechanism.lattice,
            bound=math.inf if tap or mechanism.trust == "none" else mechanism.bound,  # an audit is to find by itself what is wrong
        )
        if not _stand_together(state, recorder.resume(state), ranks) and algorithm.starts_from_updates:
            state.server = clients.start(state.x)
            state.transmissions = state.computations = mechanism.clients
        recorder.started(state)
        if tap:
            tap(state)

        for k in range(state.rounds_done, rounds):
            if ranks.agree(recorder.releases.budget_is_spent(k)):
                break
            stored = recorder.releases.begin(k)
            cohort = ranks.agree(stored.cohort if stored else mechanism.cohort(state.exposure, k, streams))
            participants, statistics = int(cohort.sum()), None
            if not mechanism.gives_up(participants):
                total, state.buffers, statistics = clients.round(state.x, state.buffers, state.server, cohort, k)
                released = ranks.agree(stored.released if stored else mechanism.release(total, participants, streams, k))
                recorder.releases.commit(k, Output(cohort, released))
                mean = released.to(state.x.dtype)
                direction, state.server = algorithm.server(state.server, mean, mechanism.rate)
                state.x, state.optimizer = chosen.server.step(state.x, direction, algorithm.server_lr, state.optimizer)
                if mechanism.trust in PER_CLIENT:
                    state.exposure[torch.from_numpy(cohort)] += mechanism.exposure(participants)

            state.rounds_done = k + 1
            state.given_up += statistics is None
            state.transmissions += participants
            state.computations += len(clients.computing(cohort))
            if tap:
                tap(state)
            recorder.round(state, statistics)
            if ranks.agree(interrupted()) and state.rounds_done < rounds:
                recorder.checkpoint(state)
                raise KeyboardInterrupt

        if tap:
            tap(state)
        summary = recorder.finish(state)
    path = folder.path if folder else None
    return Run(plan.model.module, recorder.metrics, summary, recorder.releases.claim().epsilon, path)


def _start(plan: Plan, ranks: Ranks) -> State:
    """The model as its factory made it; memories and server vectors at zero. Of several ranks each keeps its clients' rows."""
    algorithm, x = plan.experiment.algorithm, plan.start.clone()
    layout = plan.layout._replace(lazy=plan.layout.lazy or ranks.size > 1)
    memory = Memory(algorithm.client_slots, plan.mechanism.clients, x, layout)
    exposure = torch.zeros(plan.mechanism.clients, dtype=torch.float64, device="cpu")
    server = tuple(torch.zeros_like(x) for _ in algorithm.server_slots)
    return State(x, plan.buffers.clone(), server, plan.experiment.server.start(x), memory, exposure)


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
    if isinstance(value, tuple):
        return tuple(_placed(each, kept) for each, kept in zip(value, like, strict=True))
    return value.to(like.device) if isinstance(value, torch.Tensor) else value
