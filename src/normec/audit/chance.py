"""The tests in which chance plays: how odd what was measured is under the mechanism that was accounted.

Under it, each number of the noise is one of a standard Gaussian, independent of all others and of every message of its round.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import stats

from normec.audit.evidence import Evidence
from normec.audit.verdict import Test
from normec.privacy import Mechanism

PRODUCTS = 2000
"""Products of Gaussians whose sum is as good as Gaussian, far out too."""
SORTED = 10**6
"""Numbers of which the distribution is compared."""


class Odds(NamedTuple):
    """A statistic, and the chance of something as odd under the mechanism that was accounted."""

    value: float
    p_value: float


class Chance(NamedTuple):
    """A test of a statistic; None where the run has not shown it."""

    name: str
    statistic: Callable[[Evidence, Mechanism], Odds | None]
    expected: str
    means: str

    def test(self, evidence: Evidence, mechanism: Mechanism, error: float) -> Test:
        found = self.statistic(evidence, mechanism)
        if found is None:
            return Test(self.name, None, self.expected, None, False, self.means)
        return Test(self.name, found.value, self.expected, found.p_value, not found.p_value >= error, self.means)


def _gaussian(value: float) -> Odds:
    """Of one number of a standard Gaussian."""
    return Odds(value, 2 * float(stats.norm.sf(abs(value))))


def _mean_square(squares: float, freedom: int) -> Odds:
    """Of a sum of squares of so many numbers of a standard Gaussian."""
    below, above = float(stats.chi2.cdf(squares, freedom)), float(stats.chi2.sf(squares, freedom))
    return Odds(squares / freedom, 2 * min(below, above))


def _oddest(values: np.ndarray, p_values: np.ndarray) -> Odds:
    """The oddest of many, and the chance of one as odd among them."""
    worst = int(np.argmin(p_values))  # the first that is not a number, if there is one
    return Odds(float(values[worst]), float(np.minimum(1.0, len(p_values) * p_values[worst])))


def _oddest_mean_square(squares: np.ndarray, freedom: int) -> Odds:
    return _oddest(squares / freedom, 2 * np.minimum(stats.chi2.cdf(squares, freedom), stats.chi2.sf(squares, freedom)))


def _oddest_gaussian(values: np.ndarray) -> Odds:
    return _oddest(values, 2 * stats.norm.sf(np.abs(values)))


def _off_canaries(evidence: Evidence, mechanism: Mechanism) -> Odds:
    return _mean_square(float((evidence.held_out**2).sum()), evidence.held_out.size)


def _each_round(evidence: Evidence, mechanism: Mechanism) -> Odds:
    energies = np.array([one.energy for one in evidence.rounds])
    return _oddest_mean_square(energies * evidence.parameters, evidence.parameters)


def _each_coordinate(evidence: Evidence, mechanism: Mechanism) -> Odds:
    return _oddest_mean_square((evidence.noise**2).sum(0), len(evidence.noise))


def _shape(evidence: Evidence, mechanism: Mechanism) -> Odds:
    numbers = evidence.noise.ravel()
    found = stats.kstest(numbers[:: -(-len(numbers) // SORTED)], "norm")
    return Odds(float(found.statistic), float(found.pvalue))


def _round_to_round(evidence: Evidence, mechanism: Mechanism) -> Odds:
    held = evidence.held_out
    squares = float((held**2).sum())
    lagged = float((held[1:] * held[:-1]).sum()) / squares if squares else 1.0
    return Odds(lagged, 2 * float(stats.norm.sf(abs(lagged) * math.sqrt(held[1:].size))))


def _any_two_rounds(evidence: Evidence, mechanism: Mechanism) -> Odds:
    """Of each round's noise along that of each earlier one."""
    noise = evidence.noise
    norms = np.linalg.norm(noise, axis=1)
    later, earlier = np.tril_indices(len(noise), -1)
    return _oddest_gaussian((noise @ noise.T)[later, earlier] / norms[earlier])


