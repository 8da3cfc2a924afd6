"""What commands have in common: their arguments, and answers as tables or as JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normec.errors import UNSEEN

if TYPE_CHECKING:
    from rich.table import Table

TrustCode = Annotated[bool, typer.Option("--trust-code", help="Run the code that the file names by import paths.")]


def answer(found: object, as_json: bool, *parts: Table | str) -> None:
    """Prints what a command found: as JSON, or as tables and lines."""
    from normec.terminal.console import show

    if as_json:
        typer.echo(as_text(found))
    else:
        show(*parts)


def as_text(found: object) -> str:
    """Plain values as JSON, for readers."""
    return escaped(json.dumps(found, indent=2, allow_nan=False, ensure_ascii=False))


def escaped(text: str) -> str:
    """JSON or TOML of the same content, for a terminal: control characters as in \\u001b."""
    return UNSEEN.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def split(arguments: list[str], resumed: Path | None, workers: int | None) -> tuple[Path | None, list[str]]:
    """The configuration file, if any, and the assignments. resumed: a run's folder, whose own configuration is taken without a file."""
    named = bool(arguments) and ("=" not in arguments[0] or os.path.isfile(arguments[0]))  # as in runs/beta=0.1/run.toml
    file = Path(arguments[0]) if named else None
    assignments = arguments[1:] if file else arguments
    if file is None and resumed is not None and (resumed / "run.toml").exists():
        file = resumed / "run.toml"
    return file, assignments if workers is None else [*assignments, f"engine.workers={workers}"]
