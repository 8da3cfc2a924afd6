"""What a step of record-level privacy costs, beside Opacus and the step without privacy.

The sum of 64 records' clipped gradients of four models: by normec, by the hooks and the ghost clipping of Opacus, and the plain
gradient (benchmarks/speed/one_step.py). Everyone sits in a process of its own with one thread and is timed in turns; sums must agree
before a time counts. Then 50 clients of a small model, five Poisson steps each, beside the same steps without privacy. Figures are
medians of CPU time, to be read as ratios within one run, and the most memory beyond the model and the data.

    python benchmarks/record_speed.py [--quick]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import normec
from normec.engine import Backend, RecordSteps, choose_way
from normec.engine.loop import Task
from normec.engine.vmap import Vmap
from normec.models import FlatModel, LocalSteps, logistic, mlp
from normec.operators import Clipping
from normec.streams import Streams

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results" / "record_speed.json", HERE.parent / "docs" / "performance.md"
WAYS = ["without privacy", "normec", "Opacus hooks", "Opacus ghost"]
STEPS = {"logistic": 300, "mlp": 100, "cnn": 6, "resnet20": 1}
"""Of a model, how many are timed in one turn."""
ALLOWED = 1e-4
"""Largest difference of two sums, over the largest of their coordinates; Opacus adds 1e-6 to each norm."""
CLIENTS, RECORDS, RATE = 50, 640, 0.1
TOGETHER: dict[str, tuple[Callable[[tuple[int, ...], int], torch.nn.Module], tuple[int, ...], int]] = {
    "logistic": (logistic, (123,), 2),
    "mlp": (mlp, (64,), 10),
}


class Contestant:
    """A process that answers with the seconds of a step and its peak memory."""

    def __init__(self, way: str, model: str) -> None:
        command = [sys.executable, str(HERE / "speed" / "one_step.py"), way, model]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def turn(self, count: int, path: Path) -> tuple[float, float]:
        """CPU seconds of each of `count` steps, and bytes; the sum is saved at `path`."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the contestant has no pipes")
        print(json.dumps([count, str(path)]), file=self._process.stdin, flush=True)
        seconds, peak = json.loads(self._process.stdout.readline())
        return float(seconds), float(peak)

    def leave(self) -> None:
        self._process.terminate()
        self._process.wait()


def contest(model: str, turns: int, folder: Path) -> dict[str, dict[str, float]]:
    """Of each way the median CPU seconds of a step, in turns, and the megabytes of its peak."""
    contestants = {way: Contestant(way, model) for way in WAYS}
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    peaks = dict.fromkeys(WAYS, 0.0)
    for _ in range(turns):
        for way, contestant in contestants.items():
            seconds, peaks[way] = contestant.turn(STEPS[model], folder / f"{way}.pt")
            times[way].append(seconds)
    for contestant in contestants.values():
        contestant.leave()
    expected: Tensor = torch.load(folder / "Opacus hooks.pt")
    for way in WAYS[1:]:
        off = float((torch.load(folder / f"{way}.pt") - expected).abs().max() / expected.abs().max())
        if not off < ALLOWED:
            raise SystemExit(f"{model}: {way} computes something else (its sum is off by {off:.1e}).")
    found = {way: {"seconds": statistics.median(times[way]), "megabytes": peaks[way] / 1e6} for way in WAYS}
    print(
        f"{model}: " + ", ".join(f"{way} {1e3 * own['seconds']:.2f} ms, {own['megabytes']:.0f} MB" for way, own in found.items()),
        flush=True,
    )
    return found


