"""The tables and notes that commands print."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from normec.data.overview import label
from normec.errors import count
from normec.promise import rounded_up, upper
from normec.training import Run

HUGE = 1e9
"""From here on digits after the point only fill a table."""
CLIENTS_SHOWN, CLASSES_LISTED = 20, 10


def result_table(run: Run) -> Table:
    """The table at the end of a run."""
    s = run.summary
    table = Table(show_header=False, title="Result", title_justify="left")
    table.add_column()
    table.add_column(overflow="fold")
    promise = f"({upper(s['epsilon'])}, {s['delta']:g})" if s["private"] else "∞: not private"
    for name, value in {
        "algorithm": s["algorithm"],
        "convergence": s["convergence"],
        "test accuracy": number(s["test_accuracy"], ".1%") + _by_itself(s["test_largest_class"]),
        **{f"test {name}": number(value, ".4g") for name, value in (s["metrics"] or {}).items()},
        **({"best model": _best(s["best"])} if s["best"] else {}),
        "test loss": number(s["test_loss"], ".4f"),
        "training loss": number(s["train_loss"], ".4f"),
        "(ε, δ)": promise,
        **({"(ε, δ) realised": f"({upper(s['epsilon_realised_max'])}, {s['delta']:g})"} if s["epsilon_realised_max"] is not None else {}),
        "unit": s["unit"],
        "adjacency": s["adjacency"] or "–",
        "trust": s["trust"],
        "sampling": s["sampling"] + ("" if s["rate"] == 1 else f", rate {s['rate']:g}"),
        "accountant": s["accountant"] or "–",
        "transmissions": f"{s['transmissions']:,}",
        "bytes up / down": f"{s['bytes_up']:,} / {s['bytes_down']:,}",
        "seconds": f"{s['seconds']:.1f}",
        "folder": str(run.folder) if run.folder else "–",
    }.items():
        table.add_row(name, Text(value))
    return table


def _best(best: dict[str, Any]) -> str:
    shown = number(best["value"], ".1%" if best["by"] == "test_accuracy" else ".4g")
    return f"of round {best['round']}, {best['by']} {shown}: {best['file']}"


def _by_itself(share: float | None) -> str:
    return "" if share is None else f" (naming the largest class alone: {share:.1%})"


def warnings(run: Run) -> list[str]:
    """What a careful reader should notice in the result."""
    first, last = run.metrics[0]["train_loss"], run.summary["train_loss"]
    lines = []
    if run.summary["clients_at_limit"]:
        lines.append(f"warning: {count(run.summary['clients_at_limit'], 'client')} came to client_limit, and would send nothing more")
    losses = [(row["train_loss"], row["round"]) for row in run.metrics if row["train_loss"] is not None]
    least, when = min(losses, default=(0.0, 0))
    advice = "Scale the features, or lower local.lr, algorithm.server_lr or the number of rounds"
    if first is not None and last is not None and last > first:
        lines.append(f"warning: the training loss rose from {first:.4f} to {last:.4f}. {advice}.")
    elif last is not None and first is not None and last - least > 0.1 * (first - least):
        lines.append(f"warning: the training loss rose again, from {least:.4f} in round {when} to {last:.4f}. {advice}.")
    if run.summary["best"] and run.summary["best"]["note"]:
        lines.append(f"note: {run.summary['best']['note']}")
    spent, claim = run.summary["epsilon_realised_max"], run.summary["epsilon"]
    if spent is not None and claim is not None and spent > claim:
        remedy = f"privacy.client_limit={claim:.4g} would keep every client within the claim"
        lines.append(f"note: the claim is the one before sampling; the client that took part most spent ε = {upper(spent)}. {remedy}.")
    return lines


def privacy_table(rows: list[dict[str, Any]], title: str = "Privacy") -> Table:
    """The trust models of one setting, side by side."""
    table = Table(title=title, title_justify="left")
    for name in ("trust", "sampling", "noise multiplier", "ε", "accountant"):
        table.add_column(name, overflow="fold")
    for row in rows:
        sampling = row["sampling"] + ("" if row["rate"] == 1 else f", p = {row['rate']:g}")
        sampling += f", at least {row['min_honest']} honest" if row["min_honest"] else ""
        bound = bound_or_none(row["epsilon"])
        if row["client_limit"]:
            bound += f" (clients silent before {row['client_limit']:g})"
        table.add_row(row["trust"], sampling, rounded_up(row["noise_multiplier"]), bound, row["accountant"])
    return table


def bound_or_none(epsilon: float | None) -> str:
    """ε, or that there is none."""
    return "∞: not private" if epsilon is None else upper(epsilon)


def spent_line(row: dict[str, Any]) -> str:
    """The answer of a ledger in one line, from the first row of its table."""
    return f"spent: ε = {bound_or_none(row['epsilon'])} at δ = {row['delta']!r}, trust {row['trust']}, {row['adjacency']} adjacency"


def ledger_lines(found: dict[str, Any]) -> list[str]:
    """What a verified ledger says, of `ledger_overview`."""
    mechanism, busiest = found["mechanism"], found["epsilon_realised_max"]
    lines = [
        f"{count(found['lines'], 'line')}, the chain is whole",
        f"{count(found['releases'], 'release')} of {mechanism['rounds']} planned count, with {mechanism['noise']} noise under trust "
        f"{mechanism['trust']}; the table is for those{', and for the evaluations' if found['evaluations'] else ''}, "
        f"δ = {found['spent']['delta'] if found['spent'] else mechanism['delta']!r}",
    ]
    if found["evaluations"]:
        lines.append(f"{count(found['evaluations'], 'evaluation')} by the clients on their own data count as well: ε and δ add up")
    if found["retried"]:
        counting = "each counts once, as the same release" if mechanism["noise"] == "seeded" else "each attempt counts"
        lines.append(f"begun more than once: {', '.join(f'round {k}' for k in found['retried'])}; {counting}")
    if busiest is not None:
        limit = f"; each stays silent before it exceeds {mechanism['client_limit']:g}" if mechanism["client_limit"] else ""
        lines.append(f"the client whose own rounds spent most: ε = {upper(busiest)}{limit}")
    if found["torn"]:
        lines.append("warning: an incomplete last line, of a process that was killed while writing, is left out")
    return [*lines, spent_line(found["spent"])] if found["spent"] else lines


def client_lines(found: dict[str, Any]) -> list[str]:
    """What a client's directory says that it has released, of `flower.owner.account`."""
    lines = [
        f"{each['experiment']}, {each['of']}: {count(each['releases'], 'release')} under trust {each['trust']}, "
        f"noise multiplier {number(each['noise_multiplier'], '.4g')}"
        for each in found["experiments"]
    ]
    if found["unprotected"]:
        return [*lines, "all together: ε = ∞: messages have left without noise"]
    if found["outdated"]:
        return [
            *lines,
            "all together: unknown: this directory is an older copy, and has forgotten releases",
        ]
    return [*lines, f"all together: ε = {upper(found['epsilon'])} at δ = {found['delta']:g}"]


