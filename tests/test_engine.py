"""The backends: vmap computes what the loop does, for any model and schedule that it takes, and is refused for others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import normec
from conftest import quadratic, x_of
from normec.runs.experiment import Experiment, Schedule, prepare

SIZES = (0, 1, 2, 3, 5, 5, 7, 12, 13, 33)
RNG = np.random.default_rng(0)
CLIENTS = [(RNG.normal(size=(n, 6)), RNG.integers(0, 3, n)) for n in SIZES]
PRIVATE = normec.Privacy(trust="central", epsilon=5.0)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3))


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.ReLU(), nn.Linear(8, 3))
    module[0].weight.requires_grad_(False)
    return module


class Tied(nn.Module):
    """One weight used twice, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 6), nn.Linear(6, 6)
        self.outer.weight = self.inner.weight
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(x)) * self.scale)[:, :3]


class Shared(nn.Module):
    """A layer under two names, and a weight that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(6, 6)
        self.decoder, self.other, self.head = self.encoder, nn.Linear(6, 6), nn.Linear(6, 3)
        self.other.weight = self.encoder.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.other(torch.tanh(self.decoder(torch.tanh(self.encoder(x))))))


def repeated() -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(6, 3))


def trained(model: Callable[[], nn.Module], backend: Any, local: Any, **choices: Any) -> normec.Run:
    engine = normec.Engine(backend=backend, dtype="float64", eval_every=100, workers=choices.pop("workers", 1))
    defaults: dict[str, Any] = {
        "algorithm": normec.FedNormEC(beta=0.2), "participation": normec.Poisson(0.7), "privacy": PRIVATE, "rounds": 3,
        "data": normec.Federation.from_clients(CLIENTS, classes=["a", "b", "c"]),
    }  # fmt: skip
    return normec.train(model=model, local=local, engine=engine, **(defaults | choices))


def backend_of(model: Callable[[], nn.Module], **engine: Any) -> str:
    chosen = Experiment(
        model=model,
        data=normec.Federation.from_clients(CLIENTS, classes=["a", "b", "c"]),
        algorithm=normec.FedNormEC(),
        local=normec.GD(),
        participation=normec.Full(),
        privacy=normec.Privacy(trust="none"),
        schedule=Schedule(rounds=1),
        engine=normec.Engine(**engine),
    )
    return prepare(chosen).backend.name


@pytest.mark.parametrize("model", [mlp, frozen, Tied, Shared, repeated])
@pytest.mark.parametrize(
    "local",
    [
        normec.GD(steps=3), normec.IG(steps=2, batch_size=4), normec.RR(steps=1, batch_size=5), normec.SGD(steps=4, batch_size=3),
        normec.PoissonBatches(steps=4, rate=0.2),
    ],
)  # fmt: skip
def test_vmap_is_the_loop(model: Callable[[], nn.Module], local: Any) -> None:
    np.testing.assert_allclose(x_of(trained(model, "vmap", local)), x_of(trained(model, "loop", local)), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("algorithm", [normec.Scaffold(server_lr=0.1), normec.FedProx(prox=0.3)])
@pytest.mark.parametrize("local", [normec.RR(steps=2, batch_size=4), normec.PoissonBatches(steps=3, rate=0.3)])
def test_vmap_corrects_local_steps_too(algorithm: normec.Algorithm, local: Any) -> None:
    choices: dict[str, Any] = {"algorithm": algorithm, "privacy": normec.Privacy(trust="none"), "rounds": 4}
    runs = [x_of(trained(mlp, backend, local, **choices)) for backend in ("vmap", "loop")]
    np.testing.assert_allclose(*runs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("local", [normec.GD(steps=2), normec.PoissonBatches(steps=2, rate=0.3)])
def test_vmap_with_another_loss_groups_by_exact_sizes(local: Any) -> None:
    """A mean that is not over samples alone cannot be filled up: here the loss depends on the size of the batch."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets) * len(targets)

    runs = [x_of(trained(mlp, backend, local, loss=loss)) for backend in ("vmap", "loop")]
    np.testing.assert_allclose(*runs, rtol=1e-9, atol=1e-12)
    assert not np.allclose(runs[0], x_of(trained(mlp, "vmap", local)))


