"""The command `normec`. Heavy imports happen inside the commands, so that help answers at once."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from normec.commands import audit, catalogue, export, flower, privacy, report, studies, train
from normec.commands.endings import in_one_sentence
from normec.commands.help import Commands
from normec.runs.interrupts import interruptible
from normec.version import __version__

app = typer.Typer(
    help="Private federated learning with guarantees that a run can check.",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"normec {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Private federated learning with guarantees that a run can check."""
    interruptible()  # the command is built


for command in (
    train.train, privacy.privacy, privacy.ledger, privacy.plan, catalogue.algorithms, catalogue.datasets, studies.compare, studies.sweep,
    studies.paper, report.report, audit.audit, export.export, flower.flower_app, flower.flower_run,
):  # fmt: skip
    app.command()(command)


def main() -> None:
    """Runs the command; a known error is one sentence on stderr and its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # ε and α, where the terminal cannot show them
    with in_one_sentence(sys.argv[1:]):
        app(prog_name="normec")
