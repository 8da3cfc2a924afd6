"""How long a round takes, beside other ways to compute the same round, and how it grows.

Four workloads (benchmarks/speed/workloads.py), each computed by the usual per-client loop, a lean loop, pfl, Flower on Ray and
normec. Everyone sits in a process of its own and is timed in turns; x after the rounds must agree before a time counts. Then
the memory move beside a plain copy, and the round's time against the population, the cohort and the model's size. Figures are
medians, to be read as ratios within one run.

    python benchmarks/engine_speed.py --peers VENV/bin/python [--repeats 3] [--only curves]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import pyplot as plt
from torch import nn

sys.path.insert(0, str(Path(__file__).parent / "speed"))
from workloads import WORKLOADS, Clock

import normec

HERE = Path(__file__).parent
RESULTS, PICTURE = HERE / "results" / "engine_speed.json", HERE.parent / "docs" / "images" / "engine_speed.png"
PAGE = HERE.parent / "docs" / "performance.md"
OURS = {
    "normec": ["ours.py", "1", "fedavg"],
    "normec, 2 threads": ["ours.py", "2", "fedavg"],
    "Fed-α-NormEC": ["ours.py", "1", "fed-normec"],
    "Fed-α-NormEC, 2 threads": ["ours.py", "2", "fed-normec"],
}
LOOPS = {"usual loop": ["usual.py"], "lean loop": ["lean.py"]}
PEERS = {"pfl": ["pfl_peer.py"], "Flower": ["flower_peer.py"]}
OTHER_METHODS = {name for name in OURS if name.startswith("Fed-α")}
"""These compute more than FedAvg, and another x."""
FLOWER_ON = ("digits-mlp", "small-cnn", "resnet20")
"""It needs half a minute to start, and with the thousand clients of logistic more than a minute for a round."""
ALLOWED = 1e-4
"""Largest difference of x after the rounds, over the largest of its coordinates."""


class Contestant:
    """A process that answers with the seconds of rounds."""

    def __init__(self, python: str, arguments: list[str]) -> None:
        command = [python, str(HERE / "speed" / arguments[0]), *arguments[1:]]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def turn(self, workload: str, count: int, path: Path) -> list[float]:
        """Seconds of `count` rounds; x is saved at `path`."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the contestant has no pipes")
        print(json.dumps([workload, count, str(path)]), file=self._process.stdin, flush=True)
        return [float(each) for each in json.loads(self._process.stdout.readline())]

    def leave(self) -> None:
        self._process.terminate()
        self._process.wait()


