"""Compressors: operators that make messages short. None bounds its messages, so that nothing private can rest on them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from normec.errors import BadInput
from normec.operators.base import BYTES_OF_A_NUMBER, Identity, Operator, Uniform, row_norms, usable
from normec.settings import Count, Settings, Tree

BYTES_OF_AN_INDEX = 4
BITS_OF_A_POWER = 9
"""A sign and the exponent of a float32."""


@dataclass(frozen=True)
class TopK(Operator):
    """Keeps the k coordinates of largest size: ‖C(g) − g‖² <= (1 − k/d) ‖g‖². Reference: Alistarh et al. 2018."""

    k: int

    def __call__(self, rows: Tensor, uniform: Uniform | None = None) -> Tensor:
        return _keep(rows, rows.abs().topk(self.k, dim=1).indices)

    def message_bytes(self, d: int) -> int:
        return self.k * (BYTES_OF_A_NUMBER + BYTES_OF_AN_INDEX)


@dataclass(frozen=True)
class RandK(Operator):
    """Keeps k coordinates drawn uniformly, unscaled: E‖C(g) − g‖² = (1 − k/d) ‖g‖². Reference: Stich et al. 2018."""

    k: int

    def __call__(self, rows: Tensor, uniform: Uniform | None = None) -> Tensor:
        if uniform is None:
            raise TypeError("RandK draws: give it uniform")
        return _keep(rows, uniform().topk(self.k, dim=1).indices)

    def message_bytes(self, d: int) -> int:
        return self.k * (BYTES_OF_A_NUMBER + BYTES_OF_AN_INDEX)


@dataclass(frozen=True)
class Natural(Operator):
    """Rounds each coordinate at random to a neighbouring power of two, without bias, then multiplies by 8/9.

    Rounding alone has E‖C(g) − g‖² <= ‖g‖²/8; the factor 1/(1 + 1/8) makes it a contraction, as error feedback needs:
    E‖C(g) − g‖² <= ‖g‖²/9. Reference: Horváth et al. 2019 (natural compression); Richtárik et al. 2021 (the factor).
    """

    def __call__(self, rows: Tensor, uniform: Uniform | None = None) -> Tensor:
        if uniform is None:
            raise TypeError("Natural draws: give it uniform")
        rows = Identity()(rows)
        mantissa, exponent = torch.frexp(rows)  # |mantissa| in [1/2, 1)
        up = uniform() < 2 * mantissa.abs() - 1
        power = torch.ldexp(torch.ones_like(rows), exponent - 1 + up.to(exponent.dtype))
        return rows.sign() * power * (8 / 9)

    def message_bytes(self, d: int) -> int:
        return math.ceil(BITS_OF_A_POWER * d / 8)


class Compressed(Settings):
    """The settings of algorithms that compress.

    compressor: "top-k", "rand-k", or "natural". k: how many coordinates the first two keep.
    """

    small: ClassVar[Tree] = {"k": 3}

    compressor: Literal["top-k", "rand-k", "natural"] = "top-k"
    k: Count = 10

    @property
    def operator(self) -> Operator:
        kinds: dict[str, Operator] = {"top-k": TopK(self.k), "rand-k": RandK(self.k), "natural": Natural()}
        return kinds[self.compressor]

    def check_dimension(self, d: int) -> None:
        """Refuses a k above the number of parameters d.

        Raises:
            BadInput: with both numbers.
        """
        if self.compressor != "natural" and self.k > d:
            raise BadInput("algorithm.k", f"is more than the model's {d} parameters", value=self.k, remedy="Lower it")


def _keep(rows: Tensor, columns: Tensor) -> Tensor:
    """Rows with zeros outside of each row's `columns` (G, k); zero for a row that is not finite."""
    kept = torch.zeros_like(rows).scatter_(1, columns, rows.gather(1, columns))
    return kept.masked_fill_(~usable(row_norms(rows))[:, None], 0.0)
