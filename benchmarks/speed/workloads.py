"""The four workloads that contestants are timed on: FedAvg over all clients, T plain local steps. Needs nothing but torch.

A round: every client walks from x by y ← y − (γ/T) ∇f over its mini-batches in their order, and x becomes the mean of the y.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

_SPEC = importlib.util.spec_from_file_location("images", Path(__file__).parents[2] / "src" / "normec" / "models" / "images.py")
if _SPEC is None or _SPEC.loader is None:
    raise ImportError("src/normec/models/images.py is missing")
images = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(images)

LR = 0.1
"""γ, of a whole round of local steps."""


@dataclass(frozen=True)
class Workload:
    """steps: T local steps a round. samples: of each client; batch: in a step, all of them where there is one batch."""

    clients: int
    samples: int
    batch: int
    steps: int
    shape: tuple[int, ...]
    classes: int
    factory: Callable[[], nn.Module]
    rounds: int
    """How many a contestant is timed for in one turn."""

    @property
    def passes(self) -> int:
        """How often a client walks over its samples in a round."""
        return self.steps * self.batch // self.samples

    def data(self) -> tuple[Tensor, Tensor]:
        """Features (clients, samples, …) and targets (clients, samples)."""
        generator = torch.Generator().manual_seed(0)
        x = torch.rand(self.clients, self.samples, *self.shape, generator=generator)
        return x, torch.randint(self.classes, (self.clients, self.samples), generator=generator)

    def model(self) -> nn.Module:
        """The same start for everyone."""
        torch.manual_seed(1)
        return self.factory()


def small_cnn() -> nn.Module:
    """Two 3×3 convolutions, each followed by ReLU and pooling, and a linear layer."""
    stages = [layer for a, b in ((1, 32), (32, 64)) for layer in (nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))]
    return nn.Sequential(*stages, nn.Flatten(), nn.Linear(64 * 7 * 7, 10))


WORKLOADS = {
    "digits-mlp": Workload(100, 18, 18, 5, (64,), 10, lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), 10),
    "logistic": Workload(1000, 50, 50, 5, (123,), 2, lambda: nn.Linear(123, 2), 5),
    "small-cnn": Workload(100, 32, 32, 2, (1, 28, 28), 10, small_cnn, 1),
    "resnet20": Workload(20, 128, 32, 4, (3, 32, 32), 10, lambda: images.ResNet20((3, 32, 32), 10), 1),
}

Rounds = Callable[[Workload, int], tuple[list[float], Tensor]]
"""(workload, count) → the seconds of each of `count` rounds after a first one, and x after all of them."""


def serve(rounds: Rounds, threads: int = 1) -> None:
    """Answers the driver: a line [workload, count, path] for a line of seconds, x being saved at the path; both in JSON."""
    torch.set_num_threads(threads)
    answers = sys.stdout
    sys.stdout = sys.stderr  # what a contestant prints is no answer
    for line in sys.stdin:
        name, count, path = json.loads(line)
        seconds, x = rounds(WORKLOADS[name], count)
        torch.save(x, path)
        answers.write(json.dumps(seconds) + "\n")
        answers.flush()


class Clock:
    """Notes when the rounds of normec end."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def round(self, row: Mapping[str, object]) -> None:
        """A round has ended."""
        self._times.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Of each round but the first and the last one, which evaluate."""
        return [after - before for before, after in itertools.pairwise(self._times[1:-1])]


def flat(parameters: Any) -> Tensor:
    """Parameters as one vector (d,)."""
    return torch.cat([p.detach().reshape(-1) for p in parameters]).clone()