def contest(workload: str, contestants: dict[str, tuple[str, list[str]]], repeats: int, folder: Path) -> dict[str, float]:
    """Median seconds of a round of each contestant, in turns."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    count = WORKLOADS[workload].rounds
    for repeat in range(repeats):
        for name, (python, arguments) in contestants.items():
            if name == "Flower" and (repeat or workload not in FLOWER_ON):
                continue
            contestant, path = Contestant(python, arguments), folder / f"{name}.pt"
            times[name] += contestant.turn(workload, count, path)
            contestant.leave()
            print(f"{workload}: {name} {1000 * statistics.median(times[name]):.1f} ms a round", flush=True)
    expected = torch.load(folder / "usual loop.pt")
    for name in contestants.keys() - OTHER_METHODS:
        if not times[name]:
            continue
        off = float((torch.load(folder / f"{name}.pt") - expected).abs().max() / expected.abs().max())
        if not off < ALLOWED:
            raise SystemExit(f"{workload}: {name} computes something else (x is off by {off:.1e}).")
    return {name: statistics.median(values) for name, values in times.items() if values}


def rates() -> dict[str, float]:
    """Of one core: gigaflops of a float32 matrix product and gigabytes a second of a copy (read and written)."""
    a, source = torch.rand(1024, 1024), torch.rand(2**25)
    target = torch.empty_like(source)
    products, copies = [], []
    for _ in range(5):
        begun = time.perf_counter()
        torch.mm(a, a)
        products.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        target.copy_(source)
        copies.append(time.perf_counter() - begun)
    return {"sgemm gigaflops": 2e-9 * 1024**3 / statistics.median(products), "copy GB/s": 8e-9 * 2**25 / statistics.median(copies)}


def operations(workload: str) -> float:
    """Floating point operations of a round: three products for each weight's use, counted on one forward pass."""
    work = WORKLOADS[workload]
    counted = 0.0

    def count(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        nonlocal counted
        counted += 2 * sum(p.numel() for p in module.parameters() if p.ndim > 1) * output.numel() / output.shape[1]

    model = work.model()
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            module.register_forward_hook(count)
    model(torch.zeros(1, *work.shape))
    return 3 * counted * work.clients * work.steps * work.batch


class Watch(Clock, normec.Observer):
    """A clock as an observer."""


def memory_move(clients: int = 2000, d: int = 20_000, rows: int = 8) -> float:
    """Bytes a second of the algorithm's step on memory rows over a copy's: 12 bytes an element against 8."""
    update, memory, other = torch.rand(rows, d), torch.rand(clients, d), torch.zeros(clients, d)
    algorithm, moves, copies = normec.FedNormEC(), [], []
    for _ in range(7):
        begun = time.perf_counter()
        for start in range(0, clients - rows + 1, rows):
            part = memory[start : start + rows]
            part.copy_(algorithm.client(update, (part,), normec.Context((), lambda: update)).memory[0])
        moves.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        other.copy_(memory)
        copies.append(time.perf_counter() - begun)
    return (12 * clients * d / statistics.median(moves)) / (8 * clients * d / statistics.median(copies))


def round_time(clients: int, cohort: int, features: int = 64, samples: int = 2) -> float:
    """Seconds of a round of lazy Fed-α-NormEC on softmax regression with ten classes, d = 10 (features + 1)."""
    generator = np.random.default_rng(0)
    x = generator.random((samples * clients, features), dtype=np.float32)
    y = generator.integers(0, 10, samples * clients)
    data = normec.Federation.from_arrays(x, y, np.repeat(np.arange(clients), samples), classes=[str(each) for each in range(10)])
    clock, taking_part = Watch(), normec.Poisson(rate=cohort / clients) if cohort < clients else normec.Full()
    normec.train(
        model=lambda: nn.Linear(features, 10), data=data, algorithm=normec.FedNormEC(lazy=True), local=normec.GD(steps=1, lr=0.5),
        participation=taking_part, privacy=normec.Privacy(trust="none"), rounds=12, observer=clock,
        engine=normec.Engine(eval_every=10**6),
    )  # fmt: skip
    return statistics.median(clock.seconds())


CURVES: dict[str, dict[int, dict[str, int]]] = {
    "clients": {clients: {"clients": clients, "cohort": 1000} for clients in (10**3, 10**4, 10**5, 10**6)},
    "cohort": {cohort: {"clients": 10**5, "cohort": cohort} for cohort in (100, 300, 1000, 3000, 10_000)},
    "parameters": {10 * (n + 1): {"clients": 100, "cohort": 100, "features": n} for n in (64, 640, 6400, 64_000)},
}


def curves(repeats: int) -> dict[str, dict[int, float]]:
    """Median seconds of a round along each curve, its points in turns."""
    found: dict[str, dict[int, float]] = {}
    for name, points in CURVES.items():
        times: dict[int, list[float]] = {place: [] for place in points}
        for _ in range(repeats):
            for place, choices in points.items():
                times[place].append(round_time(**choices))
        found[name] = {place: statistics.median(values) for place, values in times.items()}
        print(f"{name}: " + ", ".join(f"{place:,} {1000 * seconds:.1f} ms" for place, seconds in found[name].items()), flush=True)
    return found


def draw(found: dict[str, dict[int, float]]) -> None:
    """The curves, both axes logarithmic."""
    figure, panels = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
    titles = {
        "clients": "1,000 of M clients a round, d = 650", "cohort": "of 100,000 clients, d = 650", "parameters": "100 clients, all of them",
    }  # fmt: skip
    labels = {"clients": "clients M", "cohort": "clients in a round", "parameters": "parameters d"}
    for panel, (name, points) in zip(panels, found.items(), strict=True):
        panel.loglog(list(points), [1000 * seconds for seconds in points.values()], marker="o", color="#1b6ca8")
        panel.set(title=titles[name], xlabel=labels[name])
        panel.set_ylim(bottom=1)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("milliseconds a round")
    figure.savefig(PICTURE, dpi=130)


def table(found: dict[str, dict[str, float]]) -> str:
    """Milliseconds of a round, and in brackets how many times normec's own on one thread."""
    lines = ["| | " + " | ".join(found) + " |", "| --- |" + " --- |" * len(found)]
    for name in next(iter(found.values())):
        cells = [
            f"{1000 * times[name]:,.1f} ({_times(times[name] / times['normec'])})" if name in times else "–" for times in found.values()
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _times(ratio: float) -> str:
    return f"{ratio:.0f}×" if ratio >= 10 else f"{ratio:.2g}×"


def page(text: str, found: dict[str, Any]) -> str:
    """docs/performance.md with its figures replaced."""
    times, rates, curve = found["seconds a round"], found["rates"], found["curves"]["clients"]
    shares = ", ".join(f"{name} {100 * share:.0f}%" for name, share in found["share of sgemm"].items())
    largest, smaller = curve[str(10**6)], curve[str(10**4)]
    heading = "## Milliseconds a round\n\n"
    before, after = text.split(heading)
    lines = [
        table(times),
        f"Measured on {found['date']}: {found['machine']}. In brackets: how many times normec's FedAvg on one thread takes.",
        f"One core multiplies matrices at {rates['sgemm gigaflops']:.0f} GFLOP/s and copies at {rates['copy GB/s']:.1f} GB/s. "
        f"Of that rate of products, normec on one thread reaches: {shares}. "
        f"The memory move reaches {found['memory move over copy']:.2f} of the copy's rate (12 bytes a number).",
        f"A round of 1,000 of 10⁶ lazy clients takes {largest / smaller:.2f} times that of 10⁴, "
        f"and the process held {found['peak resident GB']:.1f} GB at most.",
    ]
    grown = "![Round time against the population, the cohort and the model](images/engine_speed.png)"
    return before + heading + "\n\n".join([*lines, grown]) + "\n\n" + after[after.index("## ") :]


def keep(found: dict[str, Any]) -> None:
    """Writes what was found so far."""
    RESULTS.write_text(json.dumps(found, indent=1, default=float) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--peers", help="python of an environment with benchmarks/peers.txt; without it the peers are left out")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--only", choices=["contest", "curves"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if options.only and RESULTS.exists() else {}
    found |= {
        "date": str(datetime.datetime.now(datetime.UTC).date()),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}",
    }
    if options.only != "curves":
        contestants = {name: (sys.executable, arguments) for name, arguments in (LOOPS | OURS).items()}
        contestants |= {name: (options.peers, arguments) for name, arguments in PEERS.items() if options.peers}
        found["rates"], found["seconds a round"] = rates(), {}
        times = found["seconds a round"]
        with tempfile.TemporaryDirectory() as folder:
            for workload in options.workloads:
                times[workload] = contest(workload, contestants, options.repeats, Path(folder))
                keep(found)
        found["share of sgemm"] = {
            workload: operations(workload) / own["normec"] / 1e9 / found["rates"]["sgemm gigaflops"] for workload, own in times.items()
        }
        print(table(times))
    if options.only != "contest":
        found["memory move over copy"] = memory_move()
        found["curves"] = curves(options.repeats)
        found["peak resident GB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        draw(found["curves"])
    keep(found)
    if {"seconds a round", "curves"} <= found.keys():
        PAGE.write_text(page(PAGE.read_text(), json.loads(RESULTS.read_text())))
    print(json.dumps({key: value for key, value in found.items() if key not in ("curves", "seconds a round")}, indent=1))


if __name__ == "__main__":
    main()
