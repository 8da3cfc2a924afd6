"""From the `[data]` section to a federation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from normec.data import partition
from normec.data.checks import as_features
from normec.data.delimited import Form
from normec.data.federation import Federation
from normec.data.files import (
    Way,
    is_pattern,
    matching,
    read_file,
    read_files,
    read_table_folder,
    shared_file,
    suffix,
    tables_below,
    tables_in,
)
from normec.data.folders import read_folder
from normec.data.images import pooled, read_cifar10, read_image_column
from normec.data.leaf import is_leaf, leaf_below, read_leaf
from normec.data.limits import allowed
from normec.data.pixels import Look
from normec.data.readers import Columns, Table, read_digits
from normec.data.settings import DEFAULT_CLIENTS, DEFAULT_WINDOW, IMAGES, Data
from normec.data.split import split, with_test
from normec.data.targets import about_labels, with_targets
from normec.data.text import read_speakers
from normec.errors import BadInput, nearest, plural
from normec.imports import load_object, looks_like_import_path
from normec.streams import Streams


def load(data: Data, streams: Streams, wanted: Literal["classes", "numbers"] | None = None) -> Federation:
    """The federation that a `[data]` section describes. wanted: the targets that the loss expects, if known.

    Raises:
        BadInput: for data that cannot be used, before any training.
    """
    if looks_like_import_path(data.source):
        _refuse_image_settings(data, "a function makes its own federation")
        make = load_object("data.source", data.source)
        try:
            federation = make()
        except (Exception, SystemExit) as error:  # whatever a user's function raises
            raise BadInput("data.source", f"failed ({type(error).__name__}: {error})", value=data.source) from error
        if not isinstance(federation, Federation):
            raise BadInput("data.source", f"returned {type(federation).__name__}", value=data.source, remedy="Return a normec.Federation")
        return _large_enough(federation, data.min_size)
    table = _read(data, data.source)
    if table.x.ndim != 4:
        _refuse_image_settings(data, "the source holds no images")
    if table.names and data.client_column not in (*table.names, Data.model_fields["client_column"].default):
        raise _no_client_column(data, table.names)  # one that holds ids would be a feature
    if data.test_source is not None:
        table = with_test(table, _read_test(data, data.test_source))
    table = table if data.pool is None else pooled(table, data.pool)
    given = table.classes
    table = with_targets(table, data.label_names, wanted)
    names, labels = table.classes, table.y
    natural = data.partition == "column"
    x = _features(table, table.x)
    train, test = split(table, data.test_fraction, natural, streams)
    owners, everyone = _owners(data, labels[train], table, train, streams)
    held_out = (_features(table, table.test[0]), table.test[1]) if table.test else ((x[test], labels[test]) if len(test) else None)
    tested = (table.test_client if table.test else table.client[test] if table.client is not None else None) if natural else None
    strangers: set[Any] = set() if tested is None else set(tested.tolist()) - set(everyone)
    absent = sorted(set(everyone) - set(owners.tolist()))
    federation = Federation.from_arrays(
        x[train],
        labels[train],
        owners,
        test=held_out,
        test_client_ids=None if strangers or held_out is None else tested,
        classes=names,
        empty_clients=absent,
    )
    labelled = [] if given or names is None else about_labels(names, labels, table.test[1] if table.test else None)
    notes = [
        *table.notes,
        *federation.notes,
        *labelled,
        *_who_holds_what(data, table.unit),
        *_about_the_test(data, table, sorted(strangers)),
    ]
    return _large_enough(replace(federation, notes=tuple(notes)), data.min_size)


def _refuse_image_settings(data: Data, why: str) -> None:
    for key in IMAGES:
        if (value := getattr(data, key)) is not None:
            shown = list(value) if isinstance(value, tuple) else value
            raise BadInput(f"data.{key}", f"acts only with images; {why}", value=shown, remedy="Leave it out")


def _features(table: Table, x: np.ndarray) -> np.ndarray:
    """Finite features as floats; codes of characters stay whole numbers."""
    checked = as_features("data.source", x).numpy()
    return checked if checked.dtype.kind == "f" or table.text or table.codes else checked.astype(np.float32)


def _about_the_test(data: Data, table: Table, strangers: list[Any]) -> list[str]:
    """Where the test set comes from, if it is not drawn."""
    notes = []
    if table.test is not None:
        whose = "the source's own" if data.test_source is None else "data.test_source"
        notes.append(f"{plural(len(table.test[1]), 'test sample')} of {whose}, so that test_fraction does not act")
    elif table.time is not None:
        of = "each client's samples" if data.partition == "column" else "all samples"
        kind = "dates" if table.time.dtype.kind == "M" else "numbers"
        notes.append(
            f"the test set is the last {data.test_fraction:g} of {of} by {data.time_column!r}, which is not a feature, read as {kind}"
        )
    if table.test is not None and table.client is not None and table.test_client is None and data.partition == "column":
        notes.append(f"no results by client: the test set has no column {data.client_column!r}")
    if strangers:
        strange = f"{plural(len(strangers), 'client')} of the test set without training samples (first: {strangers[0]!r})"
        notes.append(f"no results by client: {strange}")
    return notes


def _large_enough(federation: Federation, min_size: int) -> Federation:
    """The federation, refused where a client has fewer than min_size training samples."""
    small = np.flatnonzero(federation.sizes < min_size)
    if len(small):
        first = f"client {federation.ids[small[0]]!r} has {plural(int(federation.sizes[small[0]]), 'training sample')}"
        others = f", and {plural(len(small) - 1, 'other client')} too few as well" if len(small) > 1 else ""
        raise BadInput(
            "data.min_size", f": {first}{others}", value=min_size, remedy="Use a smaller one, or leave such clients out of the data"
        )
    return federation


def _who_holds_what(data: Data, unit: str) -> tuple[str, ...]:
    """A warning where a column of clients is named, or the source has speakers, files or users, and that does not say who holds what."""
    if data.partition == "column":
        return ()
    dealt = f"warning: the samples are dealt to {data.clients or DEFAULT_CLIENTS} clients ({data.partition})"
    if data.source.lower().endswith(".txt"):
        return (f"{dealt}; what one speaker says is in many clients' hands. Set data.partition=column for one client per speaker",)
    if unit:
        return (f"{dealt}; the samples of one {unit} are in many clients' hands. Set data.partition=column for one client per {unit}",)
    if data.client_column == "client":
        return ()
    return (f"{dealt}; the column {data.client_column!r} does not say who holds what. Set data.partition=column for that",)


def _read_test(data: Data, source: str) -> Table:
    """As `_read`; what is wrong with the file is said of data.test_source."""
    try:
        if shared := shared_file(data.source, source):
            raise BadInput(
                "data.test_source",
                f"and data.source share {shared}",
                value=source,
                remedy="Give a test set of other files, or remove data.test_source",
            )
        return _read(data, source)
    except BadInput as error:
        raise error.of("data.test_source" if error.setting == "data.source" else error.setting) from None


def _read(data: Data, source: str) -> Table:
    look = Look.of(data, allowed(data.size_limit))
    if source == "digits":
        return read_digits()
    if source == "cifar10":
        if data.path is None or not Path(data.path).is_dir():
            raise BadInput(
                "data.path",
                "is not a folder",
                value=data.path,
                remedy="Name the one that holds CIFAR-10, as parquet files or python batches",
            )
        return read_cifar10(Path(data.path), look)
    path, limit = Path(source), look.size_limit
    label, *more = data.label_names
    columns = Columns(
        label=label,
        client=data.client_column,
        natural=data.partition == "column",
        dropped=data.drop_columns,
        time=data.time_column,
        labels=tuple(more),
    )
    way = Way(columns, Form("\t" if data.separator == "tab" else data.separator, data.decimal or ".", data.encoding), limit)
    if is_pattern(source):
        return read_files(matching(source), way)
    if suffix(path) == ".txt":
        return read_speakers(path, data.window or DEFAULT_WINDOW, limit)
    if is_leaf(path):
        return read_leaf(path, limit)
    if path.is_dir():
        return read_table_folder(path, way) if tables_in(path) else _read_images(path, look, columns.natural)
    images = read_image_column(path, columns, look) if suffix(path) == ".parquet" and path.is_file() and not more else None
    return images or read_file(path, way)


def _read_images(path: Path, look: Look, natural: bool) -> Table:
    try:
        return read_folder(path, look, natural)
    except BadInput as error:
        raise tables_below(path) or leaf_below(path) or error from None


def _owners(data: Data, labels: np.ndarray, table: Table, train: np.ndarray, streams: Streams) -> tuple[np.ndarray, list[Any]]:
    """The client of each training sample, and the ids of all clients."""
    if data.partition == "column":
        if table.client is None:
            raise _no_client_column(data, table.names)
        return table.client[train], np.unique(table.client).tolist()
    clients = data.clients or DEFAULT_CLIENTS
    if clients > len(labels):
        raise BadInput("data.clients", f"is more than the {len(labels)} training samples", value=clients, remedy="Use at most that many")
    if data.min_size * clients > len(labels):
        raise BadInput(
            "data.min_size",
            f"for {clients} clients needs {data.min_size * clients:,} of {len(labels):,} training samples",
            value=data.min_size,
            remedy="Use a smaller one, or fewer clients",
        )
    if data.partition in ("dirichlet", "shards") and (labels.ndim > 1 or labels.dtype.kind == "f"):
        raise BadInput(
            "data.partition",
            f"deals by class, and the targets are {('several a sample' if labels.ndim > 1 else 'numbers')}",
            value=data.partition,
            remedy="Use iid, power-law or column",
        )
    return _dealt(data, labels, clients, streams.generator("partition")), list(range(clients))


def _no_client_column(data: Data, names: tuple[str, ...]) -> BadInput:
    """The error for a name that is none of these names of columns, which are unknown where the source is no table."""
    remedy = nearest(data.client_column, names) if names else "Name the one that holds client ids."
    return BadInput("data.client_column", f"is not a column of {data.source}", value=data.client_column, remedy=remedy)


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
