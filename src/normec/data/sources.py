"""From the `[data]` section to a federation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from normec.data import partition
from normec.data.checks import as_features, class_names, encode_labels
from normec.data.federation import Federation
from normec.data.readers import Table, read_digits, read_file
from normec.errors import BadInput
from normec.imports import load_object, looks_like_import_path
from normec.settings import Count, Fraction, Positive, Settings, Text
from normec.streams import Streams

DEFAULT_CLIENTS = 100
NEEDS = {"concentration": "dirichlet", "classes_per_client": "shards"}
"""Settings that act with one partition only."""


class Data(Settings):
    """Where the samples come from, and how they are dealt to clients: the `[data]` section."""

    source: Text = "digits"
    clients: Count | None = None
    partition: Literal["iid", "dirichlet", "shards", "column"] = "iid"
    concentration: Positive | None = None
    classes_per_client: Count | None = None
    client_column: Text = "client"
    label_column: Text = "label"
    test_fraction: Fraction = 0.2

    def __init__(self, /, **values: object) -> None:
        super().__init__(**values)
        for key, kind in NEEDS.items():
            if getattr(self, key) is not None and self.partition != kind:
                raise BadInput(key, f"={getattr(self, key)} acts only with partition={kind!r}. Remove it, or change partition.")
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
        return self.model_copy(update={"source": source, "clients": clients})


def load(data: Data, streams: Streams) -> Federation:
    """The federation that a `[data]` section describes.

    Raises:
        BadInput: for data that cannot be used, before any training.
    """
    if looks_like_import_path(data.source):
        make = load_object("data.source", data.source)
        try:
            federation = make()
        except (Exception, SystemExit) as error:  # whatever a user's function raises
            raise BadInput("data.source", f"={data.source!r} failed ({type(error).__name__}: {error}).") from error
        if not isinstance(federation, Federation):
            raise BadInput("data.source", f"={data.source!r} returned {type(federation).__name__}. Return a normec.Federation.")
        return federation
    table = _read(data)
    names = class_names("data.label_column", table.y)
    if names is None or len(names) < 2:
        held = f"{table.y.dtype} values" if names is None else f"one class only ({table.y[0]})"
        raise BadInput("data.label_column", f"={data.label_column!r} holds {held}. Give labels of two classes or more.")
    labels = encode_labels("data.label_column", table.y, names).numpy()
    x = as_features("data.source", table.x).numpy()
    x = x if x.dtype.kind == "f" else x.astype(np.float32)
    train, test = _split(len(labels), data.test_fraction, streams)
    owners, everyone = _owners(data, labels[train], table.client, train, streams)
    held_out = (x[test], labels[test]) if len(test) else None
    absent = sorted(set(everyone) - set(owners.tolist()))
    federation = Federation.from_arrays(x[train], labels[train], owners, test=held_out, classes=names, empty_clients=absent)
    return replace(federation, notes=(*table.notes, *_who_holds_what(data)))


def _who_holds_what(data: Data) -> tuple[str, ...]:
    """A warning where a column of clients is named and does not say who holds what."""
    if data.partition == "column" or data.client_column == "client":
        return ()
    dealt = f"warning: the samples are dealt to {data.clients or DEFAULT_CLIENTS} clients ({data.partition})"
    return (f"{dealt}; the column {data.client_column!r} does not say who holds what. Set data.partition=column for that",)


def _read(data: Data) -> Table:
    if data.source == "digits":
        return read_digits()
    if data.source == "cifar10":
        raise BadInput("data.source", "='cifar10' is not available in this version. Use digits, or a parquet, csv or npz file.")
    return read_file(Path(data.source), data.label_column, data.client_column, natural=data.partition == "column")


def _split(samples: int, test_fraction: float, streams: Streams) -> tuple[np.ndarray, np.ndarray]:
    """Training and test rows, each in source order."""
    chosen = np.zeros(samples, dtype=bool)
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
    generator = streams.generator("partition")
    if data.partition == "iid":
        owners = partition.iid(len(labels), clients, generator)
    elif data.partition == "dirichlet":
        owners = partition.dirichlet(labels, clients, data.concentration or 0.3, generator)
    else:
        owners = partition.shards(labels, clients, data.classes_per_client or 2, generator)
    return owners, list(range(clients))
