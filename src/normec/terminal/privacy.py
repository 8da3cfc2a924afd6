"""What `normec privacy` and `normec ledger` print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from normec.errors import plural
from normec.privacy.promise import rounded_up, shown_epsilon
from normec.privacy.table import LedgerOverview, PrivacyRow
from normec.terminal.cells import bound_or_none, number

if TYPE_CHECKING:
    from normec.flower.owner import ClientAccount


def privacy_table(rows: list[PrivacyRow], title: str = "Privacy") -> Table:
    """The trust models of one setting, side by side."""
    table = Table(title=title, title_justify="left")
    for name in ("trust", "sampling", "noise multiplier", "ε", "accountant"):
        table.add_column(name, overflow="fold")
    for row in rows:
        sampling = row["sampling"] + ("" if row["rate"] == 1 else f", p = {row['rate']:g}")
        sampling += f", at least {row['min_honest']} honest" if row["min_honest"] else ""
        bound = bound_or_none(row["epsilon"], row["epsilon_every_round"])
        if row["client_limit"]:
            bound += f" (clients silent before {row['client_limit']:g})"
        table.add_row(row["trust"], sampling, rounded_up(row["noise_multiplier"]), bound, row["accountant"])
    return table


def spent_line(row: PrivacyRow) -> str:
    """The answer of a ledger in one line, from the first row of its table."""
    bound = bound_or_none(row["epsilon"], row["epsilon_every_round"])
    return f"spent: ε = {bound} at δ = {row['delta']!r}, trust {row['trust']}, {row['adjacency']} adjacency"


def ledger_lines(overview: LedgerOverview) -> list[str]:
    """What a verified ledger says."""
    mechanism, busiest = overview["mechanism"], overview["epsilon_realised_max"]
    lines = [
        f"{plural(overview['lines'], 'line')}, the chain is whole",
        f"{plural(overview['releases'], 'release')} of {mechanism['rounds']} planned count, with {mechanism['noise']} noise under trust "
        f"{mechanism['trust']}; the table is for those{', and for the evaluations' if overview['evaluations'] else ''}, "
        f"δ = {overview['spent']['delta'] if overview['spent'] else mechanism['delta']!r}",
    ]
    if overview["evaluations"]:
        lines.append(f"{plural(overview['evaluations'], 'evaluation')} by the clients on their own data count as well: ε and δ add up")
    if overview["retried"]:
        counting = "each counts once, as the same release" if mechanism["noise"] != "secure" else "each attempt counts"
        lines.append(f"begun more than once: {', '.join(f'round {k}' for k in overview['retried'])}; {counting}")
    if busiest is not None:
        limit = f"; each stays silent before it exceeds {mechanism['client_limit']:g}" if mechanism["client_limit"] else ""
        lines.append(f"the client whose own rounds spent most: ε = {shown_epsilon(busiest)}{limit}")
    if overview["torn"]:
        lines.append("warning: an incomplete last line, of a process that was killed while writing, is left out")
    return [*lines, spent_line(overview["spent"])] if overview["spent"] else lines


def client_lines(spent: ClientAccount) -> list[str]:
    """What a client's directory says that it has released."""
    lines = [
        f"{each['experiment']}, {each['of']}: {plural(each['releases'], 'release')} under trust {each['trust']}, "
        f"noise multiplier {number(each['noise_multiplier'], '.4g')}"
        + ("" if each["epsilon_every_round"] is None else f"; asked in every round: ε = {shown_epsilon(each['epsilon_every_round'])}")
        for each in spent["experiments"]
    ]
    if spent["unprotected"]:
        return [*lines, "all together: ε = ∞: messages have left without noise"]
    if spent["outdated"]:
        return [
            *lines,
            "all together: unknown: this directory is an older copy, and has forgotten releases",
        ]
    return [*lines, f"all together: ε = {shown_epsilon(spent['epsilon'])} at δ = {spent['delta']:g}"]
