"""How much of itself a client shows over a run, where the adversary knows who participates: the distribution of Σ 1/h_k.

h_k: the honest participants of round k, whose noises lie on its sum beside the client's own. Sums are rounded up and never down, and
mass that is left out is counted, so that what follows from the distribution is an upper bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from normec.privacy.mechanism import Mechanism
from normec.privacy.participation import OWN
from normec.privacy.trust import SecAgg

POINTS, KEPT, BLOCKS = 4096, 512, 128
"""Of a distribution while rounds are added up, and of its part for one number of rounds; and into how many numbers of rounds it falls."""


@dataclass(frozen=True)
class Exposures:
    """values: Σ 1/h_k. weights: their probabilities. beyond: the mass that is left out, to be counted whole."""

    values: np.ndarray
    weights: np.ndarray
    beyond: float

    def __add__(self, other: Exposures) -> Exposures:
        """Of independent rounds together, on a grid of the two."""
        low, high = self.values[0] + other.values[0], self.values[-1] + other.values[-1]
        step = (high - low) / POINTS or 1.0
        if len(self.values) > 2 and step < 2 * (kept := self.values[1] - self.values[0]):
            step = kept  # that of the first, whose values need no rounding
        mine, others = self._on(step), other._on(step)
        return Exposures(low + step * np.arange(len(mine) + len(others) - 1), np.convolve(mine, others), self.beyond + other.beyond)

    def times(self, rounds: int, tail: float) -> Exposures:
        """Of so many independent rounds; `tail` is left out at each end, each time that two are added."""
        power, total = self.within(tail), None
        while True:
            if rounds & 1:
                total = power if total is None else (total + power).within(tail)
            rounds //= 2
            if not rounds:
                return total or Exposures(np.zeros(1), np.ones(1), 0.0)
            power = (power + power).within(tail)

    def within(self, tail: float) -> Exposures:
        """Without the ends that hold less than `tail`: the lower one is rounded up, the upper one left out. Values must rise."""
        below, above = np.cumsum(self.weights), np.cumsum(self.weights[::-1])[::-1]
        first, last = int(np.searchsorted(below, tail)), int(np.flatnonzero(above > tail)[-1])
        weights = self.weights[first : last + 1].copy()
        weights[0] += self.weights[:first].sum()
        return Exposures(self.values[first : last + 1], weights, self.beyond + float(self.weights[last + 1 :].sum()))

    def coarser(self) -> Exposures:
        """On fewer values, each rounded up."""
        step = (self.values[-1] - self.values[0]) / KEPT or 1.0
        weights = self._on(step)
        return Exposures(self.values[0] + step * np.arange(len(weights)), weights, self.beyond)

    def _on(self, step: float) -> np.ndarray:
        """The weights on a grid from the first value on; each value is rounded up."""
        places = np.ceil((self.values - self.values[0]) / step * (1 - 1e-12)).astype(np.int64)
        return np.bincount(places, weights=self.weights)


@lru_cache(maxsize=64)
def exposures(mechanism: Mechanism, negligible: float) -> Exposures:
    """Of all rounds of a mechanism, but for about `negligible` of the mass, which is counted in `beyond`."""
    drawn = mechanism.sampling != OWN  # of cohorts of one's own making nothing is known
    if drawn and isinstance(mechanism.trust, SecAgg) and mechanism.trust.dropouts == "none":
        return _of_drawn_cohorts(mechanism, mechanism.trust, negligible)
    return _of_smallest_cohorts(mechanism, negligible)


def _of_smallest_cohorts(mechanism: Mechanism, negligible: float) -> Exposures:
    """As if in each of a client's rounds only as many were honest as are promised: n/h for n rounds, n ~ Bin(K, p)."""
    rounds, weights, beyond = _rounds_of_a_client(mechanism, mechanism.rate if mechanism.sampling != OWN else 1.0, negligible)
    return Exposures(rounds / mechanism.honest, weights, beyond)


def _of_drawn_cohorts(mechanism: Mechanism, trust: SecAgg, negligible: float) -> Exposures:
    """Where nobody makes clients drop out: h = 1 + others − colluders, with as many others as were drawn, in rounds that are opened."""
    others, chance = _others(mechanism)
    honest = others + 1.0 - trust.colluders
    opened = honest >= trust.min_honest
    if not opened.any():
        return Exposures(np.zeros(1), np.ones(1), 0.0)
    share = float(chance[opened].sum())
    one = Exposures(1 / honest[opened][::-1], chance[opened][::-1] / share, 0.0)
    rounds, weights, beyond = _rounds_of_a_client(mechanism, min(1.0, mechanism.rate * share), negligible)
    block, tail = math.ceil(len(rounds) / BLOCKS), negligible / (16 * mechanism.rounds)
    several, total, parts = one.times(block, tail), one.times(int(rounds[0]), tail), []
    for start in range(0, len(rounds), block):  # numbers of rounds are rounded up to the last of a block
        last = min(start + block, len(rounds)) - 1
        if last - (start - 1 if start else 0):
            total = (total + (several if start else one.times(last, tail))).within(tail)
        part = total.coarser()
        parts.append((part.values, part.weights * weights[start : last + 1].sum(), part.beyond))
    values, masses, left_out = zip(*parts, strict=True)
    return Exposures(np.concatenate(values), np.concatenate(masses), beyond + max(left_out))


def _rounds_of_a_client(mechanism: Mechanism, rate: float, negligible: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Numbers of rounds from 1 on, their probabilities, and what is left out at both ends; n ~ Bin(K, rate)."""
    drawn, low, high = _binomial(mechanism.rounds, rate, negligible)
    rounds = np.arange(max(low, 1), max(high, 1) + 1)
    return rounds, drawn.pmf(rounds), float((drawn.cdf(low - 1) if low > 1 else 0.0) + drawn.sf(rounds[-1]))


def _others(mechanism: Mechanism) -> tuple[np.ndarray, np.ndarray]:
    """How many others are in a client's round, and their probabilities."""
    if mechanism.sampling != "poisson":
        return np.array([round(mechanism.expected) - 1.0]), np.ones(1)
    drawn, low, high = _binomial(mechanism.clients - 1, mechanism.rate, 1e-40)
    others = np.arange(low, high + 1)
    return others.astype(float), drawn.pmf(others)


def _binomial(number: int, rate: float, tail: float) -> tuple[Any, int, int]:
    """Bin(number, rate), and where it begins and ends but for a tail at each side; scipy's `isf` has none below 1e-16."""
    from scipy.stats import binom

    return binom(number, rate), int(binom.ppf(tail, number, rate)), number - int(binom.ppf(tail, number, 1 - rate))
