"""What `normec plan` prints."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from normec.errors import plural
from normec.privacy.promise import rounded_up
from normec.terminal.cells import number


def plan_table(found: dict[str, Any]) -> Table:
    """The chosen parameters beside the corollary's, and their bounds term by term."""
    table = Table(title="Plan", title_justify="left")
    closed = found["corollary"]
    both = [found["chosen"], closed] if closed else [found["chosen"]]
    title = f"corollary {closed['number']}" if closed and closed["number"] else "closed form"
    for name in ("", "chosen", *([title] if closed else [])):
        table.add_column(name, no_wrap=True)
    names = {"local_lr": "γ: local.lr", "beta": "β: algorithm.beta", "server_lr": "η: algorithm.server_lr", "alpha": "α: algorithm.alpha"}
    names |= {"start": "R"}
    for key, name in (names | {"heterogeneity": "D"}).items():
        table.add_row(name, *(number(each[key], ".4g") for each in both))
    for form in ("paper", "sharper"):
        table.add_section()
        for term in ("optimization", "memory", "noise", "step", "drift", "order", "total"):
            bold = "bold" if term == "total" else ""
            table.add_row(f"{term}, {form} form", *(number(each["bound"][form][term], ".4g") for each in both), style=bold)
    return table


def plan_lines(found: dict[str, Any]) -> list[str]:
    """What the plan rests on, and what more of something would buy."""
    dominant = found["chosen"]["bound"]["sharper"]["dominant"]
    lines: list[str] = [f"{plural(found['rounds'], 'round')}; the bound's largest term: {dominant}"]
    if found["epsilon"] is not None:
        noise = f"noise multiplier {rounded_up(found['noise_multiplier'])} for ε = {found['epsilon']:g} at δ = {found['delta']!r}"
        coins = ", each client draws its own coin" if found["own_coins"] else ""
        lines.append(f"{noise}, trust {found['trust']}{coins}")
    held = "every condition of the theorem on the stepsizes holds for the chosen parameters"
    lines.append(f"warning: {found['coverage']}: no bound applies" if found["outside"] else held)
    closed = found["corollary"]
    broken = [c["name"] for c in closed["conditions"] if not c["holds"]] if closed else []
    if broken:
        lines.append(f"warning: the closed form breaks {'; '.join(broken)}: its bound does not apply")
    if closed is None:
        lines.append("predicted rate: none in K; 2R stays")
    else:
        utility = "predicted rate: none in K; the bound tends to the private utility"
        lines.append(f"predicted rate: O(K^−{closed['rate']:.3g})" if closed["rate"] else utility)
    lines += [f"{name}: {total:.4g} (sharper form)" for name, total in found["more"].items()]
    return [*lines, *found["notes"], f"as a run: {found['run']}"]
