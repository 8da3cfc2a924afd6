"""What local steps with bounded and noised gradients of records spend: the unit is one record of one client.

In each of the T steps of a round that its client computes, a record is drawn with probability q, adds a gradient of norm at most C, and
noise z C lies on the sum. Everything after a step is post-processing. Against others who see which clients compute, a client's coin
of a round amplifies nothing, and is shared by its T steps; the claim averages over the number of its rounds. Never q times p.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from normec.privacy.amplified import ALMOST_ONE, FAILURES, FINEST, MOST_POINTS_ONE, NEGLIGIBLE, _one_round
from normec.privacy.composition import Composition, Losses, TooFine
from normec.privacy.gaussian import Spent, gaussian, gaussian_delta, quiet
from normec.privacy.mechanism import SMALLEST_NOISE, Adjacency


@dataclass(frozen=True, kw_only=True)
class RecordSteps:
    """The steps of one client. rate: q, of a record in a step. noise_multiplier: z. steps: T in a round. rounds: K.

    share: the probability with which the client computes in a round, 1 where all do, also those that do not transmit.
    """

    rate: float
    noise_multiplier: float
    steps: int
    rounds: int
    share: float = 1.0
    adjacency: Adjacency = "zero-out"

    @property
    def distance(self) -> float:
        """How far one record moves a sum, in units of the bound."""
        return 2.0 if self.adjacency == "replace-one" else 1.0


@lru_cache(maxsize=256)
def record_epsilon(steps: RecordSteps, delta: float) -> Spent:
    """ε at δ of all planned rounds, as an average over the rounds that the client computes."""
    if steps.noise_multiplier < SMALLEST_NOISE:
        return Spent(math.inf, "none")
    if steps.rate > ALMOST_ONE:
        return Spent(_in_every_step(steps, delta), "gaussian over participations" if steps.share < 1 else "gaussian closed form")
    grid, most = 1e-3, math.inf
    while True:
        most = min(most, _composed(steps, delta, grid))
        finer = max(FINEST, min(1e-3, max(most, 3e-3) / (60 * math.sqrt(steps.steps * steps.rounds))), _least(steps, delta))
        if finer >= 0.9 * grid or most == math.inf:
            return Spent(min(most, _in_every_step(replace(steps, rate=1.0), delta)), "PLD")
        grid = finer


def _composed(steps: RecordSteps, delta: float, grid: float) -> float:
    tails = math.floor(math.log(NEGLIGIBLE * delta / (steps.steps * steps.rounds)))
    try:
        with quiet():
            one: Any = _one_round(steps.noise_multiplier, steps.rate, steps.adjacency, max(grid, _least(steps, delta)), tails, False)
        return max(Composition(losses, steps.rounds, steps.steps, steps.share).epsilon(delta) for losses in Losses.both(one))
    except TooFine as error:
        return _composed(steps, delta, grid * error.times)
    except FAILURES:
        return math.inf


def _least(steps: RecordSteps, delta: float) -> float:
    z = steps.noise_multiplier
    reach = 1 + z * math.sqrt(-2 * math.log(NEGLIGIBLE * delta / (steps.steps * steps.rounds)))
    loss = steps.distance * reach / z**2
    return max(0.0, math.log1p(-steps.rate + steps.rate * math.exp(min(loss, 700.0))) + max(loss - 700.0, 0.0)) / MOST_POINTS_ONE


def _in_every_step(steps: RecordSteps, delta: float) -> float:
    """Where each step takes every record: T Gaussian releases in each of n ~ Bin(K, share) rounds."""
    import numpy as np
    import scipy.optimize
    from scipy.stats import binom

    one = steps.distance * math.sqrt(steps.steps) / steps.noise_multiplier
    if steps.share >= 1:
        return gaussian(one * math.sqrt(steps.rounds), delta)
    rounds = np.arange(1, steps.rounds + 1)
    weights = binom(steps.rounds, steps.share).pmf(rounds)

    def excess(epsilon: float) -> float:
        return float(weights @ gaussian_delta(epsilon, one * np.sqrt(rounds))) - delta

    if excess(0.0) <= 0:
        return 0.0
    most = gaussian(one * math.sqrt(steps.rounds), delta)
    return float(scipy.optimize.brentq(excess, 0.0, most, xtol=1e-10, rtol=1e-12)) * (1 + 1e-9)


def record_noise(steps: RecordSteps, target: float, delta: float) -> float:
    """The least noise multiplier at which ε is at most the target, to 1e-4."""
    import scipy.optimize

    def excess(log_noise: float) -> float:
        return math.log(max(record_epsilon(replace(steps, noise_multiplier=math.exp(log_noise)), delta).epsilon, 1e-300) / target)

    low, high = -1.0, 1.0
    while excess(high) > 0:
        low, high = high, high + 1.0
    while excess(low) < 0:
        low, high = low - 1.0, low
    found = math.exp(float(scipy.optimize.brentq(excess, low, high, xtol=1e-5)))
    while record_epsilon(replace(steps, noise_multiplier=found), delta).epsilon > target:
        found *= 1 + 1e-5
    return found
