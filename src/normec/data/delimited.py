"""CSV files as columns of text: their encoding, their separator and their first row."""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import io
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from normec.data.frame import Frame, distinct_names, leading_unnamed
from normec.data.limits import check_size, outgrown, refuse_other_kind
from normec.data.quotation import NUMBER, swallowed
from normec.errors import BadInput, plural

SEPARATORS = {",": ",", ";": ";", "\t": "tab", "|": "|"}
"""Those that are recognized, as `data.separator` names them."""
HEAD = 2**24
"""Bytes in which the first row ends."""
AT_ONCE = 2**24
LARGEST_BLOCK = 2**31 - 1
FIRST_LINE = re.compile(rb"sep=([!-~\t])[\r\n]+", re.IGNORECASE)
"""Of a CSV for Excel: it names the separator."""
NAMES_WITHIN = 20
"""Rows among which that of the names is looked for, where it is not the first."""


class Form(NamedTuple):
    """The form in which a CSV is written; None for what is still to be found out."""

    separator: str | None = None
    decimal: str = "."
    encoding: str | None = None


def read_delimited(path: Path, form: Form, label: str, limit: int) -> Frame:
    """A CSV file, perhaps compressed by gzip, every cell as text; empty cells, NA, nan and the like without quotes are missing.

    label: the column that tells the separator, and whether there is a first row of names.

    Raises:
        BadInput: for a file that is too large, undecodable, without names, or with rows of several lengths.
    """
    content = _content(path, limit)
    refuse_other_kind(path, content[:4])
    text = _in_utf8(path, content, form.encoding).lstrip(b"\r\n")
    if not text.strip():
        raise BadInput("data.source", "cannot be read: it is empty", value=path, remedy="Give a first row of names, and rows of values")
    notes: tuple[str, ...] = ()
    separator = form.separator
    if said := FIRST_LINE.match(text):
        text = text[said.end() :]
        separator = separator or said[1].decode()
        notes = (f"separator: {SEPARATORS.get(separator, separator)} (the first line of the file sets it)",)
    elif separator is None:
        separator, notes = _separator(path, text, label)
    names = _names(path, text, separator)
    if label not in [name.strip() for name in names]:
        _refuse_without_names(path, text, names, label)
    names = distinct_names(path, leading_unnamed(names))
    table = _rows(path, text if text.endswith((b"\n", b"\r")) else text + b"\n", separator, names)
    index = frozenset(name for name in names if name.startswith("Unnamed: ")) & frozenset(_leading(names))
    return Frame(
        columns=table,
        written=True,
        indices=index,
        parts=((path, table.num_rows),),
        limit=limit,
        decimal=form.decimal,
        notes=notes,
        separator=separator,
    )


def _leading(names: list[str]) -> list[str]:
    """The first names, as long as they are those of an index."""
    first_named = next((position for position, name in enumerate(names) if not name.startswith("Unnamed: ")), len(names))
    return names[:first_named]


