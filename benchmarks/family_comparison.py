"""The tables of docs/comparison.md: every algorithm on digits, evenly dealt and sorted by label, with privacy and without.

It runs `normec compare --tune --tries 16 --seeds 5` for four settings and writes results/family_comparison.json and the
tables in docs/comparison.md.

    python benchmarks/family_comparison.py [--workers 2] [--write-only]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "family_comparison.json"
PAGE = HERE.parent / "docs" / "comparison.md"
TRIES, SEEDS = 16, 5

SORTED = {"data": {"partition": "shards", "classes_per_client": 1}}
SETTINGS: dict[str, dict[str, Any]] = {
    "iid, ε = 8": {},
    "sorted by label, ε = 8": SORTED,
    "iid, without privacy": {"privacy": {"trust": "none"}},
    "sorted by label, without privacy": {**SORTED, "privacy": {"trust": "none"}},
}


def measure(task: tuple[str, str, bool]) -> dict[str, Any]:
    """The row of one algorithm in one setting; lazy: fed-normec's lazy form."""
    from normec.compare import Comparison

    setting, name, lazy = task
    own = {name: {"lazy": True}} if lazy else {}
    (row,) = Comparison(SETTINGS[setting], (name,), own, SEEDS, TRIES).rows()
    del row["curves"]
    return {"setting": setting, "label": f"{name}, lazy" if lazy else name, **row}


def tasks() -> list[tuple[str, str, bool]]:
    from normec.algorithms.catalogue import rows

    private = {row["name"]: row["private"] for row in rows()}
    chosen = []
    for setting, tree in SETTINGS.items():
        names = [name for name in private if private[name] or "privacy" in tree]
        chosen += [(setting, name, False) for name in names] + [(setting, "fed-normec", True)]
    return chosen


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
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--write-only", action="store_true", help="the page from the saved results")
    options = parser.parse_args()
    if not options.write_only:
        with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
            rows = pool.map(measure, tasks(), chunksize=1)
        RESULTS.write_text(json.dumps(rows, ensure_ascii=False, indent=0) + "\n")
    PAGE.write_text(page(PAGE.read_text(), json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
