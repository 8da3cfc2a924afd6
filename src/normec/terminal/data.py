"""What `normec datasets` prints of a source."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from normec.data.overview import Overview, label
from normec.errors import plural

CLIENTS_SHOWN, CLASSES_LISTED = 20, 10


def overview_table(overview: Overview) -> Table:
    """A federation as a whole."""
    table = Table(show_header=False, title="Data", title_justify="left")
    table.add_column()
    table.add_column(overflow="fold")
    rows = {
        "clients": f"{overview['clients']:,}"
        + (f", {empty:,} of them without samples" if (empty := overview["clients_without_samples"]) else ""),
        "training samples": f"{overview['samples']:,}",
        "samples of a client": ", ".join(f"{name} {f'{size:,.1f}'.removesuffix('.0')}" for name, size in overview["sizes"].items()),
        "test samples": f"{overview['test_samples']:,}" + (", each of a client" if overview["test_by_client"] else ""),
        "features": _shape(overview["features"]),
    }
    held = overview["classes_per_client"]
    if overview["classes"] is None or held is None:
        rows["targets"] = f"numbers ({_shape(overview['targets'] or [])}), no classes"
    else:
        rows["classes"] = f"{len(overview['classes']):,}"
        rows["classes of a client"] = f"min {held['min']}, mean {held['mean']:.3g}, max {held['max']}"
        rows["distance of label shares"] = f"{overview['heterogeneity']:.3f} ({overview['heterogeneity_by_chance']:.3f} by chance alone)"
    for name, value in rows.items():
        table.add_row(name, Text(value))
    return table


def counts_table(overview: Overview, width: int) -> Table:
    """The samples of all and of the first clients by class: a column for each class where that fits the width, else a list."""
    classes = [label(name) for name in overview["classes"] or ()]
    rows = [("all", overview["samples"], overview["counts"] or [])]
    rows += [(label(row["client"]), row["samples"], row["counts"] or []) for row in overview["by_client"][:CLIENTS_SHOWN]]
    widths = [max(len(name), len(f"{total:,}")) for name, total in zip(classes, overview["counts"] or (), strict=True)]
    fits = sum(w + 3 for w in (*widths, max(len(row[0]) for row in rows), len("samples"))) < width
    table = Table(title="Who has what", title_justify="left")
    table.add_column("client", overflow="fold")
    for name in ("samples", *(classes if fits else ())):
        table.add_column(Text(name), justify="right", no_wrap=True)
    if classes and not fits:
        table.add_column("of class: samples", overflow="fold")
    for position, (client, samples, counts) in enumerate(rows):
        listed = [_largest(classes, counts, len(classes) if position == 0 else CLASSES_LISTED)] if classes else []
        cells = [f"{n:,}" if n else "·" for n in counts] if fits and classes else listed
        table.add_row(Text(client), f"{samples:,}", *(Text(cell) for cell in cells), end_section=position == 0)
    return table


def overview_lines(overview: Overview) -> list[str]:
    """What the tables leave out, how to read them, and the notes of the source."""
    lines, more = [], overview["clients"] - CLIENTS_SHOWN
    if more > 0:
        lines.append(f"and {plural(more, 'more client')}; --json tells of all, --picture FILE draws them")
    if overview["heterogeneity"] is not None:
        lines.append("distance of label shares: half the sum of |share of a class in a client − in all|, mean over clients with samples;")
        lines.append("  by chance alone: what is expected where the same samples are shuffled and dealt in the same sizes")
    lines.append("these numbers are the data's own, without noise: no promise covers them")
    return [*lines, *overview["notes"]]


def _largest(classes: list[str], counts: list[int], most: int) -> str:
    """At most so many of the classes that are held, the largest first."""
    held = sorted(((n, c) for c, n in enumerate(counts) if n), key=lambda cell: -cell[0])
    cells = [f"{classes[c]}: {n:,}" for n, c in held[:most]]
    return ", ".join(cells) + (f" and {plural(len(held) - most, 'smaller one')}" if len(held) > most else "")


def _shape(shape: list[int]) -> str:
    return " × ".join(map(str, shape)) or "one number"