def algorithm_table(rows: list[dict[str, Any]]) -> Table:
    """The registered algorithms and what a round of each costs."""
    table = Table(title="Algorithms", title_justify="left")
    for name in ("name", "year", "private", "memory", "up", "down"):
        table.add_column(name, no_wrap=True)
    for row in rows:
        up = "compressed" if row["compressed"] else str(row["up"])
        private = {True: "yes", False: "no", None: "?"}[row["private"]]
        table.add_row(row["name"], str(row["year"] or "–"), private, str(row["memory"]), up, str(row["down"]))
    return table


def algorithm_lines(rows: list[dict[str, Any]]) -> list[str]:
    """How to read the table, and the paper and the guarantee of each algorithm."""
    lines = [
        "private: messages are bounded, so that noise can protect them",
        "memory, up, down: vectors of the model's size that a client keeps, sends and receives",
    ]
    covers = {row["name"]: f" Covers: {row['covers']}." if row["covers"] else "" for row in rows}
    return lines + [f"{row['name']}: {row['paper']}. Convergence: {row['guarantee']}.{covers[row['name']]}" for row in rows]


def plan_table(found: dict[str, Any]) -> Table:
    """The chosen parameters beside the corollary's, and their bounds term by term."""
    table = Table(title="Plan", title_justify="left")
    closed = found["corollary"]
    both = [found["chosen"], closed] if closed else [found["chosen"]]
    title = f"corollary {closed['number']}" if closed and closed["number"] else "closed form"
    for name in ("", "chosen", *([title] if closed else [])):
        table.add_column(name, no_wrap=True)
    names = {"local_lr": "γ: local.lr", "beta": "β: algorithm.beta", "server_lr": "η: algorithm.server_lr", "alpha": "α: algorithm.alpha"}
    names |= {"start": "R"}
    for key, name in (names | {"heterogeneity": "D"}).items():
        table.add_row(name, *(number(each[key], ".4g") for each in both))
    for form in ("paper", "sharper"):
        table.add_section()
        for term in ("optimization", "memory", "noise", "step", "drift", "order", "total"):
            bold = "bold" if term == "total" else ""
            table.add_row(f"{term}, {form} form", *(number(each["bound"][form][term], ".4g") for each in both), style=bold)
    return table


