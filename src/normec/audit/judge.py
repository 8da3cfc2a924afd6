"""The tests: whether what was measured can come from the mechanism that was accounted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from scipy import stats

from normec.audit.evidence import Evidence
from normec.audit.verdict import Test, Verdict
from normec.errors import BadInput
from normec.privacy import Mechanism, epsilon

ERROR = 0.01
"""The chance that a healthy mechanism is flagged, over all tests together."""


def judge(evidence: Evidence, mechanism: Mechanism, delta: float, error: float = ERROR) -> Verdict:
    """The verdict on a run of `mechanism`, whose participation is the run's own.

    Raises:
        BadInput: where no canary took part in any round.
    """
    each = error / (2 + len(TWO_SIDED))  # Bonferroni, over the tests that chance can fail
    claimed = mechanism.noise_multiplier
    fit, final = _fit(evidence, each), _final(evidence, each)
    consistent = claimed * fit.most_noise / fit.least_signal if fit.least_signal > 0 else math.inf
    most_shown = math.sqrt(float((evidence.strength**2).sum(0).max()))  # μ of the canary that took part most, by all its releases
    final_consistent = claimed * most_shown / final.least if final.least > 0 else math.inf

    def at(noise_multiplier: float) -> float:
        return epsilon(replace(mechanism, noise_multiplier=noise_multiplier), delta).epsilon if math.isfinite(noise_multiplier) else 0.0

    tests = (
        Test(
            "noise multiplier",
            consistent,
            f"≥ {claimed:.4g}",
            fit.p_value,
            fit.p_value < each or consistent < claimed,
            "messages are longer than their bound, or the noise is smaller than was accounted: the claim does not hold",
        ),
        *(statistic.test(evidence, each) for statistic in TWO_SIDED),
        Test(
            "states",
            evidence.departure,
            "≤ 1",
            None,
            evidence.departure > 1,
            "the model or a vector of the server moved otherwise than by the release: something else was published, or too few took part",
        ),
        Test(
            "final model",
            final.mu,
            "–",
            None,
            final_consistent < claimed,
            "who holds the final model alone can tell who took part better than the claim allows",
        ),
    )
    return Verdict(
        claimed=epsilon(mechanism, delta).epsilon,
        lower_bound=at(consistent),
        final_lower_bound=at(final_consistent),
        confidence=1 - error,
        claimed_noise_multiplier=claimed,
        noise_multiplier=consistent,
        signal=(fit.signal, fit.least_signal),
        noise=(fit.noise, fit.most_noise),
        tests=tests,
        canaries=evidence.held_out.shape[1],
        rounds=len(evidence.held_out),
    )


class Fit(NamedTuple):
    """Projections = signal × strength + noise, with a lower bound of the signal and an upper one of the noise.

    p_value: the smaller of those of a longer signal and of a smaller noise than were accounted, for both.
    """

    signal: float
    least_signal: float
    noise: float
    most_noise: float
    p_value: float


def _fit(evidence: Evidence, error: float) -> Fit:
    """Least squares; the noise also from the held-out directions, where there is nothing else."""
    strength, along = evidence.strength, evidence.canaries
    weight = float((strength**2).sum())
    if weight == 0:
        raise BadInput("canaries", f"={strength.shape[1]}: none took part in a round that released something. Raise rounds, or canaries.")
    signal = float((strength * along).sum()) / weight
    squares = float(((along - signal * strength) ** 2).sum() + (evidence.held_out**2).sum())
    freedom = along.size + evidence.held_out.size - 1
    most_noise = math.sqrt(squares / float(stats.chi2.ppf(error / 2, freedom)))
    least_signal = signal - float(stats.norm.isf(error / 2)) * most_noise / math.sqrt(weight)
    odd = min(float(stats.chi2.cdf(squares, freedom)), float(stats.norm.sf((signal - 1) * math.sqrt(weight))))
    return Fit(signal, least_signal, math.sqrt(squares / freedom), most_noise, min(1.0, 2 * odd))


class Final(NamedTuple):
    """How far, in standard deviations, the model's whole way leans to canaries' directions, with a lower bound."""

    mu: float
    least: float


def _final(evidence: Evidence, error: float) -> Final:
    seen, unseen = evidence.way_along, evidence.way_aside
    k = len(seen)
    std = math.sqrt((seen.var(ddof=1) + unseen.var(ddof=1)) / 2)
    if std == 0:  # a model that has not moved
        return Final(0.0, 0.0)
    mu = float(seen.mean() - unseen.mean()) / std
    margin = stats.t.isf(error, 2 * k - 2) * math.sqrt(2 / k + mu**2 / (2 * (2 * k - 2)))
    return Final(mu, mu - float(margin))


def _variance(evidence: Evidence) -> tuple[float, float]:
    squares = float((evidence.held_out**2).sum())
    return squares / evidence.held_out.size, float(stats.chi2.cdf(squares, evidence.held_out.size))


def _autocorrelation(evidence: Evidence) -> tuple[float, float]:
    held = evidence.held_out
    squares = float((held**2).sum())
    lagged = float((held[1:] * held[:-1]).sum()) / squares if squares else 1.0
    return lagged, float(stats.norm.cdf(lagged * math.sqrt(held[1:].size)))


def _sums(evidence: Evidence) -> tuple[float, float]:
    rounds, k = evidence.held_out.shape
    squares = float((evidence.held_out.sum(0) ** 2).sum()) / rounds
    return squares / k, float(stats.chi2.cdf(squares, k))


def _absent(evidence: Evidence) -> tuple[float, float]:
    absent = evidence.canaries[~evidence.present]
    mean = float(absent.sum()) / math.sqrt(absent.size) if absent.size else 0.0
    return mean, float(stats.norm.cdf(mean))


class TwoSided(NamedTuple):
    """A test of a statistic that is odd if too small or too large.

    statistic: its value, and the chance of a smaller one under the mechanism that was accounted.
    """

    name: str
    statistic: Callable[[Evidence], tuple[float, float]]
    expected: str
    means: str

    def test(self, evidence: Evidence, error: float) -> Test:
        value, below = self.statistic(evidence)
        p_value = 2 * min(below, 1 - below)
        return Test(self.name, value, self.expected, p_value, p_value < error, self.means)


TWO_SIDED = (
    TwoSided(
        "noise off the canaries",
        _variance,
        "1",
        "the noise has another standard deviation than was accounted, or something else is released beside it",
    ),
    TwoSided(
        "noise from round to round",
        _autocorrelation,
        "0",
        "the noise of one round tells of the next: a stream that is used again can be subtracted",
    ),
    TwoSided(
        "sum of all rounds",
        _sums,
        "1",
        "the noise of the rounds does not add up: something was released that was not accounted, such as a resync",
    ),
    TwoSided(
        "absent canaries",
        _absent,
        "0",
        "clients that sat out a round are in its sum, so that sampling protects nobody",
    ),
)
