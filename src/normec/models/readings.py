"""The meaning of a model's outputs, given its targets: decided once, by what the loss does to them.

A user-defined loss does not say whether it classifies. Outputs are scores per class where the loss raises that of the target's class above
all others; one score for two classes where the loss raises it for the second class and lowers it for the first, wherever it stands; an
estimate of a number where the loss draws it to the target from both sides. Otherwise no accuracy is named.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) → the mean loss of the batch, a scalar."""
MOST_CLASSES_TRIED = 64
TRIED = 2
"""Samples at a time on which a loss is tried."""
PAIRS = ((0.0, 1.0), (-1.0, 1.0))
"""The values by which two classes are told apart."""
POINTS = ((-3.0, 3.0, 0.0), (0.1, 0.9, 0.5))
"""From where to where a score is tried, and where it changes sides: a logit, and a probability for losses that take nothing else."""


class Fit(NamedTuple):
    """How a loss takes the targets. real: as floats. axis: 1 to add a last axis of one, −1 to remove it, 0 for neither."""

    real: bool = False
    axis: int = 0

    def __call__(self, targets: Tensor, dtype: torch.dtype) -> Tensor:
        """Targets (n, …), as the loss takes them."""
        shaped = targets.unsqueeze(-1) if self.axis > 0 else targets.squeeze(-1) if self.axis < 0 else targets
        return shaped.to(dtype) if self.real else shaped


def fits(outputs: Tensor, targets: Tensor) -> Iterator[Fit]:
    """The ways in which targets may fit outputs, the plainest first."""
    axes = [0]
    if outputs.shape == (*targets.shape, 1):
        axes.append(1)
    if targets.ndim > 1 and targets.shape[-1] == 1 and outputs.shape != targets.shape:
        axes.append(-1)
    for real in (False,) if targets.is_floating_point() else (False, True):
        yield from (Fit(real, axis) for axis in axes)


