"""Detection of quotation marks in a CSV that stay open, so that rows become the text of one cell."""

from __future__ import annotations

import re
from typing import Any

BREAK = re.compile(r"\r\n|\r|\n")
NUMBER = re.compile(r"\s*[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?\s*")
"""With a decimal point or a decimal comma."""
LOOKED_AT = 200
"""Rows that tell which columns hold numbers."""


def swallowed(table: Any, separator: str) -> tuple[int, str] | None:
    """The first row of an Arrow table of text with a cell that holds further rows, and the first of these; None if there is none.

    A mark that opens in a cell of one row and closes in the same column of a later one leaves a row of the right length. The lines
    of its cell then are the rest of a row, rows, and the begin of a row, mostly with numbers where other rows have numbers; lines of
    an ordinary text are not.
    """
    import pyarrow.compute as pc

    names, numeric = table.column_names, None
    rows: list[tuple[int, str]] = []
    for place in range(len(names) if len(names) > 1 else 0):
        for row in pc.indices_nonzero(pc.match_substring_regex(table[place], "[\r\n]")).to_pylist():
            lines = [line for line in BREAK.split(table[place][row].as_py()) if line.strip()]
            if not _lengths_fit(lines, separator, place, len(names)):
                continue
            numeric = _numeric(table) if numeric is None else numeric
            held = [line.split(separator) for line in lines]
            pairs = [*zip(range(place + 1, len(names)), held[0][1:], strict=True), *zip(range(place), held[-1], strict=False)]
            pairs += [pair for cells in held[1:-1] for pair in enumerate(cells) if pair[0] != place]
            cells = [bool(NUMBER.fullmatch(cell)) for column, cell in pairs if column in numeric and cell.strip()]
            if cells and 2 * sum(cells) >= len(cells):
                rows.append((row, lines[1]))
                break
    return min(rows, default=None)


def _lengths_fit(lines: list[str], separator: str, place: int, columns: int) -> bool:
    """Whether the lines of a cell complete its row, are mostly whole rows, and begin another one up to the same place."""
    cuts = [line.count(separator) for line in lines]
    whole = cuts[1:-1].count(columns - 1)
    return len(cuts) > 1 and cuts[0] == columns - 1 - place and cuts[-1] == place and 2 * whole >= len(cuts) - 2


def _numeric(table: Any) -> set[int]:
    """The places of the columns of which most of the first values are numbers."""
    head = [[cell for cell in column.to_pylist() if cell is not None] for column in table.slice(0, LOOKED_AT).columns]
    return {place for place, cells in enumerate(head) if 2 * sum(bool(NUMBER.fullmatch(cell)) for cell in cells) > len(cells)}
