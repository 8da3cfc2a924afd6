"""CIFAR-10 at a true ε = 8: seven methods, tuned by three tries each, mean ± standard error over seeds; resumable.

1000 clients with 50 images each, pooled to 16×16, the cnn, 30 rounds, half of the clients in a round in expectation, one local step.
It writes results/equal_epsilon.json, the picture, and the table in docs/results.md.

    python benchmarks/equal_epsilon.py CIFAR10 [--workers 2] [--seeds 2] [--out runs/equal-epsilon] [--only METHOD]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

from normec.config import merge
from normec.runs.record import Record
from normec.settings import Tree
from normec.studies.grid import Point
from normec.studies.rows import SweepRow
from normec.studies.sweep import Sweep
from normec.terminal.console import runs_going_on

HERE = Path(__file__).parent
RESULTS, PICTURE = HERE / "results" / "equal_epsilon.json", HERE.parent / "docs" / "images" / "equal_epsilon.png"
PAGE, HEADING = HERE.parent / "docs" / "results.md", "## CIFAR-10 at ε = 8\n\n"
SEED, TUNING_SEED = 42, 1042
BASE: Tree = {
    "rounds": 30,
    "data": {"source": "cifar10", "pool": 2, "clients": 1000},
    "model": {"name": "cnn"},
    "local": {"method": "gd", "steps": 1, "lr": 1.0},
    "participation": {"scheme": "poisson", "rate": 0.5},
    "privacy": {"trust": "central", "epsilon": 8.0, "delta": 1e-5},
    "engine": {"eval_every": 3},
    "evaluation": {"samples": 10_000},
}
MOMENTUM = "DP-FedAvg, clipping, server momentum 0.9"
SERVER: dict[str, Tree] = {MOMENTUM: {"optimizer": "momentum", "momentum": 0.9}}
"""The server's step, where it is not the plain one."""
METHODS: dict[str, list[Tree]] = {
    "DP-FedAvg, clipping": [{"name": "dp-fedavg-clip", "clip_norm": 1.0, "server_lr": lr} for lr in (0.03, 0.1, 0.3)],
    MOMENTUM: [{"name": "dp-fedavg-clip", "clip_norm": 1.0, "server_lr": lr} for lr in (0.05, 0.1, 0.2)],
    "DP-FedAvg, smoothed normalization": [{"name": "dp-fedavg-norm", "server_lr": lr} for lr in (0.03, 0.1, 0.3)],
    "Fed-α-NormEC": [{"name": "fed-normec", "beta": 0.1, "server_lr": lr} for lr in (0.3, 1.0, 3.0)],
    "Fed-α-NormEC, normalized step": [
        {"name": "fed-normec", "server_normalize": True, "beta": 0.1, "server_lr": lr} for lr in (0.05, 0.1, 0.2)
    ],
    "Fed-α-NormEC, lazy": [{"name": "fed-normec", "lazy": True, "beta": 0.2, "server_lr": lr} for lr in (0.3, 1.0, 3.0)],
    "Clip21 with double momentum": [
        {"name": "clip21-sgd2m", "clip_norm": 0.4, "server_lr": 1.0, "momentum": momentum} for momentum in (0.5, 0.75, 0.9)
    ],
}
"""Of each method three tries, of the server's stepsize or of the clients' momentum; a first look at other values placed them.

lazy with β and Clip21 with μ̂ C = β take the same steps as long as all messages are at their bound."""


def points(data: str, tries: dict[str, list[Tree]], seeds: list[int]) -> dict[str, Point]:
    """The runs of some tries on some seeds, by names."""
    found = {}
    for method, settings in tries.items():
        server = SERVER.get(method, {})
        for own in settings:
            for seed in seeds:
                said = "_".join(f"{key}={value}" for key, value in (own | server).items())
                tree = merge(BASE, {"data": {"path": data}, "algorithm": own, "server": server, "seed": seed})
                found[f"{said}_seed={seed}"] = Point(tree, {"method": method, "seed": seed, **own})
    return found


def trained(runs: dict[str, Point], folder: Path, workers: int) -> list[SweepRow]:
    """The rows of a sweep over these runs."""
    sweep = Sweep(BASE, runs)
    with runs_going_on(len(runs), sweep.rounds) as told:
        return sweep.run(folder, workers, told)


