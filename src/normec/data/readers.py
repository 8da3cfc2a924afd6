"""Readers: a source becomes a table of features, labels and, where it has them, client ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from normec.errors import BadInput, count, nearest

FEWEST_IDENTIFIED = 20
"""Rows from which a column of distinct whole numbers looks like identifiers."""


class Table(NamedTuple):
    """Samples as read: x (n, …), y (n,), the id of each sample's client if the source has them, what to tell of it.

    test: (x, y) where the source brings its own test set; test_client: the id of each of its samples' client.
    classes: their names, where the labels are positions among them.
    text: x holds the codes of characters, which stay whole numbers and in the order of the text.
    """

    x: np.ndarray
    y: np.ndarray
    client: np.ndarray | None
    notes: tuple[str, ...] = ()
    test: tuple[np.ndarray, np.ndarray] | None = None
    classes: tuple[str, ...] | None = None
    text: bool = False
    test_client: np.ndarray | None = None


class Columns(NamedTuple):
    """What the columns of a file mean. natural: the ids in `client` say who holds what. dropped: read by nobody."""

    label: str
    client: str
    natural: bool
    dropped: tuple[str, ...] = ()


def read_digits() -> Table:
    """scikit-learn's handwritten digits: 1,797 images of 8×8 pixels, scaled to [0, 1], flattened to 64 features."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return Table(x / 16.0, y, None)


def read_file(path: Path, columns: Columns) -> Table:
    """A .parquet, .csv or .npz file, the last with arrays x, y and perhaps client.

    Raises:
        BadInput: for a missing, foreign or empty file, a missing column, or missing values.
    """
    if not path.is_file():
        known = "digits, cifar10, a file, a folder of images, or package.module:function"
        raise BadInput("data.source", f"={str(path)!r} is no file. Give {known}.")
    try:
        if path.suffix == ".npz":
            return _read_npz(path, columns.natural)
        return _read_columns(path, columns)
    except BadInput:
        raise
    except Exception as error:  # whatever a reader raises on a damaged file
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise BadInput("data.source", f"={str(path)!r} cannot be read: {reason}. Give an intact {path.suffix} file.") from None


def _read_npz(path: Path, natural: bool) -> Table:
    with np.load(path, allow_pickle=False) as arrays:
        held = {name: arrays[name] for name in arrays.files}
    for name in ("x", "y"):
        if name not in held:
            raise BadInput("data.source", f"={str(path)!r} has no array {name}. It needs x and y, and client for natural clients.")
    x, y, client = held["x"], held["y"], held.get("client") if natural else None
    for name, array in (("y", y), ("client", client)):
        if array is not None and array.shape != x.shape[:1]:
            raise BadInput("data.source", f"={str(path)!r}: array {name} has shape {array.shape}, x {x.shape}. Give one {name} a row of x.")
    if client is not None and client.dtype.kind not in "iubU":
        raise BadInput("data.source", f"={str(path)!r}: array client holds {client.dtype}. Give whole numbers or strings.")
    if not x.size:
        raise BadInput("data.source", f"={str(path)!r}: array x is empty, of shape {x.shape}. Give at least one row.")
    return Table(x if x.ndim > 1 else x[:, None], y, client)


def _read_columns(path: Path, columns: Columns) -> Table:
    import pyarrow as pa

    table = _arrow_table(path)
    if len(set(table.column_names)) != len(table.column_names):
        raise BadInput("data.source", f"={str(path)!r} has two columns of one name. Rename one.")
    _column(table, "data.label_column", columns.label)
    for name in columns.dropped:
        _column(table, "data.drop_columns", name)
    kept = [name for name in table.column_names if name not in (columns.label, columns.client, *columns.dropped)]
    numeric = [name for name in kept if _is_numeric(table.schema.field(name).type)]
    if not table.num_rows or not numeric:
        raise BadInput(
            "data.source",
            f"={str(path)!r} has {table.num_rows} rows and {len(numeric)} numeric feature columns. Give at least one of each.",
        )
    x = np.column_stack([table[name].cast(pa.float64()).to_numpy() for name in numeric])
    y = values(table, columns.label, "data.label_column")
    left_out = [name for name in kept if name not in numeric]
    features = f"features: {', '.join(numeric)}" + (f"; left out, not numeric: {', '.join(left_out)}" if left_out else "")
    suspects = [name for name in numeric if _may_identify(table[name])]
    warnings = [
        f"warning: the feature {name!r} is another whole number in each row, as identifiers are; data.drop_columns leaves columns out"
        for name in suspects
    ]
    return Table(x, y, client_ids(table, columns), (features, *warnings))


def client_ids(table: Any, columns: Columns) -> np.ndarray | None:
    """The client of each row, where the file says who holds what."""
    held = columns.natural and columns.client in table.column_names
    return values(table, columns.client, "data.client_column") if held else None


def _arrow_table(path: Path) -> Any:
    import pyarrow.csv
    import pyarrow.parquet

    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path)
    if path.suffix == ".csv":
        options = pyarrow.csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
        return pyarrow.csv.read_csv(path, convert_options=options)
    raise BadInput("data.source", f"={str(path)!r} must end in .parquet, .csv or .npz.")


def _column(table: Any, setting: str, name: str) -> Any:
    if name not in table.column_names:
        raise BadInput(setting, f"={name!r} is no column of the file. {nearest(name, table.column_names)}")
    return table[name]


def values(table: Any, name: str, setting: str) -> np.ndarray:
    """A label or id column as integers or strings, without missing values."""
    import pyarrow as pa

    column = _column(table, setting, name)
    if column.null_count:
        first = int(np.flatnonzero(column.is_null().to_numpy())[0])
        missing = count(column.null_count, "missing value")
        raise BadInput(setting, f"={name!r} has {missing} (first: row {first}, counting from 0). Fill or remove them.")
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return np.asarray(column.cast(pa.int64()).to_numpy())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.array(column.to_pylist(), dtype=str)
    held = column.to_pylist()
    raise BadInput(setting, f"={name!r} holds {kind} values such as {held[0]!r}. Use whole numbers or strings.")


def _may_identify(column: Any) -> bool:
    import pyarrow as pa

    enough = len(column) >= FEWEST_IDENTIFIED
    return bool(enough and pa.types.is_integer(column.type) and len(column.unique()) == len(column))


def _is_numeric(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
