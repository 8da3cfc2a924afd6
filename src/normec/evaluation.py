"""Losses, accuracy and other metrics of a model on a federation, pooled and by client; pure reads that no random stream notices."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from normec.data import Federation
from normec.errors import BadInput
from normec.imports import load_object
from normec.models import FlatModel
from normec.settings import Count, Settings, Texts

SAMPLES_AT_ONCE = 1024


NOT_TESTED = {"test_samples": 0, "test_loss": None, "test_accuracy": None}


class Evaluation(Settings):
    """The `[evaluation]` section. metrics: import paths of torchmetrics metrics, such as
    "torchmetrics.classification:MulticlassF1Score", for the test set. samples: about how many training samples, and at most how many
    test samples, a round's losses and accuracy are taken on, spread evenly over the clients; by default all.
    """

    metrics: Texts = ()
    samples: Count | None = None

    def build(self, federation: Federation) -> dict[str, Metric]:
        """The metrics by their names, or paths where two have one name; one that asks for `task` or `num_classes` is told.

        Raises:
            BadInput: for a path that leads to no such metric, and where there is no test set.
        """
        if self.metrics and federation.test is None:
            raise BadInput("evaluation.metrics", f"={list(self.metrics)} needs a test set. Raise data.test_fraction, or remove it.")
        names = [path.rpartition(":")[2] for path in self.metrics]
        classes = len(federation.classes) if federation.classes else None
        return {path if names.count(name) > 1 else name: _metric(path, classes) for path, name in zip(self.metrics, names, strict=True)}


class Metric(Protocol):
    """What a torchmetrics metric does."""

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Takes in a batch."""

    def compute(self) -> Any:
        """The value over all batches, a number."""

    def reset(self) -> None:
        """Forgets the batches."""


class Scores(NamedTuple):
    """train_loss: mean over the clients with samples of each one's mean loss. test_*: pooled, None without a test set.

    test_accuracy: the share of right classes, None for a model that does not classify. metrics: the other ones, by name.
    """

    train_loss: float | None = None
    test_loss: float | None = None
    test_accuracy: float | None = None
    metrics: dict[str, float | None] | None = None

    def row(self) -> dict[str, Any]:
        """As in metrics.jsonl."""
        named = self._asdict()
        return named if self.metrics else {name: value for name, value in named.items() if name != "metrics"}


@torch.no_grad()
def evaluate(model: FlatModel, x: Tensor, federation: Federation, metrics: dict[str, Metric], drop_broken: bool = False) -> Scores:
    """Scores of the parameters x (d,).

    drop_broken: leave clients whose loss is not finite out of the mean, as their messages are under privacy.

    Raises:
        BadInput: where a metric cannot take the model's outputs, or gives no number.
    """
    test_loss, test_accuracy = _test(model, x, federation, metrics)
    losses = _client_losses(model, x, federation)
    counted = losses[losses.isfinite()] if drop_broken else losses
    found = {name: _value(name, metric) for name, metric in metrics.items()} if federation.test else None
    return Scores(float(counted.mean()) if len(counted) else None, test_loss, test_accuracy, found)


@torch.no_grad()
def by_client(model: FlatModel, x: Tensor, federation: Federation) -> list[dict[str, Any]]:
    """Of each client: its id, numbers of training and test samples, and on the latter mean loss and accuracy, None without any."""
    rows: list[dict[str, Any]] = [
        {"client": client if isinstance(client, str | int) else str(client), "train_samples": int(size)} | NOT_TESTED
        for client, size in zip(federation.ids, federation.sizes, strict=True)
    ]  # fmt: skip
    if federation.test is None or federation.test_owners is None:
        return rows
    order = np.argsort(federation.test_owners, kind="stable")
    clients, starts = np.unique(federation.test_owners[order], return_index=True)
    for client, rows_of in zip(clients.tolist(), np.split(order, starts[1:]), strict=True):
        own = torch.from_numpy(rows_of).to(x.device)
        loss, accuracy = _mean_scores(model, x, federation.test[0][own], federation.test[1][own], {})
        rows[client] |= {"test_samples": len(own), "test_loss": loss if math.isfinite(loss) else None, "test_accuracy": accuracy}
    return rows


