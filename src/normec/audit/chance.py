"""The statistical tests: how extreme the measured values are under the mechanism that was accounted.

Under that mechanism each number of the noise is standard Gaussian, independent of all others and of every message of its round.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from normec.audit.evidence import Evidence
from normec.audit.verdict import Test
from normec.privacy import Mechanism

PRODUCTS = 2000
"""The number of products of Gaussians whose sum is as good as Gaussian, including its tails."""
PRODUCTS_OF_ROUNDS, FEWEST_ALONG, ROUNDS_AT_ONCE = 10**12, 64, 512
"""Limits for comparing two rounds: coordinates, and rounds at a time, so that many rounds do not take hours or much memory."""
MOST_LATER = 50
"""The largest number of rounds between two cohorts that are compared."""
SORTED = 10**6
"""The largest number of values whose distribution is compared."""


class Finding(NamedTuple):
    """A statistic, and its p-value under the mechanism that was accounted."""

    value: float
    p_value: float


class Chance(NamedTuple):
    """A test of a statistic, which is None where the run has not shown it."""

    name: str
    statistic: Callable[[Evidence, Mechanism], Finding | None]
    expected: str
    means: str

    def test(self, evidence: Evidence, mechanism: Mechanism, error: float) -> Test:
        finding = self.statistic(evidence, mechanism)
        return Test(
            name=self.name,
            value=finding and finding.value,
            expected=self.expected,
            p_value=finding and finding.p_value,
            flagged=finding is not None and not finding.p_value >= error,
            means=self.means,
        )


def _p_of_gaussian(values: Any) -> Any:
    return 2 * stats.norm.sf(np.abs(values))


def _p_of_squares(squares: Any, freedom: Any) -> Any:
    return 2 * np.minimum(stats.chi2.cdf(squares, freedom), stats.chi2.sf(squares, freedom))


def _gaussian(value: float) -> Finding:
    """The finding on one number that is standard Gaussian."""
    return Finding(value, float(_p_of_gaussian(value)))


def _mean_square(squares: float, freedom: int) -> Finding:
    """The finding on the sum of squares of `freedom` standard Gaussian numbers."""
    return Finding(squares / freedom, float(_p_of_squares(squares, freedom)))


def _most_extreme(values: np.ndarray, p_values: np.ndarray) -> Finding:
    """The most extreme of many values, and the chance of one as extreme among them."""
    worst = int(np.argmin(p_values))  # the first that is not a number, if there is one
    return Finding(float(values[worst]), float(np.minimum(1.0, len(p_values) * p_values[worst])))


def _most_extreme_mean_square(squares: np.ndarray, freedom: int | np.ndarray) -> Finding:
    return _most_extreme(squares / freedom, _p_of_squares(squares, freedom))


def _most_extreme_gaussian(values: np.ndarray) -> Finding:
    return _most_extreme(values, _p_of_gaussian(values))


def _off_canaries(evidence: Evidence, mechanism: Mechanism) -> Finding:
    return _mean_square(float((evidence.held_out**2).sum()), evidence.held_out.size)


def _all_noise(evidence: Evidence, mechanism: Mechanism) -> Finding:
    numbers = len(evidence.rounds) * evidence.parameters
    return _mean_square(evidence.parameters * float(np.sum([one.energy for one in evidence.rounds])), numbers)


def _each_round(evidence: Evidence, mechanism: Mechanism) -> Finding:
    energies = np.array([one.energy for one in evidence.rounds])
    return _most_extreme_mean_square(energies * evidence.parameters, evidence.parameters)


def _each_coordinate(evidence: Evidence, mechanism: Mechanism) -> Finding:
    return _most_extreme_mean_square((evidence.noise**2).sum(0), len(evidence.noise))


def _shape(evidence: Evidence, mechanism: Mechanism) -> Finding:
    numbers = evidence.noise.ravel()
    test = stats.kstest(numbers[:: -(-len(numbers) // SORTED)], "norm")
    return Finding(float(test.statistic), float(test.pvalue))


def _round_to_round(evidence: Evidence, mechanism: Mechanism) -> Finding:
    held = evidence.held_out
    squares = float((held**2).sum())
    lagged = float((held[1:] * held[:-1]).sum()) / squares if squares else 1.0
    return Finding(lagged, float(_p_of_gaussian(lagged * math.sqrt(held[1:].size))))


def _any_two_rounds(evidence: Evidence, mechanism: Mechanism) -> Finding:
    """Largest projection of one round's noise on that of an earlier one; over many rounds, on some of the coordinates."""
    rounds, size = evidence.noise.shape
    kept = min(size, max(FEWEST_ALONG, PRODUCTS_OF_ROUNDS // rounds**2))
    noise = evidence.noise[:, :: -(-size // kept)]
    norms = np.linalg.norm(noise, axis=1)
    with np.errstate(invalid="ignore"):  # a round without any noise gives NaN, which is flagged
        noise = noise / norms[:, None]
    largest = []
    for start in range(0, rounds, ROUNDS_AT_ONCE):
        later = slice(start, start + ROUNDS_AT_ONCE)
        along = (noise[later] @ noise.T) * norms[later, None]
        along[np.arange(rounds)[None] >= np.arange(rounds)[later, None]] = 0.0
        largest.append(along.ravel()[np.argmax(np.abs(along))])
    most = float(largest[int(np.argmax(np.abs(largest)))])
    return Finding(most, float(np.minimum(1.0, rounds * (rounds - 1) * stats.norm.sf(abs(most)))))


def _shifted(evidence: Evidence, mechanism: Mechanism) -> Finding | None:
    """Most extreme correlation of the noise with itself, shifted cyclically by each number of coordinates, over all rounds."""
    noise = evidence.noise
    rounds, size = noise.shape
    if noise.size < PRODUCTS or size < 3:
        return None
    spectrum = sum(np.abs(np.fft.rfft(row)) ** 2 for row in noise)
    sums = np.fft.irfft(spectrum, size)[1 : size // 2 + 1]
    stds = np.full(len(sums), math.sqrt(rounds * size))
    if size % 2 == 0:  # half way round each product is met twice
        stds[-1] *= math.sqrt(2)
    return _most_extreme_gaussian(sums / stds)


def _sums(evidence: Evidence, mechanism: Mechanism) -> Finding:
    return _mean_square(float((evidence.noise.sum(0) ** 2).sum()) / len(evidence.noise), evidence.noise.shape[1])


def _absent_canaries(evidence: Evidence, mechanism: Mechanism) -> Finding | None:
    absent = (evidence.canaries - evidence.strength)[~evidence.present]
    return _gaussian(float(absent.sum()) / math.sqrt(absent.size)) if absent.size else None


def _either(one: Finding, other: Finding) -> Finding:
    """The more extreme of two findings."""
    smaller = one if not one.p_value > other.p_value else other
    return Finding(smaller.value, float(np.minimum(1.0, 2 * np.minimum(one.p_value, other.p_value))))


def _projection(projections: list[float]) -> Finding | None:
    """The more extreme of the mean and the mean square of standard Gaussian numbers; NaN stands for a missing one."""
    shown = [projection for projection in projections if not math.isnan(projection)]
    if not shown:
        return None
    return _either(_gaussian(math.fsum(shown) / math.sqrt(len(shown))), _mean_square(math.fsum(t * t for t in shown), len(shown)))


def _together(evidence: Evidence, mechanism: Mechanism) -> Finding | None:
    return _projection([one.together for one in evidence.rounds])


def _absent(evidence: Evidence, mechanism: Mechanism) -> Finding | None:
    return _projection([one.absent for one in evidence.rounds])


def _each_client(evidence: Evidence, mechanism: Mechanism) -> Finding | None:
    sums, squares, times = evidence.projections()
    return _either(_most_extreme_gaussian(sums / np.sqrt(times)), _most_extreme_mean_square(squares, times)) if len(times) else None


def _sampled(evidence: Evidence, mechanism: Mechanism) -> bool:
    """Whether chance alone decides the participants."""
    return mechanism.sampling != "full" and mechanism.most_exposure == math.inf  # clients that are spent fall silent


def _participation(evidence: Evidence, mechanism: Mechanism) -> Finding | None:
    """The total number of participations."""
    if mechanism.most_exposure < math.inf:
        return None
    cohorts, rate = evidence.cohorts, mechanism.rate
    value = float(cohorts.mean()) / rate
    if mechanism.sampling != "poisson":
        return Finding(value, float((cohorts.sum(1) == round(mechanism.expected)).all()))
    both = (stats.binom.cdf(cohorts.sum(), cohorts.size, rate), stats.binom.sf(cohorts.sum() - 1, cohorts.size, rate))
    return Finding(value, min(1.0, 2 * float(min(both))))


def _sizes(evidence: Evidence, mechanism: Mechanism) -> Finding | None:
    """The spread of the cohorts' sizes."""
    if not _sampled(evidence, mechanism) or mechanism.sampling != "poisson":
        return None
    sizes = _as_gaussian(stats.binom(evidence.cohorts.shape[1], mechanism.rate), evidence.cohorts.sum(1))
    return _mean_square(float((sizes**2).sum()), len(sizes))


def _own_participation(evidence: Evidence, mechanism: Mechanism) -> Finding | None:
    """The number of each client's participations and, where clients are drawn independently, its spread."""
    if not _sampled(evidence, mechanism):
        return None
    own = _as_gaussian(stats.binom(len(evidence.cohorts), mechanism.rate), evidence.cohorts.sum(0))
    extreme = _most_extreme_gaussian(own)
    return _either(extreme, _mean_square(float((own**2).sum()), len(own))) if mechanism.sampling == "poisson" else extreme


def _overlap(evidence: Evidence, mechanism: Mechanism) -> Finding | None:
    """The number of clients of a cohort that return some rounds later, for each number of rounds."""
    if not _sampled(evidence, mechanism):
        return None
    cohorts, scores = evidence.cohorts, []
    for later in range(1, min(len(cohorts), MOST_LATER + 1)):
        before, again = cohorts[:-later].sum(1), (cohorts[:-later] & cohorts[later:]).sum(1)
        if mechanism.sampling == "poisson":
            law = stats.binom(before, mechanism.rate)
        else:
            law = stats.hypergeom(cohorts.shape[1], before, cohorts[later:].sum(1))
        scores.append(float(_as_gaussian(law, again).sum()) / math.sqrt(len(again)))
    return _most_extreme_gaussian(np.array(scores))


def _as_gaussian(law: Any, counts: np.ndarray) -> np.ndarray:
    """Counts of a law as standard Gaussian numbers: the quantiles of their ranks, drawn at random within each count."""
    mass = law.pmf(counts)
    ranks = law.cdf(counts) - np.random.default_rng(0).random(len(counts)) * mass
    gaussian: np.ndarray = stats.norm.ppf(np.clip(ranks, 1e-300, 1 - 1e-16))
    return gaussian


CHANCE = (
    Chance(
        "noise off the canaries",
        _off_canaries,
        "1",
        "the noise has another standard deviation than was accounted, or something else is released beside it",
    ),
    Chance("noise overall", _all_noise, "1", "the amount of noise is not the one that was accounted"),
    Chance("noise of each round", _each_round, "1", "a round has other noise than was accounted, or none"),
    Chance("noise of each coordinate", _each_coordinate, "1", "some coordinates have less noise than was accounted"),
    Chance("shape of the noise", _shape, "0", "the noise is not Gaussian"),
    Chance(
        "noise from round to round",
        _round_to_round,
        "0",
        "the noise of one round reveals that of the next: a stream that is reused can be subtracted",
    ),
    Chance("noise of any two rounds", _any_two_rounds, "0", "the noise of one round reveals that of another"),
    Chance("noise within a round", _shifted, "0", "the noise of some coordinates reveals that of others: numbers are used twice"),
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
    Chance("participation", _participation, "1", "clients take part more or less often than was accounted"),
    Chance("sizes of cohorts", _sizes, "1", "clients are not drawn one by one: sampling may protect less than was accounted"),
    Chance("participation of each client", _own_participation, "0", "some clients take part more often than others, or all equally often"),
    Chance("cohorts from round to round", _overlap, "0", "the participants of one round reveal those of another"),
)
