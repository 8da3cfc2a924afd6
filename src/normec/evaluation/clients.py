"""How each client fares, and how differently."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import Literal, TypedDict, overload

import numpy as np
import torch
from torch import Tensor

from normec.data import Federation
from normec.evaluation.evaluate import mean_scores, share
from normec.evaluation.losses import mean_losses, spans
from normec.models import FlatModel


class ClientScores(TypedDict):
    """How one client fares; the loss and the accuracy are None where it has no test samples."""

    client: int | str
    train_samples: int
    test_samples: int
    test_loss: float | None
    test_accuracy: float | None


class ByClient(Sequence[ClientScores]):
    """The rows of `by_client`: a client's id, its numbers of training and test samples, and its test loss and accuracy (None without any).

    Rows are made when they are asked for, since a million of them are large. ids, train_samples, test_samples: of the M clients.
    """

    def __init__(self, ids: tuple[Hashable, ...], train_samples: np.ndarray, test_samples: np.ndarray) -> None:
        self.ids, self.train_samples, self.test_samples = ids, train_samples, test_samples
        self.test_loss, self.test_accuracy = np.full((2, len(ids)), math.nan)

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> ClientScores: ...
    @overload
    def __getitem__(self, index: slice) -> list[ClientScores]: ...
    def __getitem__(self, index: int | slice) -> ClientScores | list[ClientScores]:
        if isinstance(index, slice):
            return list(self._rows(index))
        return next(self._rows(slice(index, index + 1 or None)))

    def __iter__(self) -> Iterator[ClientScores]:
        return self._rows(slice(None))

    def _rows(self, of: slice) -> Iterator[ClientScores]:
        numbers = (self.train_samples, self.test_samples, self.test_loss, self.test_accuracy)
        for client, train, test, loss, accuracy in zip(self.ids[of], *(each[of].tolist() for each in numbers), strict=True):
            yield {
                "client": client if isinstance(client, str | int) else str(client),
                "train_samples": train,
                "test_samples": test,
                "test_loss": loss if math.isfinite(loss) else None,
                "test_accuracy": None if math.isnan(accuracy) else accuracy,
            }


@torch.no_grad()
def by_client(model: FlatModel, x: Tensor, federation: Federation) -> ByClient:
    """How each client fares."""
    owners = np.zeros(0, dtype=np.int64) if federation.test is None or federation.test_owners is None else federation.test_owners
    order, held = np.argsort(owners, kind="stable"), np.bincount(owners, minlength=len(federation))
    ends, rows = np.cumsum(held), ByClient(federation.ids, federation.sizes, held)
    if federation.test is None:
        return rows
    for first, last in spans(held, alone=model.mixes_samples):
        tested = first + np.flatnonzero(held[first:last])
        own = torch.from_numpy(order[ends[first] - held[first] : ends[last - 1]]).to(x.device)
        features, targets = federation.test[0][own], federation.test[1][own]
        if len(tested) == 1:
            scores = [mean_scores(model, x, features, targets, {})]
        else:
            outputs = model.outputs(x, features)
            losses = mean_losses(model, outputs, targets, held[tested]).tolist()
            parts = [torch.split(each, held[tested].tolist()) for each in (outputs, targets)]
            scores = [(loss, share(*model.reading.right(*part))) for loss, *part in zip(losses, *parts, strict=True)]
        rows.test_loss[tested], rows.test_accuracy[tested] = np.array(scores, dtype=np.float64).T  # None becomes NaN
    return rows


class Spread(TypedDict):
    """How differently clients fare. metric: the number that the others are of. clients: with test samples."""

    metric: Literal["test_accuracy", "test_loss"]
    clients: int
    clients_without_test_samples: int
    mean: float
    median: float
    worst_decile: float
    best: float


def spread(rows: Sequence[ClientScores]) -> Spread | None:
    """How differently the clients of `by_client` fare: mean, median, best and the mean of the worst tenth of their accuracies (of their
    losses where nothing is classified); None where no client has test data.
    """
    tested = [(row["test_accuracy"], row["test_loss"]) for row in rows if row["test_samples"]]
    classifies = bool(tested) and all(accuracy is not None for accuracy, _ in tested)
    kind: Literal["test_accuracy", "test_loss"] = "test_accuracy" if classifies else "test_loss"
    values = np.sort([value for accuracy, loss in tested if (value := accuracy if classifies else loss) is not None])
    if not len(values):
        return None
    worst_first = values if kind == "test_accuracy" else values[::-1]
    return {
        "metric": kind,
        "clients": len(values),
        "clients_without_test_samples": len(rows) - len(tested),
        "mean": float(values.mean()),
        "median": float(np.median(values)),
        "worst_decile": float(worst_first[: math.ceil(len(values) / 10)].mean()),
        "best": float(worst_first[-1]),
    }
