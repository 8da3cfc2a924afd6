"""What became of each run of a sweep: the rows of its table."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypedDict

from normec.errors import BadInput
from normec.runs.folder import RunFolder
from normec.runs.record import Record
from normec.studies.grid import Changes


class Status(TypedDict):
    """Where a run of a sweep stands. settings: those that it does not share with all others. problem: why it failed."""

    run: str
    settings: Changes
    status: Literal["waiting", "done", "failed", "interrupted"]
    problem: str | None


class SweepRow(Status, total=False):
    """One run of a sweep, as results.json holds it; of a run that has not begun, or cannot be read, `Status` alone.

    Accuracies, losses and metrics are where they were last taken, None where they never were. largest_class: the share of the test
    targets in their largest class. rounds_to_target, transmissions_to_target: up to the first round with the target's accuracy.
    """

    best_accuracy: float | None
    last_accuracy: float | None
    largest_class: float | None
    metrics: dict[str, float | None]
    test_loss: float | None
    train_loss: float | None
    epsilon: float | None
    epsilon_every_round: float | None
    rounds: int
    transmissions: float | None
    rounds_to_target: int | None
    transmissions_to_target: int | None
    seconds: float | None


def sweep_row(folder: Path, name: str, changes: Changes, problem: str | None, target: float | None) -> SweepRow:
    """The row of the run `name` in the folder of its sweep, as far as it came. problem: why it failed, where that is known."""
    if not RunFolder(folder / name).metrics.is_file():
        return {"run": name, "settings": changes, "status": "failed" if problem else "waiting", "problem": problem}
    try:
        record = Record.read(folder / name)
    except BadInput as error:
        return {"run": name, "settings": changes, "status": "failed", "problem": problem or str(error)}
    reached = record.reaching(target)
    done = record.summary is not None and not problem
    return {
        "run": name,
        "settings": changes,
        "status": "done" if done else "failed" if problem else "interrupted",
        "best_accuracy": record.best("test_accuracy"),
        "last_accuracy": record.last("test_accuracy"),
        "largest_class": (record.summary or {}).get("test_largest_class"),
        "metrics": record.last_metrics,
        "test_loss": record.last("test_loss"),
        "train_loss": record.last("train_loss"),
        "epsilon": record.epsilon,
        "epsilon_every_round": record.epsilon_every_round,
        "rounds": record.metrics[-1]["round"] if record.metrics else 0,
        "transmissions": record.last("transmissions"),
        "rounds_to_target": reached["round"] if reached else None,
        "transmissions_to_target": reached["transmissions"] if reached else None,
        "seconds": record.last("seconds"),
        "problem": problem,
    }
