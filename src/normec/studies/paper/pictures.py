"""The paper's figures from the records of their runs: the same axes and series, as PNG, SVG and JSON of every point."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypedDict

from normec.data.picture import STYLE
from normec.files import write_atomically
from normec.privacy import Trust
from normec.privacy.promise import shown_epsilon
from normec.runs.record import Record
from normec.studies.paper.experiments import DELTA, EPSILON, Experiments, Figure, Label, NoiseReading

COLOURS = ("#1b6ca8", "#e07b00", "#2e8b57", "#8e44ad", "#b03a2e")
DASHES = ("-", ":", "--", "-.")
TITLES: dict[Figure, str] = {
    "figure1": "Fed-α-NormEC by round",
    "figure2": "Fed-α-NormEC by client-to-server transmissions",
    "figure3": "Fed-α-NormEC and FedAvg with smoothed normalization, by round",
    "figure4": "FedAvg with smoothed normalization: highest test accuracy",
}


PLOTTED: tuple[Literal["train_loss", "test_accuracy"], ...] = ("train_loss", "test_accuracy")


class PlottedRound(TypedDict):
    """An evaluated round of a curve."""

    round: int
    transmissions: int
    train_loss: float | None
    test_accuracy: float | None


class Series(TypedDict):
    """One curve: its name, what its run is, as `Label` says, its highest test accuracy, and its evaluated rounds."""

    name: str
    method: Literal["ours", "fedavg"]
    rate: float
    beta: float
    gamma: float
    honest: bool
    best_accuracy: float | None
    rows: list[PlottedRound]


class Claimed(TypedDict):
    """What the paper claims."""

    epsilon: float
    delta: float


class FigureContent(TypedDict):
    """A figure, as its .json holds it. noise: how the paper's noise is read. true_epsilon: by rate, what each trust model gives for it."""

    figure: Figure
    title: str
    noise: NoiseReading
    data: str
    model: str
    d: int
    clients: int
    rounds: int
    claimed: Claimed
    true_epsilon: dict[str, dict[Trust, float]]
    series: list[Series]


Drawn = Callable[[Any, FigureContent], None]
"""Draws a figure on a canvas of matplotlib."""


def collect(experiments: Experiments, figure: Figure, folder: Path) -> FigureContent:
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
        "true_epsilon": {f"{rate:g}": experiments.true_epsilon(rate) for rate in sorted({one["rate"] for one in series}, reverse=True)},
        "series": series if figure == "figure4" else _tuned(series),
    }


def caption(content: FigureContent) -> list[str]:
    """The caption under a picture: the reading of the noise, and the ε that each trust model truly gives for it."""
    reading = {
        "total": "noise read as a whole: the vector z of a client has norm β s in the mean",
        "coordinate": "noise read a coordinate, as the privacy proof needs: each has standard deviation β s",
    }[content["noise"]]
    model = f"{content['data']}, {content['model']} (d = {content['d']:,})"
    setting = f"{model}, M = {content['clients']} clients, K = {content['rounds']} rounds"
    lines = [f"{setting}; {reading}, s = p √(K ln(1/δ)) / ε"]
    trusts: tuple[Trust, ...] = ("local", "secagg", "central")
    for rate, true in content["true_epsilon"].items():
        seen = ", ".join(f"{trust} ε = {shown_epsilon(true[trust])}" for trust in trusts)
        lines.append(f"p = {rate}: claimed ε = {content['claimed']['epsilon']:g}; true: {seen} (δ = {content['claimed']['delta']:g})")
    seen_by = "local: the server sees each message; secagg: sums of pM; central: it adds the noise of pM, and only models are seen"
    if content["noise"] == "total":
        seen_by += ". No such ε protects anyone: the proof needs the noise a coordinate (--noise coordinate)"
    return [*lines, seen_by]