def measure(data: str, folder: Path, workers: int, seeds: int, methods: dict[str, list[Tree]]) -> list[dict[str, Any]]:
    """One row a method: the best of its tries by final accuracy on a seed of its own, then the results of the other seeds."""
    tuning = trained(points(data, methods, [TUNING_SEED]), folder / "tuning", workers)
    best: dict[str, list[Tree]] = {}
    for method, tries in methods.items():
        scores = [row.get("last_accuracy") or 0.0 for row in tuning if row["settings"]["method"] == method]
        best[method] = [tries[scores.index(max(scores))]]
    runs = points(data, best, list(range(SEED, SEED + seeds)))
    rows = trained(runs, folder / "results", workers)
    found = []
    for method, (chosen,) in best.items():
        own = [row for row in rows if row["settings"]["method"] == method]
        records = [Record.read(folder / "results" / row["run"]) for row in own if row["status"] == "done"]
        found.append(
            {
                "method": method,
                "chosen": chosen,
                "server": SERVER.get(method, {}),
                "tried": [row.get("last_accuracy") for row in tuning if row["settings"]["method"] == method],
                "accuracy": [record.last("test_accuracy") for record in records],
                "epsilon": [record.last("epsilon") for record in records],
                "transmissions": [record.last("transmissions") for record in records],
                "seconds": [record.last("seconds") for record in records],
                "curves": [_curve(record) for record in records],
            }
        )
    return found


def _curve(record: Record) -> list[tuple[int, float]]:
    return [(row["round"], row["test_accuracy"]) for row in record.metrics if row["test_accuracy"] is not None]


def table(found: list[dict[str, Any]]) -> str:
    """The rows, best first."""
    lines = ["| method | ε | test accuracy, % | settings found | minutes a run |", "| --- | --- | --- | --- | --- |"]
    for row in sorted(found, key=lambda row: -statistics.fmean(row["accuracy"])):
        values = [100 * value for value in row["accuracy"]]
        error = f" ± {statistics.stdev(values) / math.sqrt(len(values)):.1f}" if len(values) > 1 else ""
        chosen = ", ".join(f"`{key}={value}`" for key, value in row["chosen"].items() if key != "name")
        minutes = statistics.fmean(row["seconds"]) / 60
        spent = max(row["epsilon"])
        lines.append(f"| {row['method']} | {spent:.3g} | {statistics.fmean(values):.1f}{error} | {chosen} | {minutes:.1f} |")
    return "\n".join(lines)


def page(text: str, found: list[dict[str, Any]]) -> str:
    """docs/results.md with its table replaced."""
    before, after = text.split(HEADING)
    start = after.index("| method |")
    return before + HEADING + after[:start] + table(found) + after[after.index("\n\n", start) :]


def draw(found: list[dict[str, Any]]) -> None:
    """Test accuracy by round, a line for the mean of the seeds and a band from the lowest to the highest."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for row in found:
        rounds = [place for place, _ in row["curves"][0]]
        values = [[100 * value for _, value in curve] for curve in row["curves"]]
        (line,) = axes.plot(rounds, [statistics.fmean(each) for each in zip(*values, strict=True)], label=row["method"])
        lowest, highest = ([pick(each) for each in zip(*values, strict=True)] for pick in (min, max))
        axes.fill_between(rounds, lowest, highest, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(xlabel="round", ylabel="test accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(PICTURE, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", help="the folder of CIFAR-10")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/equal-epsilon"))
    parser.add_argument("--only", choices=METHODS, help="this method alone; the others stay as they were measured")
    options = parser.parse_args()
    methods = {options.only: METHODS[options.only]} if options.only else METHODS
    found = measure(options.data, options.out, options.workers, options.seeds, methods)
    if options.only:
        found = [row for row in json.loads(RESULTS.read_text()) if row["method"] != options.only] + found
    RESULTS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    draw(found)
    if PAGE.exists():
        PAGE.write_text(page(PAGE.read_text(), found))
    print(table(found))


if __name__ == "__main__":
    main()
