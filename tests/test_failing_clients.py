"""Clients on whose samples the model or its loss fails, and algorithms whose messages are longer than they say."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import normec
from conftest import Point as Still
from conftest import checkpoint_of, half_square, x_of
from normec.algorithms import REGISTRY, ClientStep, Context, Slots
from normec.algorithms.error_feedback import ErrorFeedback
from normec.operators import Clipping

CLIENTS, BROKEN = 12, (9, 11)
NONE, CENTRAL = normec.Privacy(trust="none"), normec.Privacy(trust="central", noise_multiplier=1.0)


class Words(nn.Module):
    """A table of three words: a sample that holds another one raises, under vmap too; or gives NaN."""

    def __init__(self, raises: bool) -> None:
        super().__init__()
        self.raises, self.table = raises, nn.Embedding(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        words = x[:, 0].long()
        held = self.table(words if self.raises else words.clamp(max=2))
        return held if self.raises else held * torch.where(words[:, None] > 2, torch.nan, 1.0)


class Refuses(Words):
    """Raises what no torch function would."""

    def forward(self, x: Tensor) -> Tensor:
        if self.raises and bool((x[:, 0] > 2).any()):
            raise ZeroDivisionError("a secret: 4711")
        return super().forward(x)


class Exits(Words):
    """Ends the process, or would."""

    def forward(self, x: Tensor) -> Tensor:
        if self.raises and bool((x[:, 0] > 2).any()):
            sys.exit("4711")
        return super().forward(x)


def train(model: Any = Words, raises: bool = True, **choices: Any) -> normec.Run:
    words = np.tile([0, 1, 2], CLIENTS).astype(np.float32)[:, None]
    words[[3 * client for client in BROKEN]] = 7
    defaults: dict[str, Any] = {
        "algorithm": normec.Clip21(), "local": normec.GD(steps=2, lr=1.0), "participation": normec.Full(), "privacy": CENTRAL, "rounds": 3,
    }  # fmt: skip
    data = normec.Federation.from_arrays(words, [0, 1, 0] * CLIENTS, np.repeat(np.arange(CLIENTS), 3))
    return normec.train(model=lambda: model(raises), data=data, **(defaults | choices))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("backend", "model"), [("loop", Words), ("vmap", Words), ("auto", Refuses), ("auto", Exits)])
def test_with_privacy_a_client_on_which_the_model_fails_counts_as_zero(tmp_path: Path, backend: Any, model: Any, workers: int) -> None:
    """As one whose update is NaN, bit by bit; its memory stays, and its error is told to nobody."""
    engine = normec.Engine(backend=backend, workers=workers, checkpoint_every=1)
    fails = train(model, engine=engine, out=tmp_path / "fails")
    assert [row["simulation_only"]["dropped"] for row in fails.metrics[1:]] == [2, 2, 2]
    is_nan = train(model, raises=False, engine=engine, out=tmp_path / "nan")
    one, other = checkpoint_of(fails), checkpoint_of(is_nan)
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name])
    assert (one["memory.v"][[*BROKEN]] == 0).all() and (one["memory.v"][[0, 8]] != 0).any()
    assert fails.metrics[0]["train_loss"] == is_nan.metrics[0]["train_loss"] is not None
    for file in (tmp_path / "fails").rglob("*.json*"):
        assert "4711" not in file.read_text()


@pytest.mark.parametrize(
    ("backend", "model", "error"),
    [("loop", Words, "IndexError"), ("vmap", Words, "IndexError"), ("auto", Refuses, "4711"), ("auto", Exits, "SystemExit: 4711")],
)
def test_without_privacy_the_client_and_its_error_are_named(backend: Any, model: Any, error: str) -> None:
    for every in (1, 100):  # at the first evaluation, or in the first round that meets it
        with pytest.raises(normec.TrainingFailed, match=rf"client 9.*{error}"):
            train(model, privacy=NONE, engine=normec.Engine(backend=backend, eval_every=every))


def test_a_loss_that_fails_on_a_client_is_as_a_model_that_does() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if bool((outputs == 7).any()):
            raise ArithmeticError("seven")
        return (outputs - targets[:, None]).square().mean()

    class Echo(nn.Module):
        def __init__(self, raises: bool) -> None:
            super().__init__()
            self.idle = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return x + 0 * self.idle

    assert train(Echo, loss=loss).metrics[-1]["simulation_only"]["dropped"] == 2
    with pytest.raises(normec.TrainingFailed, match=r"client 9.*ArithmeticError: seven"):
        train(Echo, loss=loss, privacy=NONE)


def test_an_error_that_hits_everyone_is_found_before_training() -> None:
    with pytest.raises(normec.BadInput, match="model"):
        train(lambda raises: nn.Linear(4, 2))


def test_the_theory_check_goes_on_where_the_gradient_of_a_client_fails() -> None:
    run = train(Refuses, theory=normec.Theory(check=True))
    assert run.metrics[-1]["simulation_only"]["gradient_norm"] is None


class TooLong(ErrorFeedback):
    """Says that its messages are clipped to 1 and sends more, from a residual of length `past` on."""

    past: float = 0.0

    @property
    def operator(self) -> Clipping:
        return Clipping(1.0)

    def client(self, update: Tensor, memory: Slots, context: Context) -> ClientStep:
        step = super().client(update, memory, context)
        return step._replace(message=torch.where(step.residual.norm(dim=1)[:, None] > self.past, 2 * step.message, step.message))


@pytest.fixture
def too_long(monkeypatch: pytest.MonkeyPatch) -> type[TooLong]:
    monkeypatch.setattr(TooLong, "name", "too-long", raising=False)
    return TooLong


@pytest.mark.parametrize("noise", ["seeded", "secure"])
@pytest.mark.parametrize("trust", ["central", "local"])
def test_a_message_past_the_bound_ends_a_private_run_before_its_release(too_long: Any, tmp_path: Path, trust: Any, noise: Any) -> None:
    centres = np.random.default_rng(0).uniform(-5, 5, (6, 1, 4))
    choices: dict[str, Any] = {
        "model": Still, "data": normec.Federation.from_clients([(a, np.zeros(1)) for a in centres]), "loss": half_square, "rounds": 2,
        "local": normec.GD(steps=1, lr=1.0), "participation": normec.Full(), "algorithm": too_long(),
    }  # fmt: skip
    private = normec.Privacy(trust=trust, noise_multiplier=1.0, noise=noise)
    with pytest.raises(normec.TrainingFailed, match="round 1: too-long sends a message that is longer than its bound, 1, ") as error:
        normec.train(privacy=private, out=tmp_path / "run", **choices)
    assert "client " not in str(error.value).replace("`client`", "") and '"commit"' not in (tmp_path / "run" / "ledger.jsonl").read_text()
    normec.train(privacy=NONE, **choices)  # which promises nothing
    normec.train(privacy=private, **choices | {"algorithm": too_long(past=1e9)})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "name",
    [name for name in REGISTRY if np.isfinite(REGISTRY[name](**({"k": 3} if "k" in REGISTRY[name].model_fields else {})).operator.bound)],
)
def test_no_algorithm_breaks_its_bound_by_rounding(name: str, dtype: Any) -> None:
    centres = np.random.default_rng(0).normal(size=(20, 1, 3000)) * 10.0 ** np.linspace(-9, 9, 20)[:, None, None]
    algorithm = REGISTRY[name]()
    run = normec.train(
        model=Still, data=normec.Federation.from_clients([(a, np.zeros(1)) for a in centres]), loss=half_square, rounds=2,
        local=normec.GD(steps=1, lr=1.0), participation=normec.Full(), algorithm=algorithm, engine=normec.Engine(dtype=dtype),
        privacy=normec.Privacy(trust="central", noise_multiplier=0.05, noise="secure"),
    )  # fmt: skip
    assert np.isfinite(x_of(run)).all()
