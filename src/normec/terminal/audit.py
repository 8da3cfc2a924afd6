"""What `normec audit` prints of a verdict."""

from __future__ import annotations

from rich.table import Table

from normec.audit.verdict import Verdict
from normec.errors import plural
from normec.privacy.promise import shown_epsilon
from normec.terminal.cells import number


def audit_table(verdict: Verdict) -> Table:
    """The tests of an audit."""
    table = Table(title="Audit", title_justify="left")
    for heading in ("test", "value", "under the claim", "p-value", "verdict"):
        table.add_column(heading, overflow="fold")
    for test in verdict.tests:
        said = outcome(test.flagged, test.value, test.p_value)
        table.add_row(test.name, number(test.value, ".4g"), test.expected, number(test.p_value, ".2g"), said)
    return table


def outcome(flagged: bool, value: float | None, p_value: float | None) -> str:
    """Of a test: infinite values are none in JSON, where only a p-value tells them from those that were not measured."""
    return "FLAGGED" if flagged else "not measured" if value is None and p_value is None else "passed"


def audit_lines(verdict: Verdict) -> list[str]:
    """What an audit amounts to, and what each flagged test means."""
    confidence = f"with {verdict.confidence:.0%} confidence overall"
    lines = [
        f"{plural(verdict.canaries, 'canary client')}, as many held-out directions, {plural(verdict.rounds, 'round')} with a release",
        f"claimed: ε = {shown_epsilon(verdict.claimed)}; at the largest noise that agrees {confidence}: "
        f"ε = {shown_epsilon(verdict.lower_bound)} by the releases, {shown_epsilon(verdict.final_lower_bound)} by the final model alone",
        f"a test is flagged where its p-value is below {verdict.threshold:.2g}, {1 - verdict.confidence:.0%} in total, or its value is not "
        "what it must be",
    ]
    if not verdict.lower_bound > 0:
        lines.append("the bound of 0 shows nothing: more canaries, or more rounds, would say how near the claim this attack comes")
    flagged = [f"FLAGGED: {test.name}: {test.means}." for test in verdict.tests if test.flagged]
    passed = "no test is flagged: what was released can come from the mechanism that was accounted (what this cannot show: docs/audit.md)"
    return [*lines, *(flagged or [passed])]
