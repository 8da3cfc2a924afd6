"""A federation: which client holds which samples."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normec.data.checks import alike, as_features, class_names, encode_labels, finite
from normec.data.ids import grouped, owners_of
from normec.data.samples import pair, read_dataset
from normec.errors import BadInput, plural


@dataclass(frozen=True)
class Federation:
    """The samples of all clients, grouped by client, and a common test set.

    Clients are in the order of their ids, and each one's samples in the order of their source, so that results do not
    depend on the order in which clients are given. Ids are opaque keys. A client may hold no samples.

    x: (n, …) features. y: (n, …) targets; integers are class labels. ids: the M client ids.
    offsets: (M + 1,) where each client's samples start. test: pooled (x, y) or None. test_owners: the position among `ids` of each
    test sample's client, where the test set has owners.
    rows: (n,) the row of `x` that each sample is, where `x` is a file in memory whose rows are not grouped by client; else None.
    classes: names of the classes, for label targets. notes: what a reader of the source should be told.
    """

    x: Tensor
    y: Tensor
    ids: tuple[Hashable, ...]
    offsets: np.ndarray
    test: tuple[Tensor, Tensor] | None = None
    classes: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    test_owners: np.ndarray | None = None
    rows: Tensor | None = None

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: Any,
        client_ids: Sequence[Hashable] | np.ndarray,
        *,
        test: tuple[Any, Any] | None = None,
        test_client_ids: Sequence[Hashable] | np.ndarray | None = None,
        classes: Sequence[str] | None = None,
        empty_clients: Sequence[Hashable] = (),
        ignored: int | None = None,
    ) -> Federation:
        """Makes a federation from arrays or tensors x (n, …), y (n, …) and the id of each sample's client.

        test: (x, y), pooled; test_client_ids: whose each of its samples is, for results by client.

        Strings in y become classes in sorted order; integers must be 0 … C − 1 for C classes; floats are numbers to be predicted.
        A sample may have several targets: labels of tokens (n, L) or pixels (n, H, W), or K of its own (n, K). classes: the class
        names, where the samples need not show every class. empty_clients: ids of further clients without samples. ignored: a label
        that is not a class, which the loss must leave out; among several of a sample −100 is one too.

        Raises:
            BadInput: for empty or non-finite data, lengths that differ, or labels outside 0 … C − 1.
        """
        if test is not None and (not isinstance(test, tuple | list) or len(test) != 2):
            raise BadInput("test", "is not a pair (x, y)", remedy="Give one, or leave it out")
        codes, ids = grouped(client_ids, empty_clients)
        owners = owners_of(test_client_ids, test, ids)
        features = as_features("x", x)
        if not features.numel() or len(features) != len(codes):
            raise BadInput(
                "x",
                f"has shape {tuple(features.shape)} for {len(codes)} client_ids",
                remedy="Give one row and one id a sample, at least one",
            )
        names = (
            _checked(classes) if classes is not None else class_names("y", y, *(test[1:] if test and len(test[1]) else ()), ignored=ignored)
        )
        labels = encode_labels("y", y, names, ignored)
        if len(labels) != len(features):
            raise BadInput("y", f"has {plural(len(labels), 'target')} for {plural(len(features), 'sample')}", remedy="Give one for each")
        held_out = _test_set(test, names, features, labels, ignored) if test and len(test[0]) else None
        order = np.argsort(codes, kind="stable")
        offsets = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=len(ids)))])
        rows = None if np.array_equal(order, np.arange(len(order))) else torch.from_numpy(order)
        labels = labels if rows is None else labels[rows]
        if rows is not None and not _is_mapped(x):
            features, rows = features[rows], None
        told = alike("labels", names or (), "classes") if classes is None else ()
        notes = (*alike("client ids", ids, "different clients, each with a promise of its own"), *told)
        owners = owners if held_out else None
        return cls(features, labels, ids, offsets, test=held_out, classes=names, notes=notes, test_owners=owners, rows=rows)

    @classmethod
    def from_clients(
        cls,
        clients: Sequence[tuple[Any, Any]],
        *,
        ids: Sequence[Hashable] | None = None,
        test: tuple[Any, Any] | None = None,
        classes: Sequence[str] | None = None,
        ignored: int | None = None,
    ) -> Federation:
        """Makes a federation from one (x, y) per client. ids: by default positions; the rest as `from_arrays`. Empty clients are legal."""
        names = list(ids) if ids is not None else list(range(len(clients)))
        if len(names) != len(clients) or len(set(names)) != len(names):
            raise BadInput("ids", must=f"be {len(clients)} different values, one for each client")
        arrays = [(name, *pair("clients", f"client {name!r}", client)) for name, client in zip(names, clients, strict=True)]
        for name, x, y in arrays:
            if x.shape[:1] != y.shape[:1] or not x.ndim:
                raise BadInput(
                    "clients",
                    f": client {name!r} has samples of shape {x.shape} and targets of shape {y.shape}",
                    remedy="Give one target a sample",
                )
        filled = [(name, x, y) for name, x, y in arrays if len(x)]
        shapes, kinds = {x.shape[1:] for _, x, _ in filled}, {"number" if y.dtype.kind in "iufb" else y.dtype.kind for _, _, y in filled}
        if len(shapes) != 1:
            raise BadInput("clients", f"hold samples of {len(shapes)} shapes", remedy="Give samples of one shape, at least one")
        if len({y.shape[1:] for _, _, y in filled}) != 1:
            raise BadInput("clients", "hold targets of several shapes", remedy="Give targets of one shape a sample")
        if len(kinds) != 1:
            raise BadInput("clients", "hold targets of several kinds, numbers and others", remedy="Give targets of one kind")
        return cls.from_arrays(
            np.concatenate([x for _, x, _ in filled]),
            np.concatenate([y for _, _, y in filled]),
            [name for name, x, _ in filled for _ in range(len(x))],
            test=test,
            classes=classes,
            ignored=ignored,
            empty_clients=[name for name, x, _ in arrays if not len(x)],
        )

    @classmethod
    def from_dataset(cls, dataset: Any, client_ids: Sequence[Hashable] | np.ndarray, **options: Any) -> Federation:
        """Makes a federation from a torch map-style Dataset of (x, y) pairs and the id of each sample's client; options as `from_arrays`.

        x: a tensor, an array or numbers, of one shape for all samples; y: a class or a target. Each sample is read once, so that
        a random transform would be frozen: some are read again (all, where a global generator moves), and what differs is refused.
        The global generators of torch, numpy and Python stand afterwards as they stood before.

        Raises:
            BadInput: for a dataset that draws at random or cannot be read, and as `from_arrays`.
        """
        samples = read_dataset(dataset)
        odd = next((index for index, (x, _) in enumerate(samples) if x.shape != samples[0][0].shape), None)
        if odd is not None:
            raise BadInput(
                "dataset",
                f": sample {odd} is of shape {samples[odd][0].shape}, the first of {samples[0][0].shape}",
                remedy="Give samples of one shape",
            )
        return cls.from_arrays(np.stack([x for x, _ in samples]), np.asarray([y for _, y in samples]), client_ids, **options)

    def __repr__(self) -> str:
        """Sizes alone: samples and ids are private."""
        samples = f"{plural(len(self.y), 'training sample')} of shape {tuple(self.x.shape[1:])}"
        held = "numbers" if self.classes is None else f"{len(self.classes)} classes"
        tested = 0 if self.test is None else len(self.test[1])
        return f"Federation({plural(len(self), 'client')}, {samples}, {held}, {plural(tested, 'test sample')})"

    def __len__(self) -> int:
        """M, the number of clients."""
        return len(self.ids)

    @cached_property
    def sizes(self) -> np.ndarray:
        """The number of samples of each client, (M,)."""
        return np.diff(self.offsets)

    def client(self, index: int) -> tuple[Tensor, Tensor]:
        """The samples of one client, as views where its rows lie together."""
        return self.clients(index, index + 1)

    def clients(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """The samples of the clients first … last − 1, one after the other, as views where their rows lie together."""
        start, stop = self.offsets[first], self.offsets[last]
        return (self.x[start:stop] if self.rows is None else self.x[self.rows[start:stop]]), self.y[start:stop]

    def to(self, device: torch.device, dtype: torch.dtype) -> Federation:
        """The same federation on a device, with floating-point features and targets in a dtype.

        Raises:
            BadInput: where a value is beyond the range of the dtype.
        """

        def move(name: str, t: Tensor) -> Tensor:
            return finite(f"{name}, in {dtype},", t.to(device, dtype)) if t.is_floating_point() else t.to(device)

        test = (move("test x", self.test[0]), move("test y", self.test[1])) if self.test is not None else None
        rows = None if self.rows is None else self.rows.to(device)
        return replace(self, x=move("x", self.x), y=move("y", self.y), test=test, rows=rows)

    def with_features_of_the_other_kind(self, dtype: torch.dtype) -> Federation | None:
        """Floats that are whole numbers as int64, or whole numbers as floats of a dtype; None where floats are not whole numbers."""
        parts = [self.x, *(self.test[:1] if self.test else ())]
        floats = self.x.is_floating_point()
        if floats and any(bool((part != part.floor()).any()) or bool((part.abs() >= 2**24).any()) for part in parts):
            return None
        x, *test_x = (part.to(torch.int64 if floats else dtype) for part in parts)
        return replace(self, x=x, test=None if self.test is None else (test_x[0], self.test[1]))

    def thinned(self, samples: int) -> Federation:
        """The same clients with about `samples` training samples, and at most as many test samples.

        Of each client with samples one or more stay; of more than `samples` such clients, as many, evenly apart, keep one. What stays
        is spread evenly over each client's samples and over the test set; every sample stays where there are no more.
        """
        kept = np.where(self.sizes > 0, np.minimum(self.sizes, np.maximum(1, self.sizes * samples // len(self.y))), 0)
        holders = np.flatnonzero(kept)
        if samples < len(holders):
            kept = np.zeros_like(kept)
            kept[holders[_spread(len(holders), samples)]] = 1
        offsets = np.concatenate([[0], np.cumsum(kept)])
        owner = np.repeat(np.arange(len(kept)), kept)
        chosen = self.offsets[owner] + (np.arange(len(owner)) - offsets[owner]) * self.sizes[owner] // kept[owner]
        places, tested = torch.from_numpy(chosen).to(self.y.device), None
        if self.test is not None:
            tested = _spread(len(self.test[1]), samples)
        return replace(
            self,
            x=self.x[places] if self.rows is None else self.x,
            y=self.y[places],
            offsets=offsets,
            rows=None if self.rows is None else self.rows[places],
            test=None if self.test is None else (self.test[0][tested], self.test[1][tested]),
            test_owners=None if self.test_owners is None else self.test_owners[tested],
        )

    def fingerprint(self) -> str:
        """A hash of all samples and of the clients that hold them."""
        digest = hashlib.blake2b(repr((self.ids, self.classes)).encode(), digest_size=16)
        for tensor in (self.x, self.y, *(self.test or ()), *([] if self.rows is None else [self.rows])):
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().cpu().numpy().reshape(-1).data)
        if self.test_owners is not None:
            digest.update(self.test_owners.astype(np.int64).tobytes())
        digest.update(self.offsets.astype(np.int64).tobytes())
        return digest.hexdigest()


def _spread(size: int, wanted: int) -> np.ndarray:
    """Positions among `size`, at most `wanted`, evenly apart."""
    held = min(size, wanted)
    return np.arange(held) * size // max(held, 1)


def _is_mapped(x: Any) -> bool:
    """Whether an array is a file in memory, of which the system keeps in RAM what it can spare."""
    while isinstance(x, np.ndarray):
        if isinstance(x, np.memmap):
            return True
        x = x.base
    return False


def _checked(classes: Sequence[str]) -> tuple[str, ...]:
    if len(set(classes)) != len(classes):
        raise BadInput("classes", "holds a name twice", value=list(classes), remedy="Give different names")
    return tuple(classes)


def _test_set(
    test: tuple[Any, Any], classes: tuple[str, ...] | None, like: Tensor, labels: Tensor, ignored: int | None
) -> tuple[Tensor, Tensor]:
    x, y = as_features("test x", test[0]), encode_labels("test y", test[1], classes, ignored)
    if len(x) != len(y) or x.shape[1:] != like.shape[1:] or y.shape[1:] != labels.shape[1:]:
        raise BadInput(
            "test",
            f"has {len(y)} targets of shape {tuple(y.shape[1:])} and samples of shape {tuple(x.shape)}",
            remedy="Give one target a sample, both shaped as in training",
        )
    return x, y
