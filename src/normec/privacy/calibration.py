"""The smallest noise that keeps a planned run within its ε."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from normec.errors import BadInput
from normec.privacy.accountant import epsilon, pld, pld_grid, rdp, unamplified
from normec.privacy.mechanism import PER_CLIENT, Mechanism

GUIDE_ORDERS = (*range(2, 65), 96, 128, 192, 256, 384, 512, 1024)
"""Rényi orders of the first guess: the fractional ones are slow and move it little."""
LARGEST_NOISE = 1e6


def calibrate(mechanism: Mechanism, target: float, delta: float) -> float:
    """The noise multiplier at which `mechanism` spends at most `target`, and no less than about `target` − 1e-3, at δ.

    A guess from RDP or the closed form brackets a root of the accountant that makes the claim. Never returns less
    privacy than asked: the last step checks the claim itself, and adds noise until it holds.

    Raises:
        BadInput: where no noise multiplier up to 10⁶ reaches the target.
    """
    if not (0 < target < math.inf):
        raise BadInput("epsilon", f"={target!r} must be a finite number > 0.")
    grid = pld_grid(target, mechanism.rounds)

    def guess(noise: float) -> float:
        trial = replace(mechanism, noise_multiplier=noise)
        return min(unamplified(trial, delta).epsilon, rdp(trial, delta, GUIDE_ORDERS).epsilon) - target

    def claim(noise: float) -> float:
        trial = replace(mechanism, noise_multiplier=noise)
        tight = pld(trial, delta, grid).epsilon if trial.trust == "central" else math.inf
        return min(tight, unamplified(trial, delta).epsilon) - target if tight < math.inf else epsilon(trial, delta).epsilon - target

    if mechanism.trust in PER_CLIENT:
        noise = _root(claim, 1.0, 2.0)
    else:
        noise = _root(guess, 1.0, 2.0, largest=1e15)
        if mechanism.sampling != "full":
            noise = _root(claim, 0.75 * noise, 1.02 * noise)
    step = 1e-7
    while epsilon(replace(mechanism, noise_multiplier=noise), delta).epsilon > target:
        noise, step = noise * (1 + step), 2 * step
    if noise > LARGEST_NOISE:
        raise BadInput("privacy.epsilon", f" cannot be reached with a noise multiplier up to {LARGEST_NOISE:g}. Raise it.")
    return noise


def affordable_rounds(mechanism: Mechanism, limit: float, delta: float) -> int:
    """How many of a mechanism's rounds spend at most `limit`; ε grows with the rounds, so this is a bisection."""
    low, high = 0, mechanism.rounds
    while low < high:
        middle = (low + high + 1) // 2
        fits = epsilon(replace(mechanism, rounds=middle), delta).epsilon <= limit
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def _root(excess: Callable[[float], float], low: float, high: float, largest: float = LARGEST_NOISE) -> float:
    """Where the decreasing function `excess` crosses zero, to a relative 1e-8; [low, high] is widened to bracket it."""
    import scipy.optimize

    while excess(high) > 0:
        low, high = high, 2 * high
        if high > largest:
            raise BadInput("privacy.epsilon", f" cannot be reached with a noise multiplier up to {LARGEST_NOISE:g}. Raise it.")
    while excess(low) <= 0:
        low, high = low / 2, low
    return float(scipy.optimize.brentq(excess, low, high, xtol=1e-8 * low, rtol=1e-8))
