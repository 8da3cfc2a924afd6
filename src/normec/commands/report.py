"""`normec report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from normec.errors import plural, printable


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Folders of runs, sweeps, comparisons, or of such folders.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="By default report.html, in the folder if there is one, else here.")
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Write one HTML page over runs: claims, curves, theory, settings; it works offline.

    Runs of one setting and several seeds are one line with a band. What is left out is named and counted.
    """
    from normec.files import write_atomically
    from normec.report.page import check_page, read, write
    from normec.terminal.console import show

    file = out or (folders[0] / "report.html" if len(folders) == 1 else Path("report.html"))
    check_page(file)
    shown = read(folders)
    text = write(shown)
    write_atomically(file.resolve(), lambda: text.encode("utf-8", "replace"))
    for problem in [*shown.problems, *shown.left_out]:
        typer.echo(printable(f"normec: left out: {problem}"), err=True)
    show(f"{file}: {len(shown.runs)} of {plural(shown.found, 'run')}")
    if open_it:
        import webbrowser

        webbrowser.open(file.absolute().as_uri())
