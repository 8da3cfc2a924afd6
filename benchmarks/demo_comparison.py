"""The README's table and picture: the demo, without privacy, and beside DP-FedAvg at the same ε.

Every private method gets the same number of tuning tries, on seeds that the reported results do not use; the tuning
itself is not accounted, as for all methods alike. Writes results/demo_comparison.json and, from it, the picture.

    python benchmarks/demo_comparison.py [--workers 2] [--only METHOD] [--draw-only]
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "demo_comparison.json"
PICTURE = HERE.parent / "docs" / "images" / "demo_comparison.png"
TUNING_SEEDS, REPORTED_SEEDS = range(100, 103), range(5)

Settings = list[str]
MOMENTUM = ["algorithm.name=dp-fedavg-clip", "server.optimizer=momentum", "server.momentum=0.9"]
GRIDS: dict[str, list[Settings]] = {
    "Fed-α-NormEC": [
        [f"algorithm.beta={beta}", f"algorithm.server_lr={lr}"] for beta, lr in itertools.product((0.01, 0.03), (1.0, 3.0, 10.0))
    ],
    "DP-FedAvg, clipping": [
        ["algorithm.name=dp-fedavg-clip", f"algorithm.clip_norm={clip}", f"algorithm.server_lr={lr}"]
        for clip, lr in itertools.product((0.3, 1.0), (0.3, 1.0, 3.0))
    ],
    "DP-FedAvg, clipping, server momentum 0.9": [
        [*MOMENTUM, f"algorithm.clip_norm={clip}", f"algorithm.server_lr={lr}"]
        for clip, lr in itertools.product((0.3, 1.0), (0.03, 0.1, 0.3))
    ],
    "DP-FedAvg, smoothed normalization": [
        ["algorithm.name=dp-fedavg-norm", f"algorithm.alpha={alpha}", f"algorithm.server_lr={lr}"]
        for alpha, lr in itertools.product((0.01, 0.1), (0.3, 1.0, 3.0))
    ],
}


def accuracies(task: tuple[Settings, int]) -> list[float]:
    """Test accuracy by round of the demo with these settings."""
    from normec.config import resolve
    from normec.runs.experiment import prepare
    from normec.runs.loop import execute

    settings, seed = task
    run = execute(prepare(resolve(None, [*settings, f"seed={seed}"]).experiment()))
    return [round(row["test_accuracy"] or 0.0, 6) for row in run.metrics]


def measure(workers: int, grids: dict[str, list[Settings]]) -> dict[str, Any]:
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        trials = [(name, settings, seed) for name, grid in grids.items() for settings in grid for seed in TUNING_SEEDS]
        tuned = pool.map(accuracies, [(settings, seed) for _, settings, seed in trials], chunksize=1)
        scores: dict[str, dict[str, float]] = {name: {} for name in grids}
        for (name, settings, _), curve in zip(trials, tuned, strict=True):
            key = " ".join(settings)
            scores[name][key] = scores[name].get(key, 0.0) + curve[-1] / len(TUNING_SEEDS)
        chosen = {name: max(tries, key=lambda key: tries[key]).split() for name, tries in scores.items()}
        rows = [(name, settings, True) for name, settings in chosen.items()]
        rows += [(f"{name}, without privacy", [*settings, "privacy.trust=none"], False) for name, settings in chosen.items()]
        reported = pool.map(accuracies, [(settings, seed) for _, settings, _ in rows for seed in REPORTED_SEEDS], chunksize=1)
    curves = [reported[start : start + len(REPORTED_SEEDS)] for start in range(0, len(reported), len(REPORTED_SEEDS))]
    return {
        "tuning": scores,
        "rows": [
            {"name": name, "settings": settings, "private": private, "accuracy_by_round": of_seeds}
            for (name, settings, private), of_seeds in zip(rows, curves, strict=True)
        ],
    }


def together(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Both results, in the order of GRIDS: with privacy first, then without; what was measured now wins."""
    rows = {row["name"]: row for row in [*before["rows"], *now["rows"]]}
    order = [f"{name}{tail}" for tail in ("", ", without privacy") for name in GRIDS]
    return {"tuning": before["tuning"] | now["tuning"], "rows": [rows[name] for name in order if name in rows]}


def table(results: dict[str, Any]) -> str:
    """The rows of the README's table: mean and standard deviation of the final test accuracy over the seeds."""
    import numpy as np

    lines = []
    for row in results["rows"]:
        final = 100 * np.array(row["accuracy_by_round"])[:, -1]
        epsilon = "8" if row["private"] else "∞"
        lines.append(f"| {row['name']} | {epsilon} | {final.mean():.1f} ± {final.std(ddof=1):.1f} | {final.min():.1f} |")
    return "\n".join(lines)


def draw(results: dict[str, Any]) -> None:
    import matplotlib.pyplot as plt
    import numpy as np

    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    colours = ["#0b6e99", "#c4552d", "#5b3f9e", "#8a7a1f"]
    styles = ["-", "-", "-", "--"]  # the two forms of DP-FedAvg without momentum nearly coincide
    for index, row in enumerate(results["rows"]):
        curves = 100 * np.array(row["accuracy_by_round"])
        mean, rounds = curves.mean(axis=0), np.arange(curves.shape[1])
        colour = colours[index % len(colours)]
        style = styles[index] if row["private"] else ":"
        axes.plot(rounds, mean, style, color=colour, linewidth=2 if row["private"] else 1.3, label=row["name"])
        if row["private"]:
            axes.fill_between(rounds, curves.min(axis=0), curves.max(axis=0), color=colour, alpha=0.15, linewidth=0)
    axes.set(xlabel="round", ylabel="test accuracy (%)", xlim=(0, None), ylim=(40, 100))
    axes.set_title("Digits, 100 clients: private curves at ε = 8 (band: all 5 seeds), dotted without privacy", fontsize=10)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--draw-only", action="store_true", help="table and picture from the saved results")
    parser.add_argument("--only", choices=GRIDS, help="this method alone; the others stay as they were measured")
    options = parser.parse_args()
    if not options.draw_only:
        RESULTS.parent.mkdir(exist_ok=True)
        found = measure(options.workers, {options.only: GRIDS[options.only]} if options.only else GRIDS)
        if options.only:
            found = together(json.loads(RESULTS.read_text()), found)
        RESULTS.write_text(json.dumps(found, ensure_ascii=False) + "\n")
    results = json.loads(RESULTS.read_text())
    draw(results)
    print(table(results))


if __name__ == "__main__":
    main()
