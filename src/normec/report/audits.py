"""The page's section on audits: the verdict, and a picture of what was measured."""

from __future__ import annotations

from typing import Any

from normec.report.markup import table, text
from normec.runs import Record
from normec.tables import number


def audit_section(runs: dict[str, Record]) -> str:
    """Of each audited run the bounds, the tests and a place for its picture; nothing without such runs."""
    parts = []
    for name, run in runs.items():
        if run.audit is None:
            continue
        found = run.audit
        state = "FLAGGED: the mechanism that ran is not the one that was accounted" if found["flagged"] else "no test is flagged"
        claimed = "∞" if found["claimed"] is None else f"{found['claimed']:.3f}"
        bounds = (
            f"Claimed: ε = {claimed}. Spent at least, with {found['confidence']:.0%} confidence: ε = {found['lower_bound']:.3f} by the "
            f"releases, {found['final_lower_bound']:.3f} by the final model alone."
        )
        heads = ["test", "value", "p-value", "verdict", "what a failure means"]
        rows = [_row(test) for test in found["tests"]]
        picture = '<div class=histogram role=img aria-label="How often each value was measured, along canaries and aside"></div>'
        parts.append(f"<h3>{text(name)}: {text(state)}</h3><p>{text(bounds)}</p>{table(heads, rows)}{picture}")
    if not parts:
        return ""
    return f'<section aria-labelledby="h-audits"><h2 id="h-audits">Audit</h2>{"".join(parts)}</section>'


def _row(test: dict[str, Any]) -> list[str]:
    said = "FLAGGED" if test["flagged"] else "passed"
    return [test["name"], number(test["value"], ".4g"), number(test["p_value"], ".2g"), said, test["means"]]
