"""Shamir's secret sharing (1979) of 32 bytes, over the integers modulo the prime 2²⁵⁶ + 297."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping, Sequence

PRIME = 2**256 + 297
SECRET, SHARE = 32, 33
"""Bytes of a secret and of a share."""


def split(secret: bytes, threshold: int, number: int) -> list[bytes]:
    """The shares of a secret at the places 1 … number, any `threshold` of which give it back, and fewer tell nothing."""
    coefficients = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return [_evaluate(coefficients, x).to_bytes(SHARE, "big") for x in range(1, number + 1)]


def _evaluate(coefficients: Sequence[int], x: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % PRIME
    return value


class Interpolation:
    """The polynomial through shares at given places. What depends on the places alone is computed once for all secrets of an attempt."""

    def __init__(self, places: Iterable[int]) -> None:
        self.places = tuple(places)
        self._below = [math.prod(x - other for other in self.places if other != x) % PRIME for x in self.places]
        self._at_zero = self._weights(0)

    def _weights(self, at: int) -> list[int]:
        """Lagrange's, of each place, for the value at another one."""
        above = math.prod(at - other for other in self.places) % PRIME
        return [above * pow((at - x) * below, -1, PRIME) % PRIME for x, below in zip(self.places, self._below, strict=True)]

    def value(self, shares: Mapping[int, bytes], at: int = 0) -> int:
        """The value at a place that is none of these, modulo the prime, of shares by place."""
        weights = self._weights(at) if at else self._at_zero
        return sum(weight * int.from_bytes(shares[x], "big") for x, weight in zip(self.places, weights, strict=True)) % PRIME

    def secret(self, shares: Mapping[int, bytes]) -> bytes | None:
        """The value at 0; None where these shares are not of one secret."""
        value = self.value(shares)
        return value.to_bytes(SECRET, "big") if value < 1 << 8 * SECRET else None
