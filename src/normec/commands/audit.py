"""`normec audit`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from normec.commands.answers import TrustCode
from normec.errors import BadInput, Interrupted, NormecError

ANEW = "an audit cannot be resumed: start it again, in another folder"
FLAGGED = 3
"""The exit code of an audit that has found something."""


def audit(
    run: Annotated[list[str] | None, typer.Argument(metavar="[RUN.toml] [key=value …]", help="A configuration, and changes to it.")] = None,
    canaries: Annotated[int, typer.Option(metavar="K", help="Canary clients, and as many held-out directions.")] = 20,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The audit's folder; by default a new one under runs/.")] = None,
    trust_code: TrustCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object instead of the table.")] = False,
) -> None:
    """Attack a private run: train it once with canary clients inside.

    Says whether the mechanism that ran is the one that was accounted. It ends with exit code 3 where a test is flagged.
    """
    from normec.audit.run import Audit, check_promise, prepare_audit
    from normec.audit.verdict import AuditTable
    from normec.commands.answers import answer, split
    from normec.config import resolve
    from normec.engine.ranks import processes
    from normec.privacy.promise import REFUTED
    from normec.runs.folder import RunFolder, new_run_folder
    from normec.terminal.audit import audit_lines, audit_table
    from normec.terminal.console import PREPARING, ConsoleObserver, progress

    if processes() > 1:
        raise BadInput("torchrun", "starts several processes, and an audit follows one", remedy="Start it as normec audit")
    settings, config = Audit(canaries=canaries), resolve(*split(run or [], None, None), trust_code)
    check_promise(config.privacy)
    folder = RunFolder(out or new_run_folder(f"{config.algorithm.name}-audit"))
    if folder.holds_run:
        raise BadInput("--out", "holds a run, and an audit starts anew", value=folder.path, remedy="Choose another folder")
    folder.check(resume=False)
    try:
        with progress(PREPARING):
            prepared = prepare_audit(config.experiment(), settings)
        folder.open(resume=False).save_config(config.toml(prepared.audited.delta))
        folder.save_audit({"canaries": canaries})
        with contextlib.nullcontext() if as_json else ConsoleObserver() as watching:
            trained = prepared.execute(folder, watching)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; {ANEW}") from None
    except OSError as error:
        raise NormecError(f"{error}; {ANEW}") from None
    verdict, evidence = prepared.verdict()
    if verdict.flagged:
        folder.save_summary({**trained.summary, "claim": f"{REFUTED} {trained.summary['claim']}"})
    content: AuditTable = {**verdict.table(), "histograms": evidence.histograms()}
    folder.save_audit(content)
    answer(content, as_json, audit_table(verdict), *audit_lines(verdict), f"folder: {folder.path}")
    if verdict.flagged:
        raise typer.Exit(FLAGGED)
