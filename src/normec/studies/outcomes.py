"""The outcomes of a comparison's runs: the rows of its table, the number by which runs are judged, means and standard errors."""

from __future__ import annotations

import math
import statistics
from typing import Literal, TypedDict

from normec.privacy import Trust
from normec.privacy.mechanism import Adjacency
from normec.runs.record import Record
from normec.settings import Tree
from normec.studies.contenders import Edge
from normec.studies.rows import SweepRow

Score = Literal["last_accuracy", "test_loss", "train_loss"]


class Promised(TypedDict):
    """What every run of an algorithm promises, by its plan. convergence: the guarantee that covers it."""

    epsilon: float | None
    epsilon_every_round: float | None
    delta: float | None
    adjacency: Adjacency | None
    trust: Trust
    convergence: str


class LocalWork(TypedDict):
    """What a client does in a round."""

    method: str
    steps: int


class ComparisonRow(Promised):
    """One algorithm of a comparison, as comparison.json holds it.

    Losses, accuracies and metrics, transmissions and bytes are means over the seeds that did not fail, None where there are none;
    with _se their standard errors. largest_class: the share of the test targets in their largest class. seeds, failed: how many,
    and how many of these failed; tries, tries_failed: of the search; problem: why the first did. rose: whether a training loss did.
    tuned_by: the number by which tries are judged. edges, ranges: what a search chose at the end of a range, and the ranges.
    settings, server: in full; chosen: those unlike the defaults. curves: the test accuracy by round, for each seed.
    """

    algorithm: str
    test_accuracy: float | None
    test_accuracy_se: float | None
    largest_class: float | None
    metrics: dict[str, float | None]
    test_loss: float | None
    test_loss_se: float | None
    train_loss: float | None
    train_loss_se: float | None
    transmissions: float | None
    bytes_up: float | None
    bytes_down: float | None
    rounds: int
    seeds: int
    failed: int
    problem: str | None
    rose: bool
    tries: int
    tries_failed: int
    tuned_by: str
    edges: dict[str, Edge]
    ranges: dict[str, list[float]]
    settings: Tree
    server: Tree
    chosen: Tree
    command: str
    local: LocalWork
    one_gradient: bool
    curves: list[list[float | None]]


def judged_by(rows: list[SweepRow]) -> tuple[str, Score, int]:
    """The number by which runs are judged: its name, its key in a sweep's rows, and 1 where more of it is better, else −1."""
    if any(row.get("last_accuracy") is not None for row in rows):
        return "test accuracy", "last_accuracy", 1
    if any(row.get("test_loss") is not None for row in rows):
        return "test loss", "test_loss", -1
    return "training loss", "train_loss", -1


def score(row: SweepRow, key: Score, sign: int) -> float:
    """The score of a run of a sweep, larger being better; a failed run is worse than all others."""
    value = row.get(key) if row["status"] == "done" else None
    return -math.inf if value is None else sign * value


def largest(promised: float | None, done: list[Record]) -> float | None:
    """The ε that holds for every run: the promised one, or more where a run has spent more."""
    return promised and max([promised, *(spent for run in done if (spent := run.last("epsilon")) is not None)])


def rose(run: Record) -> bool:
    """Whether the training loss ended above where it began."""
    losses = [loss for row in run.metrics if (loss := row.get("train_loss")) is not None]
    return bool(losses) and losses[-1] > losses[0]


def values(done: list[Record], key: str) -> list[float]:
    """The values of a number of the summary, or of a metric, in each run that has it."""
    held = [{**run.last_metrics, **(run.summary or {})}.get(key) for run in done]
    return [value for value in held if value is not None]


def mean(done: list[Record], key: str) -> float | None:
    """Of such a number over the runs; None where no run has it."""
    held = values(done, key)
    return statistics.fmean(held) if held else None


def standard_error(done: list[Record], key: str) -> float | None:
    """Of that mean; None for fewer than two runs."""
    held = values(done, key)
    return statistics.stdev(held) / math.sqrt(len(held)) if len(held) > 1 else None
