"""One HTML file over one or more runs, which works offline: the claims first, then the curves, the theory, the settings."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from normec.errors import BadInput
from normec.folder import RunFolder
from normec.report.audits import audit_section
from normec.report.claims import claim, voids
from normec.report.markup import names as _names
from normec.report.markup import table as _table
from normec.report.markup import text as _text
from normec.runs import Record
from normec.settings import flat
from normec.tables import bound_or_none, number
from normec.theory.certificate import lines as verdict

MOST_NUMBERS = 45_000
"""Of all curves in the page; with more, rounds are left out evenly, so that the file stays small."""
AXES = {"round": "round", "transmissions": "transmissions", "bytes_up": "bytes up", "epsilon": "ε spent"}
FIRST = b"<!doctype html>"
"""What a page begins with."""
MOST_VALUES = 5_000
"""Rows of all tables of values; each run has at most MOST_ROWS of them."""
MOST_ROWS, LEAST_ROWS = 200, 5
NOT_CURVES = {*AXES, "bytes_down"}


@dataclass
class Shown:
    """Runs by the names they have in the page, and why others are left out."""

    runs: dict[str, Record] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, paths: Sequence[Path]) -> Shown:
        """The runs of folders, each of a run or of a sweep."""
        found = cls()
        for path in paths:
            for folder in _runs_in(path):
                try:
                    found.runs[str(folder)] = _readable(Record.read(folder))
                except BadInput as error:
                    found.problems.append(str(error))
        common = _common([Path(name).parts for name in found.runs])
        found.runs = {str(Path(*Path(name).parts[common:])) or name: run for name, run in found.runs.items()}
        return found


def _runs_in(path: Path) -> list[Path]:
    """The runs of a folder of runs, or the folder itself; of a sweep all that should be runs."""
    if (path / "metrics.jsonl").exists() or not path.is_dir():
        return [path]
    inside = sorted(each for each in path.iterdir() if each.is_dir())
    sweep = (path / "sweep.toml").exists()
    return [each for each in inside if sweep or (each / "metrics.jsonl").exists() or RunFolder(each).holds_run] or [path]


def _readable(run: Record) -> Record:
    """A run whose every part can be shown.

    Raises:
        BadInput: for files that hold other things than a run writes, so that the other runs are shown without it.
    """
    try:
        for part in (_claims, _theory, audit_section, _results, _settings, _spread, _timings, _versions):
            part({"": run})
        _values("", run, 1)
        json.dumps(_curves({"": run}), allow_nan=False)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        problem = f" holds what no run writes ({type(error).__name__}: {error}). Leave this run out, or run it again."
        raise BadInput(str(run.path), problem) from None
    return run


def check_page(file: Path) -> None:
    """Refuses a place for the page where something else lies, before anything is made.

    Raises:
        BadInput: saying what.
    """
    if not file.parent.is_dir():
        raise BadInput("--out", f"={str(file)!r}: {file.parent} is no folder. Make it, or name another.")
    if file.is_dir():
        raise BadInput("--out", f"={str(file)!r} is a folder. Name a file in it, such as {file / 'report.html'}.")
    if file.exists() and (not file.is_file() or file.read_bytes()[: len(FIRST)] != FIRST):
        raise BadInput("--out", f"={str(file)!r} holds something else than a page of normec. Name another file.")


def write(shown: Shown) -> str:
    """The page.

    Raises:
        BadInput: where no run can be read, or the chart library is missing.
    """
    if not shown.runs:
        raise BadInput("DIR", f": {shown.problems[0] if shown.problems else 'no folder was given.'}")
    most = max(LEAST_ROWS, min(MOST_ROWS, MOST_VALUES // len(shown.runs)))
    parts = {
        "title": _text(", ".join(shown.runs) if len(shown.runs) <= 3 else f"{len(shown.runs)} runs"),
        "notices": "".join(f"<p class=notice>{_text(line)}</p>" for line in [*shown.problems, *_versions(shown.runs)]),
        "claims": _claims(shown.runs),
        "theory": _theory(shown.runs),
        "audits": audit_section(shown.runs),
        "results": _results(shown.runs),
        "settings": _settings(shown.runs),
        "spread": _spread(shown.runs),
        "timings": _timings(shown.runs),
        "values": "".join(_values(name, run, most) for name, run in shown.runs.items()),
        "data": _script_safe(_curves(shown.runs)),
        "style": _resource("page.css"),
        "code": _resource("page.js"),
        "library": _library(),
    }
    page = _resource("page.html")
    before, *pieces = page.split("{{")
    whole = [before]
    for piece in pieces:  # in one pass: what is put in is not searched again
        name, _, after = piece.partition("}}")
        whole += [parts[name], after]
    return "".join(whole)


def _claims(runs: dict[str, Record]) -> str:
    """Each claim once, with the runs that make it."""
    made: dict[tuple[str, ...], list[str]] = {}
    for name, run in runs.items():
        made.setdefault((claim(run), *voids(run)), []).append(name)
    cards = []
    for (sentence, *lines), made_by in made.items():
        items = "".join(f"<li>{_text(line)}</li>" for line in lines)
        heading, more = _names(made_by)
        cards.append(f"<article><h3>{heading}</h3>{more}<p class=claim>{_text(sentence)}</p><ul>{items}</ul></article>")
    return "".join(cards)


def _theory(runs: dict[str, Record]) -> str:
    said: dict[tuple[str, ...], list[str]] = {}
    for name, run in runs.items():
        summary = run.summary or {}
        lines = verdict(summary["theory"]) if summary.get("theory") else [str(summary.get("convergence", "unfinished"))]
        said.setdefault(tuple(lines), []).append(name)
    parts = [f"<dt>{''.join(_names(of))}</dt>" + "".join(f"<dd>{_text(line)}</dd>" for line in lines) for lines, of in said.items()]
    return f"<dl>{''.join(parts)}</dl>"


def _results(runs: dict[str, Record]) -> str:
    """The last and the best numbers of each run."""
    rows = []
    for name, run in runs.items():
        last = run.metrics[-1] if run.metrics else {}
        cells = [number(run.best(), ".1%"), number(run.last("test_accuracy"), ".1%"), number(run.last("test_loss"), ".4f")]
        cells += [_spent(run)]
        cells += [number(run.last("train_loss"), ".4f"), number(last.get("round"), ",d"), number(last.get("transmissions"), ",d")]
        rows.append([name, *cells])
    return _table(["run", "best accuracy", "last accuracy", "test loss", "ε", "training loss", "rounds", "transmissions"], rows)


def _spent(run: Record) -> str:
    return bound_or_none(run.last("epsilon")) if run.metrics else "–"


def _settings(runs: dict[str, Record]) -> str:
    """Every setting, a column for each run; those that differ are marked."""
    columns = [flat(run.settings) for run in runs.values()]
    rows = []
    for key in dict.fromkeys(key for column in columns for key in column):
        values = ["–" if key not in column else str(column[key]) for column in columns]
        same = len(set(values)) == 1
        cells = "".join(f"<td>{_text(value)}</td>" for value in values)
        rows.append(f'<tr class="{"same" if same else "differs"}"><th scope=row>{_text(key)}</th>{cells}</tr>')
    heads = "".join(f"<th scope=col>{_text(name)}</th>" for name in ("setting", *runs))
    return f"<div class=scroll><table id=settings><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"


def _spread(runs: dict[str, Record]) -> str:
    rows = []
    for name, run in runs.items():
        found = ((run.summary or {}).get("simulation_only") or {}).get("spread")
        if found:
            keys = ("mean", "median", "worst_decile", "best")
            cells = [number(found[key], ".1%" if found["metric"] == "test_accuracy" else ".4f") for key in keys]
            rows.append([name, str(found["metric"]), str(found["clients"]), str(found["clients_without_test_samples"]), *cells])
    if not rows:
        return "<p>No run has test samples that are some client's.</p>"
    heads = ["run", "of", "clients", "without test samples", "mean", "median", "mean of the worst tenth", "best"]
    return _table(heads, rows)


def _timings(runs: dict[str, Record]) -> str:
    rows = []
    for name, run in runs.items():
        seconds = [row["seconds"] for row in run.metrics if row.get("seconds") is not None]
        steps = [after - before for before, after in itertools.pairwise(seconds)]
        middle = statistics.median(steps) if steps else None
        rows.append([name, number(seconds[-1] if seconds else None, ",.1f"), number(middle and 1000 * middle, ",.1f")])
    return _table(["run", "seconds", "median milliseconds a round"], rows)


def _values(name: str, run: Record, most: int) -> str:
    """The evaluated rounds as a table, for those who cannot see the chart; evenly thinned to about `most`."""
    rows = [row for row in run.metrics if row.get("test_accuracy") is not None or row.get("train_loss") is not None]
    heads = ["round", "test_accuracy", "test_loss", "train_loss", "epsilon", "transmissions"]
    cells = [[_plain(row.get(head)) for head in heads] for row in rows[:: math.ceil(len(rows) / most) or 1]]
    return f"<details><summary>{_text(name)}</summary>{_table(heads, cells)}</details>"


def _curves(runs: dict[str, Record]) -> dict[str, Any]:
    """For the chart: of each run the columns of its metrics."""
    names = sorted({key for run in runs.values() for row in run.metrics for key, value in _numbers(row).items() if value is not None})
    most = max(2, MOST_NUMBERS // (max(len(names), 1) * len(runs)))
    series, left_out = [], 0
    for name, run in runs.items():
        rows = [_numbers(row) for row in _thinned(run.metrics, most)]
        left_out += len(run.metrics) - len(rows)
        series.append({"name": name, "columns": {key: [row.get(key) for row in rows] for key in names}})
    offered: list[str] = [key for key in ("test_accuracy", "test_loss", "train_loss") if key in names]
    offered += [key for key in names if key not in offered and key not in NOT_CURVES]
    axes = {key: title for key, title in AXES.items() if key in names}
    audits = [{"name": name, **run.audit["histograms"]} for name, run in runs.items() if run.audit and "tests" in run.audit]
    return {"runs": series, "metrics": offered, "axes": axes, "left_out": left_out, "audits": audits}


def _thinned(rows: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """About `most` of the rounds, evenly, those with scores before the others; the first and the last always."""
    scored = [place for place, row in enumerate(rows) if row.get("test_accuracy") is not None or row.get("train_loss") is not None]
    others = sorted(set(range(len(rows))) - set(scored))
    kept = set(scored[:: math.ceil(len(scored) / most) or 1])
    room = most - len(kept)
    kept |= set(others[:: math.ceil(len(others) / room) or 1]) if room > 0 else set()
    return [row for place, row in enumerate(rows) if place in kept or place in (0, len(rows) - 1)]


def _numbers(row: dict[str, Any]) -> dict[str, float | None]:
    """The numbers of a round on one level, short; what no server would see under its own name."""
    found = {}
    for key, value in flat(row).items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[key.replace("simulation_only.", "simulation only: ")] = float(f"{value:.6g}") if math.isfinite(value) else None
    return found


def _versions(runs: dict[str, Record]) -> Iterable[str]:
    """A notice where runs come from different versions."""
    found = {name: (run.summary or {}).get("versions", {}).get("normec") for name, run in runs.items()}
    known = sorted({str(version) for version in found.values() if version})
    return [f"These runs come from normec {' and '.join(known)}: compare them with care."] if len(known) > 1 else []


def _plain(value: Any) -> str:
    return "–" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _script_safe(data: dict[str, Any]) -> str:
    """JSON that cannot end the element it stands in."""
    return json.dumps(data, allow_nan=False).replace("<", "\\u003c")


def _common(parts: list[tuple[str, ...]]) -> int:
    """How many leading parts all have in common, leaving one at least."""
    shared = 0
    while all(len(each) > shared + 1 for each in parts) and len({each[shared] for each in parts}) == 1:
        shared += 1
    return shared


def _resource(name: str) -> str:
    return resources.files("normec.report").joinpath(name).read_text(encoding="utf-8")


def _library() -> str:
    try:
        return resources.files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")
    except (ImportError, OSError):
        raise BadInput("report", " needs plotly. Install it with pip install 'normec[report]'.") from None
