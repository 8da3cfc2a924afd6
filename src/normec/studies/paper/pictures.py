"""The paper's figures from the records of their runs: the same axes and series, as PNG, SVG and JSON of every point."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from normec.data.picture import STYLE
from normec.files import write_atomically
from normec.privacy.promise import shown_epsilon
from normec.runs.record import Record
from normec.studies.paper.experiments import DELTA, EPSILON, Experiments, Figure, Label

COLOURS = ("#1b6ca8", "#e07b00", "#2e8b57", "#8e44ad", "#b03a2e")
DASHES = ("-", ":", "--", "-.")
TITLES: dict[Figure, str] = {
    "figure1": "Fed-α-NormEC by round",
    "figure2": "Fed-α-NormEC by client-to-server transmissions",
    "figure3": "Fed-α-NormEC and FedAvg with smoothed normalization, by round",
    "figure4": "FedAvg with smoothed normalization: highest test accuracy",
}


class Series(NamedTuple):
    """One curve. rows: a dict of each evaluated round. best: the highest test accuracy."""

    label: Label
    name: str
    rows: list[dict[str, Any]]
    best: float | None


def collect(experiments: Experiments, figure: Figure, folder: Path) -> dict[str, Any]:
    """The content of a figure, as plain values: its series, the choices made, and the ε that its noise gives.

    Of several γ for one method, p and β the one of the highest test accuracy is shown, as the paper tunes it; figure 4 shows all.
    """
    series = [_series(label, Record.read(folder / label.name)) for label in experiments.labels(figure)]
    return {
        "figure": figure,
        "title": TITLES[figure],
        "noise": experiments.noise,
        "data": experiments.base["data"]["source"],
        "model": experiments.base["model"]["name"],
        "d": experiments.d,
        "clients": experiments.clients,
        "rounds": experiments.rounds,
        "claimed": {"epsilon": EPSILON, "delta": DELTA},
        "true_epsilon": {f"{rate:g}": experiments.true_epsilon(rate) for rate in sorted({s.label.rate for s in series}, reverse=True)},
        "series": [
            {"name": s.name, **s.label._asdict(), "best_accuracy": s.best, "rows": s.rows}
            for s in (series if figure == "figure4" else _tuned(series))
        ],
    }


def caption(found: dict[str, Any]) -> list[str]:
    """The caption under a picture: the reading of the noise, and the ε that each trust model truly gives for it."""
    reading = {
        "total": "noise read as a whole: the vector z of a client has norm β s in the mean",
        "coordinate": "noise read a coordinate, as the privacy proof needs: each has standard deviation β s",
    }[found["noise"]]
    setting = f"{found['data']}, {found['model']} (d = {found['d']:,}), M = {found['clients']} clients, K = {found['rounds']} rounds"
    lines = [f"{setting}; {reading}, s = p √(K ln(1/δ)) / ε"]
    for rate, true in found["true_epsilon"].items():
        seen = ", ".join(f"{trust} ε = {shown_epsilon(true[trust])}" for trust in ("local", "secagg", "central"))
        lines.append(f"p = {rate}: claimed ε = {found['claimed']['epsilon']:g}; true: {seen} (δ = {found['claimed']['delta']:g})")
    seen_by = "local: the server sees each message; secagg: sums of pM; central: it adds the noise of pM, and only models are seen"
    if found["noise"] == "total":
        seen_by += ". No such ε protects anyone: the proof needs the noise a coordinate (--noise coordinate)"
    return [*lines, seen_by]


def save(found: dict[str, Any], folder: Path) -> list[Path]:
    """Writes the figure's .png, .svg and .json into the folder."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Canvas

    paths = [folder / f"{found['figure']}{suffix}" for suffix in (".png", ".svg", ".json")]
    with rc_context({**STYLE, "axes.grid": True, "grid.alpha": 0.3}):
        canvas = Canvas(figsize=(11, 4.6), layout="constrained")
        DRAW[found["figure"]](canvas, found)
        canvas.suptitle(found["title"])
        canvas.supxlabel("\n".join(caption(found)), fontsize=7, ha="left", x=0.01)
        for path in paths[:2]:
            write_atomically(path, lambda path=path: _bytes(canvas, path.suffix))  # type: ignore[misc]
    write_atomically(paths[2], lambda: json.dumps(found, indent=1, allow_nan=False, ensure_ascii=False).encode())
    return paths


