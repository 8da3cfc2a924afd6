"""Many rounds of one privacy loss distribution, exact in its tails: ε at any δ, of any number of rounds.

A plain Fourier transform rounds to 1e-16 of the whole mass, which hides a small δ. Here the losses are tilted first, P(l) e^(θ l) / M(θ),
so that their mean over all rounds lies at the wanted ε: what is rounded is then small beside what is looked at, however small δ is
(an Esscher transform, as in large deviations). Cut-off and rounding are bounded and counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

CUT_OFF = 40.0
"""Minus the logarithm of the tilted mass beyond each end of the window in which rounds are composed."""
MOST_POINTS = 1 << 22
"""Of that window: 64 MB."""
ROUNDING = 1e-14
"""Of a transform, relative to the root of the sum of squares of what it gives; and of each round's phase."""
REACH = 30.0
"""How far below the bound, in units of 1/θ, rounding still stays small beside what is summed."""


class TooFine(Exception):
    """A grid on which the window of all rounds has too many points. times: how much coarser it must be."""

    def __init__(self, times: float) -> None:
        super().__init__(f"make the grid {times:g} times coarser")
        self.times = times


@dataclass(frozen=True)
class Losses:
    """A distribution of a round's privacy loss. probs: at step · (lower + i). infinite: the mass of an infinite loss."""

    lower: int
    step: float
    probs: np.ndarray
    infinite: float

    @classmethod
    def both(cls, one_round: Any) -> list[Losses]:
        """Of a distribution of dp-accounting: the losses of each direction of the neighbouring relation."""
        return [cls.of(pmf) for pmf in ({id(each): each for each in (one_round._pmf_remove, one_round._pmf_add)}).values()]

    @classmethod
    def of(cls, pmf: Any) -> Losses:
        """Of a pmf of dp-accounting."""
        dense = pmf.to_dense_pmf()
        return cls(dense._lower_loss, dense._discretization, np.asarray(dense._probs), dense._infinity_mass)

    @cached_property
    def _held(self) -> tuple[np.ndarray, np.ndarray]:
        """The losses that have a probability, and its logarithm."""
        places = np.flatnonzero(self.probs)
        return self.step * (self.lower + places), np.log(self.probs[places])

    def cumulant(self, tilt: float) -> float:
        """κ(θ) = log Σ P(l) e^(θ l)."""
        losses, logs = self._held
        exponents = logs + tilt * losses
        largest = float(exponents.max())
        return largest + math.log(float(np.exp(exponents - largest).sum()))

    def epsilon(self, rounds: int, delta: float) -> float:
        """ε at δ of so many rounds.

        Raises:
            TooFine: where the grid is too fine for all of them.
        """
        return Composition(self, rounds).epsilon(delta)


@dataclass(frozen=True)
class Composition:
    """So many rounds, in each of which a coin of probability `share`, which everybody sees, decides whether `steps` losses are met."""

    one: Losses
    rounds: int
    steps: int = 1
    share: float = 1.0

    def epsilon(self, delta: float) -> float:
        """ε at δ.

        Raises:
            TooFine: where the grid is too fine for all rounds.
        """
        met = self.share * math.expm1(self.steps * math.log1p(-self.one.infinite))  # minus the chance of an infinite loss in a round
        left = delta + math.expm1(self.rounds * math.log1p(met))
        if left <= 0:
            return math.inf
        tilt, most = self._tail_bound(left)
        while most > 0:
            found = _Tilted(self, tilt).epsilon(left, most)
            if found is not None:
                return found
            tilt /= 8  # ε lies far below the bound, as where a few losses hold nearly all of δ
        return 0.0

    def cumulant(self, tilt: float) -> float:
        """Of one round: log(1 − share + share e^(steps κ(θ)))."""
        met = self.steps * self.one.cumulant(tilt)
        return met if self.share == 1 else float(np.logaddexp(math.log1p(-self.share), math.log(self.share) + met))

    def transform(self, tilt: float, period: int) -> np.ndarray:
        """The Fourier transform of all rounds, tilted, on places modulo a period; place 0 is a loss of 0."""
        from scipy.fft import rfft

        one, places = self.one, np.arange(len(self.one.probs))
        with np.errstate(divide="ignore"):
            tilted = np.exp(np.log(one.probs) + tilt * one.step * (one.lower + places) - one.cumulant(tilt))
        met = rfft(np.bincount((places + one.lower) % period, weights=tilted, minlength=period)) ** self.steps
        if self.share < 1:
            held = self.cumulant(tilt)
            met = met * math.exp(math.log(self.share) + self.steps * one.cumulant(tilt) - held) + math.exp(math.log1p(-self.share) - held)
        whole: np.ndarray = met**self.rounds
        return whole

    def _tail_bound(self, delta: float) -> tuple[float, float]:
        """The tilt θ at which ε ≤ (K κ(θ) − log δ) / θ is least, and that bound."""
        from scipy.optimize import minimize_scalar

        def bound(log_tilt: float) -> float:
            tilt = math.exp(log_tilt)
            return (self.rounds * self.cumulant(tilt) - math.log(delta)) / tilt

        found = minimize_scalar(bound, bounds=(-12.0, 18.0), method="bounded", options={"xatol": 1e-3})
        return math.exp(found.x), float(found.fun)


