"""Parquet files as columns: sizes from their headers first, and the index of a pandas table by its name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from normec.data.frame import Frame, distinct_names
from normec.data.limits import check_size, refuse_other_kind
from normec.data.lists import in_places, is_list
from normec.errors import BadInput

SLACK = 2**26
"""Bytes that reading takes beside what is read."""
INDEX = re.compile(r"__index_level_\d+__")


def read_parquet(path: Path, dropped: tuple[str, ...], limit: int) -> Frame:
    """The columns of a parquet file that can be features, labels or ids; only the type of other columns is read.

    Raises:
        BadInput: for a file that takes more memory than the limit, or holds more than its headers say.
        pyarrow.ArrowException: for a damaged one.
    """
    import pyarrow.parquet

    with path.open("rb") as opened:
        refuse_other_kind(path, opened.read(4), but=b"PAR1")
    with pyarrow.parquet.ParquetFile(path) as file:
        schema, metadata = file.schema_arrow, file.metadata
    kinds = {name: schema.field(name).type for name in distinct_names(path, schema.names) if name not in dropped}
    read = [name for name, kind in kinds.items() if readable(kind)]
    needed = _needed(path, metadata, schema, read)
    check_size(path, needed, limit)
    table = _columns(path, read, [name for name in read if _is_text(kinds[name]) or is_list(kinds[name])], needed)
    table, notes, empty = _spread_out(path, table.select(read), dropped)
    unread = tuple((name, str(kind)) for name, kind in kinds.items() if name not in read or name in empty)
    dropped_ones = tuple((name, "dropped") for name in schema.names if name in dropped)
    return Frame(
        columns=table,
        written=False,
        indices=index_columns(schema),
        parts=((path, metadata.num_rows),),
        limit=limit,
        notes=notes,
        unread=(*unread, *dropped_ones),
    )


def _spread_out(path: Path, table: Any, dropped: tuple[str, ...]) -> tuple[Any, tuple[str, ...], list[str]]:
    """The table with a column for each place of its lists, notes on these, and the columns of which no list holds a number."""
    import pyarrow as pa

    columns: dict[str, Any] = {}
    notes, empty = [], []
    for name in table.column_names:
        if not is_list(table[name].type):
            columns[name] = table[name]
            continue
        places = in_places(repr(str(path)), name, table[name], dropped)
        if places.columns is None:
            empty.append(name)
            continue
        if twice := next((place for place in places.columns if place in table.column_names), None):
            raise BadInput("data.source", f"has a column {twice!r} beside the lists of {name!r}", value=path, remedy="Rename one")
        columns |= places.columns
        notes.append(places.note)
    return pa.table(columns), tuple(notes), empty


def readable(kind: Any) -> bool:
    """Whether values of an Arrow type can be features, labels, ids or times; of lists only those of numbers are read."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return readable(kind.value_type)
    if is_list(kind):
        return is_number(kind.value_type)
    return is_number(kind) or _is_text(kind) or bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_null(kind))


def is_number(kind: Any) -> bool:
    """Whether an Arrow type holds numbers, booleans among them."""
    import pyarrow as pa

    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
    return any(test(kind) for test in tests)


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _needed(path: Path, metadata: Any, schema: Any, read: list[str]) -> int:
    """Bytes: eight for each number, sixteen for each in a list, and of text what its pages hold and a code for each row."""
    lists = tuple(f"{name}." for name in read if is_list(schema.field(name).type))
    numbers = sum(is_number(schema.field(name).type) for name in read)
    held, rows, listed = 0, 0, 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        every = list(map(group.column, range(group.num_columns)))
        chunks = [chunk for chunk in every if chunk.path_in_schema in read]
        inside = [chunk for chunk in every if chunk.path_in_schema not in read and chunk.path_in_schema.startswith(lists)]
        if any(chunk.num_values < 0 for chunk in inside):
            raise _forged(path)
        listed += sum(chunk.num_values for chunk in inside)
        held += sum(chunk.total_uncompressed_size for chunk in chunks)
        rows += group.num_rows
        if any(chunk.num_values != group.num_rows for chunk in chunks):
            raise _forged(path)
    if rows != metadata.num_rows or held < 0:
        raise _forged(path)
    return int(rows * (8 * numbers + 4 * (len(read) - numbers)) + 16 * listed + held)


def _columns(path: Path, names: list[str], texts: list[str], needed: int) -> Any:
    """The table of these columns. Those of numbers take no more than their number of values says; texts, of which some may be lists, are
    read group by group, and refused as soon as it takes more than the headers say.
    """
    import pyarrow as pa
    import pyarrow.parquet

    kinds = pyarrow.parquet.read_schema(path)
    with pyarrow.parquet.ParquetFile(path, read_dictionary=[name for name in texts if _is_text(kinds.field(name).type)]) as file:
        table = file.read(columns=[name for name in names if name not in texts])
        before = pa.total_allocated_bytes()
        for name in texts:
            groups = []
            for group in range(file.num_row_groups):
                groups.append(file.read_row_group(group, columns=[name]))
                if pa.total_allocated_bytes() - before > 2 * needed + SLACK:
                    raise _forged(path)
            kind = groups[0][name].type if groups else file.schema_arrow.field(name).type
            column = pa.chunked_array([part for each in groups for part in each[name].chunks], kind)
            table = table.append_column(name, _plain(column))
    return table


def _plain(column: Any) -> Any:
    """A column of text whose views, which few functions take, are strings."""
    import pyarrow as pa

    return column.cast(pa.large_string()) if pa.types.is_string_view(column.type) else column


def _forged(path: Path) -> BadInput:
    return BadInput("data.source", "holds another number of values or bytes than its headers say", value=path, remedy="Give an intact file")


def index_columns(schema: Any) -> frozenset[str]:
    """The columns that pandas says, or their names tell, are the index of its table."""
    names = {name for name in schema.names if INDEX.fullmatch(name)}
    try:
        named = json.loads((schema.metadata or {})[b"pandas"])["index_columns"]
        names |= {name for name in named if isinstance(name, str) and name in schema.names}
    except (KeyError, ValueError, TypeError):
        pass
    return frozenset(names)
