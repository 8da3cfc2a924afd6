"""The outcomes of a comparison's runs: the number by which they are judged, and means and standard errors."""

from __future__ import annotations

import math
import statistics
from typing import Any

from normec.runs.record import Record


def judged_by(rows: list[dict[str, Any]]) -> tuple[str, str, int]:
    """The number by which runs are judged: its name, its key in a sweep's rows, and 1 where more of it is better, else −1."""
    for name, key, sign in (("test accuracy", "last_accuracy", 1), ("test loss", "test_loss", -1)):
        if any(row.get(key) is not None for row in rows):
            return name, key, sign
    return "training loss", "train_loss", -1


def score(row: dict[str, Any], key: str, sign: int) -> float:
    """The score of a run of a sweep, larger being better; a failed run is worse than all others."""
    return sign * float(row[key]) if row["status"] == "done" and row.get(key) is not None else -math.inf


def largest(promised: float | None, done: list[Record]) -> float | None:
    """The ε that holds for every run: the promised one, or more where a run has spent more."""
    return promised and max([promised, *(spent for run in done if (spent := run.last("epsilon")) is not None)])


def rose(run: Record) -> bool:
    """Whether the training loss ended above where it began."""
    losses = [row["train_loss"] for row in run.metrics if row.get("train_loss") is not None]
    return bool(losses) and losses[-1] > losses[0]


def values(done: list[Record], key: str) -> list[float]:
    """The values of a number of the summary, or of a metric, in each run that has it."""
    found = [{**run.last_metrics, **(run.summary or {})}.get(key) for run in done]
    return [value for value in found if value is not None]


def mean(done: list[Record], key: str) -> float | None:
    """Of such a number over the runs; None where no run has it."""
    found = values(done, key)
    return statistics.fmean(found) if found else None


def standard_error(done: list[Record], key: str) -> float | None:
    """Of that mean; None for fewer than two runs."""
    found = values(done, key)
    return statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else None
