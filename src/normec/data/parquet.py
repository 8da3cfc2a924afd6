"""Parquet files as columns: sizes from their headers first, and the index of a pandas table by its name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from normec.data.frame import Frame, distinct_names
from normec.data.limits import check_size

INDEX = re.compile(r"__index_level_\d+__")


def read_parquet(path: Path, dropped: tuple[str, ...], limit: int) -> Frame:
    """The columns of a parquet file that can be features, labels or ids; of others only the type is read.

    Raises:
        BadInput: for a file that takes more memory than the limit.
        pyarrow.ArrowException: for a damaged one.
    """
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        schema, metadata = file.schema_arrow, file.metadata
    kinds = {name: schema.field(name).type for name in distinct_names(path, schema.names) if name not in dropped}
    read = [name for name, kind in kinds.items() if readable(kind)]
    check_size(path, _needed(metadata, schema, read), limit)
    texts = [name for name in read if _is_text(kinds[name])]
    table = pyarrow.parquet.read_table(path, columns=read, read_dictionary=texts)
    unread = tuple((name, str(kind)) for name, kind in kinds.items() if name not in read)
    dropped_ones = tuple((name, "dropped") for name in schema.names if name in dropped)
    return Frame(table.select(read), False, index_columns(schema), ((path, metadata.num_rows),), limit, unread=(*unread, *dropped_ones))


def readable(kind: Any) -> bool:
    """Whether values of an Arrow type can be features, labels, ids or times."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return readable(kind.value_type)
    return is_number(kind) or _is_text(kind) or bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_null(kind))


def is_number(kind: Any) -> bool:
    """Whether an Arrow type holds numbers, booleans among them."""
    import pyarrow as pa

    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
    return any(test(kind) for test in tests)


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _needed(metadata: Any, schema: Any, read: list[str]) -> int:
    """Bytes: eight for each number, and of text what its pages hold and a code for each row."""
    numbers = sum(is_number(schema.field(name).type) for name in read)
    held = sum(
        group.column(place).total_uncompressed_size
        for group in map(metadata.row_group, range(metadata.num_row_groups))
        for place in range(group.num_columns)
        if group.column(place).path_in_schema in read
    )
    return int(metadata.num_rows * (8 * numbers + 4 * (len(read) - numbers)) + held)


def index_columns(schema: Any) -> frozenset[str]:
    """The columns that pandas says, or their names tell, are the index of its table."""
    found = {name for name in schema.names if INDEX.fullmatch(name)}
    try:
        named = json.loads((schema.metadata or {})[b"pandas"])["index_columns"]
        found |= {name for name in named if isinstance(name, str) and name in schema.names}
    except (KeyError, ValueError, TypeError):
        pass
    return frozenset(found)
