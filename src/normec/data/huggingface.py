"""Hugging Face datasets, and partitioners of flwr-datasets, as federations. Both libraries are only met in what is given."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from normec.data.federation import Federation
from normec.data.images import scaled
from normec.data.readers import values
from normec.errors import BadInput, count, nearest

MODES = ("L", "RGB")
"""Pillow's modes of images that are taken as they are: grey and colour, of 8 bits."""


class Samples(NamedTuple):
    """x (n, …), y (n, …), and the class names where the label column declares them."""

    x: np.ndarray
    y: np.ndarray
    classes: tuple[str, ...] | None


def federation_from_huggingface(
    dataset: Any,
    *,
    features: str | Sequence[str],
    label: str,
    client_column: str | None = None,
    client_ids: Sequence[Hashable] | np.ndarray | None = None,
    test: Any = None,
) -> Federation:
    """From a `datasets.Dataset`; its format, such as "torch", is set aside.

    features: a column of images, all of one size and mode, which become float32 (n, channels, height, width) in [−1, 1];
    or of numbers, (n, 1); or of sequences or arrays of numbers, (n, …); or the names of several columns of numbers or flat
    sequences, side by side. label: a ClassLabel, whose names are the classes, or targets as in `Federation.from_arrays`.
    client_column names the column of client ids (whole numbers or strings); or client_ids gives the id of each sample's
    client. test: a Dataset of the same columns; where it has the client column and all its clients train, there are results
    by client too.

    Raises:
        BadInput: for a missing column, missing values, images that differ, or anything that `from_arrays` refuses.
    """
    _check("dataset", dataset)
    x, y, classes = _samples(dataset, features, label)
    owners = _owners(dataset, label, client_column, client_ids)
    held_out = _test_set(test, features, label, classes)
    tested = _ids(test, client_column) if client_column and held_out and client_column in test.features else np.empty(0)
    known = len(tested) and set(tested.tolist()) <= set(owners)
    return Federation.from_arrays(x, y, owners, test=held_out, test_client_ids=tested if known else None, classes=classes)


def federation_from_partitioner(partitioner: Any, *, features: str | Sequence[str], label: str, test: Any = None) -> Federation:
    """From a partitioner of flwr-datasets that has its dataset: client i holds partition i, and may hold nothing.

    features, label, test: as in `federation_from_huggingface`.

    Raises:
        BadInput: where the partitioner fails, and for samples that cannot be used, naming the partition.
    """
    if not hasattr(partitioner, "load_partition"):
        raise BadInput("partitioner", f" is of type {type(partitioner).__name__}. Give a Partitioner of flwr-datasets.")
    try:
        partitions = [partitioner.load_partition(index) for index in range(partitioner.num_partitions)]
    except Exception as error:  # whatever a partitioner raises, such as for a dataset that is not set
        reason = " ".join(str(error).split()).rstrip(".")
        raise BadInput("partitioner", f" failed ({type(error).__name__}: {reason}). Set its dataset, and check its settings.") from error
    clients: list[tuple[Any, Any]] = []
    classes = None
    for index, partition in enumerate(partitions):
        if not len(partition):
            clients.append(((), ()))
            continue
        try:
            _check("dataset", partition)
            x, y, classes = _samples(partition, features, label)
        except BadInput as error:
            raise error.under(f"load_partition({index})") from None
        clients.append((x, y))
    return Federation.from_clients(clients, test=_test_set(test, features, label, classes), classes=classes)


def _check(setting: str, dataset: Any) -> None:
    if not all(hasattr(dataset, name) for name in ("features", "with_format", "__len__")):
        problem = f" is of type {type(dataset).__name__}. Give a datasets.Dataset: one split, and not a streamed one."
        raise BadInput(setting, problem)
    if not len(dataset):
        raise BadInput(setting, " has no rows. Give one with samples.")
    if dataset.format["type"] == "custom":
        raise BadInput(setting, " has a transform, which would be left out. Apply it with map instead of with_transform.")


def _samples(dataset: Any, features: str | Sequence[str], label: str) -> Samples:
    names = [features] if isinstance(features, str) else list(features)
    if not names or label in names:
        raise BadInput("features", f"={features!r} must name columns other than the label {label!r}. Correct one of the two.")
    columns = [_feature(dataset, name) for name in names]
    for name, column in zip(names, columns, strict=True):
        if len(columns) > 1 and column.ndim > 2:
            problem = f"={name!r} holds samples of shape {column.shape[1:]}, which cannot stand beside another column. Name it alone."
            raise BadInput("features", problem)
    declared = getattr(dataset.features.get(label), "names", None)
    x = columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)
    return Samples(x, _targets(dataset, label), tuple(declared) if declared else None)


