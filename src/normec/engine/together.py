"""Clients that step together: which ones can, their mini-batches as one tensor, and the steps themselves.

Clients whose mini-batches have the same lengths step together. Where there are many lengths and a mean over samples allows it,
shorter mini-batches are filled up with samples of weight zero.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from normec.engine.loop import Task
from normec.local import Batch

MOST_GROUPS = 4
"""Of clients with the same mini-batches in a block; with more, shorter batches are filled up so that fewer groups are left."""
Shape = tuple[int, ...]
"""The number of samples in each of a client's mini-batches, filled up."""


def walk(x: Tensor, tasks: Sequence[Task], steps: int, add: Callable[[Tensor, Tensor, int], None]) -> Tensor:
    """The updates (G, d) of clients that take as many steps: the mean of the directions along the way from x (d,).

    add: (total (G, d), vectors (G, d), step) adds to the total each client's gradient at its vector.
    """
    total = torch.zeros(len(tasks), len(x), dtype=x.dtype, device=x.device)
    corrections = [task.steps.correction for task in tasks]
    correction = torch.stack([each for each in corrections if each is not None]) if corrections[0] is not None else None
    rule = tasks[0].steps
    for step in range(steps):
        moved = torch.add(x, total, alpha=-rule.lr / steps)
        add(total, moved, step)
        if correction is not None:
            total += correction
        if rule.proximal and step:
            total.add_(moved - x, alpha=rule.proximal)
    if not steps and correction is not None:  # no samples: f_i = 0
        total += correction
    return total.div_(max(steps, 1))


def groups(tasks: Sequence[Task], fill: bool) -> dict[Shape, list[int]]:
    """The positions of the tasks that step together, by the shape that theirs are filled up to. fill: whether they may be."""
    exact = _groups(tasks, _exact)
    if len(exact) <= MOST_GROUPS or not fill:
        return exact
    return _groups(tasks, rounded) if tasks[0].steps.divisor is None else _groups_by_expected_size(tasks)


def shape_of(task: Task) -> Shape:
    """The lengths of its mini-batches as they are."""
    return _shape(task, _exact)


def batches_of(tasks: list[Task], step: int, length: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Features (G, length, …) and targets of one step, and weights (G, length) where clients are filled up with their first sample.

    An empty mini-batch stands as one sample.
    """
    parts = [_chosen(task.samples, task.schedule[step]) for task in tasks]
    features, targets = _stack([part for part, _ in parts], length), _stack([part for _, part in parts], length)
    sizes = [len(part) for _, part in parts]
    if min(sizes) == length:
        return features, targets, None
    device, dtype = features.device, features.dtype if features.is_floating_point() else torch.get_default_dtype()
    weights = torch.arange(length, device=device) < torch.tensor(sizes, device=device)[:, None]
    return features, targets, weights.to(dtype)


def _chosen(samples: tuple[Tensor, Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
    if isinstance(batch, slice):
        return samples if batch == slice(None) else (samples[0][batch], samples[1][batch])
    batch = batch if len(batch) else slice(1)
    return samples[0][batch], samples[1][batch]


def _stack(parts: list[Tensor], length: int) -> Tensor:
    """Mini-batches as one tensor (G, length, …); a view where they follow each other in memory, as whole clients do."""
    first, size = parts[0], parts[0].numel()
    base, start = first._base, first.storage_offset()
    if base is not None and first.is_contiguous() and len(first) == length:
        offsets = range(start, start + len(parts) * size, size or 1)
        follow = all(p._base is base and p.shape[0] == length and p.storage_offset() == o for p, o in zip(parts, offsets, strict=True))
        if follow:
            return first.as_strided((len(parts), *first.shape), (size, *first.stride()))
    missing = [length - len(part) for part in parts]
    return torch.stack([torch.cat([p, p[:1].expand(m, *p.shape[1:])]) if m else p for p, m in zip(parts, missing, strict=True)])


def _groups(tasks: Sequence[Task], lengths: Callable[[int], int]) -> dict[Shape, list[int]]:
    """The positions of the tasks whose mini-batches have the same lengths."""
    groups: defaultdict[Shape, list[int]] = defaultdict(list)
    for position, task in enumerate(tasks):
        groups[_shape(task, lengths)].append(position)
    return groups


def _groups_by_expected_size(tasks: Sequence[Task]) -> dict[Shape, list[int]]:
    """The same for mini-batches of random sizes: clients of about as many samples are filled up to the largest of each step."""
    alike: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for position, task in enumerate(tasks):
        alike[len(task.schedule), rounded(task.samples[1].shape[0] or 1)].append(position)
    groups: defaultdict[Shape, list[int]] = defaultdict(list)
    for (steps, _), positions in alike.items():
        groups[tuple(max(held(tasks[position], step) for position in positions) for step in range(steps))] += positions
    return groups


def held(task: Task, step: int) -> int:
    """How many samples are in a task's mini-batch of a step."""
    return _length(task.schedule[step], task.samples[1].shape[0])


def _shape(task: Task, lengths: Callable[[int], int]) -> Shape:
    samples, schedule = task.samples[1].shape[0], task.schedule  # many times faster than len(tensor)
    if schedule and all(batch is schedule[0] for batch in schedule):
        return (lengths(_length(schedule[0], samples)),) * len(schedule)
    return tuple(lengths(_length(batch, samples)) for batch in schedule)


def _length(batch: Batch, samples: int) -> int:
    return len(range(*batch.indices(samples))) if isinstance(batch, slice) else len(batch)


def _exact(length: int) -> int:
    return length


def rounded(length: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, …"""
    power = 1 << (length.bit_length() - 1)
    return next(size for size in (power, power + power // 2, 2 * power) if size >= length)
