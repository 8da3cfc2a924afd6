"""What a program that uses the library finds changed afterwards: nothing that it did not ask for."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import dp_accounting  # noqa: F401 (what it imports sets filters of warnings, once)
import numpy as np
import pytest
import torch

import normec
from conftest import FailsAt
from normec.config import RunConfig
from normec.data.settings import Data
from normec.data.sources import load
from normec.privacy.gaussian import quiet
from normec.runs.interrupts import deferred_interrupt
from normec.settings import Settings
from normec.streams import Streams, global_generators_kept, global_generators_seeded, seed_global_generator

X = np.random.default_rng(0).normal(size=(40, 6))


def state() -> dict[str, Any]:
    """All that the libraries in use keep for the whole process."""
    return {
        "path": list(sys.path),
        "environment": dict(os.environ),
        "folder": (os.getcwd(), sorted(os.listdir())),
        "filters": list(warnings.filters),
        "signals": [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)],
        "logging": (logging.root.level, list(logging.root.handlers), logging.getLogger("absl").level, logging.getLogger("normec").level),
        "numpy": (np.geterr(), str(np.random.get_state())),  # noqa: NPY002
        "random": random.getstate(),
        "torch": (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled(), str(torch.get_default_device())),
        "kernels": (torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()),
        "generator": torch.get_rng_state().tolist(),
        "threads": sorted(thread.name for thread in threading.enumerate()),
    }


class Noisy(torch.nn.Module):
    """Draws in its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.nn.functional.dropout(x, 0.2, self.training))


@pytest.mark.parametrize("failing", [False, True])
@pytest.mark.parametrize(
    "privacy",
    [
        normec.Privacy(trust="none"),
        normec.Privacy(trust="central", epsilon=4.0, delta=1e-3),
        normec.Privacy(trust="local", epsilon=4.0, delta=1e-3, noise="secure"),
    ],
)
def test_training_leaves_the_process_as_it_was(
    privacy: normec.Privacy, failing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data = normec.Federation.from_arrays(X, np.arange(40) % 3, np.arange(40) % 5)
    model = Noisy()
    weights, threads = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_num_threads()
    choices: dict[str, Any] = {"algorithm": normec.FedNormEC(), "participation": normec.Poisson(0.5), "local": normec.GD(lr=0.1)}
    torch.set_num_threads(2)
    try:
        before = state()
        with pytest.raises(OSError, match="stopped") if failing else contextlib.nullcontext():
            normec.train(model=model, data=data, privacy=privacy, rounds=4, observer=FailsAt(2) if failing else None, **choices)
        assert state() == before
    finally:
        torch.set_num_threads(threads)
    assert capfd.readouterr() == ("", "")
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


def test_accounting_configures_no_logging(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """dp-accounting logs by absl, which configures the logging of the process where nobody has."""
    from absl import logging as absl

    monkeypatch.setattr(logging.root, "handlers", [])
    with quiet():
        absl.warning("some orders are left out")
    assert logging.root.handlers == [] and capfd.readouterr() == ("", "")


def test_images_are_kept_nowhere_unless_a_place_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from test_images import encoded, pictures

    for part in ("train", "test"):
        rows = [{"bytes": encoded(each), "path": "x.png"} for each in pictures(4, (32, 32, 3))]
        pq.write_table(pa.table({"img": rows, "label": [0, 1, 2, 3]}), tmp_path / f"{part}.parquet")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("NORMEC_CACHE", raising=False)
    first = load(Data(source="cifar10", path=str(tmp_path), clients=2), Streams(0))
    assert not os.listdir()
    monkeypatch.setenv("NORMEC_CACHE", str(tmp_path / "cache"))
    second = load(Data(source="cifar10", path=str(tmp_path), clients=2), Streams(0))
    assert torch.equal(first.x, second.x) and len(os.listdir(tmp_path / "cache")) == 1, "equal files are kept once"


def test_a_handler_of_ctrl_c_that_python_cannot_put_back_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = []
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    monkeypatch.setattr(signal, "signal", lambda number, handler: installed.append(handler))
    with deferred_interrupt() as pressed:
        assert not pressed()
    assert not installed


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def test_torchs_generators_are_put_back_for_every_device(device: str) -> None:
    on = torch.device(device)
    where = torch if device == "cpu" else torch.cuda
    torch.rand(1, device=on)
    before = where.get_rng_state()
    with global_generators_kept(on):
        seed_global_generator(1, on)
        one = torch.rand(3, device=on)
    with global_generators_seeded(1):
        assert torch.equal(torch.rand(3, device=on), one)
    assert torch.equal(where.get_rng_state(), before)


class Rate(Settings):
    lr: normec.settings.Positive = 1.0
    seed: normec.settings.Seed = 0


@pytest.mark.parametrize("value", [-1.0, float("nan"), "1", True])
def test_a_changed_copy_is_checked(value: Any) -> None:
    rate = Rate(seed=3)
    for change in (lambda: rate.changed(lr=value), lambda: rate.model_copy(update={"lr": value})):
        with pytest.raises(normec.BadInput, match=r"^lr=.* must be a number > 0"):
            change()
    with pytest.raises(normec.BadInput, match=r"^rl is not a setting here\. Known: lr, seed"):
        rate.changed(rl=1.0)
    assert rate.changed(lr=0.5) == Rate(lr=0.5, seed=3) == rate.model_copy(update={"lr": 0.5}) and rate.model_copy() == rate == Rate(seed=3)


def test_settings_that_were_refused_together_are_refused_in_a_copy() -> None:
    with pytest.raises(normec.BadInput):
        normec.Privacy(trust="central", epsilon=4.0).changed(noise_multiplier=1.0)
    assert RunConfig.from_tree({"rounds": 3}).schedule.rounds == 3
