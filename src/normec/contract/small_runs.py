"""Small runs on quadratics, on which the contract is checked."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from normec.algorithms import Algorithm, Context, Descent, Server, server_round
from normec.data import Federation
from normec.engine import Engine
from normec.engine.memory import dense_rows
from normec.local import GD, IG
from normec.privacy import Privacy
from normec.privacy.participation import Participation, Poisson
from normec.runs.experiment import Experiment, Schedule, prepare
from normec.runs.folder import RunFolder
from normec.runs.loop import execute
from normec.runs.observers import Observer
from normec.runs.written import MetricsRow
from normec.streams import Streams

CLIENTS, D, ROUNDS = 6, 12, 8


class _Point(nn.Module):
    """A model that is its own parameter, so that the loss ½‖x − a‖² makes each client a quadratic around its samples."""

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(input_shape))

    def forward(self, a: Tensor) -> Tensor:
        return self.x - a


def _half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * outputs.square().sum(1).mean()


CENTRES = np.random.default_rng(7).uniform(-2, 2, (CLIENTS, 3, D))
"""The samples (clients, 3, D) of the small runs: f_i is a quadratic around the mean of client i's."""


class StopsAfter(Observer):
    """Ends a run after the metrics of a round are written, before its checkpoint."""

    def __init__(self, stop: int) -> None:
        self.stop = stop

    def round(self, row: MetricsRow) -> None:
        if row["round"] == self.stop:
            raise InterruptedError


class Keeps(Observer):
    """An observer that keeps the means (d,) that a run releases."""

    def __init__(self) -> None:
        self.means: list[Tensor] = []

    def released(self, rounds_done: int, server: Server, cohort: np.ndarray | None, mean: Tensor | None) -> None:
        if mean is not None:
            self.means.append(mean)


def is_private(algorithm: Algorithm) -> bool:
    """Whether its messages are bounded, so that noise can protect them."""
    return math.isfinite(algorithm.operator.bound)


def variants(algorithm: Algorithm) -> list[Algorithm]:
    """An algorithm, and itself at both ends of its tuned settings."""
    ends = [{name: ends[side] for name, ends in algorithm.tuned.items()} for side in (0, 1)]
    return [algorithm, *(type(algorithm)(**algorithm.table() | end) for end in ends)]


def is_close(a: Tensor, b: Tensor) -> bool:
    """Equal up to rounding."""
    return torch.allclose(a.double(), b.double(), rtol=1e-9, atol=1e-12)


def are_equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether two runs hold the same vectors, bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(value, b[name]) for name, value in a.items())


def halves(clients: int, dtype: torch.dtype = torch.float64) -> Callable[[], Tensor]:
    """A source of uniform numbers that is always one half."""
    return lambda: torch.full((clients, D), 0.5, dtype=dtype)


def some_rows(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Numbers in (−2, 2), the same for the same seed."""
    return torch.from_numpy(np.random.default_rng(seed).uniform(-2, 2, shape)).to(dtype)


def some_memory(algorithm: Algorithm, clients: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(some_rows(clients, D, seed=1 + slot, dtype=dtype) for slot in range(len(algorithm.client_slots)))


def some_server(algorithm: Algorithm, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(some_rows(D, seed=11 + slot, dtype=dtype) for slot in range(len(algorithm.server_slots)))


def some_context(algorithm: Algorithm, clients: int, dtype: torch.dtype) -> Context:
    return Context(some_server(algorithm, dtype), halves(clients, dtype))


def plain_loop(algorithm: Algorithm, rounds: int) -> Tensor:
    """The model after some rounds in which every client takes one exact gradient step, in a few lines."""
    gradient_of, streams, step, rule = torch.from_numpy(CENTRES.mean(axis=1)), Streams(1), Descent(), algorithm.local_rule
    server = Server.start(algorithm, step, torch.zeros(D, dtype=torch.float64))
    memory: tuple[Tensor, ...] = tuple(torch.zeros(CLIENTS, D, dtype=torch.float64) for _ in algorithm.client_slots)
    for k in range(rounds):

        def uniform(k: int = k) -> Tensor:
            return torch.from_numpy(np.stack([streams.generator("compressor", k, i).random(D) for i in range(CLIENTS)]))

        correct = rule.correction
        update = (server.x - gradient_of + (correct(memory, server.slots) if correct else 0.0)) * rule.scale(0.5)
        message, memory, _ = algorithm.client(update, memory, Context(server.slots, uniform))
        server = server_round(algorithm, step, server, message.mean(0), 1.0)
    return server.x


def experiment(
    algorithm: Algorithm,
    *,
    centres: np.ndarray = CENTRES,
    order: np.ndarray | None = None,
    participation: Participation | None = None,
    privacy: Privacy | None = None,
    seed: int = 1,
    rounds: int = ROUNDS,
    dtype: Literal["float32", "float64"] = "float64",
    workers: int = 1,
    backend: Literal["loop", "vmap"] = "loop",
) -> Experiment:
    clients, samples, d = centres.shape
    order = np.arange(clients) if order is None else order
    data = Federation.from_arrays(centres[order].reshape(-1, d), np.zeros(clients * samples), np.repeat(order, samples))
    private = Privacy(trust="central", noise_multiplier=1.0) if is_private(algorithm) else Privacy(trust="none")
    one_step = participation is not None or algorithm.one_gradient
    return Experiment(
        model=_Point,
        data=data,
        algorithm=algorithm,
        local=GD(steps=1, lr=0.5) if one_step else IG(steps=2, lr=0.5, batch_size=2),
        participation=participation or Poisson(rate=0.5),
        privacy=privacy or private,
        schedule=Schedule(rounds=rounds, seed=seed),
        loss=_half_square,
        engine=Engine(dtype=dtype, checkpoint_every=1, eval_every=rounds, workers=workers, backend=backend),
    )


def small_run(algorithm: Algorithm, *, stop: int | None = None, block: int = 32, **choices: Any) -> dict[str, Tensor]:
    """The vectors of the last checkpoint of a run, interrupted after round `stop` and resumed if that is given.

    block: the most clients that compute together.
    """
    with tempfile.TemporaryDirectory() as path:
        folder = RunFolder(Path(path) / "run")
        plan = prepare(experiment(algorithm, **choices))
        plan.backend.most_rows = block
        if stop is not None:
            with contextlib.suppress(InterruptedError):
                execute(plan, folder.open(resume=False), StopsAfter(stop))
        execute(plan, folder.open(resume=stop is not None))
        return dense_rows(load_file(folder.checkpoint))
