"""The command `normec`. Heavy imports happen inside the commands, so that help answers at once."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normec.commands import audit, experiments, export, flower
from normec.commands.answers import TrustCode, answer, as_text, escaped, split
from normec.commands.endings import in_one_sentence
from normec.commands.help import Commands
from normec.errors import BadInput, NormecError, printable
from normec.interrupts import interruptible
from normec.version import __version__

if TYPE_CHECKING:
    from rich.console import Console

    from normec.config import RunConfig
    from normec.engine import Ranks
    from normec.training import Run

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


@app.command()
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
            raise BadInput("--json", " acts on a run, and --dry-run makes none. Leave one of them out.")
        if dry_run:
            _check_only(run or [], workers, trust_code)
            return
        _train(split(run or [], out if resume else None, workers), out, resume, trust_code, tensorboard, as_json)
    except KeyboardInterrupt:
        raise NormecError("interrupted before training started") from None


def _check_only(arguments: list[str], workers: int | None, trust_code: bool) -> None:
    """What a run would be, as TOML, in whose comments stands what it would print before it starts."""
    from normec.config import resolve
    from normec.console import PREPARING, opening_lines, progress
    from normec.experiment import prepare

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
    from normec.console import Terminal, say
    from normec.engine import Ranks
    from normec.experiment import prepare
    from normec.tables import result_table, warnings
    from normec.theory.certificate import lines
    from normec.training import execute

    if resume and out is None:
        raise BadInput("resume", " needs the folder of the run. Add --out DIR.")
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
    for line in [*warnings(result), *theory, result.summary["claim"]]:
        say(console, line)


def _watched(config: RunConfig, console: Console, path: Path, resume: bool, tensorboard: bool, ranks: Ranks) -> Run:
    from normec.console import PREPARING, ConsoleObserver, progress
    from normec.runs import resume_command, start
    from normec.tensorboard import TensorBoardObserver
    from normec.training import execute

    watching = ConsoleObserver(console)
    observer: Any = TensorBoardObserver(path / "tensorboard", watching) if tensorboard else watching
    with progress(PREPARING):
        plan, folder = start(config, path, resume)
    going_on = resume_command(path, config)
    try:
        with watching, observer:
            return execute(plan, folder, observer, ranks)
    except KeyboardInterrupt:
        raise NormecError(f"interrupted; go on with: {going_on}") from None
    except OSError as error:  # a full disk
        raise NormecError(f"{error}. What was saved is intact; go on with: {going_on}") from None


@app.command()
def privacy(
    settings: Annotated[list[str] | None, typer.Argument(metavar="[key=value …]", help="The setting; see below.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of objects instead of the table.")] = False,
) -> None:
    """Noise and ε of a setting, under every trust model.

    Keys: epsilon or noise_multiplier, trust, clients, scheme, rate, rounds, delta, adjacency, min_honest, colluders;
    client_limit is what a client's own rounds may spend. noise=paper shows what the paper's formula really gives.
    """
    from normec.config import parse_assignments
    from normec.console import progress
    from normec.privacy.table import Query, notes, rows
    from normec.tables import privacy_table

    query = Query(**parse_assignments(settings or []))
    with progress("accounting"):
        found = rows(query)
    answer(found, as_json, privacy_table(found), *notes(query))


@app.command()
def ledger(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder; or a client's, with all its experiments.")],
    delta: Annotated[float, typer.Option(metavar="δ", help="Of a client's total.")] = 1e-5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object instead of the table.")] = False,
) -> None:
    """Verify a privacy ledger, and say what it has spent; of a client's directory all of them, and their total."""
    from normec.folder import RunFolder
    from normec.privacy.ledger import read
    from normec.privacy.table import NOISE_UNITS, ledger_overview
    from normec.spending import evaluations_of
    from normec.tables import client_lines, ledger_lines, privacy_table

    folder = RunFolder(run)
    if not folder.ledger.exists() and ((run / "index.jsonl").exists() or any(run.glob("*/ledger.jsonl"))):
        from normec.flower.owner import account

        if not 0 < delta < 1:
            raise BadInput("--delta", f"={delta} must be a number strictly between 0 and 1.")
        released = account(run, delta)
        answer(released, as_json, *client_lines(released))
        return
    if not folder.ledger.exists():
        raise BadInput("DIR", f"={str(run)!r} holds no ledger. Give the folder of a run with privacy.")
    verified = read(folder.ledger)
    if not verified.lines:
        raise BadInput("DIR", f"={str(run)!r} holds a ledger without a whole line: its run was killed before its first round. Resume it.")
    found = ledger_overview(verified, evaluations_of(folder))
    rows = [found["spent"], *found["other_trusts"]] if found["spent"] else []
    parts: list[Any] = [privacy_table(rows, title="These releases, with this noise, under each trust model"), NOISE_UNITS] if rows else []
    answer(found, as_json, *ledger_lines(found), *parts)


