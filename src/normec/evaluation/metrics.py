"""Metrics of the test set beside loss and accuracy: metrics by import path with arguments, and the errors of a regression."""

from __future__ import annotations

import copy
import inspect
import math
from typing import Any, Protocol

import torch
from pydantic import Field
from torch import Tensor

from normec.errors import BadInput
from normec.imports import load_object
from normec.models import Reading
from normec.settings import Settings, Text

SMALLER_IS_BETTER = ("train_loss", "test_loss", "rmse")


class Metric(Protocol):
    """The interface of a torchmetrics metric."""

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Adds a batch."""

    def compute(self) -> Any:
        """The value over all batches, a number."""

    def reset(self) -> None:
        """Forgets the batches."""


class NamedMetric(Settings):
    """A metric by its import path, and the arguments with which it is made."""

    name: Text
    arguments: dict[str, Any] = Field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name with its arguments, such as MulticlassF1Score(average=micro)."""
        given = ", ".join(f"{key}={value}" for key, value in self.arguments.items())
        return self.name.rpartition(":")[2] + (f"({given})" if given else "")


class RMSE:
    """The root of the mean squared error, over all numbers."""

    def reset(self) -> None:
        self.squares, self.numbers = 0.0, 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.squares += float((outputs.double() - targets.double()).square().sum())
        self.numbers += targets.numel()

    def compute(self) -> float:
        return math.sqrt(self.squares / self.numbers)


class R2:
    """1 − squared error / squared deviation from the mean, averaged over the numbers of a target that are not all the same."""

    def reset(self) -> None:
        self.samples: int = 0
        self.sums: Tensor | float = 0.0
        self.squares: Tensor | float = 0.0
        self.errors: Tensor | float = 0.0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        y, estimates = targets.double().flatten(1) if targets.ndim > 1 else targets.double()[:, None], outputs.double()
        if not self.samples:
            self.origin = y[0]  # near the numbers, so that their squares do not cancel
        self.samples += len(y)
        self.sums = self.sums + (y - self.origin).sum(0)
        self.squares = self.squares + (y - self.origin).square().sum(0)
        self.errors = self.errors + (estimates.reshape(y.shape) - y).square().sum(0)

    def compute(self) -> float:
        sums, squares, errors = (torch.as_tensor(each) for each in (self.sums, self.squares, self.errors))
        spread = squares - sums.square() / self.samples
        moves = spread > 1e-12 * squares
        return float((1 - errors[moves] / spread[moves]).mean())


def built(chosen: list[NamedMetric], reading: Reading, classes: int | None, labels: int) -> dict[str, Metric]:
    """Metrics by name, or by path where two share a name; for estimates of numbers also the errors `rmse` and `r2`.

    One that asks for `task`, `num_classes`, `num_labels` or `ignore_index` is told. labels: how many targets a sample has.

    Raises:
        BadInput: for what is not a metric, or does not suit the outputs.
    """
    kind = "multiclass" if reading.kind != "score" else "binary" if labels == 1 else "multilabel"
    offered: dict[str, object] = {"task": kind, "num_classes": 2 if reading.kind == "score" else classes, "num_labels": labels}
    if reading.left_out:
        offered["ignore_index"] = reading.ignored[0]
    names = [each.label for each in chosen]
    made = {each.name if names.count(each.label) > 1 else each.label: _made(each, offered, reading, classes) for each in chosen}
    return made | ({"rmse": RMSE(), "r2": R2()} if reading.kind == "numbers" else {})


def _made(chosen: NamedMetric, offered: dict[str, object], reading: Reading, classes: int | None) -> Metric:
    kind, path = load_object("evaluation.metrics", chosen.name), chosen.name
    try:
        if not isinstance(kind, type) and _is_metric(kind) and not chosen.arguments:
            metric: Metric = copy.deepcopy(kind)  # an object, made already
        else:
            asked = inspect.signature(kind.__new__ if "__new__" in vars(kind) else kind).parameters
            metric = kind(**({name: value for name, value in offered.items() if name in asked} | chosen.arguments))
    except Exception as error:  # whatever a foreign class raises
        raise BadInput(
            "evaluation.metrics", f": {path} cannot be made ({type(error).__name__}: {error})", remedy="Name another metric"
        ) from error
    if not _is_metric(metric):
        raise BadInput("evaluation.metrics", f": {path} is not a metric: it needs update, compute and reset", remedy="Name another one")
    if _wants(metric) == "Binary" and not (reading.kind == "score" or (reading.kind == "classes" and classes == 2)):
        held = f"{classes} classes" if reading.kind == "classes" else "no two classes"
        raise BadInput("evaluation.metrics", f": {path} is of two classes, and the model names {held}", remedy="Name another metric")
    return metric


def _is_metric(candidate: object) -> bool:
    return all(callable(getattr(candidate, name, None)) for name in ("update", "compute", "reset"))


def _wants(metric: Metric) -> str | None:
    """What the name of a metric of torchmetrics says of its inputs."""
    return next((word for word in ("Binary", "Multiclass", "Multilabel") if type(metric).__name__.startswith(word)), None)


def update(name: str, metric: Metric, reading: Reading, outputs: Tensor, targets: Tensor) -> None:
    """Gives a batch to a metric: probabilities of classes where its name asks for them, else outputs and targets as they are.

    Raises:
        BadInput: where it does not take them.
    """
    try:
        metric.update(*_inputs(_wants(metric), reading, outputs.cpu(), targets.cpu()))
    except Exception as error:  # whatever a foreign class raises
        reason = " ".join(str(error).split()).rstrip(".")
        raise BadInput(
            "evaluation.metrics",
            f": {name} does not take outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)} ({reason})",
            remedy="Name another metric",
        ) from error


def _inputs(wanted: str | None, reading: Reading, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    if reading.kind == "numbers":
        shape = targets.shape[:-1] if targets.ndim > 1 and targets.shape[-1] == 1 else targets.shape
        return outputs.reshape(shape), targets.reshape(shape)
    if wanted is None or not reading.classifies:
        return outputs, targets
    labels = reading.labels(targets)
    if wanted == "Multiclass" and reading.kind == "classes":
        scores = outputs.double().softmax(reading.axis)
        return scores.movedim(reading.axis, 1), labels
    second = reading.probability(outputs).reshape(targets.shape)
    if wanted == "Multiclass":
        return torch.stack([1 - second, second], dim=1).flatten(2).squeeze(2), labels.flatten(1).squeeze(1) if labels.ndim > 1 else labels
    return second, labels


def result(name: str, metric: Metric) -> float | None:
    """A metric's value; None where it is not finite.

    Raises:
        BadInput: where it gives no number.
    """
    try:
        value = float(metric.compute())
    except Exception as error:  # whatever a foreign class raises
        raise BadInput("evaluation.metrics", f": {name} gives no number ({error})", remedy="Name another metric") from error
    return value if math.isfinite(value) else None
