"""The result of a reader: a table of features, labels and, where the source has them, client ids."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from normec.data.checks import sizes_alone
from normec.errors import BadInput, nearest, plural


class Table(NamedTuple):
    """Samples as read: x (n, …), y (n,), the id of each sample's client if the source has them, what to tell of it.

    test: (x, y) where the source brings its own test set; test_client: the id of each of its samples' client.
    classes: their names, where the labels are positions among them.
    text: x holds the codes of characters, which stay whole numbers and in the order of the text. codes: as text, in no order.
    features: the names of the columns of x; names: of all columns of a table.
    time: (n,) what a split by time goes by. unit: who `client` is, where that is not a column.
    """

    x: np.ndarray
    y: np.ndarray
    client: np.ndarray | None
    notes: tuple[str, ...] = ()
    test: tuple[np.ndarray, np.ndarray] | None = None
    classes: tuple[str, ...] | None = None
    text: bool = False
    test_client: np.ndarray | None = None
    features: tuple[str, ...] | None = None
    time: np.ndarray | None = None
    codes: bool = False
    unit: str = ""
    names: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return sizes_alone(self)


class Columns(NamedTuple):
    """The meaning of a file's columns. natural: the ids in `client` name the clients. dropped: columns that are not read.

    time: the column that a split by time goes by, which is not a feature. labels: further columns of targets, beside `label`.
    """

    label: str
    client: str
    natural: bool
    dropped: tuple[str, ...] = ()
    time: str | None = None
    labels: tuple[str, ...] = ()


def read_digits() -> Table:
    """scikit-learn's handwritten digits: 1,797 images of 8×8 pixels, scaled to [0, 1], flattened to 64 features."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return Table(x / 16.0, y, None)


def client_ids(table: Any, columns: Columns) -> np.ndarray | None:
    """The client of each row, where the file names clients."""
    held = columns.natural and columns.client in table.column_names
    return values(table, columns.client, "data.client_column") if held else None


def _column(table: Any, setting: str, name: str) -> Any:
    if name not in table.column_names:
        raise BadInput(setting, "is not a column of the file", value=name, remedy=nearest(name, table.column_names))
    return table[name]


def values(table: Any, name: str, setting: str) -> np.ndarray:
    """A label or id column as integers or strings, without missing values; integers that no int64 holds are strings."""
    import pyarrow as pa
    import pyarrow.compute

    column = _column(table, setting, name)
    if column.null_count:
        first = int(np.flatnonzero(column.is_null().to_numpy())[0])
        missing = plural(column.null_count, "missing value")
        raise BadInput(setting, f"has {missing} (first: row {first}, counting from 0)", value=name, remedy="Fill or remove them")
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        large = pa.types.is_uint64(kind) and len(column) and pyarrow.compute.max(column).as_py() > 2**63 - 1
        return np.array(list(map(str, column.to_pylist()))) if large else np.asarray(column.cast(pa.int64()).to_numpy())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.array(column.to_pylist(), dtype=str)
    held = column.to_pylist()
    raise BadInput(setting, f"holds {kind} values such as {held[0]!r}", value=name, remedy="Use whole numbers or strings")