class Reading(NamedTuple):
    """kind: "classes" (a score for each, the largest wins), "score" (one of two classes, the second where it is above `threshold`),
    "numbers" (estimates of the targets), or None for outputs whose meaning is unknown.

    axis: of the scores. pair: the targets that stand for the two classes. ignored: targets that do not count; left_out: whether the
    data hold any.
    """

    kind: Literal["classes", "score", "numbers"] | None = None
    axis: int = 1
    threshold: float = 0.0
    pair: tuple[float, float] = PAIRS[0]
    ignored: tuple[int, ...] = ()
    left_out: bool = False

    @property
    def classifies(self) -> bool:
        return self.kind in ("classes", "score")

    def predicted(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The positions of the classes that outputs (n, …) name, shaped like the targets."""
        if self.kind == "classes":
            return outputs.argmax(self.axis)
        return (outputs > self.threshold).long().reshape(targets.shape)

    def labels(self, targets: Tensor) -> Tensor:
        """The positions of the classes that targets name."""
        return (targets == self.pair[1]).long() if self.kind == "score" else targets

    def counted(self, targets: Tensor) -> Tensor:
        """Mask (n, …) of the targets that count."""
        counts = torch.ones_like(targets, dtype=torch.bool)
        for value in self.ignored:
            counts &= targets != value
        return counts

    def right(self, outputs: Tensor, targets: Tensor) -> tuple[int, int]:
        """The number of targets that are named correctly, and the number that count; (0, 0) where nothing is classified."""
        if not self.classifies:
            return 0, 0
        hits = self.predicted(outputs, targets) == self.labels(targets)
        if not self.left_out:
            return int(hits.sum()), targets.numel()
        counts = self.counted(targets)
        return int((hits & counts).sum()), int(counts.sum())

    def largest_share(self, targets: Tensor) -> float | None:
        """The share of targets that always naming the commonest class gets right; None where nothing is classified."""
        counted = self.labels(targets)[self.counted(targets)]
        return float(counted.bincount().max()) / len(counted) if self.classifies and len(counted) else None

    def probability(self, outputs: Tensor) -> Tensor:
        """The probability of the second of two classes, in float64."""
        if self.kind == "classes":
            return outputs.double().softmax(self.axis).select(self.axis, 1)
        return outputs.double() if self.threshold else outputs.double().sigmoid()


def reading_of(loss: Loss, outputs: Tensor, targets: list[Tensor], classes: int | None) -> Reading:
    """The reading of the outputs (n, …) of a few samples. targets: those of all samples, training and test, as the loss takes them."""
    one = Trial(loss, tuple(outputs.shape[1:]), tuple(targets[0].shape[1:]), outputs.dtype, targets[0].dtype)
    if classes is not None and not targets[0].is_floating_point():
        for axis in one.axes(classes):
            passed_over = one.passed_over(classes, axis)
            if passed_over is not None:
                reading = Reading("classes", axis, ignored=tuple(sorted({ignore_index(loss), *passed_over})))
                return reading._replace(left_out=not all(bool(reading.counted(each).all()) for each in targets))
    if not one.alike:
        return Reading()
    for pair in PAIRS:
        if all(bool(((each == pair[0]) | (each == pair[1])).all()) for each in targets):
            threshold = one.threshold(pair)
            if threshold is not None:
                return Reading("score", threshold=threshold, pair=pair)
    return Reading("numbers") if one.draws_to_targets() else Reading()


def mixes(loss: Loss, outputs: Tensor, targets: Tensor) -> bool:
    """Whether the loss of a batch is seen to differ from the mean of its samples' losses, as where outputs (n, 1) meet targets (n,)."""
    try:
        together = loss(outputs, targets)
        alone = torch.stack([loss(outputs[i : i + 1], targets[i : i + 1]) for i in range(len(targets))])
    except Exception:  # whatever a user's loss raises on one sample
        return False
    return bool(((together - alone.mean()).abs() > 1e-3 * together.abs() + 1e-6).any())


def ignore_index(loss: Loss) -> int:
    """The target that a cross-entropy ignores; torch's default where a loss names none."""
    named = loss.keywords.get("ignore_index") if isinstance(loss, functools.partial) else getattr(loss, "ignore_index", None)
    return named if isinstance(named, int) else -100


def strangers(targets: list[Tensor], classes: int | None) -> list[int]:
    """The whole numbers among the targets that are not classes."""
    if classes is None or targets[0].is_floating_point():
        return []
    odd = [each[(each < 0) | (each >= classes)].cpu() for each in targets]
    return sorted(set(torch.cat(odd).tolist()))


def passes_over(loss: Loss, outputs: Tensor, targets: Tensor, value: int) -> bool:
    """Whether a loss ignores a target that is not a class."""
    one = Trial(loss, tuple(outputs.shape[1:]), tuple(targets.shape[1:]), outputs.dtype, targets.dtype)
    pull = one.pull(one.scores(), value)
    return pull is not None and not bool(pull.nan_to_num(0.0).any())


def names_two_classes(loss: Loss) -> bool:
    """Whether a loss separates two classes by one score, as binary cross-entropy does."""
    return Trial(loss, (1,), (1,), torch.float32, torch.float32).threshold(PAIRS[0]) is not None


def outputs_asked(loss: Loss, targets: Tensor, classes: int | None) -> int:
    """The number of outputs that a sample should have: a score for each class, or one number for each target (n, …)."""
    return targets[:1].numel() if classes is None or names_two_classes(loss) else classes


def wanted(loss: Loss) -> Literal["classes", "numbers"] | None:
    """The targets that a loss expects, where known: classes for torch's cross-entropies, numbers for a loss that draws to its targets."""
    if loss in (functional.cross_entropy, functional.nll_loss) or isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss):
        return "classes"
    counts = loss is functional.poisson_nll_loss or isinstance(loss, nn.PoissonNLLLoss)
    shapes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (((1,), (1,)), ((), ()), ((1,), ()))
    tried = (Trial(loss, outputs, targets, torch.float32, torch.float32) for outputs, targets in shapes)
    return "numbers" if counts or any(each.draws_to_targets() for each in tried) else None


