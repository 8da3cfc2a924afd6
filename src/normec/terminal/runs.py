"""The tables and notes of commands over many runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from rich.table import Table
from rich.text import Text

from normec.errors import plural
from normec.privacy.promise import with_every_round
from normec.studies.outcomes import ComparisonRow
from normec.studies.rows import SweepRow
from normec.terminal.cells import bound_or_none, number

MOST = 0.6
"""The share of a class from which an accuracy misleads by itself."""
MOST_COLUMNS = 3
"""Of settings in the table of a sweep; with more, each run has a number instead, and its name below."""


def comparison_table(rows: list[ComparisonRow]) -> Table:
    """Algorithms side by side: mean ± standard error over the seeds. What is long stands in the notes, so that it fits 80 columns."""
    table = Table(title="Comparison", title_justify="left")
    same = len({row["epsilon"] for row in rows}) == 1
    asked = _asked(rows)
    first = _headline(rows)
    heads = ("algorithm", *(() if same else ("ε",)), first.title, *asked, "training loss", "MB up")
    for name in heads:
        table.add_column(
            name, no_wrap=name not in ("algorithm", *asked), overflow="fold", justify="left" if name == "algorithm" else "right"
        )
    for row in rows:
        cells = (
            *(() if same else (bound_or_none(row["epsilon"], row["epsilon_every_round"]),)),
            _with_error(row[first.key], row[first.error], first.factor, first.form, first.unit),
            *(number(row["metrics"].get(name), ".4g") for name in asked),
            _with_error(row["train_loss"], row["train_loss_se"], 1, ".3f"),
            number(None if row["bytes_up"] is None else row["bytes_up"] / 1e6, ",.2f"),
        )
        table.add_row(Text(row["algorithm"]), *(Text(cell) for cell in cells))
    return table


def comparison_notes(rows: list[ComparisonRow], folder: Path) -> list[str]:
    """How the numbers came about, what they do not include, and how to train what was chosen."""
    first = rows[0]
    lines = [f"mean ± standard error over {plural(first['seeds'], 'seed')}, {plural(first['rounds'], 'round')}"]
    if first["epsilon"] is None:
        lines.append("ε = ∞: not private")
    else:
        every = max((row["epsilon_every_round"] for row in rows if row["epsilon_every_round"]), default=None)
        bound = with_every_round(max(math.inf if row["epsilon"] is None else row["epsilon"] for row in rows), every)
        promise = f"ε = {bound}, δ = {first['delta']!r}, {first['adjacency']} adjacency"
        lines.append(f"{promise}, trust {first['trust']}; each run alone spends ε")
    if first["tries"]:
        tries = f"{plural(first['tries'], 'try').replace('trys', 'tries')} each, on another seed, by final {first['tuned_by']}"
        lines.append(f"tuned: {tries}; tuning is not accounted")
    else:
        lines.append("not tuned: default settings, or those that were given; --tune gives each the same number of tries")
    lines += [f"{row['algorithm']}: one gradient per round (local.method={row['local']['method']})" for row in rows if row["one_gradient"]]
    lines += [line for row in rows for line in _cautions(row)] + _by_itself(rows)
    lines.append(f"{folder}: every run, comparison.json; normec report {folder} draws them")
    return lines + [line for row in rows for line in (f"{row['algorithm']}, the settings chosen:", f"  {row['command']}")]


class Headline(NamedTuple):
    """What a comparison shows first: its title, the keys of its mean and standard error, and how they are shown."""

    title: str
    key: Literal["test_accuracy", "test_loss"]
    error: Literal["test_accuracy_se", "test_loss_se"]
    factor: float
    form: str
    unit: str


def _headline(rows: list[ComparisonRow]) -> Headline:
    """The test loss where there is no accuracy."""
    if all(row["test_accuracy"] is None for row in rows) and any(row["test_loss"] is not None for row in rows):
        return Headline("test loss", "test_loss", "test_loss_se", 1, ".3f", "")
    return Headline("test accuracy", "test_accuracy", "test_accuracy_se", 100, ".1f", "%")


def _asked(rows: list[ComparisonRow] | list[SweepRow]) -> list[str]:
    """The metrics beside loss and accuracy that a run has."""
    return list(dict.fromkeys(name for row in rows for name in row.get("metrics") or {}))


def _by_itself(rows: list[ComparisonRow] | list[SweepRow]) -> list[str]:
    """What an accuracy is to be compared with, where one class has most of the test samples."""
    largest = max((row.get("largest_class") or 0.0 for row in rows), default=0.0)
    return [f"naming the largest class alone is right on {largest:.1%} of the test targets"] if largest > MOST else []


def _wider(row: ComparisonRow, key: str) -> str:
    """The range, ten times as wide on the side where the winner lies."""
    low, high = row["ranges"][key]
    ends = (f"{low / 10:.3g}", f"{high:.3g}") if row["edges"][key] == "smallest" else (f"{low:.3g}", f"{10 * high:.3g}")
    return f"a wider range may do better, such as '{row['algorithm']}.{key}=[{', '.join(ends)}]'"


def _cautions(row: ComparisonRow) -> list[str]:
    """What a careful reader should notice in the row of an algorithm."""
    name, why = row["algorithm"], f": {row['problem']}" if row["problem"] else ""
    lines = [f"{name}: {key}={row['settings'][key]:g} is the {edge} of its tries; {_wider(row, key)}" for key, edge in row["edges"].items()]
    if row["rose"]:
        lines.append(f"warning: the training loss of {name} rose")
    if row["tries_failed"]:
        lines.append(f"warning: {row['tries_failed']} of {row['tries']} tries of {name} failed{why}")
    if row["failed"]:
        lines.append(f"warning: {name} failed on {row['failed']} of {plural(row['seeds'], 'seed')}{why}")
    return lines


def sweep_table(rows: list[SweepRow], target: float | None) -> Table:
    """The runs of a sweep by what they do not share. target: a test accuracy that runs are timed to."""
    table = Table(title="Sweep", title_justify="left")
    names = _columns(rows)
    shared = _shared(rows)
    left_out = {*shared, *_useless(rows, target)}
    shown = {title: cell for title, cell in _SWEEP.items() if title not in left_out}
    shown |= {name: _metric_cell(name) for name in _asked(rows)}
    for name in (*(name.rpartition(".")[2] for name in names), *shown):
        table.add_column(name.replace("target", f"{target}"), overflow="fold", justify="left" if name in names else "right")
    for position, row in enumerate(rows, start=1):
        cells = [str(position)] if names == ["#"] else [str(row["settings"].get(name, "–")) for name in names]
        table.add_row(*(Text(cell) for cell in (*cells, *(cell(row) for cell in shown.values()))))
    return table


def _useless(rows: list[SweepRow], target: float | None) -> set[str]:
    """Columns that would say nothing: accuracies where there are none, the test loss beside them, and those of no target."""
    scored = all(row.get("last_accuracy") is None for row in rows) and any(row.get("test_loss") is not None for row in rows)
    useless = {"best", "last"} if scored else {"test loss"}
    return useless | (set() if target is not None else {title for title in _SWEEP if "target" in title})


def _metric_cell(name: str) -> Callable[[SweepRow], str]:
    return lambda row: number((row.get("metrics") or {}).get(name), ".4g")


_SWEEP: dict[str, Callable[[SweepRow], str]] = {
    "status": lambda row: row["status"],
    "best": lambda row: number(row.get("best_accuracy"), ".1%"),
    "last": lambda row: number(row.get("last_accuracy"), ".1%"),
    "test loss": lambda row: number(row.get("test_loss"), ".4f"),
    "loss": lambda row: number(row.get("train_loss"), ".4f"),
    "ε": lambda row: "–" if "epsilon" not in row else with_every_round(row["epsilon"], row.get("epsilon_every_round")),
    "rounds": lambda row: number(row.get("rounds"), ",d"),
    "sent": lambda row: number(row.get("transmissions"), ",d"),
    "rounds to target": lambda row: number(row.get("rounds_to_target"), ",d"),
    "sent to target": lambda row: number(row.get("transmissions_to_target"), ",d"),
}
"""The columns of a sweep's table, and the cell of a row in each; best and last are test accuracies, loss is the last training loss."""