def test_vmap_is_bit_equal_for_any_number_of_workers() -> None:
    local = normec.IG(steps=1, batch_size=4)
    np.testing.assert_array_equal(x_of(trained(mlp, "vmap", local)), x_of(trained(mlp, "vmap", local, workers=3)))


def test_auto_takes_vmap_for_small_dense_models() -> None:
    assert backend_of(mlp) == "vmap"
    assert backend_of(mlp, backend="loop") == "loop"
    assert backend_of(lambda: nn.Sequential(nn.Linear(6, 20_000), nn.Linear(20_000, 3))) == "loop"
    assert quadratic([[1.0], [2.0]], algorithm=normec.FedNormEC()).summary["settings"]["engine"]["backend"] == "vmap"


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)), "draws random numbers"),
        (lambda: nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3)), "convolutions"),
        (lambda: Branches(), "data-dependent control flow"),
        (lambda: MixesItsBatch(), "it computes something else under vmap"),
    ],
)  # fmt: skip
def test_other_models_take_the_loop(model: Callable[[], nn.Module], reason: str) -> None:
    assert backend_of(model) == "loop"
    with pytest.raises(normec.BadInput, match=f"backend='vmap' cannot compute this model: .*{reason}"):
        backend_of(model, backend="vmap")


class Branches(nn.Module):
    """A forward pass whose path depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) if self.linear.weight.sum() > 0 else 2 * self.linear(x)


class MixesItsBatch(nn.Module):
    """Outputs that depend on the other samples of the batch, so that filling it up changes them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x - x.mean(0))


@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize("name", ["fed-normec", "clip21-sgd2m", "scaffold", "ef21", "dp-scaffold", "dp-normfedavg"])
@pytest.mark.parametrize("server", [normec.ServerMomentum(), normec.ServerAdam()], ids=lambda server: server.optimizer)
def test_every_tensor_of_a_round_takes_the_runs_device(name: str, backend: Any, server: normec.ServerStep) -> None:
    """A tensor made without a device would fall on torch's default one: with `meta` for that, it could not be computed with."""
    from dataclasses import replace

    from normec.contract import example
    from normec.contract.small_runs import experiment
    from normec.runs.loop import execute

    plan = prepare(replace(experiment(example(name), backend=backend), server=server))
    here = x_of(execute(plan))
    with torch.device("meta"):
        run = execute(plan)
    np.testing.assert_array_equal(here, x_of(run))


def test_memory_is_flat_over_500_rounds() -> None:
    """Resident memory after round 500 beside round 100, in a process of its own."""
    script = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import psutil
import normec
from conftest import quadratic
resident = {}
class Watch:
    def started(self, plan): ...
    def round(self, row):
        resident[row["round"]] = psutil.Process().memory_info().rss
centres = list(np.random.default_rng(0).uniform(-1, 1, (50, 2000)))
quadratic(centres, algorithm=normec.FedNormEC(), participation=normec.Poisson(0.5), rounds=500, observer=Watch(),
          privacy=normec.Privacy(trust="local", epsilon=5.0), engine=normec.Engine(eval_every=100))
print(resident[500] / resident[100])
"""
    done = subprocess.run([sys.executable, "-c", script, str(Path(__file__).parent)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 0.98 <= float(done.stdout) <= 1.02


@pytest.mark.parametrize(
    "local",
    [normec.GD(), normec.RR(steps=1, batch_size=4), normec.SO(batch_size=4), normec.SGD(batch_size=4), normec.PoissonBatches(rate=0.2)],
)
def test_vmap_does_not_fall_back_to_the_loop(local: Any) -> None:
    """It would warn, which fails a test."""
    trained(mlp, "vmap", local)


def test_what_vmap_turns_out_not_to_compute_takes_the_loop_with_a_warning() -> None:
    with pytest.warns(RuntimeWarning, match="round 1: vmap cannot compute 'so many samples'; the slower loop does"):
        run = trained(ShortBatches, "auto", normec.GD(steps=2))
    assert run.summary["settings"]["engine"]["backend"] == "vmap"
    np.testing.assert_allclose(x_of(run), x_of(trained(ShortBatches, "loop", normec.GD(steps=2))), rtol=1e-9)


class ShortBatches(nn.Module):
    """A model that takes the largest client's 33 samples, and not the 48 that vmap fills them up to."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and len(x) > 40:
            raise RuntimeError("so many samples.")
        return self.linear(x)
