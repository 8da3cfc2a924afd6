"""HTML from the templates beside this file. Every text that is put into one stays text."""

from __future__ import annotations

import functools
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

NAMES_SHOWN = 8
"""Names of runs that are listed before the others are hidden."""
FIRST_ROWS = 10
"""Rows of the summary that are shown before the others are hidden."""


@functools.cache
def templates() -> Environment:
    """The templates, read when they are first asked for."""
    found = Environment(
        loader=PackageLoader("normec.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    found.globals |= {"NAMES_SHOWN": NAMES_SHOWN, "FIRST_ROWS": FIRST_ROWS}
    found.policies["json.dumps_kwargs"] = {"allow_nan": False}
    return found


def render(template: str, **values: Any) -> Markup:
    """The HTML of a template. Values are escaped, except those that this function has returned."""
    return Markup(templates().get_template(template).render(values))  # noqa: S704 (the template has escaped its values)


def table(heads: list[str], rows: list[list[str]]) -> Markup:
    """A table of numbers; its first column names the rows."""
    return render("table.html", heads=heads, rows=rows)
