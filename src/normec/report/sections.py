"""The parts of the page as HTML."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from markupsafe import Markup

from normec.privacy.promise import with_every_round
from normec.report.claims import claim, standing, voids
from normec.report.groups import Group
from normec.report.markup import render, table
from normec.runs.record import Number, Record
from normec.runs.verdict import lines as verdict
from normec.terminal.cells import number
from normec.terminal.runs import MOST

VALUES = ["round", "test_accuracy", "test_loss", "train_loss", "epsilon", "transmissions"]
"""The columns of the tables that stand for the chart."""


def summary(groups: list[Group]) -> Markup:
    """What came out of each group, the best first: its score, ε, and to whom that is promised."""
    title, of, form = headline(groups)
    best = sorted(groups, key=_order(groups))
    heads = ["run", title, "ε", "unit, trust"]
    rows = [[named(group), group.shown(of, form), spent(group), to_whom(group)] for group in best]
    return render(
        "summary.html",
        heads=heads,
        rows=rows,
        largest_classes=_largest_classes(groups),
        several_seeds=any(group.seeds > 1 for group in groups),
        notices=list(dict.fromkeys(line for group in groups for run in group.runs.values() for line in standing(run))),
    )


def _largest_classes(groups: list[Group]) -> list[tuple[str, list[str]]]:
    """The share of the largest class among the test targets, where it is large, and the runs with that share; none means all."""

    def share(run: Record) -> tuple[str, ...]:
        largest = (run.summary or {}).get("test_largest_class") or 0
        return (f"{largest:.1%}",) if largest > MOST else ()

    said = _said(groups, share)
    return [(shares[0], runs if len(said) > 1 else []) for shares, runs in said.items() if shares]


def headline(groups: list[Group]) -> tuple[str, Callable[[Record], float | None], str]:
    """What is shown of each run first: the accuracy, or else a metric that was asked for, or else a loss. Title, value, format."""
    if _any(groups, "test_accuracy"):
        return "test accuracy", partial(Record.last, metric="test_accuracy"), ".1%"
    for key in requested(groups):
        if any(group.values(partial(requested_value, key=key)) for group in groups):
            return key, partial(requested_value, key=key), ".4g"
    if _any(groups, "test_loss"):
        return "test loss", partial(Record.last, metric="test_loss"), ".4f"
    return "training loss", partial(Record.last, metric="train_loss"), ".4f"


def _order(groups: list[Group]) -> Callable[[Group], float]:
    """What is smaller for better groups: by accuracy, or else by loss, of which more or less is known to be better."""
    key: Number = "test_accuracy" if _any(groups, "test_accuracy") else "test_loss" if _any(groups, "test_loss") else "train_loss"
    sign = -1 if key == "test_accuracy" else 1
    return lambda group: sign * statistics.fmean(group.values(partial(Record.last, metric=key)) or [sign * math.inf])


def _any(groups: list[Group], metric: Number) -> bool:
    return any(group.values(partial(Record.last, metric=metric)) for group in groups)


def requested(groups: list[Group]) -> list[str]:
    """The names of metrics that were asked for beside loss and accuracy."""
    rows = [row for group in groups for run in group.runs.values() for row in run.metrics]
    return list(dict.fromkeys(key for row in rows if isinstance(row.get("metrics"), dict) for key in row["metrics"]))


def requested_value(run: Record, key: str) -> float | None:
    """The last value of one of them."""
    return run.last_metrics.get(key)


def named(group: Group) -> str:
    """A group's name, and how many seeds it has."""
    return group.name if group.seeds == 1 else f"{group.name} ({group.seeds} seeds)"


def spent(group: Group) -> str:
    """The largest ε of its runs: a claim that holds for each."""
    found = [run.epsilon for run in group.runs.values() if run.metrics]
    if not found:
        return "–"
    every = max((value for run in group.runs.values() if (value := run.epsilon_every_round) is not None), default=None)
    return "∞" if None in found else with_every_round(max(value for value in found if value is not None), every)


def to_whom(group: Group) -> str:
    run = next(iter(group.runs.values()))
    said, privacy = run.summary or {}, run.settings.get("privacy", {})
    trust = said.get("trust", privacy.get("trust", "none"))
    private = said.get("private", trust != "none")
    return f"{said.get('unit', 'client')}, {trust}" if private else "not private"


def claims(groups: list[Group]) -> Markup:
    """Each claim once, with the runs that make it; a click shows what would void it."""
    said = _said(groups, lambda run: (claim(run), *voids(run)))
    return render("claims.html", claims=[(sentence, lines, runs) for (sentence, *lines), runs in said.items()])


