"""What `normec algorithms` and `normec datasets` list."""

from __future__ import annotations

from rich.table import Table

from normec.algorithms.catalogue import AlgorithmRow


def algorithm_table(rows: list[AlgorithmRow]) -> Table:
    """The registered algorithms and what a round of each costs."""
    table = Table(title="Algorithms", title_justify="left")
    for name in ("name", "year", "private", "memory", "up", "down"):
        table.add_column(name, no_wrap=True)
    for row in rows:
        up = "compressed" if row["compressed"] else str(row["up"])
        private = {True: "yes", False: "no", None: "?"}[row["private"]]
        table.add_row(row["name"], str(row["year"] or "–"), private, str(row["memory"]), up, str(row["down"]))
    return table


def algorithm_lines(rows: list[AlgorithmRow]) -> list[str]:
    """How to read the table, and the paper and the guarantee of each algorithm."""
    lines = [
        "private: messages are bounded, so that noise can protect them",
        "memory, up, down: vectors of the model's size that a client keeps, sends and receives",
    ]
    covers = {row["name"]: f" Covers: {row['covers']}." if row["covers"] else "" for row in rows}
    return lines + [f"{row['name']}: {row['paper']}. Convergence: {row['guarantee']}.{covers[row['name']]}" for row in rows]


def catalogue_lines(known: dict[str, list[dict[str, str]]]) -> list[str]:
    """The built-in sources and partitions, a line each."""
    heads = {"sources": "data.source: what it is; its samples; the unit of privacy", "partitions": "data.partition: how samples are dealt"}
    lines: list[str] = []
    for kind, rows in known.items():
        lines += [heads[kind], *(f"  {row['name']}: {row['what']}; {row['samples']}; {row['unit']}" for row in rows)]
    return lines
