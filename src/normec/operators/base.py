"""Operators: maps that turn a row into a message. Each carries the norm bound that it guarantees, which is infinite where there is none.

Privacy rests on these bounds, so rounding must not break them: a scaled row is kept strictly inside its ball (by 1e-5 in
float32, 1e-13 in float64), by more than the error of its norm, and a row that is not finite, or longer than 1e30, gives zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

LARGEST_NORM = 1e30
"""A longer row has diverged, and is treated as non-finite: its products would leave float32's range."""
SMALLEST_FACTOR = 1e-36
"""A row that would shrink by more gives zero: float32 holds no smaller factor to full precision."""
SMALLEST_NORM = 1e-150
"""A shorter row gives zero: float64 does not hold its square to full precision."""
PIECE = 256
"""Coordinates whose squares are summed in float32: 256 roundings of 6e-8, halved by the root, are within 1e-5."""
SMALLEST_IN_RANGE, LARGEST_IN_RANGE = 1e-12, 1e18
"""Norms of rows whose squares float32 holds, as far as they count."""


ClipNorm = Annotated[float, Field(ge=1e-20, le=1e20, description="a number > 0, from 1e-20 to 1e20")]
"""C, where the elements of a clipped message stay within float32's full precision."""


BYTES_OF_A_NUMBER = 4
"""Vectors travel as float32, whatever the simulation computes in."""

Uniform = Callable[[], Tensor]
"""Makes independent uniform numbers in [0, 1), (G, d), from one keyed stream per row."""


class Operator:
    """A map of rows (G, d) to rows (G, d); zero rows, and rows that are not finite, give zero.

    bound: the largest norm of an output row, for any input; infinite for an operator on which nothing private can rest.
    """

    bound: float = math.inf

    def __call__(self, rows: Tensor, uniform: Uniform | None = None) -> Tensor:
        """The messages. uniform: the randomness of operators that draw."""
        raise NotImplementedError

    @property
    def threshold(self) -> float:
        """The norm of an input past which its length is lost to the bound; that of much longer ones is near the bound."""
        return math.inf

    def saturates(self, norms: Tensor) -> Tensor:
        """Mask (bool, (G,)) of the inputs, with these norms (G,), that lose their length to the bound."""
        return norms > self.threshold

    def message_bytes(self, d: int) -> int:
        """The size of one transmitted message of d coordinates."""
        return BYTES_OF_A_NUMBER * d


@dataclass(frozen=True)
class Identity(Operator):
    """The row itself: no bound, no compression."""

    def __call__(self, rows: Tensor, uniform: Uniform | None = None) -> Tensor:
        counts = usable(row_norms(rows))
        return rows if bool(counts.all()) else rows.masked_fill(~counts[:, None], 0.0)


def row_norms(rows: Tensor) -> Tensor:
    """Euclidean norms (G,) in float64 of rows (G, d), exact to 1e-5 in float32 whatever the order of summation.

    In float32, pieces of a row are summed as they are and the pieces in float64, which is several times faster; rows whose
    squares could leave float32's range are summed in float64.
    """
    if rows.dtype != torch.float32:
        return _norms(rows, torch.float64)
    whole = rows.shape[1] // PIECE * PIECE
    pieces = [rows[:, :whole].reshape(len(rows), whole // PIECE, PIECE), rows[:, None, whole:]]
    squares = [_norms(piece, torch.float32).double().square_().sum(1) for piece in pieces if piece.numel()]
    norms = torch.stack(squares).sum(0).sqrt_() if squares else rows.new_zeros(len(rows), dtype=torch.float64)
    doubtful = ~((norms > SMALLEST_IN_RANGE) & (norms < LARGEST_IN_RANGE))
    if bool(doubtful.any()):
        norms[doubtful] = _norms(rows[doubtful], torch.float64)
    return norms


def _norms(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Norms over the last dimension, with sums in `dtype`."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=-1, dtype=dtype)
    return norms


def usable(norms: Tensor) -> Tensor:
    """Mask (bool, (G,)) of the rows, with these norms, that are finite and have not diverged."""
    return norms < LARGEST_NORM


class Radial(Operator):
    """An operator that multiplies each row by a factor that depends on the row's norm alone."""

    def __call__(self, rows: Tensor, uniform: Uniform | None = None) -> Tensor:
        return _scaled(rows, self.factors(row_norms(rows), rows.dtype))

    def factors(self, norms: Tensor, dtype: torch.dtype) -> Tensor:
        """Factors, in float64, of rows with these norms, in float64; zero for rows of norm zero and for unusable ones (NaN, inf).

        dtype: that in which norms were found and rows are multiplied, whose rounding is kept from the bound.
        """
        factor = self._factor(norms, margin(dtype))
        counts = usable(norms).logical_and_(norms > SMALLEST_NORM).logical_and_(factor > SMALLEST_FACTOR)
        return factor.clamp_(max=torch.finfo(dtype).max).masked_fill_(counts.logical_not_(), 0.0)

    def _factor(self, norms: Tensor, margin: float) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class SmoothedNormalization(Radial):
    """Norm_α(g) = g / (α + ‖g‖), α ≥ 0, with ‖Norm_α(g)‖ < 1 and Norm_α(0) = 0.

    α = 0 is full normalization, g / ‖g‖. Reference: Bu et al. 2023; `paper`, Section 3.
    """

    alpha: float
    bound: float = 1.0

    def _factor(self, norms: Tensor, margin: float) -> Tensor:
        return torch.minimum(1 / (self.alpha + norms), (1 - margin) / norms)

    @property
    def threshold(self) -> float:
        """α: a longer input's message is past half of its bound."""
        return self.alpha


@dataclass(frozen=True)
class Clipping(Radial):
    """Clip_C(g) = g · min(1, C / ‖g‖), C > 0: one joint norm over the whole vector. Reference: Abadi et al. 2016."""

    bound: float

    def _factor(self, norms: Tensor, margin: float) -> Tensor:
        return torch.div(self.bound * (1 - margin), norms).clamp_(max=1)

    @property
    def threshold(self) -> float:
        """C: a longer row is clipped."""
        return self.bound


def margin(dtype: torch.dtype) -> float:
    """The relative distance that is kept from the bound; it exceeds the rounding of the factor, the product and the norm."""
    return 1e-13 if dtype == torch.float64 else 1e-5


def _scaled(rows: Tensor, factors: Tensor) -> Tensor:
    """Rows · factors, exactly zero where the factor is, whatever the row."""
    scaled, counts = rows * factors[:, None].to(rows.dtype), factors > 0
    return scaled if bool(counts.all()) else scaled.masked_fill_(~counts[:, None], 0.0)