class Trial:
    """A loss, tried on the CPU on outputs and targets of these shapes of one sample."""

    def __init__(self, loss: Loss, outputs: tuple[int, ...], targets: tuple[int, ...], dtype: torch.dtype, kind: torch.dtype) -> None:
        self.loss = copy.deepcopy(loss).cpu() if isinstance(loss, nn.Module) else loss
        self.outputs, self.targets, self.dtype, self.kind = outputs, targets, dtype, kind

    @property
    def alike(self) -> bool:
        """Whether there is one output for each target."""
        return self.outputs in (self.targets, (*self.targets, 1))

    def axes(self, classes: int) -> Iterator[int]:
        """The axes of outputs (n, …) that may hold a score for each class: as many, or where a target has several axes at least."""
        if len(self.outputs) != len(self.targets) + 1:
            return
        for axis, rest in ((1, self.outputs[1:]), (len(self.outputs), self.outputs[:-1])):
            scores = self.outputs[axis - 1]
            if rest == self.targets and (scores == classes or (self.targets and scores > classes > 1)):
                yield axis

    def scores(self) -> Tensor:
        """Scores between 0.2 and 0.8, so that a loss which takes probabilities accepts them too."""
        generator = torch.Generator().manual_seed(0)
        return 0.2 + 0.6 * torch.rand((TRIED, *self.outputs), generator=generator, dtype=self.dtype)

    def passed_over(self, classes: int, axis: int) -> list[int] | None:
        """The classes without any pull, where that of all others is on their own score; None where it is elsewhere."""
        scores, empty, favoured = self.scores(), [], 0
        step = -(-classes // MOST_CLASSES_TRIED)
        for label in sorted({*range(0, classes, step), classes - 1}):
            pull = self.pull(scores, label)
            if pull is None:
                return None
            if not bool(pull.nan_to_num(0.0).any()):
                empty.append(label)
                continue
            own = pull.select(axis, label)
            others = pull.index_fill(axis, torch.tensor([label]), torch.inf).amin(axis)
            if not bool(((own < 0) & (own < others)).all()):
                return None
            favoured += 1
        return empty if favoured else None

    def threshold(self, pair: tuple[float, float]) -> float | None:
        """Where one score changes sides, if the loss draws it down for the first class and up for the second, wherever it is."""
        for low, high, middle in POINTS:
            points = torch.linspace(low, high, 8, dtype=self.dtype)
            scores = points.reshape(8, *[1] * len(self.outputs)).expand(8, *self.outputs)
            down, up = (self.pull(scores, value) for value in pair)
            if down is None or up is None or not bool((down.isfinite() & up.isfinite()).all()):
                continue
            near = (points - middle).abs() < 0.5
            always = bool((down >= 0).all() and (up <= 0).all())
            return middle if always and bool((down[near] > 0).all() and (up[near] < 0).all()) else None
        return None

    def draws_to_targets(self) -> bool:
        """Whether the loss grows on both sides of a target."""
        targets = torch.linspace(1.5, 3.0, TRIED, dtype=self.dtype).reshape(TRIED, *[1] * len(self.targets)).expand(TRIED, *self.targets)
        for shift in (-1.0, -0.25, 0.25, 1.0):
            pull = self.pull((targets + shift).reshape(TRIED, *self.outputs), targets)
            if pull is None or not bool((pull.sign() == (1 if shift > 0 else -1)).all()):
                return False
        return True

    def pull(self, outputs: Tensor, target: float | Tensor) -> Tensor | None:
        """∂loss/∂outputs; zero where the loss does not depend on them, None where it fails."""
        if not isinstance(target, Tensor):
            target = torch.full((len(outputs), *self.targets), target, dtype=self.kind)
        moved = outputs.clone().requires_grad_(True)
        try:
            with warnings.catch_warnings(), torch.enable_grad():
                warnings.simplefilter("ignore")
                loss = self.loss(moved, target)
                (gradient,) = torch.autograd.grad(loss, moved, allow_unused=True, materialize_grads=True)
        except Exception:  # whatever a user's loss raises on what it does not take
            return None
        return gradient
