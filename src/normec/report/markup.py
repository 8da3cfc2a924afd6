"""Pieces of HTML whose texts stay text."""

from __future__ import annotations

import html

NAMES_SHOWN = 8
"""Names of runs that are listed before the others are hidden."""


def table(heads: list[str], rows: list[list[str]], kind: str = "") -> str:
    """A table with a head, which scrolls where it is too wide; its first column names the rows. kind: its classes."""
    head = "".join(f"<th scope=col>{text(each)}</th>" for each in heads)
    body = "".join(f"<tr><th scope=row>{text(first)}</th>{_cells(cells)}</tr>" for first, *cells in rows)
    return f'<div class=scroll tabindex=0><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cells(cells: list[str]) -> str:
    return "".join(f"<td>{text(cell)}</td>" for cell in cells)


def fold(summary: str, inside: str) -> str:
    """HTML that a click shows."""
    return f"<details><summary>{summary}</summary>{inside}</details>"


def names(runs: list[str]) -> tuple[str, str]:
    """The first names of runs; and the others, which a click shows."""
    first, others = text(", ".join(runs[:NAMES_SHOWN])), text(", ".join(runs[NAMES_SHOWN:]))
    return first, f"<details><summary>and {len(runs) - NAMES_SHOWN} more</summary>{others}</details>" if others else ""


def text(value: str) -> str:
    """Text as it is, whatever it holds."""
    return html.escape(value)
