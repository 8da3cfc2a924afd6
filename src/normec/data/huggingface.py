"""Hugging Face datasets, and partitioners of flwr-datasets, as federations. Neither library is imported: the user's objects bring it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from normec.data.checks import sizes_alone
from normec.data.federation import Federation
from normec.data.limits import allowed
from normec.data.pixels import ImageSettings, Look, Pixels, decode
from normec.data.readers import values
from normec.errors import BadInput, nearest, plural

CHANNELS = {"L": 1, "RGB": 3, None: None}
"""Of the modes that a column may ask for."""


class Samples(NamedTuple):
    """x (n, …), y (n, …), the class names where the label column declares them, and what was left out."""

    x: np.ndarray
    y: np.ndarray
    classes: tuple[str, ...] | None
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return sizes_alone(self)


class Wanted(NamedTuple):
    """The columns that are read, and how images become arrays."""

    features: str | Sequence[str]
    label: str
    look: Look

    @classmethod
    def of(cls, features: str | Sequence[str], label: str, images: dict[str, Any]) -> Wanted:
        return cls(features, label, Look.of(ImageSettings(**images), allowed("auto"), section=""))


def federation_from_huggingface(
    dataset: Any,
    *,
    features: str | Sequence[str],
    label: str,
    client_column: str | None = None,
    client_ids: Sequence[Hashable] | np.ndarray | None = None,
    test: Any = None,
    **images: Any,
) -> Federation:
    """Makes a federation from a `datasets.Dataset`; its format, such as "torch", is ignored.

    features: a column of images, all of one size, which become float32 (n, channels, height, width) in [−1, 1];
    or of numbers, (n, 1); or of sequences or arrays of numbers, (n, …); or the names of several columns of numbers or flat
    sequences, side by side. label: a ClassLabel, whose names are the classes, or targets as in `Federation.from_arrays`.
    client_column names the column of client ids (whole numbers or strings); or client_ids gives the id of each sample's
    client. test: a Dataset of the same columns; where it has the client column and all its clients train, there are results
    by client too. images: resize, channels and pixel_max, as in the section [data].

    Raises:
        BadInput: for a missing column, missing values, images that differ, or anything that `from_arrays` refuses.
    """
    _check("dataset", dataset)
    wanted = Wanted.of(features, label, images)
    x, y, classes, notes = _samples(dataset, wanted)
    owners = _owners(dataset, label, client_column, client_ids)
    held_out = _test_set(test, wanted, classes)
    tested = _ids(test, client_column) if client_column and held_out and client_column in test.features else np.empty(0)
    known = len(tested) and set(tested.tolist()) <= set(owners)
    pair, more = held_out or (None, ())
    federation = Federation.from_arrays(x, y, owners, test=pair, test_client_ids=tested if known else None, classes=classes)
    return replace(federation, notes=tuple(dict.fromkeys([*federation.notes, *notes, *more])))


def federation_from_partitioner(
    partitioner: Any, *, features: str | Sequence[str], label: str, test: Any = None, **images: Any
) -> Federation:
    """Makes a federation from a partitioner of flwr-datasets that has its dataset: client i holds partition i, which may be empty.

    features, label, test, images: as in `federation_from_huggingface`.

    Raises:
        BadInput: where the partitioner fails, and for samples that cannot be used, naming the partition.
    """
    if not hasattr(partitioner, "load_partition"):
        raise BadInput("partitioner", f"is of type {type(partitioner).__name__}", remedy="Give a Partitioner of flwr-datasets")
    try:
        partitions = [partitioner.load_partition(index) for index in range(partitioner.num_partitions)]
    except Exception as error:  # whatever a partitioner raises, such as for a dataset that is not set
        reason = " ".join(str(error).split()).rstrip(".")
        raise BadInput(
            "partitioner", f"failed ({type(error).__name__}: {reason})", remedy="Set its dataset, and check its settings"
        ) from error
    wanted = Wanted.of(features, label, images)
    clients: list[tuple[Any, Any]] = []
    classes, notes = None, list[str]()
    for index, partition in enumerate(partitions):
        if not len(partition):
            clients.append(((), ()))
            continue
        try:
            _check("dataset", partition)
            x, y, classes, told = _samples(partition, wanted)
        except BadInput as error:
            raise error.under(f"load_partition({index})") from None
        clients.append((x, y))
        notes += told
    pair, more = _test_set(test, wanted, classes) or (None, ())
    federation = Federation.from_clients(clients, test=pair, classes=classes)
    return replace(federation, notes=tuple(dict.fromkeys([*federation.notes, *notes, *more])))


def _check(setting: str, dataset: Any) -> None:
    if not all(hasattr(dataset, name) for name in ("features", "with_format", "__len__")):
        raise BadInput(setting, f"is of type {type(dataset).__name__}", remedy="Give a datasets.Dataset: one split, and not a streamed one")
    if not len(dataset):
        raise BadInput(setting, "has no rows", remedy="Give one with samples")
    if dataset.format["type"] == "custom":
        remedy = "Apply it with map if it draws nothing at random, or leave it out with reset_format()."
        raise BadInput(setting, "has a transform, which would be left out", remedy=remedy)


def _samples(dataset: Any, wanted: Wanted) -> Samples:
    features, label = wanted.features, wanted.label
    names = [features] if isinstance(features, str) else list(features)
    if not names or label in names:
        raise BadInput("features", value=features, must=f"name columns other than the label {label!r}", remedy="Correct one of the two")
    read = [_feature(dataset, name, wanted.look) for name in names]
    columns = [x for x, _ in read]
    for name, column in zip(names, columns, strict=True):
        if len(columns) > 1 and column.ndim > 2:
            raise BadInput(
                "features",
                f"holds samples of shape {column.shape[1:]}, which cannot stand beside another column",
                value=name,
                remedy="Name it alone",
            )
    declared = getattr(dataset.features.get(label), "names", None)
    x = columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)
    notes = tuple(note for _, told in read for note in told)
    return Samples(x, _targets(dataset, label), tuple(declared) if declared else None, notes)


def _test_set(test: Any, wanted: Wanted, classes: tuple[str, ...] | None) -> tuple[tuple[Any, Any], tuple[str, ...]] | None:
    if test is None:
        return None
    _check("test", test)
    try:
        x, y, names, notes = _samples(test, wanted)
    except BadInput as error:
        raise error.under("test") from None
    if names and classes and names != classes:
        raise BadInput(
            "test.label",
            f"has the classes {', '.join(names)}, in training {', '.join(classes)}",
            value=wanted.label,
            remedy="Cast both to one ClassLabel",
        )
    return (x, y), notes


def _owners(dataset: Any, label: str, client_column: str | None, client_ids: Sequence[Hashable] | np.ndarray | None) -> Any:
    """The id of each sample's client."""
    if (client_column is None) == (client_ids is None):
        given = "neither is given" if client_ids is None else "both are given"
        raise BadInput("client_column", f"or client_ids says who holds what; {given}", value=client_column, remedy="Give one of the two")
    if client_column is None:
        return client_ids
    if client_column == label:
        raise BadInput("client_column", "is the label too", value=client_column, remedy="Name another column")
    return _ids(dataset, client_column)