def save(content: FigureContent, folder: Path) -> list[Path]:
    """Writes the figure's .png, .svg and .json into the folder."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Canvas

    paths = [folder / f"{content['figure']}{suffix}" for suffix in (".png", ".svg", ".json")]
    with rc_context({**STYLE, "axes.grid": True, "grid.alpha": 0.3}):
        canvas = Canvas(figsize=(11, 4.6), layout="constrained")
        DRAW[content["figure"]](canvas, content)
        canvas.suptitle(content["title"])
        canvas.supxlabel("\n".join(caption(content)), fontsize=7, ha="left", x=0.01)
        for path in paths[:2]:
            write_atomically(path, lambda path=path: _bytes(canvas, path.suffix))  # type: ignore[misc]
    write_atomically(paths[2], lambda: json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False).encode())
    return paths


def _series(label: Label, record: Record) -> Series:
    method = "Fed-α-NormEC" if label.method == "ours" else "FedAvg"
    honest = f", true ε = {EPSILON:g}" if label.honest else ""
    return {
        "name": f"{method}{honest}, p = {label.rate:g}, β = {label.beta:g}, γ = {label.gamma:g}",
        "method": label.method,
        "rate": label.rate,
        "beta": label.beta,
        "gamma": label.gamma,
        "honest": label.honest,
        "best_accuracy": record.best(),
        "rows": [
            {
                "round": row["round"],
                "transmissions": row["transmissions"],
                "train_loss": row["train_loss"],
                "test_accuracy": row["test_accuracy"],
            }
            for row in record.metrics
            if row["test_accuracy"] is not None
        ],
    }


def _tuned(series: list[Series]) -> list[Series]:
    """Of each method, p and β the series of the best γ."""
    best: dict[tuple[str, float, float, bool], Series] = {}
    for each in series:
        key = each["method"], each["rate"], each["beta"], each["honest"]
        if key not in best or (each["best_accuracy"] or 0) > (best[key]["best_accuracy"] or 0):
            best[key] = each
    return list(best.values())


def _curves(x: Literal["round", "transmissions"], colour: Literal["beta", "rate"], dash: Callable[[Series], object]) -> Drawn:
    """Draws training loss and test accuracy against x, coloured by `colour`, dashed by what `dash` says of a series."""

    def draw(canvas: Any, content: FigureContent) -> None:
        panels = canvas.subplots(1, 2)
        colours = list(dict.fromkeys(series[colour] for series in content["series"]))
        dashes = list(dict.fromkeys(dash(series) for series in content["series"]))
        for series in content["series"]:
            for panel, metric in zip(panels, PLOTTED, strict=True):
                panel.plot(
                    [row[x] for row in series["rows"]],
                    [row[metric] for row in series["rows"]],
                    label=series["name"],
                    color=COLOURS[colours.index(series[colour]) % len(COLOURS)],
                    linestyle=DASHES[dashes.index(dash(series)) % len(DASHES)],
                    linewidth=1.0 if series["honest"] else 1.7,
                )
        for panel, title in zip(panels, ("training loss", "test accuracy"), strict=True):
            panel.xaxis.get_major_locator().set_params(integer=True)
            panel.set(xlabel={"round": "communication round", "transmissions": "client-to-server transmissions"}[x], ylabel=title)
        start = max(series["rows"][0]["train_loss"] or 0.0 for series in content["series"])
        panels[0].set_ylim(bottom=0, top=1.25 * start)  # what rises beyond learns nothing, and would hide the rest
        canvas.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize=7, frameon=False)

    return draw


def _heat_map(canvas: Any, content: FigureContent) -> None:
    """Highest test accuracy by β and γ."""
    panel = canvas.subplots()
    betas = sorted({series["beta"] for series in content["series"]})
    gammas = sorted({series["gamma"] for series in content["series"]})
    best = {(series["beta"], series["gamma"]): series["best_accuracy"] for series in content["series"]}
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


DRAW: dict[Figure, Drawn] = {
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
