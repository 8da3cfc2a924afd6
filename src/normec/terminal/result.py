"""The table at the end of a run, and what a careful reader should notice."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from normec.errors import plural
from normec.privacy.promise import shown_epsilon
from normec.runs.loop import Run
from normec.runs.written import BestTable
from normec.terminal.cells import number


def result_table(run: Run) -> Table:
    """The table at the end of a run."""
    s = run.summary
    table = Table(show_header=False, title="Result", title_justify="left")
    table.add_column()
    table.add_column(overflow="fold")
    promise = f"({shown_epsilon(s['epsilon'])}, {s['delta']:g})" if s["private"] else "∞: not private"
    accuracy = number(s["test_accuracy"], ".1%") + _by_itself(s["test_largest_class"])
    for name, value in {
        "algorithm": s["algorithm"],
        "convergence": s["convergence"],
        **({"test accuracy": accuracy} if s["test_accuracy"] is not None else {}),
        **{f"test {name}": number(value, ".4g") for name, value in (s["metrics"] or {}).items()},
        **({"best model": _best(s["best"])} if s["best"] else {}),
        "test loss": number(s["test_loss"], ".4f"),
        "training loss": number(s["train_loss"], ".4f"),
        "(ε, δ)": promise,
        **(
            {"(ε, δ) realised": f"({shown_epsilon(s['epsilon_realised_max'])}, {s['delta']:g})"}
            if s["epsilon_realised_max"] is not None
            else {}
        ),
        **(
            {"(ε, δ) if asked in every round": f"({shown_epsilon(s['epsilon_every_round'])}, {s['delta']:g})"}
            if s["epsilon_every_round"] is not None
            else {}
        ),
        "unit": s["unit"],
        "adjacency": s["adjacency"] or "–",
        "trust": s["trust"],
        "sampling": s["sampling"] + ("" if s["rate"] == 1 else f", rate {s['rate']:g}"),
        "accountant": s["accountant"] or "–",
        "transmissions": f"{s['transmissions']:,}",
        "bytes up / down": f"{s['bytes_up']:,} / {s['bytes_down']:,}",
        "seconds": f"{s['seconds']:.1f}",
        "folder": str(run.folder) if run.folder else "–",
    }.items():
        table.add_row(name, Text(value))
    return table


def _best(best: BestTable) -> str:
    shown = number(best["value"], ".1%" if best["by"] == "test_accuracy" else ".4g")
    return f"of round {best['round']}, {best['by']} {shown}: {best['file']}"


def _by_itself(share: float | None) -> str:
    return "" if share is None else f" (naming the largest class alone: {share:.1%})"


def cautions(run: Run) -> list[str]:
    """What a careful reader should notice in the result."""
    first, last = run.metrics[0]["train_loss"], run.summary["train_loss"]
    lines = []
    if run.summary["clients_at_limit"]:
        lines.append(f"warning: {plural(run.summary['clients_at_limit'], 'client')} came to client_limit, and would send nothing more")
    losses = [(row["train_loss"], row["round"]) for row in run.metrics if row["train_loss"] is not None]
    least, when = min(losses, default=(0.0, 0))
    advice = "Scale the features, or lower local.lr, algorithm.server_lr or the number of rounds"
    if first is not None and last is not None and last > first:
        lines.append(f"warning: the training loss rose from {first:.4f} to {last:.4f}. {advice}.")
    elif last is not None and first is not None and last - least > 0.1 * (first - least):
        lines.append(f"warning: the training loss rose again, from {least:.4f} in round {when} to {last:.4f}. {advice}.")
    if run.summary["best"] and run.summary["best"]["note"]:
        lines.append(f"note: {run.summary['best']['note']}")
    spent, claim = run.summary["epsilon_realised_max"], run.summary["epsilon"]
    if spent is not None and claim is not None and spent > claim:
        remedy = f"privacy.client_limit={claim:.4g} would keep every client within the claim"
        lines.append(
            f"note: the claim is the one before sampling; the client that took part most spent ε = {shown_epsilon(spent)}. {remedy}."
        )
    return lines
