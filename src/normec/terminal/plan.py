"""What `normec plan` prints."""

from __future__ import annotations

from typing import Literal

from rich.table import Table

from normec.errors import plural
from normec.privacy.promise import rounded_up
from normec.terminal.cells import number
from normec.theory.bounds import FORMS, TERMS
from normec.theory.plan import Advice, Parameters

NAMES: dict[Literal["local_lr", "beta", "server_lr", "alpha", "start", "heterogeneity"], str] = {
    "local_lr": "γ: local.lr",
    "beta": "β: algorithm.beta",
    "server_lr": "η: algorithm.server_lr",
    "alpha": "α: algorithm.alpha",
    "start": "R",
    "heterogeneity": "D",
}


def plan_table(advice: Advice) -> Table:
    """The chosen parameters beside the corollary's, and their bounds term by term."""
    table = Table(title="Plan", title_justify="left")
    closed = advice["corollary"]
    both: list[Parameters] = [advice["chosen"], *([closed] if closed else [])]
    title = f"corollary {closed['number']}" if closed and closed["number"] else "closed form"
    for name in ("", "chosen", *([title] if closed else [])):
        table.add_column(name, no_wrap=True)
    for key, name in NAMES.items():
        table.add_row(name, *(number(each[key], ".4g") for each in both))
    for form in FORMS:
        table.add_section()
        for term in TERMS:
            table.add_row(f"{term}, {form} form", *(number(each["bound"][form][term], ".4g") for each in both))
        table.add_row(f"total, {form} form", *(number(each["bound"][form]["total"], ".4g") for each in both), style="bold")
    return table


def plan_lines(advice: Advice) -> list[str]:
    """What the plan rests on, and what more of something would buy."""
    dominant = advice["chosen"]["bound"]["sharper"]["dominant"]
    lines: list[str] = [f"{plural(advice['rounds'], 'round')}; the bound's largest term: {dominant}"]
    if advice["epsilon"] is not None:
        noise = f"noise multiplier {rounded_up(advice['noise_multiplier'])} for ε = {advice['epsilon']:g} at δ = {advice['delta']!r}"
        coins = ", each client draws its own coin" if advice["own_coins"] else ""
        lines.append(f"{noise}, trust {advice['trust']}{coins}")
    held = "every condition of the theorem on the stepsizes holds for the chosen parameters"
    lines.append(f"warning: {advice['coverage']}: no bound applies" if advice["outside"] else held)
    closed = advice["corollary"]
    broken = [c["name"] for c in closed["conditions"] if not c["holds"]] if closed else []
    if broken:
        lines.append(f"warning: the closed form breaks {'; '.join(broken)}: its bound does not apply")
    if closed is None:
        lines.append("predicted rate: none in K; 2R stays")
    else:
        utility = "predicted rate: none in K; the bound tends to the private utility"
        lines.append(f"predicted rate: O(K^−{closed['rate']:.3g})" if closed["rate"] else utility)
    lines += [f"{name}: {total:.4g} (sharper form)" for name, total in advice["more"].items()]
    return [*lines, *advice["notes"], f"as a run: {advice['run']}"]
