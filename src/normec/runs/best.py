"""The best model of a run beside its last, by a number of its metrics."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from normec.errors import BadInput
from normec.runs.experiment import Plan
from normec.runs.folder import BEST, Checkpoint, RunFolder
from normec.runs.model import saved_as
from normec.runs.written import BestTable, MetricsRow


@dataclass
class Best:
    """The model of the evaluated round with the best value so far; the first of equal ones. by: the number's name, None for no choice.

    x: (d,). buffers: the moving ones, (m,). private: whether the run promises something, which the choice is not covered by.
    """

    by: str | None
    larger: bool
    private: bool
    round: int = -1
    value: float | None = None
    x: Tensor | None = None
    buffers: Tensor | None = None

    @classmethod
    def of(cls, plan: Plan) -> Best:
        """As the plan's evaluation asks for."""
        chosen, private = plan.experiment.evaluation, plan.mechanism.trust.promises
        if chosen.best is None:
            return cls(None, True, private)
        return cls(chosen.best, chosen.larger_is_better(plan.metrics, plan.model.reading, plan.federation.test is not None), private)

    def look(self, row: MetricsRow, x: Tensor, buffers: Tensor) -> None:
        """Takes the model x of a round, with its line of the metrics, where it is better than all before."""
        numbers = {"train_loss": row["train_loss"], "test_loss": row["test_loss"], "test_accuracy": row["test_accuracy"]}
        value = None if self.by is None else (numbers | row.get("metrics", {})).get(self.by)
        if value is None or (self.value is not None and (value <= self.value if self.larger else value >= self.value)):
            return
        self.round, self.value, self.x, self.buffers = row["round"], value, x.clone(), buffers.clone()

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds of it."""
        return {} if self.x is None or self.buffers is None else {"best.x": self.x, "best.buffers": self.buffers}

    def counts(self) -> dict[str, float | None]:
        """The numbers beside `tensors`."""
        return {} if self.x is None else {"best_round": self.round, "best_value": self.value}

    def load(self, checkpoint: Checkpoint, like: Tensor) -> None:
        """Goes on from a checkpoint."""
        tensors, counts = checkpoint
        if self.by is None or "best_round" not in counts:
            return
        if "best.x" not in tensors or tensors["best.x"].shape != like.shape or "best.buffers" not in tensors:
            raise BadInput("resume", ": the checkpoint is damaged (best.x)", remedy="Start again in another folder")
        self.round, self.value = counts["best_round"], counts["best_value"]
        self.x, self.buffers = tensors["best.x"].to(like.device), tensors["best.buffers"].to(like.device)

    def save(self, plan: Plan, folder: RunFolder | None) -> None:
        """Writes the model into a run's folder; the module holds it afterwards."""
        if folder is not None and self.x is not None and self.buffers is not None:
            plan.model.start_from(self.buffers)
            folder.save_model(plan.model.load(self.x), saved_as(plan), BEST)

    def table(self) -> BestTable | None:
        """As in summary.json; None where nothing was chosen."""
        if self.by is None or self.value is None:
            return None
        of = "the clients' training data, which" if self.by == "train_loss" else "the test set, which, unless it is public,"
        note = f"choosing the best round looks at {of} no ε covers" if self.private else None
        return {"by": self.by, "round": self.round, "value": self.value, "file": BEST, "note": note}