def spread(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """How unlike the clients of `by_client` fare: of their accuracies (of losses where nothing is classified) mean, median, best
    and the mean of the worst tenth; None where no client has test data.
    """
    tested = [row for row in rows if row["test_samples"]]
    kind = "test_accuracy" if tested and all(row["test_accuracy"] is not None for row in tested) else "test_loss"
    values = np.sort([row[kind] for row in tested if row[kind] is not None])
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


def gradient(model: FlatModel, x: Tensor, federation: Federation) -> Tensor:
    """∇f(x), (d,) in float64: the mean over all clients of the gradients of their whole data."""
    total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    own = torch.empty_like(x)
    for client in range(len(federation)):
        model.gradient(x, federation.client(client), out=own)
        total += own
    return total / len(federation)


def _client_losses(model: FlatModel, x: Tensor, federation: Federation) -> Tensor:
    """The mean loss of each client with samples, in float64."""
    losses = []
    for clients in _groups(federation):
        samples = [federation.client(client) for client in clients]
        outputs = model.outputs(x, torch.cat([features for features, _ in samples]))
        parts = torch.split(outputs, [len(targets) for _, targets in samples])
        losses += [model.objective(part, targets) for part, (_, targets) in zip(parts, samples, strict=True)]
    return torch.stack(losses).double()


def _groups(federation: Federation) -> list[list[int]]:
    """Clients with samples, in groups of about SAMPLES_AT_ONCE samples."""
    groups: list[list[int]] = [[]]
    held = 0
    for client in np.flatnonzero(federation.sizes).tolist():
        size = int(federation.sizes[client])
        if held and held + size > SAMPLES_AT_ONCE:
            groups.append([])
            held = 0
        groups[-1].append(client)
        held += size
    return groups


def _test(model: FlatModel, x: Tensor, federation: Federation, metrics: dict[str, Metric]) -> tuple[float | None, float | None]:
    if federation.test is None:
        return None, None
    for metric in metrics.values():
        metric.reset()
    return _mean_scores(model, x, *federation.test, metrics)


def _mean_scores(model: FlatModel, x: Tensor, features: Tensor, labels: Tensor, metrics: dict[str, Metric]) -> tuple[float, float | None]:
    """The mean loss of some samples and the share of right classes, None where nothing is classified; the metrics take them in."""
    loss, right, classifies = 0.0, 0, True
    for outputs, targets in _batches(model, x, features, labels):
        loss += float(model.objective(outputs, targets)) * len(targets)
        classifies = classifies and _classifies(outputs, targets)
        right += int((outputs.argmax(1) == targets).sum()) if classifies else 0
        for name, metric in metrics.items():
            _update(name, metric, outputs, targets)
    return loss / len(labels), right / len(labels) if classifies else None


def _batches(model: FlatModel, x: Tensor, features: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """(outputs, targets) of some samples at once."""
    for start in range(0, len(targets), SAMPLES_AT_ONCE):
        chosen = slice(start, start + SAMPLES_AT_ONCE)
        yield model.outputs(x, features[chosen]), targets[chosen]


def _classifies(outputs: Tensor, targets: Tensor) -> bool:
    return not targets.is_floating_point() and outputs.ndim == 2


def _metric(path: str, classes: int | None) -> Metric:
    kind = load_object("evaluation.metrics", path)
    offered: dict[str, Any] = {"task": "multiclass", "num_classes": classes}
    try:
        asked = inspect.signature(kind.__new__ if "__new__" in vars(kind) else kind).parameters
        metric = kind(**{name: value for name, value in offered.items() if name in asked})
    except Exception as error:  # whatever a foreign class raises
        raise BadInput("evaluation.metrics", f": {path} cannot be made ({type(error).__name__}: {error}). Name another metric.") from error
    if not all(callable(getattr(metric, name, None)) for name in ("update", "compute", "reset")):
        raise BadInput("evaluation.metrics", f": {path} is no metric: it needs update, compute and reset. Name another one.")
    found: Metric = metric
    return found


def _update(name: str, metric: Metric, outputs: Tensor, targets: Tensor) -> None:
    try:
        metric.update(outputs.cpu(), targets.cpu())
    except Exception as error:  # whatever a foreign class raises
        reason = " ".join(str(error).split()).rstrip(".")
        problem = f": {name} does not take outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)} ({reason})."
        raise BadInput("evaluation.metrics", f"{problem} Name another metric.") from error


def _value(name: str, metric: Metric) -> float | None:
    """A metric's value; None where it is not finite."""
    try:
        value = float(metric.compute())
    except Exception as error:  # whatever a foreign class raises
        raise BadInput("evaluation.metrics", f": {name} gives no number ({error}). Name another metric.") from error
    return value if math.isfinite(value) else None