def together(name: str, turns: int) -> dict[str, float]:
    """Median CPU seconds of a round of the clients' Poisson steps, with records bounded and without privacy, in turns."""
    make, shape, classes = TOGETHER[name]
    torch.manual_seed(0)
    model = FlatModel(make(shape, classes), functional.cross_entropy, torch.device("cpu"), torch.float32)
    local, operator, x = normec.PoissonBatches(steps=5, rate=RATE), Clipping(0.5), model.vector.clone()
    features, targets = torch.randn(CLIENTS * RECORDS, *shape), torch.randint(classes, (CLIENTS * RECORDS,))
    tasks = []
    for client in range(CLIENTS):
        own = slice(client * RECORDS, (client + 1) * RECORDS)
        schedule = local.schedule(RECORDS, 0, client, Streams(0))
        steps = LocalSteps(0.5, divisor=local.divisor(RECORDS))
        tasks.append(Task(client, client, (features[own], targets[own]), schedule, steps, lambda: 0))
    choice = choose_way(model, (features[:4], targets[:4]), operator)
    backends: dict[str, Backend] = {
        "records bounded": RecordSteps(choice, operator, lambda total, client, k, step: total),
        "without privacy": Vmap(),
    }
    times: dict[str, list[float]] = {way: [] for way in backends}
    out, buffers = torch.empty(CLIENTS, model.d), torch.empty(CLIENTS, 0)
    for turn in range(turns + 1):
        for way, backend in backends.items():
            begun = time.process_time()
            backend.updates(model, x, tasks, 0, out, buffers)
            if turn:  # the first one warms up
                times[way].append(time.process_time() - begun)
    found = {way: statistics.median(values) for way, values in times.items()}
    print(f"{CLIENTS} clients, {name}: " + ", ".join(f"{way} {1e3 * seconds:.1f} ms" for way, seconds in found.items()), flush=True)
    return found


def table(steps: dict[str, dict[str, dict[str, float]]]) -> str:
    """Milliseconds of a step, in brackets over the step without privacy, and megabytes."""
    lines = ["| | " + " | ".join(WAYS) + " | normec over Opacus hooks |", "| --- |" + " --- |" * (len(WAYS) + 1)]
    for model, found in steps.items():
        base, hooks, own = (found[way] for way in ("without privacy", "Opacus hooks", "normec"))
        cells = [
            f"{1e3 * found[way]['seconds']:.3g} ms ({found[way]['seconds'] / base['seconds']:.2g}×), {found[way]['megabytes']:.0f} MB"
            for way in WAYS
        ]
        ratio = f"{own['seconds'] / hooks['seconds']:.2f}× time, {own['megabytes'] / max(hooks['megabytes'], 1e-9):.2f}× memory"
        lines.append(f"| {model} | " + " | ".join([*cells, ratio]) + " |")
    return "\n".join(lines)


def page(text: str, found: dict[str, Any]) -> str:
    """docs/performance.md with its section on records replaced."""
    heading = "## A step of record-level privacy\n\n"
    before, after = text.split(heading)
    clients = ", ".join(f"{name} {own['records bounded'] / own['without privacy']:.2f}×" for name, own in found["together"].items())
    lines = [
        "The sum of 64 records' gradients, each clipped to C, beside Opacus 1.6 and the plain gradient: logistic on 123 features and two "
        "classes, mlp 784-64-10, cnn and resnet20 on images 3×32×32. Times are medians of CPU time in turns, on one thread, with an "
        "allocator that keeps freed memory, as in a run that evaluates between rounds; in brackets: how many times the plain gradient. "
        "Memory is the most that a step takes beyond the model and the data. Norms and sums are float64 here and float32 in Opacus.",
        table(found["steps"]),
        f"{CLIENTS} clients of {RECORDS} records take five Poisson steps together (q = {RATE:g}; the same logistic, mlp 64-64-10). Time "
        f"with records bounded, over that of the same steps without privacy: {clients}.",
        f"Measured on {found['date']}: {found['machine']}. `python benchmarks/record_speed.py --quick` measures it in two minutes.",
    ]
    return before + heading + "\n\n".join(lines) + "\n\n" + after[after.index("## ") :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="few turns, nothing is written: under three minutes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    turns = 5 if options.quick else 15
    found: dict[str, Any] = {
        "date": str(datetime.datetime.now(datetime.UTC).date()),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}",
    }
    with tempfile.TemporaryDirectory() as folder:
        found["steps"] = {model: contest(model, turns, Path(folder)) for model in STEPS}
    found["together"] = {name: together(name, 4 * turns) for name in TOGETHER}
    print(table(found["steps"]))
    if not options.quick:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        PAGE.write_text(page(PAGE.read_text(), found))


if __name__ == "__main__":
    main()