def _shifted(evidence: Evidence, mechanism: Mechanism) -> Odds | None:
    """Of the noise's numbers times those so many places further on, round the end, over all rounds; for each number of places."""
    noise = evidence.noise
    rounds, size = noise.shape
    if noise.size < PRODUCTS or size < 3:
        return None
    spectrum = sum(np.abs(np.fft.rfft(row)) ** 2 for row in noise)
    sums = np.fft.irfft(spectrum, size)[1 : size // 2 + 1]
    stds = np.full(len(sums), math.sqrt(rounds * size))
    if size % 2 == 0:  # half way round each product is met twice
        stds[-1] *= math.sqrt(2)
    return _oddest_gaussian(sums / stds)


def _sums(evidence: Evidence, mechanism: Mechanism) -> Odds:
    return _mean_square(float((evidence.noise.sum(0) ** 2).sum()) / len(evidence.noise), evidence.noise.shape[1])


def _absent_canaries(evidence: Evidence, mechanism: Mechanism) -> Odds | None:
    absent = evidence.canaries[~evidence.present]
    return _gaussian(float(absent.sum()) / math.sqrt(absent.size)) if absent.size else None


def _mean_of(leanings: list[float]) -> Odds | None:
    shown = [leaning for leaning in leanings if not math.isnan(leaning)]
    return _gaussian(math.fsum(shown) / math.sqrt(len(shown))) if shown else None


def _together(evidence: Evidence, mechanism: Mechanism) -> Odds | None:
    return _mean_of([one.together for one in evidence.rounds])


def _absent(evidence: Evidence, mechanism: Mechanism) -> Odds | None:
    return _mean_of([one.absent for one in evidence.rounds])


def _each_client(evidence: Evidence, mechanism: Mechanism) -> Odds | None:
    found = [sums[times > 0] / np.sqrt(times[times > 0]) for sums, times in map(evidence.leanings, (True, False))]
    return _oddest_gaussian(np.concatenate(found)) if any(map(len, found)) else None


def _participation(evidence: Evidence, mechanism: Mechanism) -> Odds | None:
    """Of how often each honest client, and all of them, took part."""
    if mechanism.most_exposure < math.inf:  # clients fall silent
        return None
    rounds, clients = evidence.cohorts.shape
    own, rate = evidence.cohorts.sum(0), mechanism.rate
    together = _binomial(own.sum(), rounds * clients, rate)
    if mechanism.sampling != "poisson" and (evidence.cohorts.sum(1) != round(mechanism.expected)).any():
        together = np.array(0.0)  # of a fixed size, whatever chance does
    p_value = min(1.0, 2 * min(float(together), clients * float(_binomial(own, rounds, rate).min())))
    return Odds(float(evidence.cohorts.mean()) / rate, p_value)


def _binomial(counts: np.ndarray, trials: int, rate: float) -> np.ndarray:
    both: np.ndarray = 2 * np.minimum(stats.binom.cdf(counts, trials, rate), stats.binom.sf(counts - 1, trials, rate))
    return both


CHANCE = (
    Chance(
        "noise off the canaries",
        _off_canaries,
        "1",
        "the noise has another standard deviation than was accounted, or something else is released beside it",
    ),
    Chance("noise of each round", _each_round, "1", "a round has another noise than was accounted, or none"),
    Chance("noise of each coordinate", _each_coordinate, "1", "some coordinates have less noise than was accounted"),
    Chance("shape of the noise", _shape, "0", "the noise is not Gaussian"),
    Chance(
        "noise from round to round",
        _round_to_round,
        "0",
        "the noise of one round tells of the next: a stream that is used again can be subtracted",
    ),
    Chance("noise of any two rounds", _any_two_rounds, "0", "the noise of one round tells of another one's"),
    Chance("noise within a round", _shifted, "0", "the noise of some coordinates tells of others': numbers are used twice"),
    Chance(
        "sum of all rounds",
        _sums,
        "1",
        "the noise of the rounds does not add up: something was released that was not accounted, such as a resync",
    ),
    Chance("absent canaries", _absent_canaries, "0", "clients that sat out a round are in its sum, so that sampling protects nobody"),
    Chance("absent clients", _absent, "0", "clients that sat out a round are in its sum, so that sampling protects nobody"),
    Chance("messages together", _together, "0", "messages have another length or direction than was declared"),
    Chance("messages of each client", _each_client, "0", "one client's messages have another length or direction than was declared"),
    Chance("participation", _participation, "1", "clients take part more or less often than was accounted, or always the same ones"),
)
