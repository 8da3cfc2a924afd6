"""What may not change a result: client order, workers, extra evaluations, an interruption; and what must."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from sklearn.datasets import load_digits

import normec
from conftest import FailsAt, Outcome, checkpoint_of, quadratic, without_seconds, x_of

DIGITS_X, DIGITS_Y = load_digits(return_X_y=True)
DIGITS_X = DIGITS_X / 16.0


def digits(order: np.ndarray | None = None, clients: int = 20) -> normec.Federation:
    ids = np.arange(len(DIGITS_Y)) % clients
    rows = np.argsort(ids, kind="stable") if order is None else np.concatenate([np.flatnonzero(ids == client) for client in order])
    return normec.Federation.from_arrays(DIGITS_X[rows], DIGITS_Y[rows], ids[rows])


def run(data: normec.Federation | None = None, **choices: Any) -> normec.Run:
    from normec.models.zoo import mlp

    defaults: dict[str, Any] = {
        "model": mlp,
        "algorithm": normec.FedNormEC(beta=0.1, server_lr=1.0),
        "local": normec.RR(steps=1, lr=0.5, batch_size=16),
        "participation": normec.Poisson(0.5),
        "privacy": normec.Privacy(trust="central", noise_multiplier=0.5),
        "rounds": 6,
        "engine": normec.Engine(checkpoint_every=2),
    }
    return normec.train(data=data or digits(), **(defaults | choices))


@pytest.mark.parametrize("lazy", [False, True])
def test_client_order_does_not_matter(lazy: bool) -> None:
    shuffled = np.random.default_rng(0).permutation(20)
    choices = {
        "privacy": normec.Privacy(trust="none"),
        "engine": normec.Engine(dtype="float64"),
        "algorithm": normec.FedNormEC(beta=0.1, lazy=lazy),
    }
    a, b = run(digits(), **choices), run(digits(shuffled), **choices)
    np.testing.assert_allclose(x_of(a), x_of(b), rtol=0, atol=1e-12)
    assert np.abs(x_of(a)).max() > 0.01


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_do_not_matter(workers: int, tmp_path: Path) -> None:
    one = run(digits(clients=150), out=tmp_path / "a")
    many = run(digits(clients=150), engine=normec.Engine(workers=workers, checkpoint_every=2), out=tmp_path / "b")
    for name, saved in checkpoint_of(one).items():
        assert np.array_equal(saved, checkpoint_of(many)[name]), name


def test_an_evaluation_does_not_matter() -> None:
    assert np.array_equal(x_of(run()), x_of(run(engine=normec.Engine(eval_every=5))))


def test_the_seed_matters() -> None:
    assert np.array_equal(x_of(run(seed=1)), x_of(run(seed=1)))
    assert not np.array_equal(x_of(run(seed=1)), x_of(run(seed=2)))


def test_global_random_state_is_left_alone() -> None:
    import torch

    torch.manual_seed(5)
    before = torch.get_rng_state()
    a = run()
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(6)
    assert np.array_equal(x_of(a), x_of(run()))


class StopAfter:
    """Presses Ctrl-C during the evaluation of a round."""

    def __init__(self, round: int) -> None:
        self.stop = round

    def started(self, plan: Any) -> None: ...

    def round(self, row: dict[str, Any]) -> None:
        if row["round"] == self.stop:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("stop", [1, 3, 5])
def test_interrupted_and_resumed_is_bit_equal(tmp_path: Path, stop: int) -> None:
    whole = run(out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(out=tmp_path / "parts", observer=StopAfter(stop))
    resumed = run(out=tmp_path / "parts", resume=True)
    for name, saved in checkpoint_of(whole).items():
        assert np.array_equal(saved, checkpoint_of(resumed)[name]), name
    assert without_seconds(whole.metrics) == without_seconds(resumed.metrics)
    lines = (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()
    assert without_seconds([json.loads(line) for line in lines]) == without_seconds(whole.metrics)


def test_killed_and_resumed_is_bit_equal(tmp_path: Path) -> None:
    """SIGKILL between checkpoints: the rounds after the last one are repeated, with the same streams."""
    assignments = ["rounds=40", "participation.rate=0.5", "engine.checkpoint_every=7", "privacy.epsilon=4"]
    start = [sys.executable, "-m", "normec", "train", *assignments, "--out"]
    subprocess.run([*start, str(tmp_path / "whole")], check=True, capture_output=True)
    process = subprocess.Popen([*start, str(tmp_path / "killed")], stdout=subprocess.DEVNULL)
    metrics = tmp_path / "killed" / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and len(metrics.read_text().splitlines()) > 12):
        time.sleep(0.005)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    resume = [sys.executable, "-m", "normec", "train", "--out", str(tmp_path / "killed"), "--resume"]
    subprocess.run(resume, check=True, capture_output=True)
    for name in ("checkpoint/state.safetensors", "model.safetensors"):
        from safetensors.numpy import load_file

        whole, killed = load_file(tmp_path / "whole" / name), load_file(tmp_path / "killed" / name)
        assert all(np.array_equal(whole[key], killed[key]) for key in whole), name
    read = [[json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()] for name in ("whole", "killed")]
    assert without_seconds(read[0]) == without_seconds(read[1])


def test_run_toml_alone_reproduces_a_run(command: Callable[..., Outcome], tmp_path: Path) -> None:
    first = command(
        "train", "rounds=4", "data.partition=shards", "model.name=mlp", "local.method=sgd", "participation.rate=0.5", "--out", "first"
    )
    os.chdir(tmp_path.parent)  # from anywhere
    second = command("train", str(tmp_path / "first" / "run.toml"), "--out", str(tmp_path / "second"))
    assert first.code == second.code == 0
    assert (tmp_path / "first" / "model.safetensors").read_bytes() == (tmp_path / "second" / "model.safetensors").read_bytes()
    assert (tmp_path / "first" / "run.toml").read_text() == (tmp_path / "second" / "run.toml").read_text()


def test_dropout_draws_from_keyed_streams() -> None:
    from torch import nn

    def factory() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 16), nn.Dropout(0.5), nn.Linear(16, 10))

    assert np.array_equal(x_of(run(model=factory)), x_of(run(model=factory, engine=normec.Engine(eval_every=6))))
    with pytest.raises(normec.BadInput, match=r"engine\.workers=2: this model draws random numbers"):
        run(model=factory, engine=normec.Engine(workers=2))


def test_resume_refuses_another_configuration(tmp_path: Path) -> None:
    run(out=tmp_path / "a")
    with pytest.raises(normec.BadInput, match=r"local\.lr=0\.5 there, 0\.25 here"):
        run(out=tmp_path / "a", resume=True, local=normec.RR(steps=1, lr=0.25, batch_size=16))
    other = normec.Federation.from_arrays(DIGITS_X[::-1].copy(), DIGITS_Y[::-1].copy(), np.arange(len(DIGITS_Y)) % 20)
    with pytest.raises(normec.BadInput, match=r"data\.fingerprint"):
        run(other, out=tmp_path / "a", resume=True)


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    first = run(out=tmp_path / "a")
    before = (tmp_path / "a" / "metrics.jsonl").read_text()
    again = run(out=tmp_path / "a", resume=True)
    assert (tmp_path / "a" / "metrics.jsonl").read_text() == before
    assert again.summary["test_accuracy"] == first.summary["test_accuracy"]
    assert np.array_equal(x_of(first), x_of(again))


def test_randomness_that_starts_late_is_keyed_too() -> None:
    """A module that draws only in batches of more than 8, and in evaluation."""
    import torch
    from torch import nn

    class Late(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            outputs = super().forward(x)
            return outputs + torch.rand(()) if len(x) > 8 or not self.training else outputs

    runs = []
    for ambient in (1, 2):
        torch.manual_seed(ambient)
        runs.append(run(model=lambda: Late(64, 10), local=normec.GD(steps=2)))
    assert np.array_equal(x_of(runs[0]), x_of(runs[1]))
    assert without_seconds(runs[0].metrics) == without_seconds(runs[1].metrics)


def test_one_run_at_a_time_in_a_folder(tmp_path: Path) -> None:
    from normec.runs.folder import RunFolder

    with RunFolder(tmp_path / "a").open(resume=False):
        (tmp_path / "a" / "run.toml").touch()
        with pytest.raises(normec.BadInput, match="another run is going on"):
            RunFolder(tmp_path / "a").open(resume=True)
    with RunFolder(tmp_path / "a").open(resume=True):
        pass


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_system_without_locks_is_not_another_run(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def refused(file: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refused)
        with pytest.raises(normec.BadInput, match=rf"^out: .*cannot be locked .{os.strerror(number)}.*Keep it .* on a local disk") as found:
            run(out=tmp_path / "a")
    assert "another" not in str(found.value)
    np.testing.assert_array_equal(x_of(run(out=tmp_path / "a", resume=True)), x_of(run()))


def test_a_lock_is_free_again_once_its_process_is_killed(tmp_path: Path) -> None:
    from normec.files import Lock

    code = f"import pathlib, time, normec.files as f; lock = f.Lock(pathlib.Path({str(tmp_path)!r}), f.BadInput('out', '')); print(1, flush=True); time.sleep(600)"
    busy = normec.BadInput("out", ": busy")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == b"1\n"
            with pytest.raises(normec.BadInput, match=r"^out: busy\.$"):
                Lock(tmp_path, busy, patience=0.1)
        finally:
            other.kill()
    with Lock(tmp_path, busy, patience=60):
        pass


def test_resume_before_the_first_checkpoint_refuses_another_configuration(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="stopped"):
        run(out=tmp_path / "a", observer=FailsAt(1))
    before = (tmp_path / "a" / "metrics.jsonl").read_bytes()
    with pytest.raises(normec.BadInput, match="seed=42 there, 43 here"):
        run(out=tmp_path / "a", resume=True, seed=43)
    assert (tmp_path / "a" / "metrics.jsonl").read_bytes() == before
    assert np.array_equal(x_of(run(out=tmp_path / "a", resume=True)), x_of(run()))


def test_resume_refuses_another_model_or_loss(tmp_path: Path) -> None:
    from torch import nn
    from torch.nn import functional

    def factory(activation: type[nn.Module]) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 10), activation())

    run(out=tmp_path / "a", model=lambda: factory(nn.ReLU))
    with pytest.raises(normec.BadInput, match=r"model\.fingerprint"):
        run(out=tmp_path / "a", resume=True, model=lambda: factory(nn.Tanh))
    with pytest.raises(normec.BadInput, match=r"model\.fingerprint"):
        run(out=tmp_path / "a", resume=True, model=lambda: factory(nn.ReLU), loss=functional.multi_margin_loss)


def test_resume_refuses_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(out=tmp_path / "a")
    monkeypatch.setattr("normec.version.__version__", "9.9.9")
    with pytest.raises(normec.BadInput, match=r"versions\.normec='.*' there, '9\.9\.9' here"):
        run(out=tmp_path / "a", resume=True)


def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third checkpoint finds no room: the second one is whole, nothing else is left, and the run goes on from it."""
    choices = {"algorithm": normec.FedNormEC(), "rounds": 6, "participation": normec.Poisson(rate=0.5)}
    centres = [[1.0, 2.0], [0.0, 1.0], [3.0, -1.0]]
    whole = quadratic(centres, **choices)
    written: list[bytes] = []
    checkpoint, sync = tmp_path / "run" / "checkpoint" / "state.safetensors", os.fsync

    def full(file: int) -> None:
        if any(each.fd == file and each.path.endswith(".state.safetensors.part") for each in psutil.Process().open_files()):
            written.append(checkpoint.read_bytes() if checkpoint.exists() else b"")
            if len(written) == 3:
                raise OSError(errno.ENOSPC, "No space left on device")
        sync(file)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            quadratic(centres, out=tmp_path / "run", **choices)
    assert len(written) == 3 and checkpoint.read_bytes() == written[2] != written[1]
    assert [file.name for file in checkpoint.parent.iterdir() if file.name.endswith(".part")] == []
    resumed = quadratic(centres, out=tmp_path / "run", resume=True, **choices)
    np.testing.assert_array_equal(x_of(resumed), x_of(whole))
