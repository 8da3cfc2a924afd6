"""The paper's figures at small scale into docs/results.md: pictures, every point as JSON, and a table of each.

for f in figure1 figure2 figure3 figure4; do normec paper $f --scale small --data CIFAR10; done    # 34 minutes of one core's work
python benchmarks/paper_figures.py [runs/paper-small-total]
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS, IMAGES, PAGE = HERE / "results" / "paper-small", HERE.parent / "docs" / "images", HERE.parent / "docs" / "results.md"
FIGURES = ("figure1", "figure2", "figure3", "figure4")
TARGET = 0.4


def table(found: dict[str, Any]) -> str:
    """A figure's series: best and last test accuracy, and transmissions to the target; of figure 4 the best by β and γ."""
    series = found["series"]
    if found["figure"] == "figure4":
        gammas = sorted({each["gamma"] for each in series})
        best = {(each["beta"], each["gamma"]): each["best_accuracy"] for each in series}
        lines = ["| β | " + " | ".join(f"γ = {gamma:g}" for gamma in gammas) + " |", "| --- |" + " --- |" * len(gammas)]
        rows = [[f"{beta:g}", *(f"{best[beta, gamma]:.1%}" for gamma in gammas)] for beta in sorted({beta for beta, _ in best})]
        return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
    lines = [f"| | best | last | messages to {TARGET:.0%} |", "| --- | --- | --- | --- |"]
    for each in series:
        reached = next((row["transmissions"] for row in each["rows"] if row["test_accuracy"] >= TARGET), None)
        sent = "–" if reached is None else f"{reached:,}"
        lines.append(f"| {each['name']} | {each['best_accuracy']:.1%} | {each['rows'][-1]['test_accuracy']:.1%} | {sent} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """docs/results.md with its tables replaced; each stands between its picture and the next empty line after it."""
    for figure in FIGURES:
        found = json.loads((RESULTS / f"{figure}.json").read_text())
        before, mark, after = text.partition(f"(images/{figure}.png)\n\n")
        text = before + mark + table(found) + "\n\n" + after.split("\n\n", 1)[1]
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/paper-small-total"))
    folder = parser.parse_args().folder
    RESULTS.mkdir(exist_ok=True)
    for figure in FIGURES:
        shutil.copy(folder / f"{figure}.png", IMAGES)
        for name in (f"{figure}.json", f"{figure}-runs.json"):
            shutil.copy(folder / name, RESULTS)
    PAGE.write_text(page(PAGE.read_text()))


if __name__ == "__main__":
    main()
