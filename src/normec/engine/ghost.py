"""Sums of bounded gradients of records for stacks of linear layers: their norms are found without the gradients.

A record's gradient of a weight is the outer product of the layer's error δ_r and its input a_r, so that
‖g_r‖² = Σ_l ‖δ_l,r‖² (‖a_l−1,r‖² + 1), the 1 being the bias's; and the bounded sum is one product of matrices per layer, of
errors multiplied by each record's factor. Norms and that product are computed in float64, so that what one record adds to the sum
is bounded to rounding whatever the others add: a sum of 5,000 records in float32 may be off by a tenth of the bound.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from normec.engine.stack import Stack, of_samples
from normec.operators import Radial

NUMBERS_AT_ONCE = 2**19
"""Numbers in float64 of one call: they stay in a core's cache."""
LINE = 8
"""Numbers in float64 of 64 bytes, at whose multiples each client's matrices start: otherwise the last bits of a product depend on its
place in memory, hence on the clients beside it."""


class Ghost:
    """The way for stacks: many clients at once. operator: κ, of each record's gradient."""

    together = True

    def __init__(self, stack: Stack, operator: Radial, device: torch.device) -> None:
        self.stack, self.operator = stack, operator
        self.at_once = max(1, NUMBERS_AT_ONCE // sum(sum(stack.shapes[layer.weight]) for layer in stack.layers))
        self._values, self._squares = Scratch(device), Scratch(device)

    def add(self, total: Tensor, vectors: Tensor, features: Tensor, targets: Tensor, weights: Tensor) -> None:
        """As `per_record.Way.add`."""
        self._values.clear()
        parts, places = self.stack.parts(vectors), self.stack.parts(total)
        values = self.stack.forward(parts, features)
        squares, layers = torch.zeros_like(weights, dtype=torch.float64), []
        for layer, x, error in self.stack.backward(parts, values, of_samples(values[-1], targets)):
            x, error = self._values.copy(x, fill=LINE), self._values.copy(error)
            squares.addcmul_(self._squared_norms(error), self._squared_norms(x).add_(layer.bias is not None))
            layers.append((layer, x, error))
        broken = ~squares.isfinite()[:, None]
        some = bool(broken.any())
        factors = self.operator.factors(squares.sqrt_(), torch.float64).mul_(weights)[:, None]
        for layer, x, error in layers:
            if some:  # their factor is 0, and 0 · ∞ is not 0
                x.masked_fill_(broken, 0.0)
                error.masked_fill_(broken, 0.0)
            error *= factors
            places[layer.weight] += torch.bmm(error, x.transpose(1, 2))[:, :, : places[layer.weight].shape[2]]
            if layer.bias is not None:
                places[layer.bias] += error.sum(2)

    def _squared_norms(self, values: Tensor) -> Tensor:
        """Squared norms (G, n) of each record's values (G, units, n)."""
        self._squares.clear()
        return self._squares.copy(values).mul_(values).sum(1)


class Scratch:
    """Memory in float64 that is used again: on the CPU, fresh memory costs more than what is computed in it."""

    def __init__(self, device: torch.device) -> None:
        self._held = torch.empty(0, dtype=torch.float64, device=device)
        self._used = 0

    def clear(self) -> None:
        """Frees all of it."""
        self._used = 0

    def copy(self, values: Tensor, fill: int = 1) -> Tensor:
        """A copy of values (G, units, n), laid out as they are, with zeros that fill the units up to a multiple of `fill`."""
        clients, units, records = values.shape
        filled = -(-units // fill) * fill
        place = self._room(clients, records, filled).transpose(1, 2) if _turned(values) else self._room(clients, filled, records)
        place[:, units:] = 0.0
        place[:, :units] = values
        return place

    def _room(self, *shape: int) -> Tensor:
        start, count = self._used, math.prod(shape)
        self._used += -(-count // LINE) * LINE
        if self._used > len(self._held):  # earlier copies keep the memory that they are in
            self._held = torch.empty(2 * self._used, dtype=torch.float64, device=self._held.device)
        return self._held[start : start + count].view(shape)


def _turned(values: Tensor) -> bool:
    return values.transpose(1, 2).is_contiguous()
