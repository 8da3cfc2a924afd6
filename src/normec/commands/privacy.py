"""`normec privacy`, `normec ledger`, `normec plan`: questions that need no data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from normec.commands.answers import answer
from normec.errors import BadInput


def privacy(
    settings: Annotated[list[str] | None, typer.Argument(metavar="[key=value …]", help="The setting; see below.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of objects instead of the table.")] = False,
) -> None:
    """Noise and ε of a setting, under every trust model.

    Keys: epsilon or noise_multiplier, trust, clients, scheme, rate, rounds, delta, adjacency, min_honest, colluders;
    client_limit is what a client's own rounds may spend; own_coins=false lets the server draw Poisson cohorts. noise=paper shows what
    the paper's formula really gives.
    """
    from normec.config import parse_assignments
    from normec.privacy.table import Query, notes, rows
    from normec.terminal.console import progress
    from normec.terminal.privacy import privacy_table

    query = Query(**parse_assignments(settings or []))
    with progress("accounting"):
        compared = rows(query)
    answer(compared, as_json, privacy_table(compared), *notes(query))


def ledger(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder; or a client's, with all its experiments.")],
    delta: Annotated[float, typer.Option(metavar="δ", help="Of a client's total.")] = 1e-5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object instead of the table.")] = False,
) -> None:
    """Verify a privacy ledger, and say what it has spent; of a client's directory all of them, and their total."""
    from normec.privacy.ledger import read
    from normec.privacy.table import NOISE_UNITS, ledger_overview
    from normec.runs.folder import RunFolder
    from normec.runs.spending import evaluations_of
    from normec.terminal.privacy import client_lines, ledger_lines, privacy_table

    folder = RunFolder(run)
    if not folder.ledger.exists() and ((run / "index.jsonl").exists() or any(run.glob("*/ledger.jsonl"))):
        from normec.flower.owner import account

        if not 0 < delta < 1:
            raise BadInput("--delta", value=delta, must="be a number strictly between 0 and 1")
        released = account(run, delta)
        answer(released, as_json, *client_lines(released))
        return
    if not folder.ledger.exists():
        raise BadInput("DIR", "holds no ledger", value=run, remedy="Give the folder of a run with privacy")
    verified = read(folder.ledger)
    if not verified.lines:
        raise BadInput(
            "DIR", "holds a ledger without a whole line: its run was killed before its first round", value=run, remedy="Resume it"
        )
    overview = ledger_overview(verified, evaluations_of(folder))
    rows = [overview["spent"], *overview["other_trusts"]] if overview["spent"] else []
    parts: list[Any] = [privacy_table(rows, title="These releases, with this noise, under each trust model"), NOISE_UNITS] if rows else []
    answer(overview, as_json, *ledger_lines(overview), *parts)


def plan(
    settings: Annotated[list[str] | None, typer.Argument(metavar="[key=value …]", help="The goal; see below.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object instead of the tables.")] = False,
) -> None:
    """Noise and stepsizes that the theorems cover, and the bound they give.

    Keys: epsilon, delta, trust, adjacency, min_honest, colluders; clients, rate, parameters (d), smoothness (L), gap
    (f(x⁰) − f^inf), heterogeneity (Δ^inf), order_heterogeneity, method (gd, ig), steps (T), alpha, start (R), rounds or
    rounds=choose.
    """
    from normec.config import parse_assignments
    from normec.terminal.console import progress
    from normec.terminal.plan import plan_lines, plan_table
    from normec.theory.plan import Goal
    from normec.theory.plan import plan as planned

    goal = Goal(**parse_assignments(settings or []))
    with progress("planning"):
        advice = planned(goal)
    answer(advice, as_json, plan_table(advice), *plan_lines(advice))