def _content(path: Path, limit: int) -> bytes:
    """The bytes of a file, decompressed."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    if not packed:
        check_size(path, path.stat().st_size, limit)
        return path.read_bytes()
    with gzip.open(path) as unpacked:
        content = unpacked.read(limit + 1)
    if len(content) > limit:
        raise outgrown(path, limit)
    return content


def _in_utf8(path: Path, content: bytes, encoding: str | None) -> bytes:
    """The text, encoded in UTF-8, without a byte order mark.

    Raises:
        BadInput: where it is in another encoding than the one that is set, or in none that it tells.
    """
    if encoding is None and content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    if encoding is None and (null := content.find(0)) >= 0:
        problem = "cannot be read: it holds null characters, as no text in UTF-8 does"
        remedy = f"Set data.encoding=utf-16-{'le' if null % 2 else 'be'} if it is in UTF-16, or give an intact file"
        raise BadInput("data.source", problem, value=path, remedy=remedy)
    try:
        if encoding is not None:
            return content.decode(encoding).removeprefix("\ufeff").encode()
        decoder = codecs.getincrementaldecoder("utf-8")()
        for start in range(0, len(content), AT_ONCE):
            decoder.decode(content[start : start + AT_ONCE])
        decoder.decode(b"", final=True)
    except LookupError:
        raise BadInput(
            "data.encoding", "is not an encoding of text", value=encoding, remedy="Give one such as utf-8, cp1252 or utf-16"
        ) from None
    except UnicodeError as error:
        problem = f"cannot be read: it is not in {encoding or 'UTF-8'} ({' '.join(str(error).split())})"
        remedy = "Set data.encoding=cp1252 for a file of Windows in Western Europe, or =latin-1, or save it in UTF-8"
        raise BadInput("data.source", problem, value=path, remedy=remedy if encoding is None else "Set another data.encoding") from None
    return content.removeprefix(codecs.BOM_UTF8)


def _refuse_without_names(path: Path, text: bytes, names: list[str], label: str) -> None:
    """Refuses a file whose first row does not name the label and is not a row of names, or has one cell alone.

    Raises:
        BadInput: saying where the names are, or what the first row is.
    """
    for separator in SEPARATORS:
        for row, cells in enumerate(_first_rows(text, separator)):
            if row and len(cells) > 1 and label in [cell.strip() for cell in cells]:
                raise BadInput(
                    "data.source",
                    f"names its columns in row {row + 1} and not in the first one, which is {', '.join(names)[:40]!r}",
                    value=path,
                    remedy=f"Remove the {plural(row, 'row')} before the names",
                )
    if 2 * sum(bool(NUMBER.fullmatch(name)) for name in names) >= len(names):
        shown = ", ".join(names[:3])
        raise BadInput(
            "data.source",
            f"has no names of columns: its first row begins with {shown!r}",
            value=path,
            remedy=f"Put a first row into it that names them, one {label!r}",
        )
    if len(names) == 1 and label in re.split(r"[^\w.-]+", names[0]):
        raise BadInput(
            "data.source",
            f"has one column alone, {names[0][:60]!r}",
            value=path,
            remedy="Set data.separator to the character that stands between the columns",
        )


def _first_rows(text: bytes, separator: str) -> list[list[str]]:
    """The first rows, as far as they can be read."""
    rows: list[list[str]] = []
    with contextlib.suppress(csv.Error, StopIteration):
        reader = csv.reader(io.StringIO(text[:HEAD].decode("utf-8", "ignore"), newline=""), delimiter=separator)
        while len(rows) < NAMES_WITHIN:
            rows.append(next(reader))
    return rows


def _names(path: Path, text: bytes, separator: str) -> list[str]:
    """The cells of the first row."""
    head = io.StringIO(text[:HEAD].decode("utf-8", "ignore"), newline="")
    try:
        return next(csv.reader(head, delimiter=separator), [])
    except csv.Error as error:
        raise BadInput(
            "data.source", f"cannot be read: its first row fails ({error})", value=path, remedy="Give an intact .csv file"
        ) from None


def _separator(path: Path, text: bytes, label: str) -> tuple[str, tuple[str, ...]]:
    """The separator under which the first row has the label, or else most names; a comma (of a .tsv a tab) in doubt."""
    usual = "\t" if ".tsv" in path.name.lower() else ","
    names = {separator: [name.strip() for name in _names(path, text, separator)] for separator in SEPARATORS}
    fits = [separator for separator in SEPARATORS if label in names[separator] and len(names[separator]) > 1]
    if usual not in fits and len(fits) != 1 and len(names[usual]) == 1:
        fits = [max(SEPARATORS, key=lambda separator: len(names[separator]))]
    if usual in fits or len(fits) != 1 or fits == [usual]:
        return usual, ()
    return fits[0], (f"separator: {SEPARATORS[fits[0]]} (found in the first row; data.separator sets another)",)


def _rows(path: Path, text: bytes, separator: str, names: list[str]) -> Any:
    """All rows after the first as an Arrow table of text. One block holds them, so that a quoted line break is never at its edge."""
    import pyarrow as pa
    import pyarrow.csv

    wrong: list[Any] = []

    def note(row: Any) -> str:
        wrong.append(row)
        return "skip"

    def parsed(careful: bool) -> Any:
        block = min(max(len(text) + 1, 2**20), LARGEST_BLOCK)
        return pyarrow.csv.read_csv(
            pa.BufferReader(text),
            pyarrow.csv.ReadOptions(
                use_threads=not careful, block_size=block, column_names=names, skip_rows_after_names=0 if careful else 1
            ),
            pyarrow.csv.ParseOptions(delimiter=separator, newlines_in_values=True, invalid_row_handler=note if careful else None),
            pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, quoted_strings_can_be_null=False
            ),
        )

    try:
        table = parsed(careful=False)
    except pa.ArrowInvalid:
        parsed(careful=True)
        if not wrong:
            raise
        raise _ragged(path, wrong, len(names), separator) from None
    last = table[-1][-1].as_py() if table.num_rows else None
    if last is not None and ("\n" in last or "\r" in last) and not text.rstrip(b"\r\n").endswith(b'"'):
        raise BadInput(
            "data.source",
            f"cannot be read: a quotation mark opens in row {table.num_rows - 1}, counting from 0, and never closes",
            value=path,
            remedy="Close or remove it",
        )
    if hidden := swallowed(table, separator):
        problem = f": a quotation mark opens in row {hidden[0]}, counting from 0, and closes only after {hidden[1][:40]!r}"
        remedy = "Close or remove it; if that is one text, write it without line breaks"
        raise BadInput("data.source", f"{problem}, which looks like a row of its own", value=path, remedy=remedy)
    return table


def _ragged(path: Path, wrong: list[Any], columns: int, separator: str) -> BadInput:
    """The error for rows that have another number of cells than the first one has names."""
    first = wrong[0]
    where = "" if first.number is None else f" (first: row {first.number - 2}, counting from 0: {first.text[:40]!r})"
    problem = f"{plural(len(wrong), 'row')} without {plural(columns, 'cell')} as the first row has, but {first.actual_columns}"
    if "\n" in first.text.rstrip() or "\r" in first.text.rstrip():
        remedy = "Its text holds line breaks: close or remove the quotation mark that opens there, or else correct them"
    elif {row.actual_columns for row in wrong} == {columns + 1}:
        remedy = "Where each row begins with its number or name, give that column a name in the first row too; else correct them"
    else:
        remedy = f"Correct them, put text that holds {json.dumps(separator)} in quotation marks, or set data.separator"
    return BadInput("data.source", f"cannot be read: {problem}{where}", value=path, remedy=remedy)