def _test_set(test: Any, features: str | Sequence[str], label: str, classes: tuple[str, ...] | None) -> tuple[Any, Any] | None:
    if test is None:
        return None
    _check("test", test)
    try:
        x, y, names = _samples(test, features, label)
    except BadInput as error:
        raise error.under("test") from None
    if names and classes and names != classes:
        problem = f"={label!r} has the classes {', '.join(names)}, in training {', '.join(classes)}. Cast both to one ClassLabel."
        raise BadInput("test.label", problem)
    return x, y


def _owners(dataset: Any, label: str, client_column: str | None, client_ids: Sequence[Hashable] | np.ndarray | None) -> Any:
    """The id of each sample's client."""
    if (client_column is None) == (client_ids is None):
        given = "neither is given" if client_ids is None else "both are given"
        raise BadInput("client_column", f"={client_column!r} or client_ids says who holds what; {given}. Give one of the two.")
    if client_column is None:
        return client_ids
    if client_column == label:
        raise BadInput("client_column", f"={client_column!r} is the label too. Name another column.")
    return _ids(dataset, client_column)


def _table(dataset: Any, setting: str, name: str) -> Any:
    """One column, as a pyarrow table."""
    if name not in dataset.features:
        raise BadInput(setting, f"={name!r} is no column of the dataset. {nearest(name, dataset.features)}")
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


def _feature(dataset: Any, name: str) -> np.ndarray:
    """A feature column: (n, channels, height, width) for images, (n, …) for numbers, with at least one axis more than n."""
    table = _table(dataset, "features", name)
    if type(dataset.features[name]).__name__ == "Image":
        _complete("features", name, table[name], len(dataset))
        return _images(dataset, name)
    x = _numbers(table, "features", name)
    return x if x.ndim > 1 else x[:, None]


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
            problem = f"={name!r} holds sequences of {lengths[0]} and of {lengths[other[0]]} values (first: row {row}, counting from 0)."
            raise BadInput(setting, f"{problem} Give them one length.")
        shape.append(int(lengths[0]) if len(lengths) else 0)
        array = array.flatten()
    if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type) or pa.types.is_boolean(array.type)):
        raise BadInput(setting, f"={name!r} holds {array.type} values. Use numbers or sequences of numbers.")
    return np.array(array.to_numpy(zero_copy_only=False)).reshape(shape)  # a copy, since Arrow's own memory is read-only


def _complete(setting: str, name: str, array: Any, rows: int) -> None:
    """Refuses missing values in an array of `rows` rows, flattened."""
    if array.null_count:
        first = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0]) * rows // len(array)
        missing = count(array.null_count, "missing value")
        raise BadInput(setting, f"={name!r} has {missing} (first: row {first}, counting from 0). Fill or remove them.")


def _images(dataset: Any, name: str) -> np.ndarray:
    """(n, channels, height, width) in [−1, 1], each image decoded as the dataset says."""
    rows = dataset.with_format(None, columns=[name])
    pixels, first = np.empty(0, dtype=np.uint8), ""
    for row in range(len(dataset)):
        try:
            image = rows[row][name]
            held = np.asarray(image)
        except Exception as error:  # whatever a damaged image raises
            raise BadInput("features", f"={name!r}: image {row} cannot be decoded ({error}). Remove or replace it.") from None
        if getattr(image, "mode", None) not in MODES:
            found = f"of mode {image.mode}" if hasattr(image, "mode") else f"a {type(image).__name__}"
            remedy = f'Convert all with cast_column({name!r}, datasets.Image(mode="RGB")), or "L" for grey ones.'
            raise BadInput("features", f"={name!r}: image {row} is {found}, neither grey nor RGB of 8 bits. {remedy}")
        kind = f"{image.mode} of {image.width}×{image.height}"
        if row == 0:
            pixels, first = np.empty((len(dataset), *held.shape), dtype=np.uint8), kind
        if kind != first:
            problem = f"={name!r}: image {row} is {kind} pixels, image 0 {first}. Give images of one size and mode."
            raise BadInput("features", problem)
        pixels[row] = held
    return scaled(pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2))
