"""Readers: a source becomes a table of features, labels and, where it has them, client ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from normec.errors import BadInput, nearest


class Table(NamedTuple):
    """Samples as read: x (n, …), y (n,), the id of each sample's client if the source has them, columns left out."""

    x: np.ndarray
    y: np.ndarray
    client: np.ndarray | None
    ignored: tuple[str, ...] = ()


def read_digits() -> Table:
    """scikit-learn's handwritten digits: 1,797 images of 8×8 pixels, scaled to [0, 1], flattened to 64 features."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return Table(x / 16.0, y, None)


def read_file(path: Path, label_column: str, client_column: str) -> Table:
    """A .parquet, .csv or .npz file.

    Raises:
        BadInput: for a missing, foreign or empty file, a missing column, or missing values.
    """
    if not path.is_file():
        raise BadInput("data.source", f"={str(path)!r} does not exist or is no file. Give digits, or the path of a file.")
    try:
        if path.suffix == ".npz":
            return _read_npz(path)
        return _read_columns(path, label_column, client_column)
    except BadInput:
        raise
    except Exception as error:  # whatever a reader raises on a damaged file
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise BadInput("data.source", f"={str(path)!r} cannot be read: {reason}. Give an intact {path.suffix} file.") from None


def _read_npz(path: Path) -> Table:
    with np.load(path, allow_pickle=False) as arrays:
        held = {name: arrays[name] for name in arrays.files}
    for name in ("x", "y"):
        if name not in held:
            raise BadInput("data.source", f"={str(path)!r} has no array {name}. It needs x and y, and client for natural clients.")
    for name, array in held.items():
        if array.ndim == 0 or len(array) != len(held["x"]):
            raise BadInput(
                "data.source", f"={str(path)!r}: array {name} has shape {array.shape}, x {held['x'].shape}. Give one row a sample."
            )
    x = held["x"]
    if x.dtype.kind not in "fiu" or not x.size:
        raise BadInput("data.source", f"={str(path)!r}: array x holds {x.size} values of type {x.dtype}. Give numbers, at least one row.")
    return Table(x if x.ndim > 1 else x[:, None], held["y"], held.get("client"))


def _read_columns(path: Path, label_column: str, client_column: str) -> Table:
    import pyarrow as pa

    table = _arrow_table(path)
    _column(table, "data.label_column", label_column)
    kept = [name for name in table.column_names if name not in (label_column, client_column)]
    numeric = [name for name in kept if _is_numeric(table.schema.field(name).type)]
    if not table.num_rows or not numeric:
        raise BadInput(
            "data.source",
            f"={str(path)!r} has {table.num_rows} rows and {len(numeric)} numeric feature columns. Give at least one of each.",
        )
    x = np.column_stack([table[name].cast(pa.float64()).to_numpy() for name in numeric])
    y = _values(table, label_column, "data.label_column")
    client = _values(table, client_column, "data.client_column") if client_column in table.column_names else None
    ignored = tuple(name for name in kept if name not in numeric)
    return Table(x, y, client, ignored)


def _arrow_table(path: Path) -> Any:
    import pyarrow.csv
    import pyarrow.parquet

    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path)
    if path.suffix == ".csv":
        return pyarrow.csv.read_csv(path)
    raise BadInput("data.source", f"={str(path)!r} must end in .parquet, .csv or .npz.")


def _column(table: Any, setting: str, name: str) -> Any:
    if name not in table.column_names:
        raise BadInput(setting, f"={name!r} is no column of the file. {nearest(name, table.column_names)}")
    return table[name]


def _values(table: Any, name: str, setting: str) -> np.ndarray:
    """A label or id column as integers or strings, without missing values."""
    import pyarrow as pa

    column = _column(table, setting, name)
    if column.null_count:
        first = int(np.flatnonzero(column.is_null().to_numpy())[0])
        raise BadInput(setting, f"={name!r} has {column.null_count} missing values (first: row {first}). Fill or remove them.")
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return np.asarray(column.cast(pa.int64()).to_numpy())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.array(column.to_pylist(), dtype=str)
    values = column.to_pylist()
    raise BadInput(setting, f"={name!r} holds {kind} values such as {values[0]!r}. Use whole numbers or strings.")


def _is_numeric(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