def _series(label: Label, record: Record) -> Series:
    kept = ("round", "transmissions", "train_loss", "test_accuracy")
    rows = [{key: row[key] for key in kept} for row in record.metrics if row["test_accuracy"] is not None]
    method = "Fed-α-NormEC" if label.method == "ours" else "FedAvg"
    honest = f", true ε = {EPSILON:g}" if label.honest else ""
    return Series(label, f"{method}{honest}, p = {label.rate:g}, β = {label.beta:g}, γ = {label.gamma:g}", rows, record.best())


def _tuned(series: list[Series]) -> list[Series]:
    """Of each method, p and β the series of the best γ."""
    best: dict[Label, Series] = {}
    for each in series:
        key = each.label._replace(gamma=0.0)
        if key not in best or (each.best or 0) > (best[key].best or 0):
            best[key] = each
    return list(best.values())


def _curves(x: str, colour: str, dash: Callable[[dict[str, Any]], Any]) -> Callable[[Any, dict[str, Any]], None]:
    """Draws training loss and test accuracy against x, coloured by `colour`, dashed by what `dash` says of a series."""

    def draw(canvas: Any, found: dict[str, Any]) -> None:
        panels = canvas.subplots(1, 2)
        colours = list(dict.fromkeys(series[colour] for series in found["series"]))
        dashes = list(dict.fromkeys(dash(series) for series in found["series"]))
        for series in found["series"]:
            look: dict[str, Any] = {
                "color": COLOURS[colours.index(series[colour]) % len(COLOURS)],
                "linestyle": DASHES[dashes.index(dash(series)) % len(DASHES)],
                "linewidth": 1.0 if series["honest"] else 1.7,
            }
            for panel, metric in zip(panels, ("train_loss", "test_accuracy"), strict=True):
                panel.plot([row[x] for row in series["rows"]], [row[metric] for row in series["rows"]], label=series["name"], **look)
        for panel, title in zip(panels, ("training loss", "test accuracy"), strict=True):
            panel.xaxis.get_major_locator().set_params(integer=True)
            panel.set(xlabel={"round": "communication round", "transmissions": "client-to-server transmissions"}[x], ylabel=title)
        start = max(series["rows"][0]["train_loss"] for series in found["series"])
        panels[0].set_ylim(bottom=0, top=1.25 * start)  # what rises beyond learns nothing, and would hide the rest
        canvas.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize=7, frameon=False)

    return draw


def _heat_map(canvas: Any, found: dict[str, Any]) -> None:
    """Highest test accuracy by β and γ."""
    panel = canvas.subplots()
    betas, gammas = (sorted({series[name] for series in found["series"]}) for name in ("beta", "gamma"))
    best = {(series["beta"], series["gamma"]): series["best_accuracy"] for series in found["series"]}
    cells = [[best.get((beta, gamma)) for gamma in gammas] for beta in betas]
    image = panel.imshow([[float("nan") if c is None else 100 * c for c in row] for row in cells], cmap="viridis", aspect="auto")
    for i, row in enumerate(cells):
        for j, cell in enumerate(row):
            said = "–" if cell is None else f"{cell:.1%}"
            bright = cell is not None and image.norm(100 * cell) > 0.6
            panel.text(j, i, said, ha="center", va="center", color="black" if bright else "white", fontweight="bold")
    panel.set(xticks=range(len(gammas)), yticks=range(len(betas)), xticklabels=gammas, yticklabels=betas, xlabel="γ", ylabel="β")
    panel.grid(visible=False)
    canvas.colorbar(image, label="highest test accuracy, %")


DRAW: dict[str, Callable[[Any, dict[str, Any]], None]] = {
    "figure1": _curves("round", "beta", lambda series: (series["rate"], series["honest"])),
    "figure2": _curves("transmissions", "rate", lambda series: series["beta"]),
    "figure3": _curves("round", "beta", lambda series: series["method"]),
    "figure4": _heat_map,
}


def _bytes(canvas: Any, suffix: str) -> bytes:
    import io

    file = io.BytesIO()
    canvas.savefig(file, format=suffix[1:], dpi=130, metadata={"Date": None} if suffix == ".svg" else None)
    return file.getvalue()