def plan_lines(found: dict[str, Any]) -> list[str]:
    """What the plan rests on, and what more of something would buy."""
    dominant = found["chosen"]["bound"]["sharper"]["dominant"]
    lines: list[str] = [f"{count(found['rounds'], 'round')}; the bound's largest term: {dominant}"]
    if found["epsilon"] is not None:
        noise = f"noise multiplier {rounded_up(found['noise_multiplier'])} for ε = {found['epsilon']:g} at δ = {found['delta']!r}"
        lines.append(f"{noise}, trust {found['trust']}")
    held = "every condition of the theorem on the stepsizes holds for the chosen parameters"
    lines.append(f"warning: {found['coverage']}: no bound applies" if found["outside"] else held)
    closed = found["corollary"]
    broken = [c["name"] for c in closed["conditions"] if not c["holds"]] if closed else []
    if broken:
        lines.append(f"warning: the closed form breaks {'; '.join(broken)}: its bound does not apply")
    if closed is None:
        lines.append("predicted rate: none in K; 2R stays")
    else:
        utility = "predicted rate: none in K; the bound tends to the private utility"
        lines.append(f"predicted rate: O(K^−{closed['rate']:.3g})" if closed["rate"] else utility)
    lines += [f"{name}: {total:.4g} (sharper form)" for name, total in found["more"].items()]
    return [*lines, *found["notes"], f"as a run: {found['run']}"]


def catalogue_lines(known: dict[str, list[dict[str, str]]]) -> list[str]:
    """The built-in sources and partitions, a line each."""
    heads = {"sources": "data.source: what it is; its samples; the unit of privacy", "partitions": "data.partition: how samples are dealt"}
    lines: list[str] = []
    for kind, rows in known.items():
        lines += [heads[kind], *(f"  {row['name']}: {row['what']}; {row['samples']}; {row['unit']}" for row in rows)]
    return lines


def overview_table(found: dict[str, Any]) -> Table:
    """A federation as a whole."""
    table = Table(show_header=False, title="Data", title_justify="left")
    table.add_column()
    table.add_column(overflow="fold")
    rows = {
        "clients": f"{found['clients']:,}"
        + (f", {empty:,} of them without samples" if (empty := found["clients_without_samples"]) else ""),
        "training samples": f"{found['samples']:,}",
        "samples of a client": ", ".join(f"{name} {f'{size:,.1f}'.removesuffix('.0')}" for name, size in found["sizes"].items()),
        "test samples": f"{found['test_samples']:,}" + (", each of a client" if found["test_by_client"] else ""),
        "features": _shape(found["features"]),
    }
    if found["classes"] is None:
        rows["targets"] = f"numbers ({_shape(found['targets'])}), no classes"
    else:
        held = found["classes_per_client"]
        rows["classes"] = f"{len(found['classes']):,}"
        rows["classes of a client"] = f"min {held['min']}, mean {held['mean']:.3g}, max {held['max']}"
        rows["distance of label shares"] = f"{found['heterogeneity']:.3f} ({found['heterogeneity_by_chance']:.3f} by chance alone)"
    for name, value in rows.items():
        table.add_row(name, Text(value))
    return table


def counts_table(found: dict[str, Any], width: int) -> Table:
    """The samples of all and of the first clients by class: a column for each class where that fits the width, else a list."""
    classes = [label(name) for name in found["classes"] or ()]
    rows = [("all", found["samples"], found["counts"])]
    rows += [(label(row["client"]), row["samples"], row["counts"]) for row in found["by_client"][:CLIENTS_SHOWN]]
    widths = [max(len(name), len(f"{total:,}")) for name, total in zip(classes, found["counts"] or (), strict=True)]
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


def overview_lines(found: dict[str, Any]) -> list[str]:
    """What the tables leave out, how to read them, and the notes of the source."""
    lines, more = [], found["clients"] - CLIENTS_SHOWN
    if more > 0:
        lines.append(f"and {count(more, 'more client')}; --json tells of all, --picture FILE draws them")
    if found["heterogeneity"] is not None:
        lines.append("distance of label shares: half the sum of |share of a class in a client − in all|, mean over clients with samples;")
        lines.append("  by chance alone: what is expected where the same samples are shuffled and dealt in the same sizes")
    lines.append("these numbers are the data's own, without noise: no promise covers them")
    return [*lines, *found["notes"]]


def _largest(classes: list[str], counts: list[int], most: int) -> str:
    """At most so many of the classes that are held, the largest first."""
    held = sorted(((n, c) for c, n in enumerate(counts) if n), key=lambda cell: -cell[0])
    cells = [f"{classes[c]}: {n:,}" for n, c in held[:most]]
    return ", ".join(cells) + (f" and {count(len(held) - most, 'smaller one')}" if len(held) > most else "")


def _shape(shape: list[int]) -> str:
    return " × ".join(map(str, shape)) or "one number"


def number(value: float | None, form: str) -> str:
    """A value, or a dash for none; huge ones in short."""
    return "–" if value is None else format(value, form if abs(value) < HUGE else ".2e")
