"""Images as tables of pixels in [−1, 1]: CIFAR-10 from parquet files or its original batches, and columns of encoded images."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from normec.data.limits import check_size, outgrown, regular_file
from normec.data.pixels import Look, Pixels, decode
from normec.data.readers import Columns, Table, client_ids, values
from normec.errors import BadInput, plural
from normec.files import write_atomically

log = logging.getLogger(__name__)

IMAGE_COLUMNS = ("img", "image")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
"""The original python batches of CIFAR-10, with their MD5 sums as published."""
ROWS_AT_ONCE = 1024


def read_cifar10(path: Path, look: Look) -> Table:
    """CIFAR-10 with its own test set, from a folder that holds parquet files (train*, test*) or the original python batches.

    Raises:
        BadInput: for a folder without either, for batches that are not the published ones, and for damaged files.
    """
    parquet = {part: sorted(path.rglob(f"{part}*.parquet")) for part in ("train", "test")}
    if all(parquet.values()):
        (x, y, _), (test_x, test_y, _) = (_decoded(files, "label", look) for files in parquet.values())
        notes = _others(path, [*parquet["train"], *parquet["test"]])
    else:
        (x, y), (test_x, test_y), notes = *_read_batches(path, look), []
    for labels in (y, test_y):
        if labels.dtype.kind != "i" or labels.min(initial=0) < 0 or labels.max(initial=0) >= len(CIFAR10):
            raise BadInput("data.path", "holds labels outside 0 … 9", value=path, remedy="Give the folder of CIFAR-10")
    notes = list(dict.fromkeys([*notes, *x.notes, *test_x.notes]))
    return Table(x.scaled(), y, None, tuple(notes), test=(test_x.scaled(), test_y), classes=CIFAR10)


def _others(path: Path, read: list[Path]) -> list[str]:
    """A line on further parquet files."""
    left = sorted(set(path.rglob("*.parquet")) - set(read))
    return [f"left out, neither train* nor test*: {plural(len(left), 'parquet file')} (first: {left[0].relative_to(path)})"] if left else []


def _read_batches(path: Path, look: Look) -> tuple[tuple[Pixels, np.ndarray], tuple[Pixels, np.ndarray]]:
    """The training and the test images of the original batches, with their labels."""
    folder = path / "cifar-10-batches-py" if (path / "cifar-10-batches-py").is_dir() else path
    missing = [name for name in BATCHES if not (folder / name).is_file()]
    if missing:
        raise BadInput(
            "data.path",
            f"holds neither parquet files train*, test* nor the python batches ({missing[0]} is missing)",
            value=path,
            remedy="Give the folder of CIFAR-10",
        )
    *train, test = (_read_batch(folder / name, checksum) for name, checksum in BATCHES.items())
    x, y = (np.concatenate(parts) for parts in zip(*train, strict=True))

    def looked(x: np.ndarray) -> Pixels:
        images = x.transpose(0, 2, 3, 1)
        return decode(range(len(x)), lambda row: images[row], lambda row: f"image {row} of {folder}", look, "data.path")

    return (looked(x), y), (looked(test[0]), test[1])


def read_image_column(path: Path, columns: Columns, look: Look) -> Table | None:
    """A parquet file with a column of encoded images; None where it has none. Columns that are not named are not read.

    Raises:
        BadInput: for several such columns that are neither called img nor image, and for images that cannot be used.
    """
    import pyarrow.parquet

    try:
        schema = pyarrow.parquet.read_schema(path)
    except (OSError, ValueError, pyarrow.ArrowException):
        return None  # who reads it as a table says what is wrong
    if _image_column(schema) is None:
        return None
    pixels, y, table = _decoded([path], columns.label, look)
    read = {_image_column(schema), columns.label, *columns.dropped, *([columns.client] if columns.client in table.column_names else [])}
    others = [name for name in table.column_names if name not in read]
    notes = [f"left out, beside the images: {plural(len(others), 'column')} ({', '.join(map(repr, others))})"] if others else []
    return Table(pixels.scaled(), y, client_ids(table, columns), (*notes, *pixels.notes), names=tuple(table.column_names))


def pooled(table: Table, side: int) -> Table:
    """The same images with each square of `side` × `side` pixels averaged to one.

    Raises:
        BadInput: where the samples are not images, or the squares do not fill them.
    """
    if table.x.ndim != 4 or any(length % side for length in table.x.shape[2:]):
        held = "no images" if table.x.ndim != 4 else f"images of {table.x.shape[2]}×{table.x.shape[3]} pixels"
        raise BadInput(
            "data.pool", f"does not fit: the source holds {held}", value=side, remedy="Use a divisor of both sides, or leave it out"
        )

    def averaged(x: np.ndarray) -> np.ndarray:
        n, channels, height, width = x.shape
        means: np.ndarray = x.reshape(n, channels, height // side, side, width // side, side).mean((3, 5), dtype=x.dtype)
        return means

    return table._replace(x=averaged(table.x), test=None if table.test is None else (averaged(table.test[0]), table.test[1]))


def _decoded(files: Sequence[Path], label_column: str, look: Look) -> tuple[Pixels, np.ndarray, Any]:
    """Images and labels of parquet files on top of each other, and the table; decoded images are kept for the next run."""
    import pyarrow as pa

    table = _stacked(files, look)
    column = _image_column(table.schema)
    if column is None:
        raise BadInput("data.path", f": {files[0]} has no column img or image of encoded images", remedy="Give one")
    encoded = table[column] if not pa.types.is_struct(table[column].type) else pa.compute.struct_field(table[column], "bytes")
    if encoded.null_count or not table.num_rows:
        missing = plural(encoded.null_count, "missing image")
        raise BadInput("data.path", f": {files[0]} has {missing} of {table.num_rows}", remedy="Remove those rows")
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        with file.open("rb") as opened:
            for part in iter(lambda: opened.read(2**20), b""):
                digest.update(part)
    digest.update(b"upright")  # other than pixels kept by an earlier version, which did not turn them
    digest.update(b"" if look == Look(look.size_limit) else repr(look._replace(size_limit=0)).encode())
    flat = encoded.combine_chunks()

    def decoded() -> Pixels:
        where = f"of {files[0].parent}"
        return decode(range(len(flat)), lambda row: flat[row].as_py(), lambda row: f"image {row} {where}", look, "data.source")

    return _kept(digest.hexdigest(), decoded), values(table, label_column, "data.label_column"), table


def _stacked(files: Sequence[Path], look: Look) -> Any:
    """The rows of parquet files, one table; what grows beyond the limit is not read on."""
    import pyarrow as pa
    import pyarrow.parquet

    file, tables, held = files[0], [], 0
    try:
        for file in files:
            opened = pyarrow.parquet.ParquetFile(regular_file(file, "data.path", "a parquet file"))
            groups = (opened.metadata.row_group(index).total_byte_size for index in range(opened.num_row_groups))
            check_size(file, held + sum(groups), look.size_limit)
            batches = []
            for batch in opened.iter_batches(ROWS_AT_ONCE):
                batches.append(batch)
                held += batch.nbytes
                if held > look.size_limit:
                    raise outgrown(file, look.size_limit)
            tables.append(pa.Table.from_batches(batches, opened.schema_arrow))
        return pa.concat_tables(tables)
    except (OSError, pa.ArrowException, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise BadInput("data.path", f": {file} cannot be read: {reason}", remedy="Give an intact parquet file") from None


def _image_column(schema: Any) -> str | None:
    """The column of encoded images: img or image, or the only one that holds such."""
    named = [name for name in IMAGE_COLUMNS if _holds_images(schema, name)]
    structs = [name for name in schema.names if _holds_images(schema, name)]
    return named[0] if named else structs[0] if len(structs) == 1 else None


def _holds_images(schema: Any, name: str) -> bool:
    """Whether a column is a struct with the bytes of images, or called as images are and of bytes."""
    import pyarrow as pa

    def is_bytes(kind: Any) -> bool:
        return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))

    kind = schema.field(name).type if schema.names.count(name) == 1 else pa.null()
    fields = {field.name: field.type for field in kind} if pa.types.is_struct(kind) else {}
    return is_bytes(fields.get("bytes", pa.null())) or (name in IMAGE_COLUMNS and is_bytes(kind))


def _kept(key: str, make: Callable[[], Pixels]) -> Pixels:
    """The pixels kept under `key` in $NORMEC_CACHE, made and kept where they are not there yet. Without that nothing is kept.

    Pixels of more than 8 bits, and those with something to tell of, are made each time.
    """
    cache = os.environ.get("NORMEC_CACHE")
    if not cache:
        return make()
    path = Path(cache) / f"{key}.npy"
    try:
        held = np.load(path, allow_pickle=False)
        if held.dtype == np.uint8 and held.ndim == 4:
            return Pixels(np.asarray(held), 255.0)
    except (OSError, ValueError, EOFError):
        pass
    pixels = make()
    if pixels.notes or pixels.values.dtype != np.uint8:
        return pixels
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = io.BytesIO()
        np.save(file, pixels.values, allow_pickle=False)
        own = path.with_suffix(f".{os.getpid()}")  # other processes may keep the same pixels now
        write_atomically(own, file.getvalue)
        own.replace(path)
    except OSError as error:  # a cache is no reason to stop
        log.warning("decoded images are not kept (%s: %s)", error.strerror, path.parent)
    return pixels


class _Arrays(pickle.Unpickler):
    """Reads numpy arrays and plain values, and nothing that could run code."""

    ALLOWED = frozenset(
        {("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")}
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):  # how protocol 2 writes bytes
            return lambda text, encoding: text.encode(encoding)
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _read_batch(path: Path, checksum: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput("data.path", f": {path} cannot be read ({error.strerror})") from None
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != checksum:
        raise BadInput("data.path", f": {path} is not the published file (its MD5 sum differs)", remedy="Unpack the archive again")
    try:
        held = _Arrays(io.BytesIO(content), encoding="bytes").load()
        pixels, labels = np.asarray(held[b"data"], dtype=np.uint8), np.asarray(held[b"labels"], dtype=np.int64)
        return pixels.reshape(len(labels), 3, 32, 32), labels
    except (pickle.UnpicklingError, KeyError, TypeError, ValueError, EOFError) as error:
        raise BadInput("data.path", f": {path} holds no batch of CIFAR-10 ({error})", remedy="Unpack the archive again") from None
