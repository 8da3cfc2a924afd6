"""The columns of one or several files, as read and not yet interpreted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from normec.data.checks import sizes_alone
from normec.errors import BadInput, nearest

UNNAMED = re.compile(r"|Unnamed: \d+(\.\d+)?(_level_\d+)?")
"""Names that pandas gives to an index that it writes to a CSV without a name, and reads again."""


class Frame(NamedTuple):
    """An Arrow table, and what is known about it.

    written: all cells are text as it stands in a CSV, so that numbers are yet to be read. decimal: their decimal point.
    indices: the columns that a pandas table counted or named its rows by. parts: each file, and its number of rows.
    limit: bytes that the samples may take. separator: what stands between the cells of a CSV.
    unread: the types of further columns, which no reader here takes, by name.
    """

    columns: Any
    written: bool
    indices: frozenset[str]
    parts: tuple[tuple[Path, int], ...]
    limit: int
    decimal: str = "."
    notes: tuple[str, ...] = ()
    unread: tuple[tuple[str, str], ...] = ()
    separator: str = ""

    def __repr__(self) -> str:
        return sizes_alone(self)

    @property
    def names(self) -> list[str]:
        """The names of all columns; those that are not read come last."""
        return [*self.columns.column_names, *(name for name, _ in self.unread)]

    @property
    def source(self) -> str:
        """The file or files, for a message."""
        first = f"{str(self.parts[0][0])!r}"
        return first if len(self.parts) == 1 else f"{first} and {len(self.parts) - 1} more"

    def where(self, row: int) -> str:
        """A row of the file that holds it."""
        for path, rows in self.parts:  # noqa: B007 (used below)
            if row < rows:
                break
            row -= rows
        return f"row {row}, counting from 0" + (f", of {path.name}" if len(self.parts) > 1 else "")

    def column(self, setting: str, name: str) -> Any:
        """The column of this name.

        Raises:
            BadInput: naming the setting that names it, and the nearest column.
        """
        places = [each for each in self.names if each.startswith(f"{name}[")]
        if name not in self.names and places:
            raise BadInput(setting, "holds lists", value=name, remedy=f"Name one of their places, such as {places[0]}")
        if name not in self.names:
            raise BadInput(setting, "is not a column of the file", value=name, remedy=nearest(name, self.names))
        if name in dict(self.unread):
            raise BadInput(setting, f"holds {dict(self.unread)[name]} values", value=name, remedy="Use whole numbers or strings")
        return self.columns[name]


def with_clean_names(frame: Frame, wanted: tuple[str, ...]) -> Frame:
    """The frame, its columns named without the blanks around their names; names in `wanted` stay as they are."""
    names = frame.columns.column_names
    clean = [name if name in wanted else name.strip() for name in names]
    if clean == names or len(set(clean)) != len(clean) or set(clean) & set(dict(frame.unread)):
        return frame
    changed = [repr(name) for name, other in zip(names, clean, strict=True) if name != other]
    note = f"names of columns are taken without the blanks around them: {', '.join(changed)}"
    index = frozenset(name.strip() for name in frame.indices)
    return frame._replace(columns=frame.columns.rename_columns(clean), indices=index, notes=(*frame.notes, note))


def joined(frames: list[Frame]) -> Frame:
    """Frames on top of each other, in the order of the first one's columns.

    Raises:
        BadInput: where their columns differ, naming the file and the columns.
    """
    import pyarrow as pa

    first = frames[0]
    names = first.names
    for frame in frames[1:]:
        held, path = frame.names, frame.parts[0][0]
        missing, more = [n for n in names if n not in held], [n for n in held if n not in names]
        if missing or more:
            differ = [f"lacks {', '.join(map(repr, missing))}"] if missing else []
            differ += [f"has {', '.join(map(repr, more))} more"] if more else []
            raise BadInput(
                "data.source",
                f": {path} {' and '.join(differ)} in comparison with {first.parts[0][0].name}",
                remedy="Give files of the same columns",
            )
    read = [name for name in first.columns.column_names if all(name in frame.columns.column_names for frame in frames)]
    unread = {name: kind for frame in reversed(frames) for name, kind in frame.unread}
    try:
        columns = pa.concat_tables([frame.columns.select(read) for frame in frames], promote_options="permissive")
    except pa.ArrowException as error:
        raise _of_several_types(frames, read, error) from None
    notes = tuple(dict.fromkeys(note for frame in frames for note in frame.notes))
    index = frozenset().union(*(frame.indices for frame in frames))
    parts = tuple(part for frame in frames for part in frame.parts)
    return first._replace(columns=columns, indices=index, parts=parts, notes=notes, unread=tuple(unread.items()))


def _of_several_types(frames: list[Frame], names: list[str], error: Exception) -> BadInput:
    """The error for a column that is numbers in one file and text in another, or the like."""
    remedy = "Give files of the same types"
    for name in names:
        held = [(frame.parts[0][0], kind) for frame in frames if str(kind := _kind(frame.columns, name)) != "null"]
        other = next(((path, kind) for path, kind in held if _family(kind) != _family(held[0][1])), None)
        if other is not None:
            differ = f"{name!r} holds {other[1]} values in {other[0]}, and {held[0][1]} values in {held[0][0].name}"
            return BadInput("data.source", f": the column {differ}", remedy=remedy)
    reason = str(error).strip().splitlines()[0].rstrip(".")
    return BadInput("data.source", f": {frames[0].source} and others hold a column of several types ({reason})", remedy=remedy)


def _kind(columns: Any, name: str) -> Any:
    kind = columns.schema.field(name).type
    return getattr(kind, "value_type", kind)


def _family(kind: Any) -> str:
    """The kinds of values that cannot become one column."""
    import pyarrow as pa

    return "number" if pa.types.is_integer(kind) or pa.types.is_floating(kind) else re.sub(r"^large_|\[.*", "", str(kind))


def distinct_names(path: Path, names: list[str]) -> list[str]:
    """The names of a file's columns.

    Raises:
        BadInput: for two columns of one name.
    """
    if len(set(names)) != len(names):
        twice = next(name for position, name in enumerate(names) if name in names[:position])
        raise BadInput("data.source", f"has two columns of one name, {twice!r}", value=path, remedy="Rename one")
    return names


def leading_unnamed(names: list[str]) -> list[str]:
    """The names of a CSV, where the first ones that are empty take those that pandas gives them."""
    named = list(names)
    for position, name in enumerate(named):
        if not UNNAMED.fullmatch(name.strip()):
            break
        named[position] = name.strip() or next(new for k in range(len(names) + 1) if (new := f"Unnamed: {position}.{k}") not in names)
    return named


def counts_rows(values: np.ndarray, fewest: int) -> bool:
    """Whether whole numbers count rows: up by one each, with fresh starts from 0 or 1 after `fewest` rows or more on average."""
    starts = values[np.concatenate([[0], np.flatnonzero(np.diff(values) != 1) + 1])]
    return bool(len(starts) * fewest <= len(values) and (starts == starts[0]).all() and starts[0] in (0, 1))
