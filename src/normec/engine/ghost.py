"""Sums of bounded gradients of records for stacks of linear layers: their norms are found without the gradients.

A record's gradient of a weight is the outer product of the layer's error δ_r and its input a_r, so that
‖g_r‖² = Σ_l ‖δ_l,r‖² (‖a_l−1,r‖² + 1), the 1 being the bias's; and the bounded sum is one product of matrices per layer, of
errors multiplied by each record's factor. Norms and that product are computed in float64, so that what one record adds to the sum
is bounded to rounding whatever the others add: a sum of 5,000 records in float32 may be off by a tenth of the bound.
"""

from __future__ import annotations

import math
from functools import reduce

import torch
from torch import Tensor

from normec.engine.stack import Stack, of_samples
from normec.operators import Radial

NUMBERS_AT_ONCE = 2**19
"""Numbers in float64 of one call: they stay in a core's cache."""
SMALL = 2**14
"""Numbers whose memory the allocator itself has ready."""
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
        squares, layers = [], []
        for layer, x, error in self.stack.backward(parts, values, of_samples(values[-1], targets)):
            x, error = self._values.copy(x), self._values.copy(error)
            of_input = self._squared_norms(x)
            squares.append(self._squared_norms(error).mul_(of_input if layer.bias is None else of_input.add_(1.0)))
            layers.append((layer, x, error))
        square = reduce(Tensor.add_, squares)
        sound = square < math.inf
        broken = None if bool(sound.all()) else ~sound[:, None]
        factors = self.operator.factors(square.sqrt_(), torch.float64).mul_(weights)[:, None]
        for layer, x, error in layers:
            if broken is not None:  # their factor is 0, and 0 · ∞ is not 0
                x.masked_fill_(broken, 0.0)
                error.masked_fill_(broken, 0.0)
            layer.add(error.mul_(factors), x, places)

    def _squared_norms(self, values: Tensor) -> Tensor:
        """Squared norms (G, n) of each record's values (G, units, n)."""
        if values.numel() < SMALL:
            return values.square().sum(1)
        self._squares.clear()
        return torch.mul(values, values, out=self._squares.like(values)).sum(1)


class Scratch:
    """Memory in float64 that is used again: on the CPU, fresh memory costs more than what is computed in it."""

    def __init__(self, device: torch.device) -> None:
        self._held = torch.empty(0, dtype=torch.float64, device=device)
        self._used = 0

    def clear(self) -> None:
        """Frees all of it."""
        self._used = 0

    def copy(self, values: Tensor) -> Tensor:
        """A copy of values (G, units, n), laid out as they are."""
        return values.to(torch.float64, copy=True) if values.numel() < SMALL else self.like(values).copy_(values)

    def like(self, values: Tensor) -> Tensor:
        """Room for values (G, units, n), laid out as these: by records where they are, by units otherwise."""
        _, units, records = values.shape
        strides = (units * records, 1, units) if values.stride(1) == 1 else (units * records, records, 1)
        start = self._used
        self._used += -(-values.numel() // LINE) * LINE
        if self._used > len(self._held):  # earlier copies keep the memory that they are in
            self._held = torch.empty(2 * self._used, dtype=torch.float64, device=self._held.device)
        return self._held.as_strided(values.shape, strides, start)
