"""The smallest noise that keeps a planned run within its ε."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache

from normec.errors import BadInput
from normec.privacy.accountant import epsilon, pld, pld_grid, rdp, unamplified
from normec.privacy.mechanism import PER_CLIENT, Mechanism

GUIDE_ORDERS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 256, 512, 1024)
"""Rényi orders of the first guess, which a few per cent more do not harm."""
LARGEST_NOISE = 1e6
CLOSE = 1e-5
"""Half of the relative distance from the wanted ε at which the search may end, below it."""
PATIENCE = 2.0
"""Seconds after which a calibration tells, as log records of level INFO, how far it has come."""

log = logging.getLogger(__name__)


def calibrate(mechanism: Mechanism, target: float, delta: float) -> float:
    """The noise multiplier at which `mechanism` spends at most `target`, and no less than about `target` − 1e-3, at δ.

    A guess from RDP or the closed form brackets a root of the accountant that makes the claim. Never returns less
    privacy than asked: the last step checks the claim itself, and adds noise until it holds.

    Raises:
        BadInput: where no noise multiplier up to 10⁶ reaches the target.
    """
    if not (0 < target < math.inf):
        raise BadInput("epsilon", f"={target!r} must be a finite number > 0.")
    return _calibrate(replace(mechanism.in_units_of_the_bound(), noise_multiplier=0.0), target, delta)


@lru_cache(maxsize=64)
def _calibrate(mechanism: Mechanism, target: float, delta: float) -> float:
    grid, aim = pld_grid(target, mechanism.rounds), target * (1 - CLOSE)
    told = time.monotonic()

    def compared(noise: float, spent: float) -> float:
        """log(ε / aim), zero where ε is near enough."""
        nonlocal told
        if time.monotonic() - told > PATIENCE:
            told = time.monotonic()
            log.info("calibrating: a noise multiplier of %.5g gives ε = %.5g, %.5g is wanted", noise, spent, target)
        return 0.0 if abs(spent - aim) <= target - aim else math.log(min(max(spent / aim, 1e-9), 1e9))

    def guess(noise: float) -> float:
        trial = replace(mechanism, noise_multiplier=noise)
        return compared(noise, min(unamplified(trial, delta).epsilon, rdp(trial, delta, GUIDE_ORDERS).epsilon))

    @cache
    def claim(noise: float) -> float:
        trial = replace(mechanism, noise_multiplier=noise)
        tight = pld(trial, delta, grid).epsilon if trial.trust == "central" else math.inf
        spent = min(tight, unamplified(trial, delta).epsilon) if tight < math.inf else epsilon(trial, delta).epsilon
        return compared(noise, spent)

    if mechanism.trust in PER_CLIENT:
        noise = _root(claim, 1.0)
    elif mechanism.sampling == "full":
        noise = _root(guess, 1.0)
    else:
        noise = _root(claim, 1.02 * _root(guess, 1.0, precision=1e-3, largest=1e15), step=0.75)
    step = 0.0
    while (spent := epsilon(replace(mechanism, noise_multiplier=noise), delta).epsilon) > target:
        step = max(1e-7, spent / target - 1, 2 * step)
        noise *= 1 + step
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


def _root(
    excess: Callable[[float], float], start: float, step: float = 0.5, precision: float = 1e-8, largest: float = LARGEST_NOISE
) -> float:
    """Where the decreasing function `excess` crosses zero, to a relative precision.

    The bracket is found from `start` in factors of `step`; between its ends, ε is almost a power of the noise.
    """
    import scipy.optimize

    low = high = start
    while excess(high) > 0:
        low, high = high, high / step
        if high > largest:
            raise BadInput("privacy.epsilon", f" cannot be reached with a noise multiplier up to {LARGEST_NOISE:g}. Raise it.")
    while low == high or excess(low) < 0:
        low, high = low * step, low
    logs = math.log(low), math.log(high)
    return math.exp(scipy.optimize.brentq(lambda x: excess(math.exp(x)), *logs, xtol=precision, rtol=precision))