def _shared(rows: list[SweepRow]) -> dict[str, str]:
    """Columns in which all rows hold the same."""
    shared = {}
    for title in ("status", "ε", "rounds", "sent"):
        cells = {_SWEEP[title](row) for row in rows}
        if len(cells) == 1:
            shared[title] = cells.pop()
    return shared


def sweep_names(rows: list[SweepRow]) -> list[str]:
    """The names of numbered runs."""
    return [f"{position:>3}  {row['run']}" for position, row in enumerate(rows, start=1)] if _columns(rows) == ["#"] else []


def _columns(rows: list[SweepRow]) -> list[str]:
    """The settings that runs do not share, or where they are many their number."""
    names = list(dict.fromkeys(key for row in rows for key in row["settings"]))
    return names if len(names) <= MOST_COLUMNS else ["#"]


def sweep_notes(rows: list[SweepRow], folder: Path) -> list[str]:
    """The names of numbered runs, where things are, what failed, and what the ε do not include."""
    shared = ", ".join(f"{title} {cell}" for title, cell in _shared(rows).items() if cell != "–")
    lines = [*sweep_names(rows), *([f"all runs: {shared}"] if shared else [])]
    lines += [
        "best, last: test accuracy; loss: last training loss; sent: messages of clients to the server",
        f"{folder}: a folder for each run, results.csv, results.json",
        *_by_itself(rows),
    ]
    if any(row.get("epsilon") is not None for row in rows):
        lines.append("each run alone spends its ε; choosing among runs on the same private data is not accounted")
    return lines + [f"failed: {row['run']}: {row['problem']}" for row in rows if row["status"] == "failed"]


def _with_error(mean: float | None, error: float | None, scale: float, form: str, unit: str = "") -> str:
    shown = number(None if mean is None else scale * mean, form)
    return shown + ("" if error is None else f" ± {number(scale * error, form)}") + (unit if mean is not None else "")
