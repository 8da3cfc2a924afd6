"""What is written down about a run: metrics, checkpoints and the summary."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from normec.algorithms import Slots
from normec.engine import ClientStatistics
from normec.errors import BadInput, TrainingFailed
from normec.evaluation import evaluate
from normec.experiment import Plan
from normec.folder import RunFolder, differing_setting
from normec.memory import DenseMemory
from normec.summary import summarize

BYTES_OF_A_NUMBER = 4
"""Vectors travel as float32, whatever the simulation computes in."""


NO_ROUND = -1
"""Rounds done where there is no checkpoint: not even the line of round 0 is kept."""


class Observer(Protocol):
    """Who watches a run."""

    def started(self, plan: Plan) -> None:
        """Called once, after every check and before the first round."""

    def round(self, row: dict[str, Any]) -> None:
        """Called with each line of the metrics; row["round"] is 0 before training."""


@dataclass
class State:
    """Where a run stands between two rounds: all that a checkpoint holds.

    transmissions: messages from clients so far. computations: local computations so far, one download each.
    """

    x: Tensor
    server: Slots
    memory: DenseMemory
    rounds_done: int = 0
    transmissions: int = 0
    computations: int = 0
    seconds: float = 0.0


class Recorder:
    """Writes down a run in its folder, if it has one, and tells its observer."""

    def __init__(self, plan: Plan, folder: RunFolder | None, observer: Observer | None) -> None:
        self.plan, self.folder, self.observer = plan, folder, observer
        self.metrics: list[dict[str, Any]] = []
        self._description = plan.describe()
        self._clock = time.perf_counter()

    def resume(self, state: State) -> bool:
        """Moves a fresh state to the folder's checkpoint; says whether there was one.

        Raises:
            BadInput: where the checkpoint was made by another configuration, naming the difference.
        """
        if self.folder is None:
            return False
        tensors, saved = self.folder.load_checkpoint() or ({}, {"rounds_done": NO_ROUND, "description": self._description})
        difference = differing_setting(saved["description"], self._description)
        if difference:
            raise BadInput("--resume", f": the checkpoint is of another run ({difference}). Use the same settings, or a new folder.")
        self.metrics = self.folder.start_metrics(saved["rounds_done"])
        if saved["rounds_done"] == NO_ROUND:
            return False
        slots = self.plan.experiment.algorithm.server_slots
        state.x = tensors["x"].to(state.x.device)
        state.server = tuple(tensors[f"server.{slot}"].to(state.x.device) for slot in slots)
        for slot, rows in zip(state.memory.names, state.memory.rows, strict=True):
            rows.copy_(tensors[f"memory.{slot}"])
        for name in ("rounds_done", "transmissions", "computations", "seconds"):
            setattr(state, name, saved[name])
        self._clock -= state.seconds
        return True

    def started(self, state: State) -> None:
        """Before the first round of this process."""
        if self.observer:
            self.observer.started(self.plan)
        if not self.metrics:
            self._write(state, None)

    def round(self, state: State, statistics: ClientStatistics) -> None:
        """After each round.

        Raises:
            TrainingFailed: where the model or a loss is not finite any more.
        """
        if not bool(state.x.isfinite().all()):
            raise TrainingFailed(f"round {state.rounds_done}: the model is not finite. Lower algorithm.server_lr or local.lr.")
        self._write(state, statistics)
        engine = self.plan.experiment.engine
        if state.rounds_done % engine.checkpoint_every == 0 or self._last(state):
            self.checkpoint(state)

    def checkpoint(self, state: State) -> None:
        """Saves the state, so that a resumed run goes on from here."""
        if self.folder is None:
            return
        tensors = {"x": state.x} | {f"memory.{n}": rows for n, rows in zip(state.memory.names, state.memory.rows, strict=True)}
        slots = self.plan.experiment.algorithm.server_slots
        tensors |= {f"server.{slot}": value for slot, value in zip(slots, state.server, strict=True)}
        counts = {name: getattr(state, name) for name in ("rounds_done", "transmissions", "computations", "seconds")}
        self.folder.save_checkpoint(tensors, counts | {"description": self._description})

    def finish(self, state: State) -> dict[str, Any]:
        """Writes model and summary; returns the summary. The module holds the final parameters afterwards."""
        self.plan.model.vector.copy_(state.x)
        summary = summarize(self.plan, self.metrics[-1], self._description)
        if self.folder:
            self.folder.save_model(self.plan.model.module)
            self.folder.save_summary(summary)
        return summary

    def _last(self, state: State) -> bool:
        return state.rounds_done == self.plan.experiment.schedule.rounds

    def _write(self, state: State, statistics: ClientStatistics | None) -> None:
        state.seconds = time.perf_counter() - self._clock
        row = self._row(state, statistics)
        self.metrics.append(row)
        if self.folder:
            self.folder.append_metrics(row)
        if self.observer:
            self.observer.round(row)

    def _row(self, state: State, statistics: ClientStatistics | None) -> dict[str, Any]:
        message = BYTES_OF_A_NUMBER * self.plan.model.d
        spent = self.plan.spent.after(state.rounds_done)
        remembers = bool(self.plan.experiment.algorithm.client_slots)
        return {
            "round": state.rounds_done,
            **self._scores(state),
            "transmissions": state.transmissions,
            "bytes_up": message * state.transmissions,
            "bytes_down": message * state.computations,
            "epsilon": spent if math.isfinite(spent) else None,
            "seconds": round(state.seconds, 3),
            "simulation_only": statistics.summary(remembers) if statistics else None,
        }

    def _scores(self, state: State) -> dict[str, float | None]:
        """The losses, or nulls in a round that is not evaluated."""
        if state.rounds_done % self.plan.experiment.engine.eval_every and not self._last(state):
            return {"train_loss": None, "test_loss": None, "test_accuracy": None}
        scores = evaluate(self.plan.model, state.x, self.plan.federation, drop_broken=self.plan.mechanism.trust != "none")
        for name, value in (("training", scores.train_loss), ("test", scores.test_loss)):
            if value is not None and not math.isfinite(value):
                raise TrainingFailed(f"round {state.rounds_done}: the {name} loss is {value}. Lower algorithm.server_lr or local.lr.")
        return scores._asdict()
