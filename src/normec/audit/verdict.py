"""The verdict of an audit, as plain values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict, cast

from normec.settings import Tree

if TYPE_CHECKING:
    from normec.audit.evidence import Histograms


class TestTable(TypedDict):
    """A test as plain values, as `Test`; infinite numbers are None."""

    name: str
    value: float | None
    expected: str
    p_value: float | None
    flagged: bool
    means: str


class VerdictTable(TypedDict):
    """A verdict as plain values, as `Verdict`; infinite numbers are None."""

    claimed: float | None
    lower_bound: float | None
    final_lower_bound: float | None
    confidence: float
    threshold: float
    claimed_noise_multiplier: float | None
    noise_multiplier: float | None
    signal: tuple[float, float]
    noise: tuple[float, float]
    tests: list[TestTable]
    canaries: int
    rounds: int
    flagged: bool


class AuditTable(VerdictTable):
    """What an audit writes at its end."""

    histograms: Histograms


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

    def table(self) -> TestTable:
        """The test as plain values."""
        return {
            "name": self.name,
            "value": _finite(self.value),
            "expected": self.expected,
            "p_value": _finite(self.p_value),
            "flagged": self.flagged,
            "means": self.means,
        }


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

    def table(self) -> VerdictTable:
        """The verdict as plain values."""
        return {
            "claimed": _finite(self.claimed),
            "lower_bound": _finite(self.lower_bound),
            "final_lower_bound": _finite(self.final_lower_bound),
            "confidence": self.confidence,
            "threshold": self.threshold,
            "claimed_noise_multiplier": _finite(self.claimed_noise_multiplier),
            "noise_multiplier": _finite(self.noise_multiplier),
            "signal": self.signal,
            "noise": self.noise,
            "tests": [test.table() for test in self.tests],
            "canaries": self.canaries,
            "rounds": self.rounds,
            "flagged": self.flagged,
        }


def finished(content: Tree | None) -> AuditTable | None:
    """The content of a run's audit.json, where there is one and its audit has ended."""
    return cast("AuditTable", content) if content is not None and "tests" in content else None


def _finite(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else None
