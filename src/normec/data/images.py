"""Images as tables of pixels in [−1, 1]: CIFAR-10 from parquet files or its original batches, and folders of images by class."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from normec.data.readers import Columns, Table, client_ids, values
from normec.errors import BadInput, count
from normec.files import write_atomically

IMAGE_COLUMNS = ("img", "image")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
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

T = TypeVar("T")
DECODED_AT_ONCE = 256
"""Images that a core decodes before it takes the next ones."""
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")
"""Those of Pillow that 8 bits a channel hold."""
Pixels = np.ndarray
"""uint8 of shape (n, channels, height, width)."""


def read_cifar10(path: Path) -> Table:
    """CIFAR-10 with its own test set, from a folder that holds parquet files (train*, test*) or the original python batches.

    Raises:
        BadInput: for a folder without either, for batches that are not the published ones, and for damaged files.
    """
    found = {part: sorted(path.rglob(f"{part}*.parquet")) for part in ("train", "test")}
    if all(found.values()):
        (x, y), test = (_decoded(files, "label")[:2] for files in found.values())
    else:
        folder = path / "cifar-10-batches-py" if (path / "cifar-10-batches-py").is_dir() else path
        missing = [name for name in BATCHES if not (folder / name).is_file()]
        if missing:
            problem = f"={str(path)!r} holds neither parquet files train*, test* nor the python batches ({missing[0]} is missing)."
            raise BadInput("data.path", f"{problem} Give the folder of CIFAR-10.")
        batches = [_read_batch(folder / name, checksum) for name, checksum in BATCHES.items()]
        x, y = (np.concatenate(parts) for parts in zip(*batches[:-1], strict=True))
        test = batches[-1]
    for labels in (y, test[1]):
        if labels.dtype.kind != "i" or labels.min(initial=0) < 0 or labels.max(initial=0) >= len(CIFAR10):
            raise BadInput("data.path", f"={str(path)!r} holds labels outside 0 … 9. Give the folder of CIFAR-10.")
    return Table(scaled(x), y, None, test=(scaled(test[0]), test[1]), classes=CIFAR10)


def read_image_column(path: Path, columns: Columns) -> Table | None:
    """A parquet file with a column of encoded images; None where it has none. Other columns than the named ones are not read."""
    import pyarrow.parquet

    try:
        schema = pyarrow.parquet.read_schema(path)
    except (OSError, pyarrow.ArrowException):
        return None  # who reads it as a table says what is wrong
    if not any(_holds_images(schema, name) for name in IMAGE_COLUMNS):
        return None
    x, y, table = _decoded([path], columns.label)
    return Table(scaled(x), y, client_ids(table, columns))


def read_folder(path: Path) -> Table:
    """A folder with a folder of images for each class, or a folder train, and perhaps test, of such folders.

    Raises:
        BadInput: where there is no such image, or where they differ in size.
    """
    parts = [part for part in (path / "train", path / "test") if any(part.glob("*/"))] or [path]
    listed = [[(file, file.parent.name) for file in sorted(part.glob("*/*")) if file.suffix.lower() in SUFFIXES] for part in parts]
    if not all(listed):
        raise BadInput("data.source", f"={str(path)!r} holds no images as CLASS/NAME.png (or {', '.join(SUFFIXES[1:])}).")
    read = [(decode([file for file, _ in part], Path.read_bytes, str), part) for part in listed]
    if len({pixels.shape[1:] for pixels, _ in read}) > 1:
        raise BadInput("data.source", f"={str(path)!r} holds other images in test than in train. Give images of one size.")
    tables = [(scaled(pixels), np.array([label for _, label in part])) for pixels, part in read]
    return Table(*tables[0], None, test=tables[1] if len(tables) > 1 else None)


def scaled(pixels: Pixels) -> np.ndarray:
    """Pixels as float32 in [−1, 1], by constants and not by the data."""
    values = pixels.astype(np.float32)
    values /= 127.5
    values -= 1
    return values


def pooled(table: Table, side: int) -> Table:
    """The same images with each square of `side` × `side` pixels averaged to one.

    Raises:
        BadInput: where the samples are no images, or the squares do not fill them.
    """
    if table.x.ndim != 4 or any(length % side for length in table.x.shape[2:]):
        held = "no images" if table.x.ndim != 4 else f"images of {table.x.shape[2]}×{table.x.shape[3]} pixels"
        raise BadInput("data.pool", f"={side} does not fit: the source holds {held}. Use a divisor of both sides, or leave it out.")

    def averaged(x: np.ndarray) -> np.ndarray:
        n, channels, height, width = x.shape
        means: np.ndarray = x.reshape(n, channels, height // side, side, width // side, side).mean((3, 5), dtype=x.dtype)
        return means

    return table._replace(x=averaged(table.x), test=None if table.test is None else (averaged(table.test[0]), table.test[1]))


def decode(images: Sequence[T], content: Callable[[T], bytes], name: Callable[[T], str]) -> Pixels:
    """Images, decoded on all cores: grey ones as one channel, all others as three. content: of an image's file.

    Raises:
        BadInput: naming the first that cannot be decoded, or differs in shape from the first of all.
    """
    from PIL import Image

    def one(image: T) -> np.ndarray:
        try:
            with Image.open(io.BytesIO(content(image))) as opened:
                if opened.mode not in MODES:
                    raise ValueError(f"its mode is {opened.mode}, not 8 bits a channel")
                pixels = np.asarray(opened if opened.mode == "L" else opened.convert("RGB"))
        except Exception as error:  # whatever a damaged image raises
            raise BadInput("data.source", f": {name(image)} cannot be decoded ({error}). Remove or replace it.") from None
        return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)

    first = one(images[0])
    pixels = np.empty((len(images), *first.shape), dtype=np.uint8)

    def fill(start: int) -> None:
        for position in range(start, min(start + DECODED_AT_ONCE, len(images))):
            found = one(images[position])
            if found.shape != first.shape:
                problem = f": {name(images[position])} is of shape {found.shape}, {name(images[0])} of {first.shape}"
                raise BadInput("data.source", f"{problem} (channels, height, width). Give images of one size and kind.")
            pixels[position] = found

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(fill, range(0, len(images), DECODED_AT_ONCE)):
            pass
    return pixels


def _decoded(files: Sequence[Path], label_column: str) -> tuple[Pixels, np.ndarray, Any]:
    """Images and labels of parquet files on top of each other, and the whole table; decoded images are kept for the next run."""
    import pyarrow as pa
    import pyarrow.parquet

    try:
        content = [file.read_bytes() for file in files]
        table = pa.concat_tables([pyarrow.parquet.read_table(pa.BufferReader(part)) for part in content])
    except (OSError, pa.ArrowException) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise BadInput("data.path", f": {files[0]} cannot be read: {reason}. Give an intact parquet file.") from None
    column = next((name for name in IMAGE_COLUMNS if _holds_images(table.schema, name)), None)
    if column is None:
        raise BadInput("data.path", f": {files[0]} has no column img or image of encoded images. Give one.")
    encoded = pa.compute.struct_field(table[column], "bytes")
    if encoded.null_count or not table.num_rows:
        raise BadInput(
            "data.path", f": {files[0]} has {count(encoded.null_count, 'missing image')} of {table.num_rows}. Remove those rows."
        )
    digest = hashlib.blake2b(digest_size=16)
    for part in content:
        digest.update(part)
    flat = encoded.combine_chunks()
    pixels = _kept(
        digest.hexdigest(), lambda: decode(range(len(flat)), lambda row: flat[row].as_py(), lambda row: f"image {row} of {files[0].parent}")
    )
    return pixels, values(table, label_column, "data.label_column"), table


def _holds_images(schema: Any, name: str) -> bool:
    """Whether a column is a struct with the bytes of images."""
    import pyarrow as pa

    kind = schema.field(name).type if schema.names.count(name) == 1 else None
    fields = {field.name: field.type for field in kind} if kind is not None and pa.types.is_struct(kind) else {}
    return "bytes" in fields and bool(pa.types.is_binary(fields["bytes"]) or pa.types.is_large_binary(fields["bytes"]))


def _kept(key: str, make: Callable[[], Pixels]) -> Pixels:
    """The pixels kept under `key` in runs/cache (or $NORMEC_CACHE), made and kept where they are not there yet."""
    path = Path(os.environ.get("NORMEC_CACHE", "runs/cache")) / f"{key}.npy"
    try:
        held = np.load(path, allow_pickle=False)
        if held.dtype == np.uint8 and held.ndim == 4:
            return np.asarray(held)
    except (OSError, ValueError, EOFError):
        pass
    pixels = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = io.BytesIO()
        np.save(file, pixels, allow_pickle=False)
        own = path.with_suffix(f".{os.getpid()}")  # other processes may keep the same pixels now
        write_atomically(own, file.getvalue)
        own.replace(path)
    except OSError as error:  # a cache is no reason to stop
        print(f"normec: decoded images are not kept ({error.strerror}: {path.parent})", file=sys.stderr)  # noqa: T201
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


def _read_batch(path: Path, checksum: str) -> tuple[Pixels, np.ndarray]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput("data.path", f": {path} cannot be read ({error.strerror}).") from None
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != checksum:
        raise BadInput("data.path", f": {path} is not the published file (its MD5 sum differs). Unpack the archive again.")
    try:
        held = _Arrays(io.BytesIO(content), encoding="bytes").load()
        pixels, labels = np.asarray(held[b"data"], dtype=np.uint8), np.asarray(held[b"labels"], dtype=np.int64)
        return pixels.reshape(len(labels), 3, 32, 32), labels
    except (pickle.UnpicklingError, KeyError, TypeError, ValueError, EOFError) as error:
        raise BadInput("data.path", f": {path} holds no batch of CIFAR-10 ({error}). Unpack the archive again.") from None
