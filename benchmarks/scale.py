"""How a whole run grows with its clients: from its start to its summary, with both evaluations and all files.

Lazy Fed-α-NormEC under central privacy: twenty rounds of about a thousand clients with two samples each, on softmax regression with
ten classes, d = 650, two workers. Each run is a process of its own, whose time, CPU time and largest resident memory the system
tells.

    python benchmarks/scale.py [--repeats 3] [--clients 1000 1000000]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

HERE = Path(__file__).parent
RESULTS, PICTURE = HERE / "results" / "scale.json", HERE.parent / "docs" / "images" / "scale.png"
PAGE = HERE.parent / "docs" / "performance.md"
CLIENTS = (10**3, 10**4, 10**5, 10**6)
COHORT, ROUNDS, SAMPLES, FEATURES = 1000, 20, 2, 64


def run(clients: int, folder: Path) -> None:
    """One run in this process, which makes its data first."""
    import numpy as np
    from torch import nn

    import normec

    generator, samples = np.random.default_rng(0), SAMPLES * clients
    data = normec.Federation.from_arrays(
        generator.random((samples, FEATURES), dtype=np.float32), generator.integers(0, 10, samples),
        np.repeat(np.arange(clients), SAMPLES), classes=[str(each) for each in range(10)],
    )  # fmt: skip
    normec.train(
        model=lambda: nn.Linear(FEATURES, 10), data=data, algorithm=normec.FedNormEC(lazy=True), local=normec.GD(steps=1, lr=0.5),
        participation=normec.Poisson(rate=COHORT / clients) if clients > COHORT else normec.Full(),
        privacy=normec.Privacy(trust="central", epsilon=8.0), rounds=ROUNDS,
        engine=normec.Engine(workers=2, eval_every=ROUNDS), out=folder,
    )  # fmt: skip


def measure(clients: int) -> dict[str, float]:
    """What the process of one run took."""
    with tempfile.TemporaryDirectory() as place:
        folder, begun = Path(place) / "run", time.perf_counter()
        command = [sys.executable, __file__, "--alone", str(folder), "--clients", str(clients)]
        _, status, used = os.wait4(os.spawnv(os.P_NOWAIT, sys.executable, command), 0)
        seconds = time.perf_counter() - begun
        if status:
            raise SystemExit(f"the run of {clients:,} clients failed.")
        written = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {
        "seconds": seconds,
        "CPU seconds": used.ru_utime + used.ru_stime,
        "peak resident GB": used.ru_maxrss / 2**20,
        "written MB": written / 2**20,
    }


def draw(runs: dict[str, dict[str, float]]) -> None:
    """Seconds and memory against the clients, all axes logarithmic."""
    figure, (times, memory) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    clients = [int(each) for each in runs]
    for name, colour in (("seconds", "#1b6ca8"), ("CPU seconds", "#c8553d")):
        times.loglog(clients, [found[name] for found in runs.values()], marker="o", color=colour, label=name)
    memory.loglog(clients, [found["peak resident GB"] for found in runs.values()], marker="o", color="#1b6ca8")
    times.set(title="a whole run", xlabel="clients M", ylim=(1, None))
    memory.set(title="largest resident memory, GB", xlabel="clients M")
    times.legend(frameon=False)
    for panel in (times, memory):
        panel.grid(alpha=0.3)
    figure.savefig(PICTURE, dpi=130)


def table(runs: dict[str, dict[str, float]]) -> str:
    """A line for each number of clients."""
    lines = ["| clients | seconds | CPU seconds | largest resident memory | files |", "| ---: | ---: | ---: | ---: | ---: |"]
    for clients, found in runs.items():
        cells = f"{found['seconds']:.1f} | {found['CPU seconds']:.1f} | {found['peak resident GB']:.2f} GB | {found['written MB']:,.1f} MB"
        lines.append(f"| {int(clients):,} | {cells} |")
    return "\n".join(lines)


def page(text: str, found: dict[str, Any]) -> str:
    """docs/performance.md with the figures of whole runs replaced."""
    heading = "## Whole runs\n\n"
    before, after = text.split(heading)
    said = __doc__.split("\n\n")[1].replace("\n", " ") if __doc__ else ""
    lines = [
        said,
        table(found["runs"]),
        f"Measured on {found['date']}: {found['machine']}; medians of {found['repeats']}.",
        "![A whole run against its clients: time and memory](images/scale.png)",
    ]
    return before + heading + "\n\n".join(lines) + "\n\n" + after[after.index("## ") :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS)
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        run(options.clients[0], options.alone)
        return
    times: dict[int, list[dict[str, float]]] = {clients: [] for clients in options.clients}
    for _ in range(options.repeats):
        for clients, taken in times.items():
            taken.append(measure(clients))
            print(f"{clients:,} clients: " + ", ".join(f"{name} {value:.2f}" for name, value in taken[-1].items()), flush=True)
    runs = {str(clients): {name: statistics.median(one[name] for one in taken) for name in taken[0]} for clients, taken in times.items()}
    import torch

    found = {
        "date": str(datetime.datetime.now(datetime.UTC).date()),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}",
        "repeats": options.repeats,
        "runs": runs,
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    draw(runs)
    PAGE.write_text(page(PAGE.read_text(), json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
