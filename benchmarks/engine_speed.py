"""How long a round takes, beside the usual per-client loop (deepcopy, optimizer object, DataLoader) on the same work.

Fed-α-NormEC, full participation, without privacy. The two are timed in turns in one process on one core; figures are ratios
of medians. Also: the memory move beside a plain copy, and a population of a million lazy clients beside ten thousand.

    python benchmarks/engine_speed.py [--repeats 5]
"""

from __future__ import annotations

import argparse
import copy
import json
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import normec
from normec.operators import SmoothedNormalization

RESULTS = Path(__file__).parent / "results" / "engine_speed.json"
WORKLOADS: dict[str, tuple[int, int, int, int, Callable[[], nn.Module]]] = {
    "digits-mlp": (100, 18, 64, 10, lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))),
    "logistic": (1000, 50, 123, 2, lambda: nn.Linear(123, 2)),
}
STEPS, LR, ALPHA, BETA = 5, 0.5, 0.01, 0.01


class Clock:
    """Seconds of each round of a run, its first and last left out: they evaluate."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def started(self, plan: Any) -> None: ...

    def round(self, row: dict[str, Any]) -> None:
        self.times.append(time.perf_counter())

    def seconds(self) -> list[float]:
        return [float(each) for each in np.diff(self.times)[1:-1]]


def data_of(clients: int, samples: int, features: int, classes: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(clients, samples, features, generator=generator), torch.randint(classes, (clients, samples), generator=generator)


def ours(name: str, rounds: int, backend: Any = "auto") -> list[float]:
    clients, samples, features, classes, factory = WORKLOADS[name]
    x, y = data_of(clients, samples, features, classes)
    data = normec.Federation.from_arrays(
        x.reshape(-1, features), y.reshape(-1), np.repeat(np.arange(clients), samples), classes=[str(each) for each in range(classes)]
    )
    clock = Clock()
    normec.train(
        model=factory, data=data, algorithm=normec.FedNormEC(alpha=ALPHA, beta=BETA), local=normec.GD(steps=STEPS, lr=LR),
        participation=normec.Full(), privacy=normec.Privacy(trust="none"), rounds=rounds + 2, observer=clock,
        engine=normec.Engine(backend=backend, eval_every=10**6),
    )  # fmt: skip
    return clock.seconds()


def usual(name: str) -> float:
    """One round of the same method, as most research code writes it."""
    clients, samples, features, classes, factory = WORKLOADS[name]
    x, y = data_of(clients, samples, features, classes)
    model, bound = factory(), SmoothedNormalization(ALPHA)
    memories = {client: [torch.zeros_like(p) for p in model.parameters()] for client in range(clients)}
    loaders = [DataLoader(TensorDataset(x[client], y[client]), batch_size=samples) for client in range(clients)]
    estimate = [torch.zeros_like(p) for p in model.parameters()]
    begun = time.perf_counter()
    for client in range(clients):
        own = copy.deepcopy(model)
        optimizer = torch.optim.SGD(own.parameters(), lr=LR / STEPS)
        for _ in range(STEPS):
            for features_, targets in loaders[client]:
                optimizer.zero_grad()
                torch.autograd.backward(functional.cross_entropy(own(features_), targets))
                optimizer.step()
        with torch.no_grad():
            residual = [(p - q) / LR - v for p, q, v in zip(model.parameters(), own.parameters(), memories[client], strict=True)]
            message = bound(torch.cat([r.reshape(-1) for r in residual])[None])[0]
            for v, e, part in zip(memories[client], estimate, torch.split(message, [r.numel() for r in residual]), strict=True):
                v += BETA * part.view_as(v)
                e += BETA / clients * part.view_as(e)
    with torch.no_grad():
        for p, e in zip(model.parameters(), estimate, strict=True):
            p.sub_(e, alpha=3.0)
    return time.perf_counter() - begun


def rounds_of_a_population(clients: int, cohort: int, rounds: int) -> list[float]:
    """Lazy Fed-α-NormEC on softmax regression with d = 650, two samples a client."""
    generator = np.random.default_rng(0)
    x = generator.random((2 * clients, 64), dtype=np.float32)
    y = generator.integers(0, 10, 2 * clients)
    data = normec.Federation.from_arrays(x, y, np.repeat(np.arange(clients), 2), classes=[str(each) for each in range(10)])
    clock = Clock()
    normec.train(
        model=lambda: nn.Linear(64, 10), data=data, algorithm=normec.FedNormEC(lazy=True), local=normec.GD(steps=1, lr=LR),
        participation=normec.Poisson(rate=cohort / clients), privacy=normec.Privacy(trust="none"), rounds=rounds, observer=clock,
        engine=normec.Engine(eval_every=10**6),
    )  # fmt: skip
    return clock.seconds()


def memory_move(clients: int = 2000, d: int = 20_000) -> float:
    """Bytes a second of the algorithm's step on rows in place of a copy's: 12 bytes an element against 8."""
    rows, memory, other = torch.rand(32, d), torch.zeros(clients, d), torch.zeros(clients, d)
    algorithm, moves, copies = normec.FedNormEC(), [], []
    for _ in range(5):
        begun = time.perf_counter()
        for start in range(0, clients - 31, 32):
            part = memory[start : start + 32]
            part.copy_(algorithm.client(rows, (part,), normec.Context((), lambda: rows)).memory[0])
        moves.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        other.copy_(memory)
        copies.append(time.perf_counter() - begun)
    return (12 * clients * d / statistics.median(moves)) / (8 * clients * d / statistics.median(copies))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for name in WORKLOADS:
        times: dict[str, list[float]] = {"usual": [], "auto": [], "loop": []}
        for _ in range(options.repeats):
            times["usual"].append(usual(name))
            times["auto"] += ours(name, 5)
            times["loop"] += ours(name, 2, "loop")
        medians = {kind: statistics.median(values) for kind, values in times.items()}
        found[name] = {"milliseconds": {kind: round(1000 * value, 2) for kind, value in medians.items()}}
        found[name] |= {f"usual over {kind}": round(medians["usual"] / medians[kind], 1) for kind in ("auto", "loop")}
    found["memory move over copy"] = round(memory_move(), 2)
    small, large = (statistics.median(rounds_of_a_population(clients, 1000, 12)) for clients in (10**4, 10**6))
    found["population"] = {"10^6 over 10^4 clients": round(large / small, 2), "milliseconds": round(1000 * large, 1)}
    found["population"]["peak resident GB"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
