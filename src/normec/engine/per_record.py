"""Sums of bounded gradients of records, whose gradients are made: many at once by vmap, or one after the other.

Norms, and the sum of the gradients times their factors, are computed in float64: see `ghost`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.func import grad, vmap

from normec.engine.vmap import outputs_as_function
from normec.errors import FAILURES
from normec.models import FlatModel
from normec.operators import Radial
from normec.streams import seed_global_generator

BYTES_AT_ONCE = 3 * 2**24
"""Of the gradients, and of the layers' outputs, of the records that are computed at once."""
NUMBERS_IN_DOUBLE = 2**19
"""Numbers of gradients that are turned into float64 at a time."""


class Way(Protocol):
    """A way to compute S_g = Σ_r w_r κ(∇ℓ_r(y_g)), bound to a model and κ.

    together: whether it computes several clients at once; otherwise G is 1. at_once: the most records in a call. Both are functions
    of the model alone.
    """

    @property
    def together(self) -> bool: ...

    @property
    def at_once(self) -> int: ...

    def add(self, total: Tensor, vectors: Tensor, features: Tensor, targets: Tensor, weights: Tensor) -> None:
        """Adds S to the total (G, d), in float64; the other shapes are those of `records.BoundedSum`.

        What the model or its loss raises is passed on, with nothing added.
        """


class Vectorized:
    """Many records at once, by `vmap(grad)`. numbers: of the outputs of all the model's layers, for one record."""

    def __init__(self, model: FlatModel, operator: Radial, together: bool, numbers: int) -> None:
        self.model, self.operator, self.together = model, operator, together
        self.at_once = max(1, BYTES_AT_ONCE // (model.vector.element_size() * (model.d + numbers)))
        self._shapes, self._sizes = [p.shape for p in model.parameters], [p.numel() for p in model.parameters]
        outputs = outputs_as_function(model)

        def loss(parts: Sequence[Tensor], features: Tensor, targets: Tensor) -> Tensor:
            return model.loss(outputs(parts, features[None]), targets[None]).reshape(())

        gradients: Callable[..., list[Tensor]] = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")
        self._gradients = vmap(gradients) if together else gradients

    def add(self, total: Tensor, vectors: Tensor, features: Tensor, targets: Tensor, weights: Tensor) -> None:
        """As `Way.add`."""
        self.model.enter(vectors[0], training=True)
        parts = [part.view(-1, *shape) for part, shape in zip(torch.split(vectors, self._sizes, dim=1), self._shapes, strict=True)]
        if self.together:
            gradients = self._gradients(parts, features, targets)
        else:
            gradients = [each[None] for each in self._gradients([part[0] for part in parts], features[0], targets[0])]
        add_bounded(torch.split(total, self._sizes, dim=1), gradients, weights, self.operator)


class OneByOne:
    """One record after the other: for recurrent models, where vmap is slower, and for those that it cannot compute."""

    together = False

    def __init__(self, model: FlatModel, operator: Radial) -> None:
        self.model, self.operator = model, operator
        self.at_once = max(1, BYTES_AT_ONCE // 4 // (model.vector.element_size() * model.d))

    def add(self, total: Tensor, vectors: Tensor, features: Tensor, targets: Tensor, weights: Tensor) -> None:
        """As `Way.add`; a record on which the model or its loss fails adds zero."""
        self.failing(total, vectors, features, targets, weights)

    def failing(self, total: Tensor, vectors: Tensor, features: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """As `add`, for any number of clients; returns the mask (G, n) of the records on which the model or its loss fails.

        Where the model draws random numbers, those of a record come from a stream of its own.
        """
        failed = torch.zeros_like(weights, dtype=torch.bool)
        seeds = torch.randint(2**62, weights.shape, device="cpu").tolist() if self.model.stochastic else None
        for client, held in enumerate(weights > 0):
            self.model.enter(vectors[client], training=True)
            for records in torch.split(held.nonzero()[:, 0], self.at_once) if bool(held.any()) else ():
                rows = vectors.new_zeros(len(records), self.model.d)
                for row, record in zip(rows, records.tolist(), strict=True):
                    if seeds:
                        seed_global_generator(seeds[client][record], vectors.device)
                    try:
                        row.copy_(self._gradient(features[client, record], targets[client, record]))
                    except FAILURES:  # whatever a user's module or loss raises
                        failed[client, record] = True
                add_bounded([total[client : client + 1]], [rows[None]], weights[client : client + 1, records], self.operator)
        return failed

    def _gradient(self, features: Tensor, targets: Tensor) -> Tensor:
        """∇ℓ_r (d,) at the parameters in the model."""
        loss = self.model.loss(self.model.module(features[None]), targets[None])
        gradients = torch.autograd.grad(loss, self.model.parameters, allow_unused=True, materialize_grads=True)
        return torch.cat([each.reshape(-1) for each in gradients])


def add_bounded(places: Sequence[Tensor], gradients: Sequence[Tensor], weights: Tensor, operator: Radial) -> None:
    """Adds Σ_r w_r κ(g_r) to places (G, size), in float64, of the parts of gradients (G, n, …)."""
    parts = [each.reshape(*weights.shape, -1) for each in gradients]
    squares = torch.zeros_like(weights, dtype=torch.float64)
    for part in parts:
        squares += torch.linalg.vector_norm(part, dim=2, dtype=torch.float64).square_()
    broken = ~(squares < math.inf)
    some = bool(broken.any())
    factors = operator.factors(squares.sqrt_(), torch.float64).mul_(weights)
    width = max(1, NUMBERS_IN_DOUBLE // max(weights.shape[1], 1))
    for place, part in zip(places, parts, strict=True):
        for client, factor in enumerate(factors):  # one by one: the bits of a sum are its own
            for target, columns in zip(torch.split(place[client], width), torch.split(part[client], width, dim=1), strict=True):
                exact = columns.double()
                if some:  # their factor is 0, and 0 · ∞ is not 0
                    exact = exact.masked_fill(broken[client, :, None], 0.0)
                target += factor @ exact
