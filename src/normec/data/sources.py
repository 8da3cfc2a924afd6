"""From the `[data]` section to a federation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from normec.data import partition
from normec.data.checks import as_features, class_names, encode_labels
from normec.data.federation import Federation
from normec.data.folders import read_folder
from normec.data.images import pooled, read_cifar10, read_image_column
from normec.data.limits import allowed
from normec.data.pixels import ImageSettings, Look
from normec.data.readers import Columns, Table, read_digits, read_file
from normec.data.text import read_speakers
from normec.errors import BadInput, count
from normec.imports import load_object, looks_like_import_path
from normec.settings import Count, Fraction, Positive, Text, Texts, Whole
from normec.streams import Streams

DEFAULT_CLIENTS = 100
DEFAULT_WINDOW = 40
"""Characters from which the next one is predicted."""
NEEDS = {"concentration": "dirichlet", "classes_per_client": "shards", "size_exponent": "power-law"}
"""Settings that act with one partition only."""


IMAGES = ("pool", "resize", "channels", "pixel_max")
"""Settings that act with images only."""


class Data(ImageSettings):
    """Where the samples come from, and how they are dealt to clients: the `[data]` section.

    min_size: training samples that every client has at least. path: the folder of CIFAR-10. window: of a text, the number of
    characters from which the next one is predicted. pool: of images, the side of the squares of pixels that are averaged.
    resize, channels, pixel_max: of images, as in `ImageSettings`.
    drop_columns: of a table, those that are no features. size_limit: bytes of memory that the source may take once it is read;
    "auto" for half of what the machine has free.
    """

    source: Text = "digits"
    path: Text | None = None
    window: Count | None = None
    pool: Count | None = None
    clients: Count | None = None
    partition: Literal["iid", "dirichlet", "shards", "power-law", "column"] = "iid"
    concentration: Positive | None = None
    classes_per_client: Count | None = None
    size_exponent: Positive | None = None
    min_size: Whole = 0
    client_column: Text = "client"
    label_column: Text = "label"
    drop_columns: Texts = ()
    test_fraction: Fraction = 0.2
    size_limit: Literal["auto"] | Count = "auto"

    def __init__(self, /, **values: Any) -> None:
        super().__init__(**values)
        for key, kind in NEEDS.items():
            if getattr(self, key) is not None and self.partition != kind:
                raise BadInput(key, f"={getattr(self, key)} acts only with partition={kind!r}. Remove it, or change partition.")
        for key, applies, sources in (
            ("path", self.source == "cifar10", "'cifar10'"),
            ("window", self.source.endswith(".txt"), "a .txt file"),
            ("drop_columns", self.source.endswith((".csv", ".parquet")), "a table, .csv or .parquet"),
        ):
            value = getattr(self, key)
            if value not in (None, ()) and not applies:
                shown = list(value) if isinstance(value, tuple) else value
                raise BadInput(key, f"={shown!r} acts only with source={sources}. Remove it, or change source.")
        for key in ("label_column", "client_column"):
            if getattr(self, key) in self.drop_columns:
                raise BadInput("drop_columns", f" holds {getattr(self, key)!r}, which is the {key}. Remove it there; it is no feature.")
        if self.partition == "column" and self.client_column == self.label_column:
            raise BadInput("client_column", f"={self.client_column!r} is the label column too. Name another column.")
        if looks_like_import_path(self.source) and self.clients is not None:
            raise BadInput("clients", f"={self.clients}: {self.source} makes its own clients. Remove clients.")
        if self.partition == "column" and self.clients is not None:
            raise BadInput("clients", f"={self.clients}: partition='column' takes the clients from the column. Remove clients.")

    def resolved(self) -> Data:
        """With every default written out and the path of a file made absolute."""
        own = looks_like_import_path(self.source)
        source = self.source if own or self.source in ("digits", "cifar10") else str(Path(self.source).absolute())
        clients = self.clients if own or self.partition == "column" else self.clients or DEFAULT_CLIENTS
        path = None if self.path is None else str(Path(self.path).absolute())
        return self.model_copy(update={"source": source, "clients": clients, "path": path})


def load(data: Data, streams: Streams) -> Federation:
    """The federation that a `[data]` section describes.

    Raises:
        BadInput: for data that cannot be used, before any training.
    """
    if looks_like_import_path(data.source):
        _refuse_image_settings(data, "a function makes its own federation")
        make = load_object("data.source", data.source)
        try:
            federation = make()
        except (Exception, SystemExit) as error:  # whatever a user's function raises
            raise BadInput("data.source", f"={data.source!r} failed ({type(error).__name__}: {error}).") from error
        if not isinstance(federation, Federation):
            raise BadInput("data.source", f"={data.source!r} returned {type(federation).__name__}. Return a normec.Federation.")
        return _large_enough(federation, data.min_size)
    table = _read(data)
    if table.x.ndim != 4:
        _refuse_image_settings(data, "the source holds no images")
    table = table if data.pool is None else pooled(table, data.pool)
    names = table.classes or class_names("data.label_column", table.y, *(table.test[1:] if table.test else ()))
    if names is None or len(names) < 2:
        held = f"{table.y.dtype} values" if names is None else f"one class only ({table.y[0]})"
        raise BadInput("data.label_column", f"={data.label_column!r} holds {held}. Give labels of two classes or more.")
    labels = encode_labels("data.label_column", table.y, names).numpy()
    x = as_features("data.source", table.x).numpy()
    x = x if x.dtype.kind == "f" or table.text else x.astype(np.float32)
    train, test = _split(table, data.test_fraction, streams)
    owners, everyone = _owners(data, labels[train], table.client, train, streams)
    held_out = table.test or ((x[test], labels[test]) if len(test) else None)
    tested = table.client[test] if data.partition == "column" and table.client is not None and len(test) else table.test_client
    if table.test_client is not None and not set(table.test_client.tolist()) <= set(everyone):
        unknown = sorted(set(table.test_client.tolist()) - set(everyone))
        table = table._replace(notes=(*table.notes, _unowned(unknown)))
        tested = None
    absent = sorted(set(everyone) - set(owners.tolist()))
    federation = Federation.from_arrays(
        x[train], labels[train], owners, test=held_out, test_client_ids=tested, classes=names, empty_clients=absent
    )
    notes = [*table.notes, *_who_holds_what(data)]
    if table.test is not None:
        notes.append(f"{len(table.test[1]):,} test samples of the source's own, so that test_fraction does not act")
    return _large_enough(replace(federation, notes=tuple(notes)), data.min_size)


def _unowned(unknown: list[Any]) -> str:
    return f"no results by client: {count(len(unknown), 'client')} of the test set have no training samples (first: {unknown[0]!r})"


def _refuse_image_settings(data: Data, why: str) -> None:
    for key in IMAGES:
        if (value := getattr(data, key)) is not None:
            shown = list(value) if isinstance(value, tuple) else f"{value:g}"
            raise BadInput(f"data.{key}", f"={shown} acts only with images; {why}. Leave it out.")


def _large_enough(federation: Federation, min_size: int) -> Federation:
    """The federation, refused where a client has fewer than min_size training samples."""
    small = np.flatnonzero(federation.sizes < min_size)
    if len(small):
        first = f"client {federation.ids[small[0]]!r} has {count(int(federation.sizes[small[0]]), 'training sample')}"
        others = f", and {count(len(small) - 1, 'other client')} too few as well" if len(small) > 1 else ""
        raise BadInput("data.min_size", f"={min_size}: {first}{others}. Use a smaller one, or leave such clients out of the data.")
    return federation


def _who_holds_what(data: Data) -> tuple[str, ...]:
    """A warning where a column of clients is named, or a text has speakers, and that does not say who holds what."""
    dealt = f"warning: the samples are dealt to {data.clients or DEFAULT_CLIENTS} clients ({data.partition})"
    if data.partition != "column" and data.source.endswith(".txt"):
        return (f"{dealt}; what one speaker says is in many clients' hands. Set data.partition=column for a client a speaker",)
    if data.partition == "column" or data.client_column == "client":
        return ()
    return (f"{dealt}; the column {data.client_column!r} does not say who holds what. Set data.partition=column for that",)


def _read(data: Data) -> Table:
    look = Look.of(data, allowed(data.size_limit))
    if data.source == "digits":
        return read_digits()
    if data.source == "cifar10":
        if data.path is None or not Path(data.path).is_dir():
            raise BadInput(
                "data.path", f"={data.path!r} is no folder. Name the one that holds CIFAR-10, as parquet files or python batches."
            )
        return read_cifar10(Path(data.path), look)
    path, natural = Path(data.source), data.partition == "column"
    if path.suffix == ".txt":
        return read_speakers(path, data.window or DEFAULT_WINDOW)
    if path.is_dir():
        return read_folder(path, look, natural)
    columns = Columns(data.label_column, data.client_column, natural, data.drop_columns)
    images = read_image_column(path, columns, look) if path.suffix == ".parquet" and path.is_file() else None
    return images or read_file(path, columns)


def _split(table: Table, test_fraction: float, streams: Streams) -> tuple[np.ndarray, np.ndarray]:
    """Training and test rows, each in source order: drawn, or of a text the last of each client's; none where a test set is given."""
    samples = len(table.y)
    chosen = np.zeros(samples, dtype=bool)
    if table.test is not None:
        return np.arange(samples), np.arange(0)
    if table.text and table.client is not None:
        for client in np.unique(table.client):
            rows = np.flatnonzero(table.client == client)
            chosen[rows[len(rows) - round(test_fraction * len(rows)) :]] = True
        return np.flatnonzero(~chosen), np.flatnonzero(chosen)
    chosen[streams.generator("test split").permutation(samples)[: round(test_fraction * samples)]] = True
    if chosen.all():
        raise BadInput("data.test_fraction", f"={test_fraction} of {samples} samples leaves none to train on. Use a smaller one.")
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def _owners(data: Data, labels: np.ndarray, client: np.ndarray | None, train: np.ndarray, streams: Streams) -> tuple[np.ndarray, list[Any]]:
    """The client of each training sample, and the ids of all clients."""
    if data.partition == "column":
        if client is None:
            problem = f"={data.client_column!r} is no column of {data.source}. Name the one that holds client ids."
            raise BadInput("data.client_column", problem)
        return client[train], np.unique(client).tolist()
    clients = data.clients or DEFAULT_CLIENTS
    if clients > len(labels):
        raise BadInput("data.clients", f"={clients} is more than the {len(labels)} training samples. Use at most that many.")
    if data.min_size * clients > len(labels):
        needed = f"={data.min_size} for {clients} clients needs {data.min_size * clients:,} of {len(labels):,} training samples"
        raise BadInput("data.min_size", f"{needed}. Use a smaller one, or fewer clients.")
    return _dealt(data, labels, clients, streams.generator("partition")), list(range(clients))


def _dealt(data: Data, labels: np.ndarray, clients: int, generator: np.random.Generator) -> np.ndarray:
    """The client of each training sample where the samples are dealt; sizes that differ between draws are drawn again."""
    n, pieces = len(labels), data.classes_per_client or 2
    concentration, exponent = data.concentration or 0.3, data.size_exponent or 1.0
    draws, draw, remedy = {
        "iid": (1, lambda: partition.iid(n, clients, generator), ""),
        "dirichlet": (
            partition.DRAWS,
            lambda: partition.dirichlet(labels, clients, concentration, generator),
            f"Use a larger concentration than {concentration:g}, fewer clients or a smaller min_size.",
        ),
        "shards": (
            partition.DRAWS,
            lambda: partition.shards(labels, clients, pieces, generator),
            f"Use a smaller classes_per_client than {pieces}, fewer clients or a smaller min_size.",
        ),
        "power-law": (
            1,
            lambda: partition.power_law(n, clients, exponent, generator),
            f"Use a smaller size_exponent than {exponent:g}, fewer clients or a smaller min_size.",
        ),
    }[data.partition]
    return partition.with_min_size(draw, clients, data.min_size, draws, remedy)
