"""`normec train`."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normec.commands.answers import TrustCode, as_text, escaped, split
from normec.errors import BadInput, Interrupted, NormecError, printable

if TYPE_CHECKING:
    from rich.console import Console

    from normec.config import RunConfig
    from normec.engine import Ranks
    from normec.runs.loop import Run


def train(
    run: Annotated[list[str] | None, typer.Argument(metavar="[RUN.toml] [key=value …]", help="A configuration, and changes to it.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The run's folder; by default a new one under runs/.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in --out.")] = False,
    workers: Annotated[int | None, typer.Option(metavar="N", help="Worker threads, one core each.")] = None,
    trust_code: TrustCode = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write the metrics for TensorBoard too, below DIR.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one object; progress goes to stderr.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, print the resolved configuration, train nothing.")] = False,
) -> None:
    """Train one federated model.

    Without RUN.toml it is the built-in private demo on handwritten digits. Later settings win: the file first, then
    key=value, such as privacy.epsilon=4. docs/configuration.md says what each key means, and --dry-run prints all of them. The
    resolved configuration is written to DIR/run.toml, from which the run can be repeated.
    """
    try:
        if dry_run and as_json:
            raise BadInput("--json", "acts on a run, and --dry-run makes none", remedy="Leave one of them out")
        if dry_run:
            _check_only(run or [], workers, trust_code)
            return
        _train(split(run or [], out if resume else None, workers), out, resume, trust_code, tensorboard, as_json)
    except KeyboardInterrupt:
        raise Interrupted("interrupted before training started") from None


def _check_only(arguments: list[str], workers: int | None, trust_code: bool) -> None:
    """What a run would be, as TOML, in whose comments stands what it would print before it starts."""
    from normec.config import resolve
    from normec.runs.experiment import prepare
    from normec.terminal.console import PREPARING, opening_lines, progress

    config = resolve(*split(arguments, None, workers), trust_code)
    with progress(PREPARING):
        plan = prepare(config.experiment())
    for line in opening_lines(plan):
        typer.echo(printable(f"# {line}"))
    typer.echo(f"\n{escaped(config.toml(plan.delta))}", nl=False)


def _train(
    given: tuple[Path | None, list[str]], out: Path | None, resume: bool, trust_code: bool, tensorboard: bool, as_json: bool
) -> None:
    from normec.config import resolve
    from normec.engine import Ranks
    from normec.runs.experiment import prepare
    from normec.runs.loop import execute
    from normec.runs.verdict import lines
    from normec.terminal.console import Terminal, say
    from normec.terminal.result import cautions, result_table

    if resume and out is None:
        raise BadInput("resume", "needs the folder of the run", remedy="Add --out DIR")
    config, console = resolve(*given, trust_code), Terminal(stderr=as_json)
    with Ranks.joined() as ranks:
        if ranks.first:
            result = _watched(config, console, out or _new_folder(config), resume, tensorboard, ranks)
        else:
            execute(prepare(config.experiment()), ranks=ranks)
    if not ranks.first:
        os._exit(0)  # it holds nothing to be written, and torch may abort a process of a parted group while it ends
    if as_json:
        typer.echo(as_text(result.summary))
        return
    console.print(result_table(result))
    theory = lines(result.summary["theory"]) if result.summary["theory"] else []
    for line in [*cautions(result), *theory, result.summary["claim"]]:
        say(console, line)


def _watched(config: RunConfig, console: Console, path: Path, resume: bool, tensorboard: bool, ranks: Ranks) -> Run:
    from normec.runs.loop import execute
    from normec.runs.observers import Observer
    from normec.runs.tensorboard import TensorBoardObserver
    from normec.studies.start import resume_command, start
    from normec.terminal.console import PREPARING, ConsoleObserver, progress

    with progress(PREPARING):
        plan, folder = start(config, path, resume)
    going_on = resume_command(path, config)
    try:
        with contextlib.ExitStack() as open_until_the_end:
            observers: list[Observer] = [open_until_the_end.enter_context(ConsoleObserver(console))]
            if tensorboard:
                observers.append(open_until_the_end.enter_context(TensorBoardObserver(path / "tensorboard")))
            return execute(plan, folder, observers, ranks)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; resume with: {going_on}") from None
    except OSError as error:  # a full disk
        raise NormecError(f"{error}. What was saved is intact; resume with: {going_on}") from None


def _new_folder(config: RunConfig) -> Path:
    from normec.runs.folder import new_run_folder

    not_private = config.privacy.trust == "none" or config.privacy.noise_multiplier == 0
    return new_run_folder(config.algorithm.name + ("-not-private" if not_private else ""))
