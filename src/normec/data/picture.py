"""A picture of which client has what: one bar per client for a few clients, else a heat map of clients × classes."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from normec.data.overview import Overview, label
from normec.errors import BadInput, plural
from normec.files import write_atomically

SUFFIXES = (".png", ".svg", ".pdf")
CLIENTS_NAMED = 40
"""Beyond these, clients are in order of size and have no names."""
CLASSES_COLOURED = 10
"""Beyond these, classes are columns of a heat map."""
CLASSES_NAMED = 40
NAME_LENGTH = 16
COLOUR = "#0b6e99"
SKEWED = 30
"""From here on, as the ratio of the largest size to the median, sizes are on a logarithmic scale."""
STYLE: Any = {"svg.hashsalt": "normec", "axes.spines.top": False, "axes.spines.right": False}


def check(path: Path, setting: str = "picture") -> None:
    """Checks that a picture can be drawn to the file that a setting names.

    Raises:
        BadInput: for another kind of file, a folder that does not exist, and where matplotlib is missing.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise BadInput(setting, value=path, must=f"end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    if not path.parent.is_dir():
        raise BadInput(setting, f": {path.parent} is not a folder", value=path, remedy="Make it, or name another")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise BadInput(setting, "needs matplotlib", value=path, remedy="Install it with pip install 'normec[plot]'") from None


def draw(overview: Overview, path: Path) -> None:
    """Draws the overview of a federation.

    Raises:
        BadInput: where it cannot be written, and as `check`.
    """
    check(path)
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    sizes = np.array([row["samples"] for row in overview["by_client"]])
    order = np.arange(len(sizes)) if len(sizes) <= CLIENTS_NAMED else np.argsort(-sizes, kind="stable")
    classes = overview["classes"] or []
    counts = None if overview["classes"] is None else np.array([row["counts"] for row in overview["by_client"]])[order]
    names = [_short(row["client"]) for row in overview["by_client"]]
    with rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # of a name, that the font lacks
        figure = Figure(figsize=(9, 1.6 + 0.24 * max(4, min(len(sizes), CLIENTS_NAMED))), layout="constrained")
        if counts is None:
            _bars(figure.subplots(), sizes[order])
        elif counts.shape[1] <= CLASSES_COLOURED and len(sizes) <= CLIENTS_NAMED:
            _stacked_bars(figure.subplots(), counts, classes)
        else:
            _heat_map(figure, sizes[order], counts, classes)
        _name_clients(figure.axes[0], names)
        figure.suptitle(_title(overview), fontsize=11)
        content = io.BytesIO()
        kind = path.suffix.lower().removeprefix(".")
        figure.savefig(content, format=kind, dpi=150, metadata={"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind))
    try:
        write_atomically(path, content.getvalue)
    except OSError as error:
        raise BadInput("picture", f"cannot be written ({error.strerror})", value=path, remedy="Name another file") from None


def _stacked_bars(axes: Any, counts: np.ndarray, classes: list[str]) -> None:
    """The samples of each client by class."""
    from matplotlib import colormaps

    left = np.zeros(len(counts))
    for c, name in enumerate(classes):
        axes.barh(np.arange(len(counts)), counts[:, c], left=left, color=colormaps["tab10"](c), label=_short(name))
        left += counts[:, c]
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, title="class", fontsize=9)
    axes.set(ylim=(len(counts) - 0.5, -0.5), xlim=(0, None), xlabel="training samples")


def _bars(axes: Any, sizes: np.ndarray) -> None:
    """The samples of each client; on a logarithmic scale where few clients hold nearly all."""
    if len(sizes) <= CLIENTS_NAMED:
        axes.barh(np.arange(len(sizes)), sizes, color=COLOUR)
    else:
        axes.stairs(sizes, np.arange(len(sizes) + 1) - 0.5, orientation="horizontal", fill=True, color=COLOUR)
    axes.set(ylim=(len(sizes) - 0.5, -0.5), xlim=(0, None), xlabel="training samples")
    if sizes.max() > SKEWED * max(1, np.median(sizes)):
        axes.set(xscale="log", xlim=(0.8, None), xlabel="training samples, log")


def _heat_map(figure: Any, sizes: np.ndarray, counts: np.ndarray, classes: list[str]) -> None:
    """The share of each class in each client, on a square-root scale, beside the clients' sizes."""
    from matplotlib.colors import PowerNorm

    shares = np.divide(counts, sizes[:, None], out=np.full(counts.shape, np.nan), where=sizes[:, None] > 0)
    axes, side = figure.subplots(1, 2, sharey=True, width_ratios=(4, 1))
    axes.set_facecolor("#dddddd")  # clients without samples
    image = axes.imshow(shares, aspect="auto", cmap="Blues", norm=PowerNorm(0.5, 0, np.nanmax(shares)), interpolation="nearest")
    figure.colorbar(image, ax=[axes, side], location="right", label="share of the client's samples", shrink=0.7)
    step = -(-len(classes) // CLASSES_NAMED)
    named = [_short(name) for name in classes[::step]]
    upright = sum(len(name) + 2 for name in named) > 70
    axes.set_xticks(range(0, len(classes), step), named, rotation=90 if upright else 0, fontsize=7 if upright else 9)
    axes.set(xlabel="class" if step == 1 else f"class, one in {step} named")
    _bars(side, sizes)


def _name_clients(axes: Any, names: list[str]) -> None:
    if len(names) <= CLIENTS_NAMED:
        axes.set_yticks(range(len(names)), names, fontsize=9)
        axes.set_ylabel("client")
    else:
        axes.set_ylabel("clients, the largest first")


def _title(overview: Overview) -> str:
    title = f"{plural(overview['clients'], 'client')}, {plural(overview['samples'], 'training sample')}"
    if overview["heterogeneity"] is None:
        return title
    return f"{title}, distance of label shares {overview['heterogeneity']:.2f} ({overview['heterogeneity_by_chance']:.2f} by chance alone)"


def _short(name: object) -> str:
    """A name, of a long one the beginning and the end; its dollars are no mathematics."""
    text = label(name)
    text = text if len(text) <= NAME_LENGTH else f"{text[: NAME_LENGTH // 2]}…{text[1 - NAME_LENGTH // 2 :]}"
    return text.replace("$", r"\$")
