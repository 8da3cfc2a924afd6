"""The verdict: whether what was measured can come from the mechanism that was accounted."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from normec.audit.canaries import Canaries
from normec.audit.evidence import Measured, Seen
from normec.errors import BadInput
from normec.privacy import Mechanism, epsilon

ERROR = 0.01
"""The chance that a healthy mechanism is flagged, over all tests together."""


@dataclass(frozen=True)
class Test:
    """One test. p_value: the chance of something as odd under the mechanism that was accounted; None for a bound.

    means: what a failure says.
    """

    name: str
    value: float
    p_value: float | None
    flagged: bool
    means: str


@dataclass(frozen=True)
class Verdict:
    """What an audit has found.

    claimed: ε of the run. lower_bound: the accountant's ε, at the run's own rate, for the largest noise multiplier that agrees with the
    releases at `confidence`; final_lower_bound: with the final model alone. signal: what a canary's message adds to its direction,
    over the bound; noise: the standard deviation over the claimed one; both with their bounds. noise_multiplier: the largest
    that agrees with them.
    """

    claimed: float
    lower_bound: float
    final_lower_bound: float
    confidence: float
    claimed_noise_multiplier: float
    noise_multiplier: float
    signal: tuple[float, float]
    noise: tuple[float, float]
    tests: tuple[Test, ...]
    canaries: int
    rounds: int

    @property
    def flagged(self) -> bool:
        return any(test.flagged for test in self.tests)

    def table(self) -> dict[str, Any]:
        """Plain values; infinite numbers are null."""
        found = {**asdict(self), "tests": [asdict(test) for test in self.tests], "flagged": self.flagged}
        for place in (found, *found["tests"]):
            place.update({key: None for key, value in place.items() if isinstance(value, float) and not math.isfinite(value)})
        return found


def judge(
    mechanism: Mechanism,
    delta: float,
    measured: list[Measured],
    departure: float,
    canaries: Canaries,
    first: Seen,
    last: Seen,
    error: float = ERROR,
) -> Verdict:
    """The verdict on the rounds of a run of `mechanism`, whose participation is the run's own.

    departure: the largest of the rounds', over what rounding explains.

    Raises:
        BadInput: where no canary took part in any round.
    """
    from scipy import stats

    each = error / 6  # Bonferroni, over the tests that chance can fail
    along, held = np.stack([one.canaries for one in measured]), np.stack([one.held_out for one in measured])
    present = np.stack([one.present for one in measured])
    strength = np.array([one.strength for one in measured])[:, None] * present
    k, rounds = held.shape[1], len(measured)

    weight = float((strength**2).sum())
    if weight == 0:
        raise BadInput("canaries", f"={present.shape[1]}: none took part in a round that released something. Raise rounds, or canaries.")
    signal = float((strength * along).sum()) / weight
    residuals = np.concatenate([(along - signal * strength).ravel(), held.ravel()])
    squares, freedom = float((residuals**2).sum()), len(residuals) - 1
    noise, most_noise = math.sqrt(squares / freedom), math.sqrt(squares / float(stats.chi2.ppf(each / 2, freedom)))
    least_signal = signal - float(stats.norm.ppf(1 - each / 2)) * most_noise / math.sqrt(weight)
    consistent = mechanism.noise_multiplier * most_noise / least_signal if least_signal > 0 else math.inf
    odd = min(float(stats.chi2.cdf(squares, freedom)), float(stats.norm.sf((signal - 1) * math.sqrt(weight))))

    variance = float((held**2).sum())
    lagged = float((held[1:] * held[:-1]).sum()) / variance if variance else 1.0
    absent = along[~present]
    leaked = float(absent.sum()) / math.sqrt(absent.size) if absent.size else 0.0
    cumulative = float((held.sum(0) ** 2).sum()) / rounds
    final_mu, final_low = _final(canaries, first, last, each)
    most_shown = math.sqrt(float((strength**2).sum(0).max()))  # μ of the canary that took part most, by all its releases
    final_noise = mechanism.noise_multiplier * most_shown / final_low if final_low > 0 else math.inf

    def at(noise_multiplier: float) -> float:
        return epsilon(replace(mechanism, noise_multiplier=noise_multiplier), delta).epsilon if math.isfinite(noise_multiplier) else 0.0

    def two_sided(name: str, value: float, below: float, means: str) -> Test:
        p_value = 2 * min(below, 1 - below)
        return Test(name, value, p_value, p_value < each, means)

    tests = (
        Test(
            "noise multiplier",
            consistent,
            min(1.0, 2 * odd),
            2 * odd < each or consistent < mechanism.noise_multiplier,
            "messages are longer than their bound, or the noise is smaller than was accounted: the claim does not hold",
        ),
        two_sided(
            "noise off the canaries",
            variance / held.size,
            float(stats.chi2.cdf(variance, held.size)),
            "the noise has another standard deviation than was accounted, or something else is released beside it",
        ),
        two_sided(
            "noise from round to round",
            lagged,
            float(stats.norm.cdf(lagged * math.sqrt((rounds - 1) * k))),
            "the noise of one round tells of the next: a stream that is used again can be subtracted",
        ),
        two_sided(
            "sum of all rounds",
            cumulative / k,
            float(stats.chi2.cdf(cumulative, k)),
            "the noise of the rounds does not add up: something was released that was not accounted, such as a resync",
        ),
        two_sided(
            "absent canaries",
            leaked,
            float(stats.norm.cdf(leaked)),
            "clients that sat out a round are in its sum, so that sampling protects nobody",
        ),
        Test(
            "states",
            departure,
            None,
            departure > 1,
            "the model or a vector of the server moved otherwise than by the release: something else was published, or too few took part",
        ),
        Test(
            "final model",
            final_mu,
            None,
            final_noise < mechanism.noise_multiplier,
            "who holds the final model alone can tell who took part better than the claim allows",
        ),
    )
    return Verdict(
        claimed=epsilon(mechanism, delta).epsilon,
        lower_bound=at(consistent),
        final_lower_bound=at(final_noise),
        confidence=1 - error,
        claimed_noise_multiplier=mechanism.noise_multiplier,
        noise_multiplier=consistent,
        signal=(signal, least_signal),
        noise=(noise, most_noise),
        tests=tests,
        canaries=k,
        rounds=rounds,
    )


def _final(canaries: Canaries, first: Seen, last: Seen, error: float) -> tuple[float, float]:
    """μ̂ between the cosines of canaries' directions with the model's whole way and those of held-out ones; a lower bound."""
    from scipy import stats

    way = first.x - last.x
    length = float(torch.linalg.vector_norm(way))
    if length == 0:
        return 0.0, 0.0
    seen, unseen = ((directions.to(way.device) @ way / length).cpu().numpy() for directions in (canaries.directions, canaries.held_out))
    k = len(seen)
    std = math.sqrt((seen.var(ddof=1) + unseen.var(ddof=1)) / 2)
    mu = float(seen.mean() - unseen.mean()) / std
    margin = stats.t.ppf(1 - error, 2 * k - 2) * math.sqrt(2 / k + mu**2 / (2 * (2 * k - 2)))
    return mu, mu - float(margin)
