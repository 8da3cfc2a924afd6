"""One HTML file over one or more runs, which works offline: what came out first, then the curves, the claims, the details."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

from markupsafe import Markup

from normec.errors import BadInput
from normec.report import sections
from normec.report.audits import audit_section
from normec.report.curves import curves
from normec.report.groups import Group, grouped
from normec.report.markup import render
from normec.report.shown import Shown
from normec.runs.record import Record

FIRST = b"<!doctype html>"
"""What a page begins with."""
MOST_VALUES = 5_000
"""Rows of all tables of values; each run has at most MOST_ROWS of them."""
MOST_ROWS, LEAST_ROWS = 200, 5
PARTS = {
    part.__name__: part
    for part in (sections.summary, sections.claims, sections.theory, sections.results, sections.settings, sections.spread, sections.timings)
}
"""The parts that are made of all groups, by their places in page.html."""


def read(paths: list[Path]) -> Shown:
    """The runs of folders, without those of which a part cannot be shown."""
    shown = Shown.read(paths)
    for name, run in list(shown.runs.items()):
        problem = _unreadable(run)
        if problem:
            del shown.runs[name]
            shown.problems.append(problem)
    return shown


def _unreadable(run: Record) -> str | None:
    """Why a run cannot be shown, whose files hold other things than a run writes, so that the other runs are shown without it."""
    try:
        alone = grouped({"": run})
        for part in PARTS.values():
            part(alone)
        audit_section({"": run})
        sections.versions([run])
        sections.values(alone, 1)
        json.dumps(curves(alone), allow_nan=False)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        return str(
            BadInput(
                str(run.path), f"holds what no run writes ({type(error).__name__}: {error})", remedy="Leave this run out, or run it again"
            )
        )
    return None


def check_page(file: Path) -> None:
    """Refuses a place for the page where something else lies, before anything is made.

    Raises:
        BadInput: saying what.
    """
    if not file.parent.is_dir():
        raise BadInput("--out", f": {file.parent} is not a folder", value=file, remedy="Make it, or name another")
    if file.is_dir():
        raise BadInput("--out", "is a folder", value=file, remedy=f"Name a file in it, such as {file / 'report.html'}")
    if file.exists() and (not file.is_file() or file.read_bytes()[: len(FIRST)] != FIRST):
        raise BadInput("--out", "holds something else than a page of normec", value=file, remedy="Name another file")


def write(shown: Shown) -> str:
    """The page.

    Raises:
        BadInput: where no run can be read, or the chart library is missing.
    """
    if not shown.runs:
        raise BadInput("DIR", f": {(shown.problems + shown.left_out + ['no folder was given.'])[0]}")
    groups = grouped(shown.runs)
    most = max(LEAST_ROWS, min(MOST_ROWS, MOST_VALUES // len(shown.runs)))
    left_out = [f"Left out: {line}." for line in shown.left_out]
    notices = [*shown.problems, *left_out, *sections.versions(shown.runs.values())]
    return render(
        "page.html",
        title=_title(groups, len(shown.runs)),
        notices=notices,
        audits=audit_section(shown.runs),
        values=sections.values(groups, most),
        data=curves(groups),
        style=_resource("page.css"),
        code=_resource("page.js"),
        library=_library(),
        **{name: part(groups) for name, part in PARTS.items()},
    )


def _title(groups: list[Group], runs: int) -> str:
    if len(groups) > 3:
        return f"{runs} runs"
    return ", ".join(sections.named(group) for group in groups)


def _resource(name: str, package: str = "normec.report") -> Markup:
    """A file of this package or of plotly, which is put into the page as it is."""
    return Markup(resources.files(package).joinpath(name).read_text(encoding="utf-8"))  # noqa: S704 (nobody's input)


def _library() -> Markup:
    try:
        return _resource("package_data/plotly.min.js", "plotly")
    except (ImportError, OSError):
        raise BadInput("report", "needs plotly", remedy="Install it with pip install 'normec[report]'") from None
