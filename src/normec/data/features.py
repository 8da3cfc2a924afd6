"""From columns to samples: the columns that are numbers, those that are left out, and values that are refused with their row."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import numpy as np

from normec.data.frame import UNNAMED, Frame, counts_rows, with_clean_names
from normec.data.limits import check_size
from normec.data.lists import without
from normec.data.numerals import Odd, as_written, decimal_comma, may_be_thousands, numbers_of
from normec.data.readers import Columns, Table, values
from normec.errors import BadInput, plural

FEWEST_IDENTIFIED = 20
"""Rows from which a column of distinct whole numbers looks like identifiers."""
FEWEST_COUNTED = 10
"""That a column counts at least before it starts anew, and looks like an index of several tables."""
COLUMNS_NAMED = 30
"""Features that a note names, and columns that a sentence counts one by one."""
COUNTER = re.compile(r"index|level_\d+")
"""Names that pandas gives to an index that becomes a column."""


def samples(frame: Frame, columns: Columns) -> Table:
    """The samples of a table: its numeric columns as features, in file order, and what is said of the others.

    Raises:
        BadInput: for a missing column, missing or infinite values, and a column of which most values are numbers, but not all.
    """
    named = (columns.label, *columns.labels, columns.client, *columns.dropped, *([columns.time] if columns.time else []))
    frame = with_clean_names(frame, named)
    y = targets(frame, columns.label) if not columns.labels else _side_by_side(frame, (columns.label, *columns.labels))
    for name in columns.dropped:
        if name not in frame.names:
            frame.column("data.drop_columns", name)
    rows, kept = len(y), [name for name in frame.columns.column_names if name not in named and name not in frame.indices]
    numbers: dict[str, np.ndarray] = {}
    skipped = {name: kind for name, kind in frame.unread if name not in named}
    odd: dict[str, Odd] = {}
    for name in kept:
        column = numbers_of(frame.columns[name], frame.written, frame.decimal)
        if isinstance(column, np.ndarray):
            check_size(frame.parts[0][0], 8 * rows * (len(numbers) + 1), frame.limit)
            numbers[name] = column
        elif isinstance(column, str):
            skipped[name] = column
        else:
            odd[name] = column
    if odd:
        raise _not_only_numbers(frame, odd, columns.dropped, bool(numbers))
    index = [name for name in frame.names if name in frame.indices and name not in named]
    index += [name for name in numbers if COUNTER.fullmatch(name) and _identifies(numbers[name], 2)]
    features = {name: column for name, column in numbers.items() if name not in index}
    if not rows or not features:
        raise BadInput(
            "data.source",
            f"has {rows} rows and {len(features)} numeric feature columns",
            value=frame.source,
            remedy="Give at least one of each",
        )
    _refuse_missing(frame, features, columns.dropped)
    notes = (
        *frame.notes,
        _told(list(features), skipped),
        *_index_note(index),
        *_identifier_warnings(features),
        *_about_points(frame, [*features, columns.label]),
    )
    x = np.column_stack(list(features.values()))
    times = None if columns.time is None else _times(frame, columns.time)
    return Table(x, y, clients(frame, columns), notes, features=tuple(features), time=times, names=tuple(frame.names))


def targets(frame: Frame, name: str) -> np.ndarray:
    """The label column: whole numbers, strings or, as targets of a regression, floats. A CSV's are as `as_written` says."""
    return _meant(frame, name, "data.label_column", floats=True)


def _side_by_side(frame: Frame, names: tuple[str, ...]) -> np.ndarray:
    """Several columns of numbers as the targets (n, K) of each sample."""
    columns = [targets(frame, name) for name in names]
    text = next((name for name, each in zip(names, columns, strict=True) if each.dtype.kind == "U"), None)
    if text is not None:
        raise BadInput("data.label_column", f"names {text!r}, which holds text", remedy="Of several columns give such as hold numbers")
    return np.column_stack(columns)


def clients(frame: Frame, columns: Columns) -> np.ndarray | None:
    """The client of each row, where the file names clients."""
    held = columns.natural and columns.client in frame.names
    return _meant(frame, columns.client, "data.client_column", floats=False) if held else None


