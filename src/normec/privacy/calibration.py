"""The smallest noise that keeps a planned run within its ε."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache

from normec.errors import BadInput
from normec.privacy.accountant import epsilon
from normec.privacy.amplified import pld, pld_grid, rdp
from normec.privacy.gaussian import over_participations, unamplified
from normec.privacy.mechanism import SMALLEST_NOISE, Mechanism
from normec.privacy.noise import is_independent

GUIDE_ORDERS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 256, 512, 1024)
"""Rényi orders of the first guess, which a few per cent more do not harm."""
LARGEST_NOISE = 1e6
CLOSE = 1e-5
"""Half of the relative distance from the wanted ε at which the search may end, below it."""
RESOLVED, COARSE = 5e-3, 50
"""The ε below which noise is sought on a coarser grid of losses, and by what factor: ε may there fall to 0 almost at once."""
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
        raise BadInput("epsilon", value=target, must="be a finite number > 0")
    return _calibrate(replace(mechanism.in_units_of_the_bound(), noise_multiplier=0.0), target, delta)


@lru_cache(maxsize=64)
def _calibrate(mechanism: Mechanism, target: float, delta: float) -> float:
    hardly_any = replace(mechanism, noise_multiplier=SMALLEST_NOISE)
    if is_independent(mechanism.noise) and over_participations(hardly_any, delta).epsilon <= target:
        return SMALLEST_NOISE  # a client hardly ever takes part
    noise, step = _search(mechanism, target, delta), 0.0
    while noise <= LARGEST_NOISE and (spent := epsilon(replace(mechanism, noise_multiplier=noise), delta).epsilon) > target:
        step = max(1e-7, min(spent / target - 1, 1e-3), 2 * step)
        noise *= 1 + step
    if noise > LARGEST_NOISE:
        raise BadInput("privacy.epsilon", f"cannot be reached with a noise multiplier up to {LARGEST_NOISE:g}", remedy="Raise it")
    return noise


def _search(mechanism: Mechanism, target: float, delta: float) -> float:
    """A noise multiplier at which ε is near the target."""
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
        quick = trial.adjacency == "replace-one"  # whose Rényi DP takes a quadrature
        renyi = math.inf if quick else rdp(trial, delta, GUIDE_ORDERS).epsilon
        return compared(noise, min(unamplified(trial, delta).epsilon, renyi))

    @cache
    def claim(noise: float) -> float:
        trial = replace(mechanism, noise_multiplier=noise)
        if not is_independent(trial.noise):
            return compared(noise, epsilon(trial, delta).epsilon)
        tight = pld(trial, delta, grid).epsilon if trial.trust.at_server else math.inf
        if tight == math.inf:
            return compared(noise, epsilon(trial, delta).epsilon)
        return compared(noise, min(tight, unamplified(trial, delta).epsilon, over_participations(trial, delta).epsilon))

    if mechanism.trust.per_client or not is_independent(mechanism.noise):
        return _root(claim, 1.0)
    if mechanism.sampling == "full":
        return _root(guess, 1.0)
    if target < RESOLVED:  # a finer search would only halve its bracket
        grid *= COARSE
        return _root(claim, _by_central_limit(mechanism, delta), step=0.95, precision=1e-3)
    return _root(claim, 1.02 * _root(guess, 1.0, precision=1e-3, largest=1e15), step=0.75, precision=1e-5)


def _by_central_limit(mechanism: Mechanism, delta: float) -> float:
    """A noise multiplier to start from: that of a Gaussian at distance p √(K (e^(1/z²) − 1)) whose total variation is δ.

    Source: Bu, Dong, Long and Su (2020), deep learning with Gaussian differential privacy.
    """
    from scipy.stats import norm

    mu = 2 * float(norm.ppf((1 + delta) / 2)) / mechanism.distance
    return max(1 / math.sqrt(math.log1p((mu / mechanism.rate) ** 2 / mechanism.rounds)), SMALLEST_NOISE)


def affordable_rounds(mechanism: Mechanism, limit: float, delta: float) -> int:
    """How many of a mechanism's rounds spend at most `limit`; ε grows with the rounds.

    Between two numbers of rounds log ε is almost a line in log K: that, and halves in turn, take a few calls of the accountant.
    """

    def excess(rounds: int) -> float:
        return math.log(max(epsilon(replace(mechanism, rounds=rounds), delta).epsilon, 1e-300) / limit)

    low, high, above = 0, mechanism.rounds, excess(mechanism.rounds)
    if above <= 0:
        return high
    below = -math.inf
    for halve in itertools.cycle((False, False, True)):
        if high - low <= 1:
            return low
        middle = (low + high) // 2
        if not halve and low and max(-below, above) < math.inf:
            middle = round(math.exp(math.log(low) - below * math.log(high / low) / (above - below)))
            middle = min(max(middle, low + 1), high - 1)
        found = excess(middle)
        low, below, high, above = (middle, found, high, above) if found <= 0 else (low, below, middle, found)
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
            raise BadInput("privacy.epsilon", f"cannot be reached with a noise multiplier up to {LARGEST_NOISE:g}", remedy="Raise it")
    while low == high or excess(low) < 0:
        low, high = low * step, low
    logs = math.log(low), math.log(high)
    return math.exp(scipy.optimize.brentq(lambda x: excess(math.exp(x)), *logs, xtol=precision, rtol=precision))
