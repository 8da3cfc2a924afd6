"""Progress in the terminal: of a run, of a comparison, of work that takes a while."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from normec.errors import plural, printable
from normec.privacy.promise import shown_epsilon, with_every_round
from normec.runs.experiment import Plan
from normec.runs.observers import Observer
from normec.runs.written import MetricsRow
from normec.terminal.cells import number

PREPARING = "reading the data, building the model, calibrating the noise"
"""What goes on before a run starts."""
LINES_WITHOUT_TERMINAL = 10
COMMAND = re.compile(r"(^ *|: )normec [a-z-]+ ")


class Terminal(Console):
    """A console on which names and texts of others stay text: their control characters are shown, not obeyed."""

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(printable(text), **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)

    def on_broken_pipe(self) -> None:
        """As of a disk that is full, what is going on is told; rich would end the process without a word."""
        raise BrokenPipeError("Nobody reads the output any more")


def say(console: Console, line: str) -> None:
    """Prints a line as it is; a terminal breaks it between words, unless it ends with a command, which is to be pasted whole."""
    console.print(line, highlight=False, markup=False, soft_wrap=not console.is_terminal or bool(COMMAND.search(line)))


def show(*parts: Table | str) -> None:
    """Prints tables, and lines as they are."""
    console = Terminal()
    for part in parts:
        if isinstance(part, str):
            say(console, part)
        else:
            console.print(part)


def width() -> int:
    """The columns of the terminal, or of what stands for one."""
    return Terminal().width


class ConsoleObserver(Observer):
    """Live progress in a terminal; about ten plain lines elsewhere, also in a notebook."""

    def __init__(self, console: Console | None = None) -> None:
        in_notebook = Terminal().is_jupyter  # lines of one output: rich would make a block of each, and a kernel says it is a terminal
        self.console = console or Terminal(force_jupyter=False, force_terminal=False if in_notebook else None)
        self._rounds = 0
        self._goes_on: bool | None = None
        self._task: Any = None
        self._progress = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
            console=self.console,
        )

    def __enter__(self) -> ConsoleObserver:
        return self

    def __exit__(self, *error: object) -> None:
        if self._task is not None:
            self._progress.stop()

    def started(self, plan: Plan) -> None:
        for line in opening_lines(plan):
            say(self.console, line)
        self._rounds = plan.mechanism.rounds
        if self.console.is_terminal:  # ended by round() at the last round, or by leaving the context
            self._task = self._progress.add_task("round", total=self._rounds, status="")
            self._progress.start()

    def round(self, row: MetricsRow) -> None:
        if self._goes_on is None:
            self._goes_on = row["round"] > 0
            if self._goes_on:
                say(self.console, f"resumes after round {row['round'] - 1}")
        if self._task is not None:
            self._progress.update(self._task, completed=row["round"], status=status(row))
            if row["round"] == self._rounds:
                self._progress.stop()
        elif row["round"] % max(1, self._rounds // LINES_WITHOUT_TERMINAL) == 0 or row["round"] == self._rounds:
            self.console.print(f"round {row['round']:>4}/{self._rounds}  {status(row)}", highlight=False, markup=False)


@contextlib.contextmanager
def progress(doing: str) -> Iterator[None]:
    """Shows on stderr that work is going on, and what a long calibration logs: live in a terminal, else as plain lines."""
    console = Terminal(stderr=True)
    logger = logging.getLogger("normec")
    level = logger.level
    with console.status(doing) as live:
        handler = logging.Handler()
        shown = live.update if console.is_terminal else lambda text: say(console, text)
        handler.emit = lambda record: shown(record.getMessage())  # type: ignore[method-assign]
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)


@contextlib.contextmanager
def steps(doing: str, total: int) -> Iterator[Callable[[str], None]]:
    """Progress through a known number of steps on stderr, each told by name: live in a terminal, else about ten lines."""
    console = Terminal(stderr=True)
    columns = (TextColumn(doing), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[status]}"), TimeRemainingColumn())
    begun = 0
    with Progress(*columns, console=console, disable=not console.is_terminal) as live:
        task = live.add_task(doing, total=total, status="")

        def step(name: str) -> None:
            nonlocal begun
            live.update(task, completed=begun, status=name)
            if not console.is_terminal and begun % max(1, total // LINES_WITHOUT_TERMINAL) == 0:
                console.print(f"{doing} {begun}/{total}  {name}", highlight=False, markup=False)
            begun += 1

        yield step
        live.update(task, completed=total, status="")
        if not console.is_terminal:
            console.print(f"{doing} {total}/{total}  done", highlight=False, markup=False)


@contextlib.contextmanager
def runs_going_on(runs: int, rounds: int) -> Iterator[Callable[[int, list[str], list[str]], None]]:
    """Progress of runs that go on at the same time, in rounds, on stderr: live in a terminal, else a line for each run's end.

    Yields what is told how many rounds are done, and the names of the runs that have ended and that are going on.
    """
    console = Terminal(stderr=True)
    columns = (TextColumn("{task.fields[status]}"), BarColumn(), TextColumn("{task.percentage:.0f}%"), TimeRemainingColumn())
    seen: set[str] = set()
    with Progress(*columns, console=console, disable=not console.is_terminal) as live:
        task = live.add_task("sweep", total=rounds, status="")

        def told(done: int, ended: list[str], going: list[str]) -> None:
            live.update(task, completed=done, status=f"{len(ended)} of {plural(runs, 'run')}")
            for name in (name for name in ended if name not in seen):
                seen.add(name)
                if not console.is_terminal:
                    console.print(f"{len(seen)} of {plural(runs, 'run')}  {name}", highlight=False, markup=False, soft_wrap=True)

        yield told


def opening_lines(plan: Plan) -> list[str]:
    """What will run, and what a careful reader should know before it does."""
    chosen, mechanism = plan.experiment, plan.mechanism
    lines = [
        f"{chosen.algorithm.name}: {plural(mechanism.clients, 'client')}, {plural(len(plan.federation.y), 'training sample')}, "
        f"{plural(plan.model.d, 'parameter')}, {plural(mechanism.rounds, 'round')}",
    ]
    if mechanism.private:
        ratio = mechanism.noise_to_bound(plan.model.d)
        where = "on the sum" if mechanism.trust.at_server else "of each participant"
        lines.append(
            f"noise: standard deviation {mechanism.noise_std:.4g} {where} (noise multiplier {mechanism.noise_multiplier:.4g}); "
            f"its expected norm on the mean is {ratio:.3g} times the norm bound of a message"
        )
        planned = with_every_round(plan.spent.planned.epsilon, plan.spent.planned.every_round)
        lines.append(f"planned: ε = {planned} at δ = {plan.delta!r} for {plural(mechanism.rounds, 'round')}")
    if chosen.algorithm.client_slots:
        lines.append(str(plan.layout))
    lines += plan.federation.notes
    if mechanism.rounds < chosen.schedule.rounds:
        lines.append(f"stops after round {mechanism.rounds} of {chosen.schedule.rounds}: the next would exceed stop_at")
    if plan.delta is not None and plan.delta >= 1 / mechanism.clients:
        lines.append(f"warning: delta={plan.delta:g} is not below 1/clients={1 / mechanism.clients:g}: one client may be exposed outright")
    return lines


def status(row: MetricsRow) -> str:
    """Loss, accuracy (or where there is none the first metric) and ε spent so far, on one line."""
    name, value = next(iter((row.get("metrics") or {}).items()), ("accuracy", None))
    parts = [
        f"loss {number(row['train_loss'], '.4f')}",
        f"{name} {number(value, '.4g')}" if row["test_accuracy"] is None else f"accuracy {number(row['test_accuracy'], '.1%')}",
        "not private" if row["epsilon"] is None else f"ε spent {shown_epsilon(row['epsilon'])}",
    ]
    return "  ".join(parts)