def _table(dataset: Any, setting: str, name: str) -> Any:
    """One column, as a pyarrow table."""
    if name not in dataset.features:
        raise BadInput(setting, "is not a column of the dataset", value=name, remedy=nearest(name, dataset.features))
    return dataset.with_format("arrow", columns=[name])[:]


def _ids(dataset: Any, client_column: str) -> np.ndarray:
    return values(_table(dataset, "client_column", client_column), client_column, "client_column")


def _targets(dataset: Any, label: str) -> np.ndarray:
    """The label column: whole numbers or strings, (n,); or floats or sequences, (n, …), the targets of a regression."""
    import pyarrow as pa

    table = _table(dataset, "label", label)
    kind = table.schema.field(label).type
    if pa.types.is_floating(kind) or pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType):
        return _numbers(table, "label", label)
    return values(table, label, "label")


def _feature(dataset: Any, name: str, look: Look) -> tuple[np.ndarray, tuple[str, ...]]:
    """A feature column: (n, channels, height, width) for images, (n, …) for numbers, with at least one axis more than n; and notes."""
    table = _table(dataset, "features", name)
    if type(dataset.features[name]).__name__ == "Image":
        _complete("features", name, table[name], len(dataset))
        pixels = _images(dataset, name, table[name], look)
        return pixels.scaled(), pixels.notes
    x = _numbers(table, "features", name)
    return (x if x.ndim > 1 else x[:, None]), ()


def _numbers(table: Any, setting: str, name: str) -> np.ndarray:
    """A column of numbers, or of sequences of numbers of one shape, as (n, …)."""
    import pyarrow as pa
    import pyarrow.compute

    array = table[name].combine_chunks()
    shape = [len(array)]
    while True:
        array = getattr(array, "storage", array)
        _complete(setting, name, array, shape[0])
        if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type)):
            break
        lengths = np.asarray(pa.compute.list_value_length(array))
        other = np.flatnonzero(lengths != lengths[:1])
        if len(other):
            row = int(other[0]) * shape[0] // len(array)
            raise BadInput(
                setting,
                f"holds sequences of {lengths[0]} and of {lengths[other[0]]} values (first: row {row}, counting from 0)",
                value=name,
                remedy="Give them one length",
            )
        shape.append(int(lengths[0]) if len(lengths) else 0)
        array = array.flatten()
    if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type) or pa.types.is_boolean(array.type)):
        raise BadInput(setting, f"holds {array.type} values", value=name, remedy="Use numbers or sequences of numbers")
    return np.array(array.to_numpy(zero_copy_only=False)).reshape(shape)  # a copy, since Arrow's own memory is read-only


def _complete(setting: str, name: str, array: Any, rows: int) -> None:
    """Refuses missing values in an array of `rows` rows, flattened."""
    if array.null_count:
        first = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0]) * rows // len(array)
        missing = plural(array.null_count, "missing value")
        raise BadInput(setting, f"has {missing} (first: row {first}, counting from 0)", value=name, remedy="Fill or remove them")


def _images(dataset: Any, name: str, column: Any, look: Look) -> Pixels:
    """(n, channels, height, width), each image decoded from what is stored of it, at its full depth."""
    mode = getattr(dataset.features[name], "mode", None)
    if mode not in CHANNELS:
        remedy = f'Use cast_column({name!r}, datasets.Image()), or mode="RGB", or "L" for grey ones.'
        raise BadInput("features", f"asks for images of mode {mode}", value=name, remedy=remedy)
    look = look._replace(channels=look.channels or CHANNELS[mode])
    flat = column.combine_chunks()

    def source(row: int) -> Path | bytes:
        entry = flat[row].as_py()
        return entry["bytes"] if entry["bytes"] is not None else Path(entry["path"])

    return decode(range(len(flat)), source, lambda row: f"image {row} of {name!r}", look, "features")
