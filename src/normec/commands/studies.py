"""Commands that train many runs: compare, sweep, paper."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normec.commands.answers import TrustCode, answer, split
from normec.errors import BadInput, Interrupted, NormecError, plural

if TYPE_CHECKING:
    from normec.studies.rows import SweepRow
    from normec.studies.sweep import Sweep


def compare(
    run: Annotated[list[str] | None, typer.Argument(metavar="[RUN.toml] [key=value …]", help="What all have in common.")] = None,
    algorithms: Annotated[str, typer.Option(metavar="A,B,…", help="Algorithms, also with a server step: dp-fedavg-clip+momentum.")] = "",
    tune: Annotated[bool, typer.Option("--tune", help="Search settings for each, on another seed. Not accounted.")] = False,
    tries: Annotated[int | None, typer.Option(metavar="N", min=1, max=400, help="Settings --tune tries for each; by default 9.")] = None,
    seeds: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Seeds of the result, from the configuration's.")] = 3,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="By default runs/compare-…, one for each comparison.")] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", min=1, help="Runs at a time; by default one per core.")] = None,
    trust_code: TrustCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of objects instead of the table.")] = False,
) -> None:
    """Compare algorithms on the same data, model, cohorts and ε.

    NAME.key=value is a setting of one algorithm; the [algorithm] section of RUN.toml is for the one that it names. The same command
    again resumes. NAME+momentum and NAME+adam give an algorithm a server step of its own.
    """
    from normec.studies.compare import Comparison
    from normec.terminal.console import progress
    from normec.terminal.runs import comparison_notes, comparison_table

    if tries is not None and not tune:
        raise BadInput("tries", "acts only with --tune", value=tries, remedy="Add it, or leave out --tries")
    with progress("checking every algorithm"):
        comparison = Comparison.of(*split(run or [], None, None), algorithms, seeds, (tries or 9) if tune else 0, trust_code=trust_code)
    folder = out or comparison.folder
    rows = comparison.run(folder, lambda sweep, into: _run(sweep, into, workers))
    answer(rows, as_json, comparison_table(rows), *comparison_notes(rows, folder))


def sweep(
    grid: Annotated[list[str], typer.Argument(metavar="SWEEP.toml [key=value …]", help="A configuration whose settings may be lists.")],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The sweep's folder; by default runs/NAME of NAME.toml.")] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", min=1, help="Runs at a time; by default one per core.")] = None,
    trust_code: TrustCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of objects instead of the table.")] = False,
) -> None:
    """Train every combination of the settings that are lists.

    The same command again goes on where it stopped: finished runs are skipped, others resume. [[case]] tables change settings
    together; target in [sweep] is a test accuracy to count rounds and transmissions to.
    """
    from normec.studies.sweep import Sweep
    from normec.terminal.console import progress
    from normec.terminal.runs import sweep_notes, sweep_table

    file, assignments = split(grid, None, None)
    if file is None:
        raise BadInput("SWEEP.toml", "is missing", remedy="Give the file first, then key=value")
    with progress("checking every run"):
        chosen = Sweep.read(file, assignments, trust_code)
    folder = out or Path("runs") / file.stem
    rows = _run(chosen, folder, workers)
    answer(rows, as_json, sweep_table(rows, chosen.target), *sweep_notes(rows, folder))
    _fail_if_any(rows)


def _run(chosen: Sweep, folder: Path, workers: int | None) -> list[SweepRow]:
    """The rows of a sweep, which Ctrl-C ends with checkpoints."""
    from normec.terminal.console import runs_going_on

    try:
        with runs_going_on(len(chosen.runs), chosen.rounds) as told:
            return chosen.run(folder, workers or os.cpu_count() or 1, told)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; the same command resumes") from None
    except OSError as error:  # a full disk
        raise NormecError(f"{error}. What was saved is intact; the same command resumes") from None


def _fail_if_any(rows: list[SweepRow]) -> None:
    failed = sum(row["status"] == "failed" for row in rows)
    if failed:
        raise NormecError(f"{failed} of {plural(len(rows), 'run')} failed, for the reasons above")


def paper(
    figure: Annotated[str, typer.Argument(metavar="figure1|figure2|figure3|figure4", help="Which figure of the paper.")],
    changes: Annotated[list[str] | None, typer.Argument(metavar="[key=value …]", help="Changes to all its runs.")] = None,
    scale: Annotated[str, typer.Option(help="tiny (seconds, digits), small (two cores, CIFAR-10) or paper (a GPU, CIFAR-10).")] = "tiny",
    data: Annotated[Path | None, typer.Option(metavar="PATH", help="The folder of CIFAR-10, for small and paper.")] = None,
    noise: Annotated[str, typer.Option(help="How the paper's noise is read: total (the vector's norm) or coordinate.")] = "total",
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="By default runs/paper-SCALE-NOISE; the figures share runs.")] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", min=1, help="Runs at a time; by default one per core.")] = None,
) -> None:
    """Train what a figure of the paper shows, and draw it: .png, .svg, and every point in .json.

    Under the picture stands how the noise was read, and what ε each trust model truly gives for it. The same command goes on.
    """
    from normec.config import parse_assignments
    from normec.data.picture import check
    from normec.files import making
    from normec.studies.paper.experiments import FIGURES, NOISE_READINGS, SCALES, Experiments
    from normec.studies.paper.pictures import caption, collect, save
    from normec.terminal.console import progress, show
    from normec.terminal.runs import sweep_names, sweep_table

    for name, value, known in (("FIGURE", figure, FIGURES), ("--scale", scale, SCALES), ("--noise", noise, NOISE_READINGS)):
        if value not in known:
            raise BadInput(name, "is not known", value=value, remedy=f"Use {', '.join(known[:-1])} or {known[-1]}")
    with progress("preparing the runs"):
        experiments = Experiments.at(scale, noise, data, parse_assignments(changes or []))  # type: ignore[arg-type]
        chosen = experiments.sweep(figure)  # type: ignore[arg-type]
    folder = out or Path("runs") / f"paper-{scale}-{noise}"
    with making(folder):
        check(folder / f"{figure}.png", "figure")
    rows = _run(chosen, folder, workers)
    show(sweep_table(rows, chosen.target), *sweep_names(rows))
    _fail_if_any(rows)
    content = collect(experiments, figure, folder)  # type: ignore[arg-type]
    paths = save(content, folder)
    show(*caption(content), f"drawn: {', '.join(map(str, paths))}")
