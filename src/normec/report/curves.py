"""The numbers of the chart: of each group the mean of every metric by round, and its standard deviation."""

from __future__ import annotations

import math
import statistics
from typing import Any, NotRequired, TypedDict

from normec.audit.evidence import Histograms
from normec.audit.verdict import finished
from normec.report.groups import Group
from normec.runs.record import Record
from normec.runs.written import MetricsRow
from normec.settings import flat

MOST_NUMBERS = 45_000
"""Of all curves in the page; with more, rounds are left out evenly, so that the file stays small."""
AXES = {"round": "round", "transmissions": "transmissions", "bytes_up": "bytes up", "epsilon": "ε spent"}
NOT_CURVES = {*AXES, "bytes_down"}
FIRST_METRICS = ("test_accuracy", "test_loss", "train_loss")


class Columns(TypedDict):
    """The numbers of a group by round. spread: standard deviations, of several seeds."""

    columns: dict[str, list[float | None]]
    spread: NotRequired[dict[str, list[float | None]]]


class GroupCurves(Columns):
    """What the chart shows of a group."""

    name: str
    seeds: int


class AuditedRun(Histograms):
    """The picture of an audit."""

    name: str


class Chart(TypedDict):
    """What the page's script draws. metrics: those that it offers. axes: titles by number. left_out: rounds that are not shown."""

    runs: list[GroupCurves]
    metrics: list[str]
    axes: dict[str, str]
    left_out: int
    audits: list[AuditedRun]


def curves(groups: list[Group]) -> Chart:
    """For the chart: of each group the columns of its metrics, and of several seeds their standard deviations."""
    names = sorted({key for run in _runs(groups) for row in run.metrics for key, value in numbers(row).items() if value is not None})
    columns = sum(1 if group.seeds == 1 else 2 for group in groups) * max(len(names), 1)
    most = max(2, MOST_NUMBERS // columns)
    series: list[GroupCurves] = []
    left_out = 0
    for group in groups:
        all_rows = _rows(group)
        rows = thinned(all_rows, most)
        left_out += len(all_rows) - len(rows)
        series.append({"name": group.name, "seeds": group.seeds, **_columns(group, rows, names)})
    axes = {key: title for key, title in AXES.items() if key in names}
    audits: list[AuditedRun] = [
        {"name": name, **audit["histograms"]} for group in groups for name, run in group.runs.items() if (audit := finished(run.audit))
    ]
    return {"runs": series, "metrics": metrics(names), "axes": axes, "left_out": left_out, "audits": audits}


def metrics(names: list[str]) -> list[str]:
    """What the chart offers: the accuracy first, or else what else a run was scored by."""
    requested = [key for key in names if key.startswith("metrics.")]
    offered = [key for key in ("test_accuracy", *requested, *FIRST_METRICS[1:]) if key in names]
    return offered + [key for key in names if key not in offered and key not in NOT_CURVES]


def numbers(row: MetricsRow) -> dict[str, float | None]:
    """The numbers of a round on one level, short; what no server would see under its own name."""
    found = {}
    for key, value in flat(row).items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[key.replace("simulation_only.", "simulation only: ")] = float(f"{value:.6g}") if math.isfinite(value) else None
    return found


def thinned(rows: list[MetricsRow], most: int) -> list[MetricsRow]:
    """About `most` of the rounds, evenly, those with scores before the others; the first and the last always."""
    scored = [place for place, row in enumerate(rows) if row.get("test_accuracy") is not None or row.get("train_loss") is not None]
    others = sorted(set(range(len(rows))) - set(scored))
    kept = set(scored[:: math.ceil(len(scored) / most) or 1])
    room = most - len(kept)
    kept |= set(others[:: math.ceil(len(others) / room) or 1]) if room > 0 else set()
    return [row for place, row in enumerate(rows) if place in kept or place in (0, len(rows) - 1)]


def _runs(groups: list[Group]) -> list[Record]:
    return [run for group in groups for run in group.runs.values()]


def _rows(group: Group) -> list[MetricsRow]:
    """The first run's rounds that all runs of the group have."""
    first, *others = group.runs.values()
    rounds = [{row["round"] for row in run.metrics} for run in others]
    return [row for row in first.metrics if all(row["round"] in of_run for of_run in rounds)]


def _columns(group: Group, rows: list[MetricsRow], names: list[str]) -> Columns:
    """Means in these rounds, and standard deviations where the group has several runs; None where a run has no value."""
    kept = [row["round"] for row in rows]
    tables = []
    for run in group.runs.values():
        by_round = {row["round"]: row for row in run.metrics}
        tables.append([numbers(by_round[k]) for k in kept])
    cells = {name: [[table[place].get(name) for table in tables] for place in range(len(kept))] for name in names}
    found: Columns = {"columns": {name: [_whole(cell, statistics.fmean) for cell in column] for name, column in cells.items()}}
    if group.seeds > 1:
        scores = [name for name in names if name not in AXES]
        found["spread"] = {name: [_whole(cell, statistics.stdev) for cell in cells[name]] for name in scores}
    return found


def _whole(values: list[float | None], of: Any) -> float | None:
    there = [value for value in values if value is not None]
    if len(there) < len(values):
        return None
    return there[0] if len(there) == 1 else float(f"{of(there):.6g}")