def _meant(frame: Frame, name: str, setting: str, floats: bool) -> np.ndarray:
    import pyarrow as pa
    import pyarrow.compute

    column = frame.column(setting, name)
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    column = column.cast(kind)
    missing = np.asarray(column.is_null(nan_is_null=True).to_numpy())
    if text := (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        blank = pyarrow.compute.equal(pyarrow.compute.utf8_trim_whitespace(column), "")
        missing = missing | np.asarray(blank.fill_null(True).to_numpy())
        longest = pyarrow.compute.max(pyarrow.compute.utf8_length(column)).as_py() or 0
        check_size(frame.parts[0][0], 4 * longest * len(column), frame.limit)
    if missing.any() and len(column):
        first = int(np.flatnonzero(missing)[0])
        remedy = "Fill or remove them" + (', and write "NA" in quotation marks where it is a name' if frame.written else "")
        raise BadInput(
            setting, f"has {plural(int(missing.sum()), 'missing value')} (first: {frame.where(first)})", value=name, remedy=remedy
        )
    if text and frame.written:
        meant = as_written(column.to_pylist(), frame.decimal)
        if floats and meant.dtype.kind == "U" and frame.decimal == "." and (comma := decimal_comma(meant)):
            problem = f"holds numbers with a comma such as {comma!r}, which would be names of classes"
            remedy = "Set 'data.decimal=,' where the comma is the decimal point, or write names that are not numbers"
            raise BadInput(setting, problem, value=name, remedy=remedy)
    elif floats and (pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        meant = np.asarray(column.cast(pa.float64(), safe=False).to_numpy())
    else:
        return values(pa.table({name: column}), name, setting)
    if meant.dtype.kind == "f" and not floats:
        raise BadInput(setting, f"holds double values such as {meant[0]}", value=name, remedy="Use whole numbers or strings")
    return meant


def _times(frame: Frame, name: str) -> np.ndarray:
    """The column that a split by time goes by, as numbers or datetime64.

    Raises:
        BadInput: for missing values, and for text that is neither numbers nor dates as ISO 8601 writes them.
    """
    import pyarrow as pa

    setting, column = "data.time_column", frame.column("data.time_column", name)
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    column = column.cast(kind)
    if column.null_count:
        first = int(np.flatnonzero(column.is_null().to_numpy())[0])
        raise BadInput(
            setting,
            f"has {plural(column.null_count, 'missing value')} (first: {frame.where(first)})",
            value=name,
            remedy="Fill or remove them",
        )
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return np.asarray(column.cast(pa.timestamp("us", getattr(kind, "tz", None)), safe=False).to_numpy())
    number = numbers_of(column, frame.written, frame.decimal)
    if isinstance(number, np.ndarray) and np.isfinite(number).all():
        return number
    dates = [pa.timestamp("ns"), pa.timestamp("ns", "UTC")]
    for target in dates:
        with contextlib.suppress(pa.ArrowException):
            return np.asarray(column.cast(target).to_numpy())
    bad = next((value for value in column.unique() if not any(_casts(value, target) for target in dates)), column[0]).as_py()
    raise BadInput(
        setting,
        f"holds values such as {bad!r}, of which the order is not known",
        value=name,
        remedy="Write all as numbers, or as dates such as 2024-05-31 or 2024-05-31T12:00:00",
    )


def _casts(value: Any, kind: Any) -> bool:
    import pyarrow as pa

    with contextlib.suppress(pa.ArrowException):
        return value.cast(kind) is not None
    return False


def _not_only_numbers(frame: Frame, odd: dict[str, Odd], dropped: tuple[str, ...], others_stay: bool) -> BadInput:
    name, first = next(iter(odd.items()))
    others = f"; likewise {', '.join(map(repr, list(odd)[1:]))}" if len(odd) > 1 else ""
    if not frame.written:
        problem = f"holds numbers as text (first: {frame.where(first.row)}: {first.value!r}){others}"
        remedy = "Store numbers"
    else:
        problem = f"holds numbers, except in {plural(first.number, 'row')} (first: {frame.where(first.row)}: {first.value!r})"
        problem, remedy = f"{problem}{others}", "Write plain numbers"
    between, point = ("points", "point") if frame.decimal == "," else ("commas", "comma")
    decimal = f", without {between} between thousands" if frame.written and first.grouped else ""
    if frame.written and first.other_decimal:
        sets = f"remove data.decimal where the {point} is" if frame.decimal == "," else f"set 'data.decimal=,' where the {point} is"
        decimal = f"; or {sets} the decimal point"
    remedy += decimal + (f"; or leave such columns out with {without((*dropped, *odd))}" if others_stay else "")
    return BadInput("data.source", f": the column {name!r} {problem}", value=frame.source, remedy=remedy)


def _refuse_missing(frame: Frame, features: dict[str, np.ndarray], dropped: tuple[str, ...]) -> None:
    """Refuses missing and infinite values, with the number in each column."""
    bad = {name: ~np.isfinite(column) for name, column in features.items()}
    counts = {name: int(held.sum()) for name, held in bad.items() if held.any()}
    if not counts:
        return
    rows = np.logical_or.reduce([bad[name] for name in counts])
    first = frame.where(int(np.flatnonzero(rows)[0]))
    listed = [f"{name!r} {number:,}" for name, number in sorted(counts.items(), key=lambda pair: -pair[1])]
    more = f" and {len(listed) - COLUMNS_NAMED} more columns" if len(listed) > COLUMNS_NAMED else ""
    problem = f"has {plural(int(rows.sum()), 'row')} with missing or infinite values (first: {first})"
    remedy = "Fill them, or remove those rows"
    if len(counts) < len(features) and not more:
        remedy += f"; or leave these columns out with {without((*dropped, *counts))}"
    raise BadInput("data.source", f"{problem}; by column: {', '.join(listed[:COLUMNS_NAMED])}{more}", value=frame.source, remedy=remedy)


def _told(features: list[str], skipped: dict[str, str]) -> str:
    shown = ", ".join(map(_shown, features[:COLUMNS_NAMED])) + (
        f" and {len(features) - COLUMNS_NAMED:,} more" if len(features) > COLUMNS_NAMED else ""
    )
    if not skipped:
        return f"features: {shown}"
    left = ", ".join(f"{_shown(name)} ({kind})" for name, kind in skipped.items())
    return f"features: {shown}; left out, not numeric: {left}: {len(skipped):,} of {plural(len(features) + len(skipped), 'column')}"


def _shown(name: str) -> str:
    """The name of a column in a line; quoted where it could not be seen, or be told from its neighbours."""
    return name if name and name.isprintable() and name.strip() == name and "," not in name else repr(name)


def _index_note(index: list[str]) -> list[str]:
    if not index:
        return []
    unnamed = sum(bool(UNNAMED.fullmatch(name)) for name in index)
    first = [] if not unnamed else ["the first one, without a name" if unnamed == 1 else f"the first {unnamed}, without names"]
    shown = ", ".join([*first, *(repr(name) for name in index if not UNNAMED.fullmatch(name))])
    return [f"left out, the index of a table and no feature: {shown}"]


def _identifier_warnings(features: dict[str, np.ndarray]) -> list[str]:
    remedy = "data.drop_columns leaves columns out"
    lines = []
    for name, column in features.items():
        if _distinct(column):
            lines.append(f"warning: the feature {name!r} is another whole number in each row, as identifiers are; {remedy}")
        elif _identifies(column, FEWEST_COUNTED):
            lines.append(f"warning: the feature {name!r} counts rows, and starts anew, as an index of several tables does; {remedy}")
    return lines


def _distinct(column: np.ndarray) -> bool:
    whole = len(column) >= FEWEST_IDENTIFIED and bool((column == np.floor(column)).all())
    return whole and len(np.unique(column)) == len(column)


def _identifies(column: np.ndarray, fewest: int) -> bool:
    """Whether whole numbers are distinct, or count rows, on average `fewest` of them before they start anew."""
    return _distinct(column) or (len(column) >= FEWEST_IDENTIFIED and counts_rows(column, fewest))


def _about_points(frame: Frame, names: list[str]) -> list[str]:
    """Warnings where a point may stand between thousands: in files whose separator is a semicolon, as where the decimal sign is a comma."""
    if not frame.written or frame.separator != ";" or frame.decimal == ",":
        return []
    examples = {name: may_be_thousands(frame.columns[name]) for name in names}
    remedy = "If it stands between thousands, write plain numbers"
    return [f"warning: in {name!r} the point of numbers such as {value} is read as the decimal point. {remedy}"
            for name, value in examples.items() if value is not None]  # fmt: skip
