"""An exact sampler of the discrete Gaussian on whole numbers, vectorised: Pr[n] ∝ exp(−n² / (2 s²)).

The half line of whole numbers is cut into blocks of equal width w, a power of two near s / 16. A draw takes a block
with probability ∝ exp(−(b w)² / (2 s²)), the height at its start; a place in the block, uniformly; a sign; and it is
accepted with probability exp(−(n² − (b w)²) / (2 s²)): 97% of the time where s is large.

Exact means that each comparison of a uniform number with a probability has the outcome that real arithmetic gives.
Floating point decides where its error cannot matter. Elsewhere, about once in 10¹³ draws, the uniform number gets further
random bits and the probability further digits until the outcome is certain.

References: Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy" (2020), for the distribution;
Karney, "Sampling exactly from the normal distribution" (2016), for rejection from blocks.
"""

from __future__ import annotations

import decimal
import math
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

import numpy as np

WORD = 64
"""Bits of a uniform number that are drawn at first."""
FRACTION = 53
"""Bits of it that a float holds."""
UNCERTAIN = 2.0**-44
"""More than a probability in float64 can be wrong by here: some roundings of 2^-53, in an exponent below 2."""
BLOCKS_PER_DEVIATION = 16
DIGITS = 60
"""Of decimal arithmetic at first; doubled until an outcome is certain."""
EXACT_DIGITS = 300
"""Enough for the square of a float from 2^-20 to 2^58, without rounding."""
NEGLIGIBLE_TAIL = 2.0**-200
"""The mass beyond the last block, below what any digits that are ever needed resolve."""
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-20, 2.0**58
"""So that whole numbers of 17 standard deviations, where the blocks end, fit into 63 bits."""


@dataclass(frozen=True)
class _Blocks:
    """The cut of the half line for one s. width: w. squared: s² / w², exactly. thresholds: those of a block's choice, as words."""

    width: int
    squared: Decimal
    thresholds: np.ndarray

    @property
    def ratio(self) -> float:
        """s² / w²."""
        return float(self.squared)


def discrete_gaussian(size: int, scale: float) -> np.ndarray:
    """Whole numbers (size,), int64, from the discrete Gaussian, by the operating system's generator.

    scale: s, up to 2^58; for s >= 1 the standard deviation to within exp(−2π² s²). A float is taken as the exact binary
    fraction that it is.

    Raises:
        ValueError: for a scale that is not a number from 2^-20 to 2^58.
    """
    if not (SMALLEST_SCALE <= scale <= LARGEST_SCALE):
        raise ValueError(f"scale={scale!r} must be from 2^-20 to 2^58")
    blocks = _cut(scale)
    drawn = np.empty(size, dtype=np.int64)
    filled = 0
    while filled < size:
        wanted = size - filled
        accepted = _draw(blocks, wanted + wanted // 20 + 16)[:wanted]
        drawn[filled : filled + len(accepted)] = accepted
        filled += len(accepted)
    return drawn


def _draw(blocks: _Blocks, tries: int) -> np.ndarray:
    """The accepted ones of so many tries."""
    choice, place, rest = np.frombuffer(os.urandom(3 * 8 * tries), dtype=np.uint64).reshape(3, -1)
    block = _choose(blocks, choice)
    offset = (place & np.uint64(blocks.width - 1)).astype(np.int64)
    size = block * blocks.width + offset
    negative = (rest & np.uint64(1)).astype(bool)
    kept = _accept(blocks, block, offset, rest >> np.uint64(WORD - FRACTION)) & ~(negative & (size == 0))
    drawn: np.ndarray = np.where(negative, -size, size)[kept]
    return drawn


def _choose(blocks: _Blocks, words: np.ndarray) -> np.ndarray:
    """The block of each uniform word: the number of thresholds at or below it."""
    block = np.searchsorted(blocks.thresholds, words, side="right")
    # A word equal to a threshold's first bits lies on either side of it: its further bits decide.
    for tie in np.flatnonzero(blocks.thresholds[np.maximum(block - 1, 0)] == words):
        block[tie] = _exact_block(blocks, int(words[tie]))
    return block


def _accept(blocks: _Blocks, block: np.ndarray, offset: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Whether each uniform number, of which 53 bits are known, lies below exp(−y (2b + y) / (2 s²/w²)), with y = offset / w."""
    y = offset / blocks.width
    probability = np.exp(-y * (2.0 * block + y) / (2.0 * blocks.ratio))
    gap = probability - uniform * 2.0**-FRACTION
    accepted: np.ndarray = gap > 0
    for near in np.flatnonzero(np.abs(gap) < UNCERTAIN):
        accepted[near] = _exact_accept(blocks, int(block[near]), int(offset[near]), int(uniform[near]))
    return accepted


@lru_cache(maxsize=64)
def _cut(scale: float) -> _Blocks:
    width = 2 ** max(0, math.floor(math.log2(scale / BLOCKS_PER_DEVIATION)))
    with decimal.localcontext(prec=EXACT_DIGITS):
        squared = (Decimal(scale) / width) ** 2
    cumulative = [share for share, _ in _shares(squared, DIGITS)]
    thresholds = np.array([min(int(share * 2**WORD), 2**WORD - 1) for share in cumulative], dtype=np.uint64)
    return _Blocks(width, squared, thresholds)


def _shares(squared: Decimal, digits: int) -> list[tuple[Decimal, Decimal]]:
    """For each block the share of the mass in the blocks up to it, and a bound on the share's error."""
    with decimal.localcontext(prec=digits):
        heights, b = [Decimal(1)], 1
        while heights[-1] > Decimal(NEGLIGIBLE_TAIL) / len(heights) ** 2 or len(heights) < 2:
            heights.append((-Decimal(b * b) / (2 * squared)).exp())
            b += 1
        total, sums = Decimal(0), []
        for height in heights:
            total += height
            sums.append(total)
        error = Decimal(10) ** (4 - digits) + Decimal(NEGLIGIBLE_TAIL)
        return [(part / total, error) for part in sums]


def _exact_block(blocks: _Blocks, word: int) -> int:
    """The block of a uniform number of which the first 64 bits are known."""

    def below(uniform: Decimal, step: Decimal, digits: int) -> int | None:
        for block, (share, error) in enumerate(_shares(blocks.squared, digits)):
            if uniform + step <= share - error:
                return block
            if uniform < share + error:
                return None
        return None

    return _until_certain(word, WORD, below)


def _exact_accept(blocks: _Blocks, block: int, offset: int, uniform: int) -> bool:
    """As `_accept`, of one uniform number."""

    def below(low: Decimal, step: Decimal, digits: int) -> int | None:
        y = Decimal(offset) / blocks.width
        probability = (-y * (2 * block + y) / (2 * blocks.squared)).exp()
        error = Decimal(10) ** (4 - digits)
        if low + step <= probability - error:
            return True
        return False if low >= probability + error else None

    return bool(_until_certain(uniform, FRACTION, below))


def _until_certain(known: int, bits: int, outcome: Callable[[Decimal, Decimal, int], int | None]) -> int:
    """The outcome for a uniform number whose first bits are known, with more of them, and more digits, until it is certain.

    outcome: of the interval [low, low + step) that holds the number, or None where it is uncertain.
    """
    digits = DIGITS
    while True:
        with decimal.localcontext(prec=digits + bits):
            step = Decimal(1) / 2**bits
            found = outcome(known * step, step, digits)
        if found is not None:
            return found
        known, bits, digits = (known << WORD) | secrets.randbits(WORD), bits + WORD, 2 * digits
