"""Losses, accuracy and other metrics of a model on a federation, pooled and by client. They only read, and use no random stream."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from normec.data import Federation
from normec.errors import FAILURES, BadInput, TrainingFailed, nearest, some_of
from normec.evaluation.losses import SAMPLES_AT_ONCE, client_losses
from normec.evaluation.metrics import SMALLER_IS_BETTER, Metric, NamedMetric, built, result, update
from normec.models import FlatModel, Reading
from normec.settings import Count, Settings, Text

Metrics = Annotated[
    tuple[Text | NamedMetric, ...],
    Field(strict=False, description='a list of import paths, such as ["a:B"], or of {name="a:B", arguments={c=1}}'),
]


class Evaluation(Settings):
    """The `[evaluation]` section. metrics: of the test set, import paths of torchmetrics metrics or the like, such as
    "torchmetrics.classification:MulticlassF1Score", or {name="…", arguments={average="micro"}}. samples: about how many training samples,
    and at most how many test samples, a round's losses and accuracy are taken on, spread evenly over the clients; by default all.
    best: the number by which the best model is kept beside the last one: test_accuracy, test_loss, train_loss or a metric's name.
    best_is: which of its values are better, where that is not known.
    """

    metrics: Metrics = ()
    samples: Count | None = None
    best: Text | None = None
    best_is: Literal["largest", "smallest"] | None = None

    def __init__(self, /, **values: Any) -> None:
        super().__init__(**values)
        if self.best_is is not None and self.best is None:
            raise BadInput("best_is", "acts only with best", value=self.best_is, remedy="Set best, or remove it")

    def build(self, federation: Federation, reading: Reading) -> dict[str, Metric]:
        """The metrics, as `metrics.built`; none where none is asked for and there is no test set.

        Raises:
            BadInput: for a path that leads to no such metric, and where there is no test set.
        """
        chosen = [each if isinstance(each, NamedMetric) else NamedMetric(name=each) for each in self.metrics]
        if federation.test is None:
            if chosen:
                shown = [each.label for each in chosen]
                raise BadInput("evaluation.metrics", "needs a test set", value=shown, remedy="Raise data.test_fraction, or remove it")
            return {}
        return built(chosen, reading, len(federation.classes) if federation.classes else None, math.prod(federation.y.shape[1:]))

    def larger_is_better(self, metrics: dict[str, Metric], reading: Reading, tested: bool) -> bool:
        """Which values of the number `best` are better; true where there is no such number.

        Raises:
            BadInput: for a number that the run does not have, and for a metric that does not say.
        """
        held = ["train_loss", *(["test_loss"] if tested else ()), *(["test_accuracy"] if tested and reading.classifies else ()), *metrics]
        if self.best is None or (self.best_is is not None and self.best in held):
            return self.best_is != "smallest"
        if self.best not in held:
            raise BadInput("evaluation.best", "is not a number of this run", value=self.best, remedy=nearest(self.best, held))
        known = self.best in ("test_accuracy", "r2", *SMALLER_IS_BETTER)
        said = self.best not in SMALLER_IS_BETTER if known else getattr(metrics[self.best], "higher_is_better", None)
        if said is None:
            raise BadInput(
                "evaluation.best",
                ": the metric does not say which of its values are better",
                value=self.best,
                remedy='Set evaluation.best_is to "largest" or "smallest"',
            )
        return bool(said)


class ScoresRow(TypedDict):
    """Scores as metrics.jsonl holds them. metrics: of a run that has any."""

    train_loss: float | None
    test_loss: float | None
    test_accuracy: float | None
    metrics: NotRequired[dict[str, float | None]]


class Scores(NamedTuple):
    """train_loss: mean over the clients with samples of each one's mean loss. test_*: pooled, None without a test set.

    test_accuracy: the share of targets whose class is named rightly, None for a model that does not classify. metrics: the others.
    broken: the clients whose training loss is not finite, where that may be told.
    """

    train_loss: float | None = None
    test_loss: float | None = None
    test_accuracy: float | None = None
    metrics: dict[str, float | None] | None = None
    broken: tuple[Hashable, ...] = ()

    def row(self) -> ScoresRow:
        """The scores as metrics.jsonl holds them."""
        row: ScoresRow = {"train_loss": self.train_loss, "test_loss": self.test_loss, "test_accuracy": self.test_accuracy}
        return {**row, "metrics": self.metrics} if self.metrics else row


@torch.no_grad()
def evaluate(model: FlatModel, x: Tensor, federation: Federation, metrics: dict[str, Metric], drop_broken: bool = False) -> Scores:
    """Scores of the parameters x (d,).

    drop_broken: leave clients on which the model fails, or whose loss is not finite, out of the mean, as their messages are under
    privacy.

    Raises:
        BadInput: where a metric cannot take the model's outputs, or gives no number.
        ModelFailed: where the model fails on a client's samples, naming it; not with `drop_broken`.
    """
    test_loss, test_accuracy = _test(model, x, federation, metrics)
    losses = client_losses(model, x, federation, drop_broken)
    counted = losses[losses.isfinite()] if drop_broken else losses
    holders = np.flatnonzero(federation.sizes)
    broken = () if drop_broken else tuple(federation.ids[holder] for holder in holders[~losses.isfinite().cpu().numpy()])
    others = {name: result(name, metric) for name, metric in metrics.items()} if federation.test else None
    train_loss = float(counted.mean()) if len(counted) else None
    return Scores(train_loss=train_loss, test_loss=test_loss, test_accuracy=test_accuracy, metrics=others, broken=broken)


def refuse_broken(scores: Scores, rounds_done: int, clients: int) -> None:
    """Ends a run whose losses are not finite; the error names the clients where that may be told.

    Raises:
        TrainingFailed: where a loss is not finite.
    """
    remedy = "Lower algorithm.server_lr or local.lr{}"
    if not rounds_done:
        remedy = "No step has been taken yet: check the data{}, the model's first parameters and the loss"
    whose = f", because of {some_of(scores.broken, clients, 'client')}" if scores.broken else ""
    of = " of such clients" if whose and not rounds_done else ", or check the data of such clients" if whose else ""
    for name, value, because, data in (("training", scores.train_loss, whose, of), ("test", scores.test_loss, "", "")):
        if value is not None and not math.isfinite(value):
            raise TrainingFailed(f"round {rounds_done}: the {name} loss is {value}{because}. {remedy.format(data)}.")


@torch.no_grad()
def objective(model: FlatModel, x: Tensor, federation: Federation) -> float:
    """f(x): the mean over all clients of the mean loss on their whole data, zero without samples; NaN where the model fails on one."""
    return float(client_losses(model, x, federation, tolerant=True).sum()) / len(federation)


def gradient(model: FlatModel, x: Tensor, federation: Federation) -> Tensor:
    """∇f(x), (d,) in float64: the mean over all clients of the gradients of their whole data; NaN where the model fails on one."""
    total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    own = torch.empty_like(x)
    for client in range(len(federation)):
        try:
            model.gradient(x, federation.client(client), out=own)
        except FAILURES:  # whatever a user's module raises: f has no gradient
            own.fill_(math.nan)
        total += own
    return total / len(federation)


def _test(model: FlatModel, x: Tensor, federation: Federation, metrics: dict[str, Metric]) -> tuple[float | None, float | None]:
    if federation.test is None:
        return None, None
    for metric in metrics.values():
        metric.reset()
    return mean_scores(model, x, *federation.test, metrics)


def mean_scores(model: FlatModel, x: Tensor, features: Tensor, labels: Tensor, metrics: dict[str, Metric]) -> tuple[float, float | None]:
    """The mean loss of some samples and the share of right classes, None where nothing is classified; the metrics take them in."""
    loss, right, counted = 0.0, 0, 0
    for outputs, targets in _batches(model, x, features, labels):
        loss += float(model.objective(outputs, targets)) * len(targets)
        hits, held = model.reading.right(outputs, targets)
        right, counted = right + hits, counted + held
        for name, metric in metrics.items():
            update(name, metric, model.reading, outputs, targets)
    return loss / len(labels), share(right, counted)


def _batches(model: FlatModel, x: Tensor, features: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """(outputs, targets) of some samples at once."""
    for start in range(0, len(targets), SAMPLES_AT_ONCE):
        chosen = slice(start, start + SAMPLES_AT_ONCE)
        yield model.outputs(x, features[chosen]), targets[chosen]


def share(right: int, counted: int) -> float | None:
    """The share of right classes; None where nothing was to be classified."""
    return right / counted if counted else None
