"""`normec algorithms` and `normec datasets`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from normec.commands.answers import TrustCode, answer, split
from normec.errors import BadInput


def algorithms(
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of objects instead of the table.")] = False,
) -> None:
    """List the algorithms: paper, guarantee, memory, cost."""
    from normec.algorithms.catalogue import rows
    from normec.terminal.catalogue import algorithm_lines, algorithm_table

    known = rows()
    answer(known, as_json, algorithm_table(known), *algorithm_lines(known))


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
    from normec.data import load
    from normec.data.overview import catalogue, overview
    from normec.data.picture import check, draw
    from normec.streams import Streams
    from normec.terminal.catalogue import catalogue_lines
    from normec.terminal.console import progress, width
    from normec.terminal.data import counts_table, overview_lines, overview_table

    if not source:
        if picture:
            raise BadInput("picture", "needs a source", value=picture, remedy="Name one, such as digits")
        known = catalogue()
        answer(known, as_json, *catalogue_lines(known))
        return
    if picture:
        check(picture)
    file, assignments = split(source, None, None)
    data, seed = resolve_data(file, assignments, trust_code)
    with progress("reading the data"):
        described = overview(load(data, Streams(seed)))
        if picture:
            draw(described, picture)
    lines = [*overview_lines(described), *([f"drawn: {picture}"] if picture else [])]
    answer(described, as_json, overview_table(described), counts_table(described, width()), *lines)
