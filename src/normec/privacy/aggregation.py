"""How messages become a sum: plainly, or as whole numbers on a lattice, whose sum is exact."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

LATTICE_BITS = 20


@dataclass(frozen=True)
class Aggregation:
    """A plain sum, in float64. lattice: the step on which messages and noise live, 0 for none."""

    @property
    def lattice(self) -> float:
        return 0.0

    @property
    def in_units_of_the_bound(self) -> Aggregation:
        """The same kind for messages of norm 1."""
        return self

    def encode(self, messages: Tensor) -> Tensor:
        """Messages (…, d) as they are transmitted."""
        return messages

    def combine(self, messages: Iterable[Tensor], d: int) -> Tensor:
        """The sum (d,) of encoded messages (d,), in float64."""
        total = torch.zeros(d, dtype=torch.float64)
        for message in messages:
            total += message.double()
        return total


@dataclass(frozen=True)
class LatticeSum(Aggregation):
    """A sum of whole multiples of `step`, which float64 holds exactly."""

    step: float

    @property
    def lattice(self) -> float:
        return self.step

    @property
    def in_units_of_the_bound(self) -> Aggregation:
        return LatticeSum(1.0)

    def encode(self, messages: Tensor) -> Tensor:
        """Rounded to the lattice, in float64: each norm grows by at most step · √d / 2."""
        return messages.double().div_(self.step).round_().mul_(self.step)


def lattice_for(bound: float) -> LatticeSum:
    """A sum of messages of norm up to `bound`: on 2^-20 of the power of two below it."""
    return LatticeSum(2.0 ** (math.floor(math.log2(bound)) - LATTICE_BITS))
