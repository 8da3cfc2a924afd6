"""The verdict: whether the measured values can come from the mechanism that was accounted, and what they show of ε."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy import stats

from normec.audit.chance import CHANCE
from normec.audit.evidence import LONGER, Evidence
from normec.audit.verdict import Test, Verdict
from normec.privacy import Mechanism, epsilon

ERROR = 0.01
"""The chance that a healthy mechanism is flagged, over all tests together."""


def judge(evidence: Evidence, mechanism: Mechanism, delta: float, error: float = ERROR) -> Verdict:
    """The verdict on a run of `mechanism`, whose participation is the run's own."""
    each = error / (2 + len(CHANCE))  # Bonferroni, over the tests that chance can fail
    claimed = mechanism.noise_multiplier
    most_shown = math.sqrt(float((evidence.strength**2).sum(0).max()))  # μ of the canary that took part most, by all its releases
    fit, final = _fit(evidence, each), _final(evidence, most_shown, each)
    consistent = claimed * fit.most_noise / fit.least_signal if fit.least_signal > 0 else math.inf
    final_consistent = claimed * most_shown / final.least if final.least > 0 else math.inf

    def at(noise_multiplier: float) -> float:
        return epsilon(replace(mechanism, noise_multiplier=noise_multiplier), delta).epsilon if math.isfinite(noise_multiplier) else 0.0

    tests = (
        Test(
            name="noise multiplier",
            value=consistent,
            expected=f"≥ {claimed:.4g}",
            p_value=fit.p_value,
            flagged=not (fit.p_value >= each and consistent >= claimed),
            means="messages are longer than their bound, or the noise is smaller than was accounted: the claim does not hold",
        ),
        *(chance.test(evidence, mechanism, each) for chance in CHANCE),
        Test(
            name="lengths of messages",
            value=evidence.longest,
            expected="≤ 1",
            p_value=None,
            flagged=not evidence.longest <= LONGER,
            means="a message, as the algorithm declares it, or a released sum is longer than the bound that was accounted allows",
        ),
        Test(
            name="states",
            value=evidence.departure,
            expected="≤ 1",
            p_value=None,
            flagged=not evidence.departure <= 1,
            means="the model or a vector of the server moved otherwise than by the release: something else was published, "
            "or too few took part",
        ),
        Test(
            name="final model",
            value=final.mu,
            expected=f"≤ {most_shown:.4g}",
            p_value=final.p_value,
            flagged=not final.p_value >= each,
            means="who holds the final model alone can tell who took part better than the claim allows",
        ),
    )
    return Verdict(
        claimed=epsilon(mechanism, delta).epsilon,
        lower_bound=at(consistent),
        final_lower_bound=at(final_consistent),
        confidence=1 - error,
        threshold=each,
        claimed_noise_multiplier=claimed,
        noise_multiplier=consistent,
        signal=(fit.signal, fit.least_signal),
        noise=(fit.noise, fit.most_noise),
        tests=tests,
        canaries=evidence.held_out.shape[1],
        rounds=len(evidence.rounds),
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
    signal = float((strength * along).sum()) / weight
    squares = float(((along - signal * strength) ** 2).sum() + (evidence.held_out**2).sum())
    freedom = along.size + evidence.held_out.size - 1
    most_noise = math.sqrt(squares / float(stats.chi2.ppf(error / 2, freedom)))
    least_signal = signal - float(stats.norm.isf(error / 2)) * most_noise / math.sqrt(weight)
    odd = 2 * np.minimum(stats.chi2.cdf(squares, freedom), stats.norm.sf((signal - 1) * math.sqrt(weight)))  # unlike min, keeps NaN
    return Fit(
        signal=signal,
        least_signal=least_signal,
        noise=math.sqrt(squares / freedom),
        most_noise=most_noise,
        p_value=float(np.minimum(1.0, odd)),
    )


class Final(NamedTuple):
    """The projection of the model's whole way on the canaries' directions, in standard deviations; its lower bound; and the chance of a
    larger one where the true projection is at most `most`, which all releases show.
    """

    mu: float
    least: float
    p_value: float


def _final(evidence: Evidence, most: float, error: float) -> Final:
    seen, unseen = evidence.way_along, evidence.way_aside
    k = len(seen)
    std = math.sqrt((seen.var(ddof=1) + unseen.var(ddof=1)) / 2)
    if std == 0:  # a model that has not moved
        return Final(0.0, 0.0, 1.0)
    mu = float(seen.mean() - unseen.mean()) / std
    spread = math.sqrt(2 / k + mu**2 / (2 * (2 * k - 2)))
    return Final(mu, mu - float(stats.t.isf(error, 2 * k - 2)) * spread, float(stats.t.sf((mu - most) / spread, 2 * k - 2)))
