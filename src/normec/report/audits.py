"""The page's section on audits: the verdict, and a picture of what was measured."""

from __future__ import annotations

import math
from typing import Any

from normec.promise import upper
from normec.report.markup import table, text
from normec.runs import Record
from normec.tables import number

BOUNDS = ("claimed", "lower_bound", "final_lower_bound")


def audit_section(runs: dict[str, Record]) -> str:
    """Of each audited run the bounds, the tests and a place for its picture; nothing without such runs."""
    parts = []
    for name, run in runs.items():
        if run.audit is None:
            continue
        found = run.audit
        state = "FLAGGED: the mechanism that ran is not the one that was accounted" if found["flagged"] else "no test is flagged"
        claimed, lower, final = (upper(math.inf if value is None else value) for value in map(found.get, BOUNDS))
        bounds = (
            f"Claimed: ε = {claimed}. At the largest noise that agrees with what was measured, with {found['confidence']:.0%} confidence, "
            f"the accountant gives ε = {lower} for the releases, and {final} for the final model alone."
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
