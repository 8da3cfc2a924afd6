"""Sums of bounded gradients of records, on which record-level privacy rests: one record moves a sum by at most the bound.

ℓ_r is the loss of record r alone, a batch of one; a penalty of the module belongs to no record and is left out. There are three
ways: written out for stacks of linear layers, vmap for other models that it suits, and one record after the other.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from normec.engine.ghost import Ghost
from normec.engine.per_record import OneByOne, Vectorized, Way
from normec.engine.stack import stack_of
from normec.engine.vmap import UNSUITED
from normec.errors import FAILURES
from normec.models import FlatModel
from normec.operators import Radial
from normec.streams import seed_global_generator

LARGEST_TOGETHER = 100_000
"""Parameters beyond which several clients at once are no faster than one after the other."""
ALLOWED = 1e-4
"""Largest difference of a sum from that one by one, over its largest number: beyond it, a way computes something else."""

FILL = 16
"""Numbers in float32 of 64 bytes: see `ghost.LINE`."""


class Choice(NamedTuple):
    """How the records' gradients of a model are computed; a function of the model and the shape of a sample.

    together: whether vmap computes several clients at once. numbers: of the outputs of all the model's layers, for one record.
    """

    way: Literal["written out", "vmap", "one by one"]
    sample: torch.Size
    together: bool = False
    numbers: int = 0

    def bound_to(self, model: FlatModel, operator: Radial) -> Way:
        """The way, for a model and κ."""
        stack = stack_of(model, self.sample) if self.way == "written out" else None
        if stack:
            return Ghost(stack, operator, model.vector.device)
        return Vectorized(model, operator, self.together, self.numbers) if self.way == "vmap" else OneByOne(model, operator)


def choose_way(model: FlatModel, samples: tuple[Tensor, Tensor], operator: Radial) -> Choice:
    """The fastest way for a model. samples: a few, on which vmap is tried."""
    sample, modules = samples[0].shape[1:], list(model.module.modules())
    choices = [Choice("written out", sample, together=True)] if stack_of(model, sample) else []
    if not any(isinstance(module, nn.RNNBase) for module in modules):
        numbers = _numbers(model, samples[0][:1])
        alone = model.stochastic or model.d > LARGEST_TOGETHER or any(isinstance(module, UNSUITED) for module in modules)
        choices += [Choice("vmap", sample, together, numbers) for together in ((False,) if alone else (True, False))]
    fits = (choice for choice in choices if _computes(choice, model, samples, operator))
    return next(fits, Choice("one by one", sample))


def _numbers(model: FlatModel, features: Tensor) -> int:
    """How many numbers all layers put out for one sample (1, …)."""
    counted = 0

    def count(module: nn.Module, inputs: Any, outputs: Any) -> None:
        nonlocal counted
        counted += outputs.numel() if isinstance(outputs, Tensor) else 0

    hooks = [module.register_forward_hook(count) for module in model.module.modules() if not list(module.children())]
    try:
        with torch.no_grad():
            model.module.train()(features)
    finally:
        for hook in hooks:
            hook.remove()
    return counted


def _computes(choice: Choice, model: FlatModel, samples: tuple[Tensor, Tensor], operator: Radial) -> bool:
    """Whether it gives the sums of the way one by one on a few samples, without a warning that it is slow."""
    features, targets = (each.expand(2 if choice.together else 1, *each.shape) for each in samples)
    vectors = model.vector.clone().expand(len(features), -1)
    weights = torch.ones(features.shape[:2], dtype=vectors.dtype, device=vectors.device)
    tried, expected = (torch.zeros(vectors.shape, dtype=torch.float64, device=vectors.device) for _ in range(2))
    OneByOne(model, operator).add(expected, vectors, features, targets, weights)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            choice.bound_to(model, operator).add(tried, vectors, features, targets, weights)
    except FAILURES:  # whatever a user's module or loss raises
        return False
    scale = float(expected.abs().max())
    return model.stochastic or torch.allclose(tried, expected, rtol=0, atol=ALLOWED * scale)


class BoundedSum:
    """S_g = Σ_r w_r κ(∇ℓ_r(y_g)) over the records r of each of G clients. operator: κ, whose bound is C.

    Where n is a multiple of `FILL`, S_g is to the bit what it is without the other clients.

    Guarantees: ‖S − S'‖ ≤ C, up to a rounding of 1e-9 C, where S' has weight 0 in the place of one record, and 2C where it has another
    record there. A record adds zero where its gradient is not finite or longer than 1e30, or where the model or its loss fails on it;
    what the others add stays to the bit what it is beside a record of weight 0, random numbers in the forward pass included.
    """

    def __init__(self, model: FlatModel, operator: Radial, choice: Choice) -> None:
        self.model, self.way, self._alone = model, choice.bound_to(model, operator), OneByOne(model, operator)

    def __call__(self, vectors: Tensor, features: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """S (G, d) in float64, of vectors y (G, d), features (G, n, …), targets (G, n, …) and weights (G, n) in [0, 1].

        A weight of 0 fills a batch up. A model that draws takes its random numbers from torch's own generator.
        """
        total = zeros_in_line(vectors)
        start = int(torch.randint(2**62, (), device="cpu")) if self.model.stochastic else None
        for position, (place, *piece) in enumerate(self._pieces(total, in_line(vectors), features, targets, weights)):
            seed = partial(self._seed, start, position)
            seed()
            try:
                self.way.add(place, *piece)
            except FAILURES:  # whatever a user's module or loss raises
                place += self._without_failing(seed, *piece)
        self._seed(start, -1)
        return total

    def _pieces(self, total: Tensor, vectors: Tensor, *records: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """The same for blocks of clients, and parts of their records: as many as the memory for one call allows."""
        (clients, held), most = records[0].shape[:2], self.way.at_once
        height = max(1, most // max(held, 1)) if self.way.together else 1
        if clients <= height and held <= most:
            yield total, vectors, *records
            return
        width = -(-held // -(-held // most))  # parts of about the same length
        for block in (slice(first, first + height) for first in range(0, clients, height)):
            for part in (slice(start, start + width) for start in range(0, held, width)):
                yield total[block], vectors[block], *(each[block, part] for each in records)

    def _without_failing(self, seed: Callable[[], None], vectors: Tensor, features: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """The sum of a piece, with a sound record of weight 0 in the place of each that fails. Where vmap fails then too, one by one."""
        seed()
        total, again = zeros_in_line(vectors), zeros_in_line(vectors)
        failing = self._alone.failing(total, vectors, features, targets, weights)
        sound = (~failing & (weights > 0)).nonzero().tolist()
        if not sound or not bool(failing.any()):
            return total
        client, record = sound[0]
        features, targets = features.clone(), targets.clone()
        features[failing], targets[failing] = features[client, record].clone(), targets[client, record].clone()
        seed()
        try:
            self.way.add(again, vectors, features, targets, weights.masked_fill(failing, 0.0))
        except FAILURES:
            return total
        return again

    def _seed(self, start: int | None, position: int) -> None:
        """A stream for each piece of a model that draws, so that one does not depend on how many numbers another has drawn."""
        if start is not None:
            seed_global_generator(start + 1 + position, self.model.vector.device)


def zeros_in_line(vectors: Tensor) -> Tensor:
    """Zeros (G, d) in float64, each row of which starts at a multiple of 64 bytes."""
    clients, d = vectors.shape
    return torch.zeros(clients, -(-d // FILL) * FILL, dtype=torch.float64, device=vectors.device)[:, :d]


def in_line(vectors: Tensor, rows: list[int] | None = None) -> Tensor:
    """These rows of vectors (G, d), or all, each starting at a multiple of 64 bytes; the vectors themselves where that is so."""
    d = vectors.shape[1]
    if rows is None and (len(vectors) == 1 or vectors.stride(0) % FILL == 0) and vectors.data_ptr() % 64 == 0:
        return vectors
    chosen = vectors if rows is None or len(rows) == len(vectors) else vectors[rows]
    return vectors.new_empty(len(chosen), -(-d // FILL) * FILL)[:, :d].copy_(chosen)
