"""What a person sees of a run in the terminal."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from normec.errors import count
from normec.experiment import Plan
from normec.privacy.ledger import Ledger
from normec.privacy.table import realised_by_ledger
from normec.summary import upper
from normec.training import Run

LINES_WITHOUT_TERMINAL = 10


class ConsoleObserver:
    """Live progress in a terminal; about ten plain lines elsewhere."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self._rounds = 0
        self._task: Any = None
        self._progress = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
            console=console,
        )

    def __enter__(self) -> ConsoleObserver:
        return self

    def __exit__(self, *error: object) -> None:
        if self._task is not None:
            self._progress.stop()

    def started(self, plan: Plan) -> None:
        for line in opening_lines(plan):
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)
        self._rounds = plan.mechanism.rounds
        if self.console.is_terminal:  # ended by round() at the last round, or by leaving the context
            self._task = self._progress.add_task("round", total=self._rounds, status="")
            self._progress.start()

    def round(self, row: dict[str, Any]) -> None:
        if self._task is not None:
            self._progress.update(self._task, completed=row["round"], status=status(row))
            if row["round"] == self._rounds:
                self._progress.stop()
        elif row["round"] % max(1, self._rounds // LINES_WITHOUT_TERMINAL) == 0 or row["round"] == self._rounds:
            self.console.print(f"round {row['round']:>4}/{self._rounds}  {status(row)}", highlight=False, markup=False)


@contextlib.contextmanager
def progress(doing: str) -> Iterator[None]:
    """Shows on stderr that work is going on, and what a long calibration logs: live in a terminal, else as plain lines."""
    console = Console(stderr=True)
    logger = logging.getLogger("normec")
    level = logger.level
    with console.status(doing) as live:
        handler = logging.Handler()
        shown = live.update if console.is_terminal else lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True)
        handler.emit = lambda record: shown(record.getMessage())  # type: ignore[method-assign]
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)


def opening_lines(plan: Plan) -> list[str]:
    """What will run, and what a careful reader should know before it does."""
    chosen, mechanism = plan.experiment, plan.mechanism
    lines = [
        f"{chosen.algorithm.name}: {count(mechanism.clients, 'client')}, {count(len(plan.federation.y), 'training sample')}, "
        f"{count(plan.model.d, 'parameter')}, {count(mechanism.rounds, 'round')}",
    ]
    if mechanism.private:
        ratio = mechanism.noise_to_bound(plan.model.d)
        where = "on the sum" if mechanism.trust == "central" else "of each participant"
        lines.append(
            f"noise: standard deviation {mechanism.noise_std:.4g} {where} (noise multiplier {mechanism.noise_multiplier:.4g}); "
            f"its expected norm on the mean is {ratio:.3g} times the norm bound of a message"
        )
        lines.append(f"planned: ε = {upper(plan.spent.planned.epsilon)} at δ = {plan.delta!r} for {count(mechanism.rounds, 'round')}")
    lines += plan.federation.notes
    if mechanism.rounds < chosen.schedule.rounds:
        lines.append(f"stops after round {mechanism.rounds} of {chosen.schedule.rounds}: the next would exceed stop_at")
    if plan.delta is not None and plan.delta >= 1 / mechanism.clients:
        lines.append(f"warning: delta={plan.delta:g} is not below 1/clients={1 / mechanism.clients:g}: one client may be exposed outright")
    return lines


def status(row: dict[str, Any]) -> str:
    """Loss, accuracy and ε spent so far, on one line."""
    parts = [
        f"loss {_number(row['train_loss'], '.4f')}",
        f"accuracy {_number(row['test_accuracy'], '.1%')}",
        f"ε spent {'∞' if row['epsilon'] is None else upper(row['epsilon'])}",
    ]
    return "  ".join(parts)


def result_table(run: Run) -> Table:
    """The table at the end of a run."""
    s = run.summary
    table = Table(show_header=False, title="Result", title_justify="left")
    table.add_column()
    table.add_column(overflow="fold")
    promise = f"({upper(s['epsilon'])}, {s['delta']:g})" if s["private"] else "∞: not private"
    for name, value in {
        "algorithm": s["algorithm"],
        "convergence": s["convergence"],
        "test accuracy": _number(s["test_accuracy"], ".1%"),
        "test loss": _number(s["test_loss"], ".4f"),
        "training loss": _number(s["train_loss"], ".4f"),
        "(ε, δ)": promise,
        **({"(ε, δ) realised": f"({upper(s['epsilon_realised_max'])}, {s['delta']:g})"} if s["epsilon_realised_max"] is not None else {}),
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


def privacy_table(rows: list[dict[str, Any]], title: str = "Privacy") -> Table:
    """The trust models of one setting, side by side."""
    table = Table(title=title, title_justify="left")
    for name in ("trust", "sampling", "noise multiplier", "ε", "accountant"):
        table.add_column(name, overflow="fold")
    for row in rows:
        sampling = row["sampling"] + ("" if row["rate"] == 1 else f", p = {row['rate']:g}")
        sampling += f", at least {row['min_honest']} honest" if row["min_honest"] else ""
        bound = "∞: not private" if row["epsilon"] is None else upper(row["epsilon"])
        if row["epsilon_by_group_privacy"]:
            bound += f" ({upper(row['epsilon_by_group_privacy'])} without relying on substitution under sampling)"
        table.add_row(row["trust"], sampling, f"{row['noise_multiplier']:.5g}", bound, row["accountant"])
    return table


def ledger_lines(ledger: Ledger) -> list[str]:
    """What a verified ledger says."""
    header, retried = ledger.lines[0], ledger.retried()
    lines = [
        f"{count(len(ledger.lines), 'line')}, the chain is whole",
        f"{count(ledger.counted(), 'release')} of {header['rounds']} planned count, with {header['noise']} noise under trust "
        f"{header['trust']}; the table is for those, δ = {header['delta']!r}",
    ]
    if retried:
        counting = "each counts once, as the same release" if ledger.seeded else "each attempt counts"
        lines.append(f"begun more than once: {', '.join(f'round {k + 1}' for k in retried)}; {counting}")
    busiest = realised_by_ledger(ledger)
    if busiest is not None:
        limit = f"; each stays silent before it exceeds {header['client_limit']:g}" if header["client_limit"] else ""
        lines.append(f"the client whose own rounds spent most: ε = {upper(busiest)}{limit}")
    if ledger.torn:
        lines.append("warning: an incomplete last line, of a process that was killed while writing, is left out")
    return lines


def warnings(run: Run) -> list[str]:
    """What a careful reader should notice in the result."""
    first, last = run.metrics[0]["train_loss"], run.summary["train_loss"]
    lines = []
    if run.summary["clients_at_limit"]:
        lines.append(f"warning: {count(run.summary['clients_at_limit'], 'client')} came to client_limit, and would send nothing more")
    if first is not None and last is not None and last > first:
        advice = "Scale the features, or lower local.lr, algorithm.server_lr or the number of rounds"
        lines.append(f"warning: the training loss rose from {first:.4f} to {last:.4f}. {advice}.")
    return lines


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
