"""`normec export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run that has ended.")],
    file: Annotated[Path, typer.Argument(metavar="FILE.onnx", help="The file to write.")],
    best: Annotated[bool, typer.Option("--best", help="The best model, not the last.")] = False,
    model: Annotated[str | None, typer.Option(metavar="MODULE:NAME", help="The factory of a model of your own.")] = None,
) -> None:
    """Export a trained model to ONNX.

    Input `x` holds samples as the run read them, `outputs` the model's outputs; the number of samples is free. The names of the
    classes are in the file's metadata, `classes`.
    """
    from normec.models import Model, factory
    from normec.runs.exported import export_onnx
    from normec.terminal.console import progress

    with progress("exporting"):
        written = export_onnx(run, file, None if model is None else factory(Model(name=model)), best=best)
    typer.echo(f"written: {written}")
