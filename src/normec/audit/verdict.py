"""The verdict of an audit, as plain values."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Test:
    """One test. value: None where the run has not shown it. expected: of the value under the mechanism that was accounted. p_value: the
    chance of a value as extreme under it; None for a test without chance. means: what a failure says.
    """

    name: str
    value: float | None
    expected: str
    p_value: float | None
    flagged: bool
    means: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The findings of an audit.

    claimed: ε of the run. lower_bound: the accountant's ε, at the run's own rate, for the largest noise multiplier that agrees with the
    releases at `confidence`; final_lower_bound: with the final model alone. signal: what a canary's message adds to its direction,
    over the bound; noise: the standard deviation over the claimed one; both with their bounds. noise_multiplier: the largest
    that agrees with them. threshold: the p-value below which a test is flagged.
    """

    claimed: float
    lower_bound: float
    final_lower_bound: float
    confidence: float
    threshold: float
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
        """The verdict as plain values; infinite numbers are null."""
        found = {**asdict(self), "tests": [asdict(test) for test in self.tests], "flagged": self.flagged}
        for place in (found, *found["tests"]):
            place.update({key: None for key, value in place.items() if isinstance(value, float) and not math.isfinite(value)})
        return found