def theory(groups: list[Group]) -> Markup:
    """What the theorems say of each run, once."""
    return render("theory.html", verdicts=list(_said(groups, _verdict).items()))


def _verdict(run: Record) -> tuple[str, ...]:
    found = run.summary or {}
    return tuple(verdict(found["theory"])) if found.get("theory") else (str(found.get("convergence", "unfinished")),)


def _said(groups: list[Group], of: Callable[[Record], tuple[str, ...]]) -> dict[tuple[str, ...], list[str]]:
    """What is said, once, and of whom: of a whole group where it holds for all its runs."""
    said: dict[tuple[str, ...], list[str]] = {}
    for group in groups:
        of_runs = {name: of(run) for name, run in group.runs.items()}
        whole = len(set(of_runs.values())) == 1
        for name, lines in list(of_runs.items())[: 1 if whole else None]:
            said.setdefault(lines, []).append(named(group) if whole else group.member(name))
    return said


def results(groups: list[Group]) -> Markup:
    """The last and the best numbers of each group."""
    asked = requested(groups)
    rows = []
    for group in groups:
        cells = [group.shown(lambda run: run.best(), ".1%"), group.shown(lambda run: run.last("test_accuracy"), ".1%")]
        cells += [group.shown(partial(requested_value, key=key), ".4g") for key in asked]
        cells += [group.shown(lambda run: run.last("test_loss"), ".4f"), spent(group)]
        cells += [group.shown(lambda run: run.last("train_loss"), ".4f")]
        cells += [group.shown(lambda run: run.metrics[-1]["round"] if run.metrics else None, ",d")]
        cells += [group.shown(lambda run: run.last("transmissions"), ",d")]
        rows.append([named(group), *cells])
    heads = ["run", "best accuracy", "last accuracy", *asked, "test loss", "ε", "training loss", "rounds", "transmissions"]
    return table(heads, rows)


def settings(groups: list[Group]) -> Markup:
    """Every setting, a column for each group; those that differ are marked."""
    columns = [group.settings for group in groups]
    rows = []
    for key in dict.fromkeys(key for column in columns for key in column):
        values = ["–" if key not in column else str(column[key]) for column in columns]
        rows.append((key, values, len(set(values)) == 1))
    return render("settings.html", heads=["setting", *(group.name for group in groups)], rows=rows)


def spread(groups: list[Group]) -> Markup:
    """How the clients of each run fare."""
    rows = []
    for group, name, run in _members(groups):
        found = ((run.summary or {}).get("simulation_only") or {}).get("spread")
        if found:
            keys = ("mean", "median", "worst_decile", "best")
            cells = [number(found[key], ".1%" if found["metric"] == "test_accuracy" else ".4f") for key in keys]
            row = [str(found["metric"]), str(found["clients"]), str(found["clients_without_test_samples"]), *cells]
            rows.append([group.member(name), *row])
    if not rows:
        return Markup("<p>No run has test samples that are some client's.</p>")
    heads = ["run", "of", "clients", "without test samples", "mean", "median", "mean of the worst tenth", "best"]
    return table(heads, rows)


def timings(groups: list[Group]) -> Markup:
    """Seconds of each run, and of a round."""
    rows = []
    for group, name, run in _members(groups):
        seconds = [row["seconds"] for row in run.metrics if row.get("seconds") is not None]
        steps = [after - before for before, after in itertools.pairwise(seconds)]
        middle = statistics.median(steps) if steps else None
        rows.append([group.member(name), number(seconds[-1] if seconds else None, ",.1f"), number(middle and 1000 * middle, ",.1f")])
    return table(["run", "seconds", "median milliseconds per round"], rows)


def values(groups: list[Group], most: int) -> Markup:
    """The evaluated rounds of each run as a table, for those who cannot see the chart; evenly thinned to about `most`."""
    runs = []
    for group, name, run in _members(groups):
        rows = [row for row in run.metrics if row.get("test_accuracy") is not None or row.get("train_loss") is not None]
        cells = [[_plain(row.get(head)) for head in VALUES] for row in rows[:: math.ceil(len(rows) / most) or 1]]
        runs.append((group.member(name), cells))
    return render("values.html", heads=VALUES, runs=runs)


def versions(runs: Iterable[Record]) -> list[str]:
    """A notice where runs come from different versions."""
    found = {(run.summary or {}).get("versions", {}).get("normec") for run in runs}
    known = sorted(str(version) for version in found if version)
    return [f"These runs come from normec {' and '.join(known)}: compare them with care."] if len(known) > 1 else []


def _members(groups: list[Group]) -> Iterable[tuple[Group, str, Record]]:
    return ((group, name, run) for group in groups for name, run in group.runs.items())


def _plain(value: Any) -> str:
    return "–" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
