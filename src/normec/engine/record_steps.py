"""The backend `records`: local steps on noised sums of bounded gradients of records, for record-level privacy.

y ← y − (γ / T) ((S + noise) / (q n_i) + ∇penalty(y) + correction + μ (y − x)), where S is a `records.BoundedSum` of the step's
mini-batch. The noise belongs to the mechanism: what is added to a sum is a function that the backend is given. An empty
mini-batch is noised too, and takes its step.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from normec.engine.loop import Failures, Loop, Task
from normec.engine.records import FILL, BoundedSum, Choice, in_line
from normec.engine.together import held, walk
from normec.engine.vmap import Vmap
from normec.errors import FAILURES
from normec.models import FlatModel
from normec.operators import Radial
from normec.streams import seed_global_generator

Noised = Callable[[Tensor, int, int, int], Tensor]
"""(S (d,) in float64, the client's position, round, step) → S with the noise of that step, (d,) in float64."""
MOST_KEPT = 2**24
"""Numbers of the features of mini-batches that are kept for the next step."""


class RecordSteps:
    """Local updates from noised sums; an update does not depend on which clients share its block.

    choice: how sums are computed. operator: κ, of each record's gradient. noised: adds the noise.
    """

    name = "records"

    def __init__(self, choice: Choice, operator: Radial, noised: Noised) -> None:
        self.choice, self.operator, self.noised = choice, operator, noised
        alike = Vmap if choice.together else Loop
        self.most_rows, self.most_numbers = alike.most_rows, alike.most_numbers
        self._sums: dict[int, BoundedSum] = {}

    def updates(self, model: FlatModel, x: Tensor, tasks: Sequence[Task], k: int, out: Tensor, buffers: Tensor) -> Failures:
        """As `Backend.updates`, for models without moving buffers.

        A failing record adds zero; only a penalty that fails at a client's vector makes the update NaN.
        """
        if id(model) not in self._sums:
            self._sums[id(model)] = BoundedSum(model, self.operator, self.choice)
        failures: Failures = {}
        for rows in self._groups(tasks):
            batches = Batches([tasks[row] for row in rows], self._sums[id(model)].way.at_once, fill=self.choice.together)
            if model.stochastic:
                seed_global_generator(batches.tasks[0].seed(), x.device)

            def add(total: Tensor, vectors: Tensor, step: int, rows: list[int] = rows, batches: Batches = batches) -> None:
                self._add_released(total, model, vectors, batches, k, step)
                failures.update({rows[row]: error for row, error in _add_penalties(model, total, vectors).items()})

            out[rows] = walk(x, batches.tasks, len(batches.tasks[0].schedule), add)
        return failures

    def _groups(self, tasks: Sequence[Task]) -> list[list[int]]:
        """The positions of tasks that walk together: those of as many steps, or each alone."""
        groups: defaultdict[int, list[int]] = defaultdict(list)
        for position, task in enumerate(tasks):
            groups[len(task.schedule) if self.choice.together else position].append(position)
        return list(groups.values())

    def _add_released(self, total: Tensor, model: FlatModel, vectors: Tensor, batches: Batches, k: int, step: int) -> None:
        """Adds to the total (G, d) the noised sums of the clients' mini-batches at their vectors (G, d), over q n_i."""
        bounded, tasks = self._sums[id(model)], batches.tasks
        for rows, features, targets, weights in batches.of(step):
            sums = bounded(in_line(vectors, rows), features, targets, weights.to(vectors.dtype) * _class_weights(model, targets))
            self._release(sums, [tasks[row] for row in rows], k, step)
            total[rows] += sums
        empty = [row for row, task in enumerate(tasks) if not held(task, step)]
        if empty:
            sums = torch.zeros(len(empty), total.shape[1], dtype=torch.float64, device=total.device)
            self._release(sums, [tasks[row] for row in empty], k, step)
            total[empty] += sums

    def _release(self, sums: Tensor, tasks: list[Task], k: int, step: int) -> None:
        """Noises each client's sum and divides it, in place."""
        for own, task in zip(sums, tasks, strict=True):
            released = self.noised(own, task.position, k, step)
            if released is not own:
                own.copy_(released)
        divisors = [task.steps.divisor or held(task, step) for task in tasks]
        sums /= torch.tensor(divisors, dtype=torch.float64, device=sums.device)[:, None]


Block = tuple[list[int], Tensor, Tensor, Tensor]
"""Rows, and of their mini-batches features (G, n, …), targets (G, n, …) and weights (bool, (G, n)): false where a record fills up."""


class Batches:
    """The mini-batches of clients that step together, in blocks of bounded memory; without empty ones.

    fill: whether they are filled up, each to a length that depends on its own alone, so that clients share a block. Those that are
    the same in the next step are kept.
    """

    def __init__(self, tasks: list[Task], at_once: int, fill: bool) -> None:
        self.tasks, self.at_once, self.fill = tasks, at_once, fill
        self._kept: list[Block] = []

    def of(self, step: int) -> Iterable[Block]:
        """The blocks of a step, in the order of steps."""
        if self._kept and self._repeats(step - 1):
            return self._kept
        self._kept = []
        numbers = sum(held(task, step) for task in self.tasks) * self.tasks[0].samples[0].shape[1:].numel()
        if numbers > MOST_KEPT or not self._repeats(step):
            return self._made(step)
        self._kept = list(self._made(step))
        return self._kept

    def _repeats(self, step: int) -> bool:
        return all(step + 1 < len(task.schedule) and task.schedule[step + 1] is task.schedule[step] for task in self.tasks)

    def _made(self, step: int) -> Iterator[Block]:
        groups: defaultdict[int, list[int]] = defaultdict(list)
        for row, task in enumerate(self.tasks):
            length = held(task, step)
            if length:
                groups[_filled(length) if self.fill else length].append(row)
        for length, rows in groups.items():
            most = max(1, self.at_once // length)
            for block in (rows[start : start + most] for start in range(0, len(rows), most)):
                yield block, *_filled_up([self.tasks[row] for row in block], step, length)


def _filled(length: int) -> int:
    """The next multiple of `FILL`; from 256 on of a power of two that is a sixteenth to an eighth of the length."""
    step = max(FILL, 1 << max(length.bit_length() - 4, 0))
    return -(-length // step) * step


def _add_penalties(model: FlatModel, total: Tensor, vectors: Tensor) -> Failures:
    """Adds the gradients of the module's penalty at vectors (G, d) to the total; returns where it fails, which becomes NaN."""
    failures: Failures = {}
    for row, vector in enumerate(vectors if hasattr(model.module, "penalty") else ()):
        model.enter(vector, training=True)
        try:
            penalty: Tensor = model.module.penalty()  # type: ignore[operator]
            gradients = torch.autograd.grad(penalty, model.parameters, allow_unused=True, materialize_grads=True)
            total[row] += torch.cat([each.reshape(-1) for each in gradients])
        except FAILURES as error:  # whatever a user's module raises
            failures[row] = error
            total[row].fill_(math.nan)
    return failures


def _filled_up(tasks: list[Task], step: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features (G, length, …) and targets of a step's mini-batches, and weights (G, length): 0 where the first record fills one up."""
    if len(tasks) == 1 and held(tasks[0], step) == length:
        features, targets = (part[tasks[0].schedule[step]] for part in tasks[0].samples)
        return features[None], targets[None], torch.ones(1, length, dtype=torch.bool, device=features.device)
    sizes = [held(task, step) for task in tasks]
    features, targets = (
        torch.empty(len(tasks), length, *part.shape[1:], dtype=part.dtype, device=part.device) for part in tasks[0].samples
    )
    for row, (task, size) in enumerate(zip(tasks, sizes, strict=True)):
        batch = task.schedule[step]
        records = np.arange(*batch.indices(task.samples[1].shape[0])) if isinstance(batch, slice) else batch
        places = torch.from_numpy(np.append(records, np.full(length - size, records[0]))).to(features.device)
        for part, out in zip(task.samples, (features, targets), strict=True):
            torch.index_select(part, 0, places, out=out[row])
    return features, targets, torch.arange(length, device=features.device) < torch.tensor(sizes, device=features.device)[:, None]


def _class_weights(model: FlatModel, targets: Tensor) -> Tensor | float:
    """Of each record its class's weight over the largest, where the loss weighs classes: in a batch of one, the mean cancels it.

    They multiply the bounded gradients, so that they act whatever the bound does, and at most by 1.
    """
    loss = model.loss
    weight = loss.weight if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss) and loss.reduction == "mean" else None
    return (
        1.0
        if weight is None or targets.is_floating_point() or targets.ndim > 2
        else (weight / weight.max())[targets.clamp(0, len(weight) - 1)]
    )
