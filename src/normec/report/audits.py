"""The page's section on audits: the verdict, and a picture of what was measured."""

from __future__ import annotations

from typing import Literal

from markupsafe import Markup

from normec.audit.verdict import TestTable, finished
from normec.privacy.promise import shown_epsilon
from normec.report.markup import render
from normec.runs.record import Record
from normec.terminal.audit import outcome
from normec.terminal.cells import number

HEADS = ["test", "value", "under the claim", "p-value", "verdict", "what a failure means"]
BOUNDS: tuple[Literal["claimed", "lower_bound", "final_lower_bound"], ...] = ("claimed", "lower_bound", "final_lower_bound")


def audit_section(runs: dict[str, Record]) -> Markup:
    """Of each audited run the bounds, the tests and a place for its picture; nothing without such runs."""
    audits = []
    for name, run in runs.items():
        if (audit := finished(run.audit)) is None:
            continue
        state = "FLAGGED: the mechanism that ran is not the one that was accounted" if audit["flagged"] else "no test is flagged"
        claimed, lower, final = (shown_epsilon(audit.get(name)) for name in BOUNDS)
        bounds = (
            f"Claimed: ε = {claimed}. At the largest noise that agrees with what was measured, with {audit['confidence']:.0%} confidence, "
            f"the accountant gives ε = {lower} for the releases, and {final} for the final model alone. A test is flagged where its "
            f"p-value is below {audit['threshold']:.2g}."
        )
        audits.append((f"{name}: {state}", bounds, [_row(test) for test in audit["tests"]]))
    return render("audits.html", heads=HEADS, audits=audits)


def _row(test: TestTable) -> list[str]:
    shown = number(test["value"], ".4g"), test["expected"], number(test["p_value"], ".2g")
    return [test["name"], *shown, outcome(test["flagged"], test["value"], test["p_value"]), test["means"]]
