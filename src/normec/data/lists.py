"""Columns of lists of numbers, such as embeddings, as a column for each place of the lists."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np

from normec.errors import BadInput, plural


class Places(NamedTuple):
    """A column of lists as several, by their names: e becomes e[0], e[1], … None instead of them where no list holds a number."""

    columns: dict[str, Any] | None
    note: str


def is_list(kind: Any) -> bool:
    """Whether an Arrow type holds lists, of any length or of one."""
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def in_places(source: str, name: str, lists: Any, dropped: tuple[str, ...]) -> Places:
    """The column of each place of lists (n,) of one length; what is missing, a list or a number in it, stays missing.

    Raises:
        BadInput: for lists of several lengths.
    """
    import pyarrow.compute as pc

    lengths = pc.list_value_length(lists).drop_null().to_numpy()
    first = int(lengths[0]) if len(lengths) else 0
    if (lengths != first).any():
        every = pc.fill_null(pc.list_value_length(lists), first).to_numpy()
        row = int(np.flatnonzero(every != first)[0])
        problem = f": the column {name!r} holds lists of {lengths.min()} to {plural(int(lengths.max()), 'number')}"
        where = f"(first unlike those before it: row {row}, counting from 0)"
        remedy = f"Give lists of one length, or leave it out with {without((*dropped, name))}"
        raise BadInput(
            "data.source",
            f"{problem} {where}",
            value=source,
            remedy=remedy,
        )
    if not first:
        return Places(None, "")
    columns = {f"{name}[{place}]": pc.list_element(lists, place) for place in range(first)}
    return Places(columns, f"{name!r} holds lists of {plural(first, 'number')}, read as {plural(first, 'column')}: {name}[0] …")


def without(names: tuple[str, ...]) -> str:
    """The setting that leaves columns out, to be pasted."""
    return f"'data.drop_columns={json.dumps(names, ensure_ascii=False)}'"