@app.command()
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
    from normec.console import progress
    from normec.tables import plan_lines, plan_table
    from normec.theory.plan import Goal
    from normec.theory.plan import plan as planned

    goal = Goal(**parse_assignments(settings or []))
    with progress("planning"):
        found = planned(goal)
    answer(found, as_json, plan_table(found), *plan_lines(found))


@app.command()
def algorithms(
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of objects instead of the table.")] = False,
) -> None:
    """List the algorithms: paper, guarantee, memory, cost."""
    from normec.algorithms.catalogue import rows
    from normec.tables import algorithm_lines, algorithm_table

    found = rows()
    answer(found, as_json, algorithm_table(found), *algorithm_lines(found))


@app.command()
def datasets(
    source: Annotated[
        list[str] | None, typer.Argument(metavar="[SOURCE | RUN.toml] [key=value …]", help="A data.source or a configuration, and changes.")
    ] = None,
    trust_code: TrustCode = False,
    picture: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw who has what: .png, .svg or .pdf.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object instead of the tables.")] = False,
) -> None:
    """List sources and partitions, or show which client of a source has what.

    Keys are those of [data], with or without `data.`, and seed. The numbers are exact: no noise protects them.
    """
    from normec.config import resolve_data
    from normec.console import progress, width
    from normec.data import load
    from normec.data.overview import catalogue, overview
    from normec.data.picture import check, draw
    from normec.streams import Streams
    from normec.tables import catalogue_lines, counts_table, overview_lines, overview_table

    if not source:
        if picture:
            raise BadInput("picture", f"={str(picture)!r} needs a source. Name one, such as digits.")
        known = catalogue()
        answer(known, as_json, *catalogue_lines(known))
        return
    if picture:
        check(picture)
    file, assignments = split(source, None, None)
    data, seed = resolve_data(file, assignments, trust_code)
    with progress("reading the data"):
        found = overview(load(data, Streams(seed)))
        if picture:
            draw(found, picture)
    lines = [*overview_lines(found), *([f"drawn: {picture}"] if picture else [])]
    answer(found, as_json, overview_table(found), counts_table(found, width()), *lines)


def _new_folder(config: RunConfig) -> Path:
    from normec.folder import new_run_folder

    not_private = config.privacy.trust == "none" or config.privacy.noise_multiplier == 0
    return new_run_folder(config.algorithm.name + ("-not-private" if not_private else ""))


app.command()(experiments.compare)
app.command()(experiments.sweep)
app.command()(experiments.paper)
app.command()(experiments.report)
app.command()(audit.audit)
app.command()(export.export)
app.command()(flower.flower_app)
app.command()(flower.flower_run)


def main() -> None:
    """Runs the command; a known error is one sentence on stderr and its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # ε and α, where the terminal cannot show them
    with in_one_sentence(sys.argv[1:]):
        app(prog_name="normec")
