"""Shared pieces of the tests: small problems with known answers, and the command in this process."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import normec
from normec.cli import main
from normec.engine.memory import dense_rows
from normec.runs.folder import RunFolder


def pytest_sessionstart() -> None:
    """Ctrl-C acts in all processes of the tests, also where they were started in the background of a script, which ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Point(nn.Module):
    """A model that is its own parameter: forward(a) = x − a, so that half_square gives f_i(x) = mean_j ½‖x − a_ij‖²."""

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(input_shape))

    def forward(self, a: Tensor) -> Tensor:
        return self.x - a


def half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * outputs.square().sum(1).mean()


def quadratic(centres: list[Any], **choices: Any) -> normec.Run:
    """A float64 run on quadratics around each client's rows of centres, T = 1, without privacy unless chosen otherwise."""
    clients = [(np.atleast_2d(np.asarray(a, dtype=np.float64)), np.zeros(len(np.atleast_2d(a)))) for a in centres]
    defaults: dict[str, Any] = {
        "local": normec.GD(steps=1, lr=1.0),
        "participation": normec.Full(),
        "privacy": normec.Privacy(trust="none"),
        "rounds": 3,
        "loss": half_square,
        "engine": normec.Engine(dtype="float64", checkpoint_every=1),
    }
    return normec.train(model=Point, data=normec.Federation.from_clients(clients), **(defaults | choices))


def x_of(run: normec.Run) -> np.ndarray:
    """The final parameters of a run as one vector."""
    return torch.cat([p.detach().reshape(-1) for p in run.model.parameters()]).numpy().copy()


def checkpoint_of(run: normec.Run) -> dict[str, np.ndarray]:
    """The vectors of a run's checkpoint, every memory as rows (M, d)."""
    assert run.folder is not None
    saved = dense_rows(load_file(run.folder / "checkpoint" / "state.safetensors"))
    return {name: tensor.numpy() for name, tensor in saved.items()}


def rewritten(folder: Path, metrics: list[dict[str, Any]] | None = None, **summary: Any) -> None:
    """Changes a run's files as somebody does who mends their hashes too, so that only their content can be doubted."""
    run = RunFolder(folder)
    if metrics is not None:
        run.replace_metrics(metrics)
    if run.summary.is_file():
        run.save_summary(json.loads(run.summary.read_text()) | summary)


def unless_refused(read: Callable[[], Any], *sentences: str) -> Any:
    """What a reader finds; None where it refuses with one of these sentences."""
    try:
        return read()
    except normec.BadInput as error:
        if not any(sentence in str(error) for sentence in sentences):
            raise
        return None


def without_seconds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Metrics that two runs of one setting have in common, also as their files hold them."""
    return [{key: value for key, value in row.items() if key not in ("seconds", "hash")} for row in rows]


class FailsAt:
    """An observer that ends a run after the metrics of a round were written, before its checkpoint."""

    def __init__(self, round: int) -> None:
        self.stop = round

    def started(self, plan: Any) -> None: ...

    def round(self, row: dict[str, Any]) -> None:
        if row["round"] == self.stop:
            raise OSError("stopped")


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Outcome]:
    """`normec ARGUMENTS` in this process, in an empty working directory."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr("sys.argv", ["normec", *arguments])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run