class _Tilted:
    """All rounds together, tilted. bottom: the first place of the window. mass: of the places in it."""

    def __init__(self, whole: Composition, tilt: float) -> None:
        self.whole, self.one, self.rounds, self.tilt = whole, whole.one, whole.rounds, tilt
        self.bottom, top = (round(end / whole.one.step) for end in self._window())
        size = top - self.bottom + 1
        if size > MOST_POINTS:
            raise TooFine(1.05 * size / MOST_POINTS)
        self.mass = self._composed(size)

    def _window(self) -> tuple[float, float]:
        """The least and the largest loss, but for tails that hold less than e^(−CUT_OFF) each, by Chernoff's bound."""
        whole, one, rounds, tilt = self.whole, self.one, self.rounds, self.tilt
        longest = rounds * whole.steps
        least, most = min(0.0, one.step * one.lower * longest), one.step * (one.lower + len(one.probs) - 1) * longest
        centre = whole.cumulant(tilt)

        def beyond(sign: int) -> Callable[[float], float]:
            return lambda log_shift: (rounds * (whole.cumulant(tilt + sign * math.exp(log_shift)) - centre) + CUT_OFF) / math.exp(log_shift)

        ends = []
        for sign in (-1, 1):
            value = beyond(sign)
            shifts = np.linspace(-14, 18, 65)
            ends.append(sign * min(map(value, shifts)))
        return max(least, ends[0] - one.step), min(most, ends[1] + one.step)

    def _composed(self, size: int) -> np.ndarray:
        from scipy.fft import irfft, next_fast_len

        period = next_fast_len(size, real=True)
        mass: np.ndarray = irfft(self.whole.transform(self.tilt, period), period)
        return np.roll(mass, -(self.bottom % period))[:size].clip(0.0)

    def epsilon(self, delta: float, most: float) -> float | None:
        """The least ε ≥ 0 at which the divergence is at most δ; None where it is too far below `most`, one at which it is."""
        from scipy.signal import lfilter

        one = self.one
        losses = one.step * (self.bottom + np.arange(len(self.mass)))
        near = (losses > -one.step) & (self.tilt * np.abs(most - losses) < REACH)
        if not near.any():
            return max(most, 0.0)
        losses, decay = losses[near], math.exp(-one.step)
        weights = self.mass[near] * np.exp(-self.tilt * (losses - most))
        from_here = np.cumsum(weights[::-1])[::-1]
        discounted = lfilter([1.0], [1.0, -decay], weights[::-1])[::-1]  # by e^(losses here − losses there)
        slack = self._slack() * np.exp(-self.tilt * (losses - most))
        divergence = from_here - discounted + slack  # at each place, which itself counts in neither
        target = math.exp(min(math.log(delta) + self.tilt * most - self.rounds * self.whole.cumulant(self.tilt), 700.0))
        kept = int(np.argmax(divergence <= target))
        if divergence[kept] > target:
            return max(most, 0.0)
        if kept == 0:
            return None if losses[0] > 0 else 0.0
        left = from_here[kept] + slack[kept - 1] - target
        epsilon = float(losses[kept]) + math.log(max(left, 1e-300) / discounted[kept])
        return min(max(epsilon, float(losses[kept - 1]), 0.0), max(float(losses[kept]), 0.0), max(most, 0.0))

    def _slack(self) -> float:
        """What cut-off and rounding may hide of the mass at any place."""
        root = float(np.linalg.norm(self.mass)) * math.sqrt(len(self.mass))
        return 2 * math.exp(-CUT_OFF) + ROUNDING * (1 + self.rounds * self.whole.steps) * root
