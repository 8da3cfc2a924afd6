"""The tables of docs/comparison.md: every algorithm on digits, evenly dealt and sorted by label, with privacy and without.

It does what `normec compare --tune --tries 16 --seeds 5` does for four settings, with tries on a grid of each algorithm's ranges, and
writes results/family_comparison.json and the tables in docs/comparison.md.

    python benchmarks/family_comparison.py [--workers 2] [--out runs/family] [--write-only]
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from normec.algorithms import catalogue
from normec.studies.compare import Comparison
from normec.studies.contenders import Contender

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "family_comparison.json"
PAGE = HERE.parent / "docs" / "comparison.md"
TRIES, SEEDS = 16, 5
MOMENTUM = "dp-fedavg-clip+momentum"
LABELS = {MOMENTUM: "dp-fedavg-clip, momentum 0.9"}

SORTED = {"data": {"partition": "shards", "classes_per_client": 1}}
SETTINGS: dict[str, dict[str, Any]] = {
    "iid, ε = 8": {},
    "sorted by label, ε = 8": SORTED,
    "iid, without privacy": {"privacy": {"trust": "none"}},
    "sorted by label, without privacy": {**SORTED, "privacy": {"trust": "none"}},
}


class OnGrid(Comparison):
    """A comparison whose tries are the corners and inner points of a grid: 16 values of one setting, or 4 of each of two."""

    def points(self, contender: Contender) -> list[dict[str, float]]:
        ends = contender.searched(self.config(contender, {}, self.seed))
        each = self.tries if len(ends) == 1 else math.isqrt(self.tries)
        axes = [[(name, float(f"{value:.3g}")) for value in np.geomspace(*pair, each)] for name, pair in ends.items()]
        return [dict(point) for point in itertools.product(*axes)]


def measure(setting: str, folder: Path, workers: int) -> list[dict[str, Any]]:
    """The rows of one setting: every algorithm that it allows, clipped DP-FedAvg with server momentum, and fed-normec's lazy form."""
    tree = SETTINGS[setting]
    private = {row["name"]: row["private"] for row in catalogue.rows()}
    names = [name for name in private if private[name] or "privacy" in tree]
    found = []
    for kind, chosen, own in (("eager", [*names, MOMENTUM], {}), ("lazy", ["fed-normec"], {"fed-normec": {"lazy": True}})):
        comparison = OnGrid(tree, tuple(chosen), own, SEEDS, TRIES)
        place = folder / f"{list(SETTINGS).index(setting)}-{kind}"
        for row in comparison.run(place, lambda sweep, into: sweep.run(into, workers, lambda *told: None)):
            label = LABELS.get(row["algorithm"], row["algorithm"]) + (", lazy" if kind == "lazy" else "")
            found.append({"setting": setting, "label": label} | {key: value for key, value in row.items() if key != "curves"})
    return found


def table(results: list[dict[str, Any]], setting: str) -> str:
    """One setting's rows, best first."""
    lines = ["| algorithm | test accuracy, % | training loss | settings found |", "| --- | --- | --- | --- |"]
    rows = [row for row in results if row["setting"] == setting]
    for row in sorted(rows, key=lambda row: -(row["test_accuracy"] or 0)):
        found = ", ".join(f"`{name}={value}`" for name, value in row["chosen"].items() if name != "lazy") or "defaults"
        accuracy = f"{100 * row['test_accuracy']:.1f} ± {100 * row['test_accuracy_se']:.1f}" if row["test_accuracy"] else "diverged"
        loss = f"{row['train_loss']:.3f} ± {row['train_loss_se']:.3f}" if row["train_loss"] else "–"
        lines.append(f"| `{row['label']}` | {accuracy} | {loss} | {found} |")
    return "\n".join(lines)


def page(text: str, results: list[dict[str, Any]]) -> str:
    """The page with its tables replaced."""
    for setting in SETTINGS:
        heading = f"## {setting[0].upper() if setting.startswith('sorted') else setting[0]}{setting[1:]}\n\n"
        before, after = text.split(heading)
        text = f"{before}{heading}{table(results, setting)}\n\n{after[after.index('## ') :]}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, default=2, help="runs at a time")
    parser.add_argument("--out", type=Path, default=Path("runs/family"), help="the runs, which the same command resumes")
    parser.add_argument("--write-only", action="store_true", help="the page from the saved results")
    options = parser.parse_args()
    if not options.write_only:
        rows = [row for setting in SETTINGS for row in measure(setting, options.out, options.workers)]
        RESULTS.write_text(json.dumps(rows, ensure_ascii=False, indent=0) + "\n")
    PAGE.write_text(page(PAGE.read_text(), json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
