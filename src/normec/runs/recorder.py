"""What a simulated run writes down and tells its observers: what it evaluates and keeps beside the journal."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from normec.algorithms import Server, Slots
from normec.engine import ClientStatistics, Ranks
from normec.engine.clients import SimulationOnly
from normec.engine.memory import Memory, merged
from normec.errors import TrainingFailed
from normec.evaluation import Scores, by_client, evaluate, gradient, objective, refuse_broken
from normec.evaluation.evaluate import ScoresRow
from normec.operators.base import BYTES_OF_A_NUMBER
from normec.privacy import Mechanism
from normec.runs.best import Best
from normec.runs.experiment import Plan
from normec.runs.folder import Checkpoint, RunFolder
from normec.runs.journal import Promise, RunJournal, Standing
from normec.runs.model import saved_as
from normec.runs.observers import Audience, Observer
from normec.runs.summary import End, summarize
from normec.runs.uncovered import beside_the_claim, named_once
from normec.runs.verdict import certificate
from normec.runs.written import MetricsRow, Summary
from normec.streams import seed_global_generator
from normec.theory.constants import smoothness_seen
from normec.version import versions

COUNTS = ("rounds_done", "given_up", "transmissions", "computations", "seconds")
"""The numbers of a state that a checkpoint holds beside its vectors."""


@dataclass
class State(Standing):
    """Where a simulated run stands between two rounds: all that a checkpoint holds.

    buffers: the model's moving ones, (m,). exposure: (M,) Σ 1/h_k over each client's rounds, where participants add the noise
    (`TrustModel.exposure`). noise: the slots of the noise. given_up: rounds that released nothing. computations: local computations
    so far, one download each.
    """

    buffers: Tensor
    memory: Memory
    exposure: Tensor
    noise: Slots = ()
    given_up: int = 0
    computations: int = 0

    def ended(self, mechanism: Mechanism, cohort: np.ndarray, computed: int, given_up: bool) -> None:
        """Counts a round with this cohort, a mask (M,). computed: how many clients did. given_up: whether nothing was released."""
        participants = int(cohort.sum())
        if mechanism.trust.per_client and not given_up:
            self.exposure[torch.from_numpy(cohort)] += mechanism.trust.exposure(participants)
        self.rounds_done += 1
        self.given_up += given_up
        self.transmissions += participants
        self.computations += computed


class Recorder:
    """Writes down a run in its folder, if it has one, and tells its observers."""

    def __init__(self, plan: Plan, folder: RunFolder | None, audience: Audience, ranks: Ranks) -> None:
        self.plan, self.ranks = plan, ranks
        self.folder, self.audience = (folder, audience) if ranks.first else (None, Audience())
        self.journal = RunJournal(self.folder, Promise(plan.mechanism, plan.experiment.privacy, plan.delta, plan.spent))
        self.best = Best.of(plan)
        self._description = plan.describe(ranks.size)
        self._recounted = False
        self._last_gradient: tuple[Tensor, Tensor] | None = None

    def resume(self, state: State) -> bool:
        """Moves a fresh state to the folder's checkpoint; says whether there was one.

        Raises:
            BadInput: as `RunJournal.open`.
        """
        checkpoint = self.journal.open({**self._description, "versions": versions()}, self._tensors(state), COUNTS)
        if checkpoint is None:
            state.exposure = self.journal.exposure(state.exposure)
            return False
        tensors, counts = checkpoint
        chosen, device = self.plan.experiment, state.server.x.device
        state.server = Server.loaded(tensors, chosen.algorithm, chosen.server).map(lambda vector: vector.to(device))
        state.buffers = tensors.get("buffers", state.buffers).to(device)
        state.noise = tuple(tensors[f"noise.{slot}"].to(device) for slot in self.plan.mechanism.noise.slots)
        state.exposure = self.journal.exposure(tensors["exposure"])
        state.memory.load(tensors)
        for name in COUNTS:
            setattr(state, name, counts[name])
        self.best.load(checkpoint, state.server.x)
        self._recounted = self.journal.recount(state.rounds_done)
        if self.plan.experiment.theory.check:
            self._last_gradient = state.server.x, self._gradient(state)
        return True

    def started(self, state: State) -> None:
        """Before the first round of this process."""
        self.audience.tell(Observer.started, self.plan)
        if self._recounted:
            self.audience.tell(Observer.round, self.journal.rows[-1])
        if not self.journal.rows:
            self._write(state, None)
        self.audience.tell(Observer.released, state.rounds_done, state.server, None, None)

    def round(self, state: State, cohort: np.ndarray, released: Tensor | None, statistics: ClientStatistics | None) -> None:
        """After each round; released and statistics: None where it was given up.

        Raises:
            TrainingFailed: where the model or a loss is not finite any more.
        """
        self.audience.tell(Observer.released, state.rounds_done, state.server, cohort, released)
        if not bool(state.server.x.isfinite().all()):
            raise TrainingFailed(f"round {state.rounds_done}: the model is not finite. Lower algorithm.server_lr or local.lr.")
        self._write(state, statistics)
        every = 1 if self.plan.mechanism.lattice else self.plan.experiment.engine.checkpoint_every
        if state.rounds_done % every == 0 or self._last(state):
            self.checkpoint(state)
        self.journal.end(state.rounds_done - 1, released=statistics is not None)

    def checkpoint(self, state: State) -> None:
        """Saves the state, so that a resumed run goes on from here. To be called on all ranks."""
        memories = self.ranks.gather(state.memory.state()) if self.folder or self.ranks.size > 1 else []
        if self.folder is not None:
            counts = {name: getattr(state, name) for name in COUNTS} | self.best.counts()
            self.journal.save(Checkpoint(self._tensors(state) | merged(memories) | self.best.tensors(), counts))

    def finish(self, state: State) -> Summary:
        """Writes model and summary; returns the summary, empty on other ranks. The module holds the final parameters afterwards."""
        self.audience.tell(Observer.released, state.rounds_done, state.server, None, None)
        self.journal.check_in_place()
        self.best.save(self.plan, self.folder)
        self.plan.model.start_from(state.buffers)
        if not self.ranks.first:
            self.plan.model.load(state.server.x)
            return cast(Summary, {})
        verdict = certificate(self.plan, self.journal.rows) if self.plan.experiment.theory.check else None
        clients = by_client(self.plan.model, state.server.x, self.plan.federation)
        module = self.plan.model.load(state.server.x)  # last, so that no evaluation leaves anything in its buffers
        end = End(state.given_up, state.exposure, verdict, clients, self.best.table())
        summary = summarize(self.plan, self.journal, end, self._description)
        summary = beside_the_claim(self.plan.mechanism, self.plan.delta, summary, self.journal.rows[-1], deployed=False)
        if self.folder:
            self.folder.save_clients(clients)
            self.folder.save_model(module, saved_as(self.plan))
            self.folder.save_summary(summary)
        self.audience.tell(Observer.finished, module, summary)
        return summary

    def _tensors(self, state: State) -> dict[str, Tensor]:
        """The vectors of a state under the names that a checkpoint gives them."""
        chosen, moving = self.plan.experiment, {"buffers": state.buffers} if len(state.buffers) else {}
        noise = {f"noise.{slot}": vector for slot, vector in zip(self.plan.mechanism.noise.slots, state.noise, strict=True)}
        return state.server.named(chosen.algorithm, chosen.server) | noise | {"exposure": state.exposure} | moving

    def _last(self, state: State) -> bool:
        return state.rounds_done == self.plan.mechanism.rounds or self.journal.budget_is_spent(state.rounds_done)

    def _write(self, state: State, statistics: ClientStatistics | None) -> None:
        if not self.ranks.first:
            return
        state.seconds = self.journal.seconds
        self.plan.model.start_from(state.buffers)
        row = self._row(state, statistics)
        self.best.look(row, state.server.x, state.buffers)
        self.journal.write(row)
        self.audience.tell(Observer.round, row)

    def _row(self, state: State, statistics: ClientStatistics | None) -> MetricsRow:
        algorithm, d = self.plan.experiment.algorithm, self.plan.model.d
        beside = BYTES_OF_A_NUMBER * len(state.buffers)
        up = (algorithm.operator.message_bytes(d) + beside) * state.transmissions
        down = (BYTES_OF_A_NUMBER * d * algorithm.vectors_down + beside) * state.computations
        row = self.journal.row(state, self._scores(state), up, down)
        line: MetricsRow = {**row, "simulation_only": self._simulation_only(state, statistics)}
        return named_once(self.journal.rows, self.plan.mechanism, line)

    def _simulation_only(self, state: State, statistics: ClientStatistics | None) -> SimulationOnly | None:
        """What no server would see."""
        remembers = bool(self.plan.experiment.algorithm.client_slots)
        seen: SimulationOnly = statistics.summary(remembers) if statistics else {}
        if not self.plan.experiment.theory.check:
            return seen or None
        now = self._gradient(state)
        smoothness = smoothness_seen(state.server.x, now, self._last_gradient)
        self._last_gradient = state.server.x, now
        measured: SimulationOnly = {
            "objective": _finite(objective(self.plan.model, state.server.x, self.plan.federation)),
            "gradient_norm": _finite(float(now.norm())),
            "smoothness_seen": None if smoothness is None else _finite(smoothness),
        }
        return {**seen, **measured}

    def _gradient(self, state: State) -> Tensor:
        seed_global_generator(self.plan.streams.torch_seed("theory", state.rounds_done), state.server.x.device)
        return gradient(self.plan.model, state.server.x, self.plan.federation)

    def _scores(self, state: State) -> ScoresRow:
        """The losses and metrics, or nulls in a round that is not evaluated."""
        if state.rounds_done % self.plan.experiment.engine.eval_every and not self._last(state):
            return Scores(metrics=dict.fromkeys(self.plan.metrics)).row()
        seed_global_generator(self.plan.streams.torch_seed("evaluation", state.rounds_done), state.server.x.device)
        scores = evaluate(self.plan.model, state.server.x, self.plan.scored, self.plan.metrics, self.plan.mechanism.trust.promises)
        refuse_broken(scores, state.rounds_done, len(self.plan.federation))
        return scores.row()


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
