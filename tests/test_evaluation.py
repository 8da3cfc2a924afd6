"""Results pooled and by client, and metrics by import path."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import normec
from normec.evaluation import by_client, spread
from normec.evaluation.losses import client_losses, spans
from normec.models import FlatModel, Reading


class Reader(nn.Module):
    """Predicts the class that the first feature names; its parameter does nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return 20 * nn.functional.one_hot(x[:, 0].long(), 3) + 0 * self.idle


def read(tmp_path: Path | None = None, **choices: Any) -> normec.Run:
    """Client "a" is right on 3 of 4 test samples, "b" on 1 of 2, "c" has none; all six have the right class 1."""
    test = (np.array([[1.0], [1], [1], [0], [1], [2]]), np.ones(6, dtype=int))
    data = normec.Federation.from_arrays(
        np.ones((6, 1)), np.array([0, 1, 2, 0, 1, 2]), ["a", "a", "b", "b", "c", "c"], test=test, test_client_ids=[*"aaaabb"]
    )
    return normec.train(
        model=Reader, data=data, algorithm=normec.FedAvg(), local=normec.GD(steps=1), participation=normec.Full(),
        privacy=normec.Privacy(trust="none"), rounds=1, out=tmp_path, **choices,
    )  # fmt: skip


def test_results_by_client_are_counted_by_hand(tmp_path: Path) -> None:
    run = read(tmp_path / "run")
    assert run.metrics[-1]["test_accuracy"] == pytest.approx(4 / 6)
    rows = {row["client"]: row for row in json.loads((tmp_path / "run" / "clients.json").read_text())["simulation_only"]}
    assert [(row["train_samples"], row["test_samples"], row["test_accuracy"]) for row in rows.values()] == [
        (2, 4, 0.75),
        (2, 2, 0.5),
        (2, 0, None),
    ]
    assert rows["a"]["test_loss"] * 4 + rows["b"]["test_loss"] * 2 == pytest.approx(run.metrics[-1]["test_loss"] * 6)
    assert run.summary["simulation_only"]["spread"] == {
        "metric": "test_accuracy", "clients": 2, "clients_without_test_samples": 1, "mean": 0.625, "median": 0.625, "worst_decile": 0.5, "best": 0.75,
    }  # fmt: skip


def test_the_worst_decile_is_the_mean_of_the_worst_tenth() -> None:
    rows = [{"test_samples": 1, "test_accuracy": value, "test_loss": 1 - value} for value in np.linspace(0, 1, 20)]
    found = spread(rows)
    assert found is not None and found["worst_decile"] == pytest.approx(np.linspace(0, 1, 20)[:2].mean())
    for row in rows:
        row["test_accuracy"] = None
    found = spread(rows)
    assert (
        found is not None and found["metric"] == "test_loss" and found["worst_decile"] == pytest.approx(np.linspace(0, 1, 20)[-2:].mean())
    )
    assert found["best"] == 0 and spread([{"test_samples": 0}]) is None


def test_no_owners_no_spread() -> None:
    data = normec.Federation.from_arrays(np.ones((4, 1)), [0, 1, 2, 0], [0, 0, 1, 1], test=(np.ones((1, 1)), [1]))
    run = normec.train(
        model=Reader, data=data, algorithm=normec.FedAvg(), local=normec.GD(), participation=normec.Full(),
        privacy=normec.Privacy(trust="none"), rounds=1,
    )  # fmt: skip
    assert run.summary["simulation_only"]["spread"] is None


@pytest.mark.parametrize(("ids", "words"), [(["a"], "names 1 clients for 2"), (["a", "z"], "'z', which is not a client")])
def test_owners_that_do_not_fit(ids: list[str], words: str) -> None:
    with pytest.raises(normec.BadInput, match=words):
        normec.Federation.from_arrays(np.ones((2, 1)), [0, 1], ["a", "b"], test=(np.ones((2, 1)), [0, 1]), test_client_ids=ids)


class Wrong:
    """The share of wrong predictions, as torchmetrics would hold it."""

    def __init__(self, num_classes: int) -> None:
        self.classes = num_classes
        self.reset()

    def reset(self) -> None:
        self.wrong, self.all = 0, 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.wrong += int((outputs.argmax(1) != targets).sum())
        self.all += len(targets)

    def compute(self) -> Tensor:
        return torch.tensor(self.wrong / self.all if self.classes == 3 else torch.nan)


class Broken(Wrong):
    def update(self, outputs: Tensor, targets: Tensor) -> None:
        raise KeyError("binary only")


def test_metrics_by_import_path() -> None:
    run = read(evaluation=normec.Evaluation(metrics=["test_evaluation:Wrong"]), engine=normec.Engine(eval_every=1))
    assert [row["metrics"]["Wrong"] for row in run.metrics] == [pytest.approx(2 / 6)] * 2 and run.summary["metrics"] == run.metrics[-1][
        "metrics"
    ]
    with pytest.raises(normec.BadInput, match=r"Broken does not take outputs.*binary only"):
        read(evaluation=normec.Evaluation(metrics=["test_evaluation:Broken"]))


def test_two_metrics_of_one_name_are_told_apart() -> None:
    paths = ["test_evaluation:Wrong", "tests_beside:Wrong"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "tests_beside", SimpleNamespace(Wrong=Wrong))
        assert read(evaluation=normec.Evaluation(metrics=paths)).metrics[-1]["metrics"].keys() == set(paths)


def test_metrics_need_a_test_set() -> None:
    with pytest.raises(normec.BadInput, match=r"evaluation\.metrics=.*needs a test set"):
        normec.train(
            model=Reader, data=normec.Federation.from_arrays(np.ones((4, 1)), [0, 1, 2, 0], [0, 0, 1, 1]), algorithm=normec.FedAvg(),
            local=normec.GD(), participation=normec.Full(), privacy=normec.Privacy(trust="none"), rounds=1,
            evaluation=normec.Evaluation(metrics=["test_evaluation:Wrong"]),
        )  # fmt: skip


def test_a_metric_of_torchmetrics() -> None:
    pytest.importorskip("torchmetrics", reason="torchmetrics is not installed")
    names = ["torchmetrics.classification:MulticlassF1Score", "torchmetrics:Accuracy"]
    micro = {"name": names[0], "arguments": {"average": "micro"}}
    found = read(evaluation=normec.Evaluation(metrics=[*names, micro])).metrics[-1]["metrics"]
    assert found["Accuracy"] == pytest.approx(4 / 6) == found["MulticlassF1Score(average=micro)"] and 0 < found["MulticlassF1Score"] < 1


def test_rounds_are_scored_on_fewer_samples_of_every_client(tmp_path: Path) -> None:
    """Of "a" 100 samples and of "b" 10, a fifth: every fifth of each; of 40 test samples 22 are kept."""
    x, y = np.arange(110)[:, None] % 3, np.arange(110) % 3
    data = normec.Federation.from_arrays(
        x.astype(float),
        y,
        ["a"] * 100 + ["b"] * 9 + ["c"],
        test=(np.ones((40, 1)), np.ones(40, dtype=int)),
        test_client_ids=["a", "b"] * 20,
    )
    kept = data.thinned(22)
    assert kept.sizes.tolist() == [20, 1, 1] and kept.client(0)[1].tolist() == [5 * i % 3 for i in range(20)]
    assert kept.test is not None and kept.test_owners is not None and len(kept.test[1]) == len(kept.test_owners) == 22
    assert len(data.thinned(1000).y) == 110

    run = read(tmp_path / "run", evaluation=normec.Evaluation(samples=3))
    assert run.metrics[-1]["test_accuracy"] == 1.0  # of the first, third and fifth test sample; of all 4/6
    assert any("those of 3 of 6 training and 3 of 6 test samples" in note for note in run.summary["notes"])
    spread_of_all = run.summary["simulation_only"]["spread"]
    assert spread_of_all["mean"] == 0.625, "results by client are of all samples"


def test_a_mapped_array_is_thinned_in_place(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(60.0).reshape(20, 3))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    data = normec.Federation.from_arrays(mapped, np.arange(20) % 2, np.arange(20) % 4)
    kept = data.thinned(8)
    assert kept.x is data.x and kept.sizes.tolist() == [2] * 4
    np.testing.assert_array_equal(kept.client(1)[0].numpy(), np.asarray(mapped)[[1, 9]])


def sized(sizes: list[int], seed: int = 0) -> normec.Federation:
    """Clients with so many samples of four features and five classes."""
    rng, total = np.random.default_rng(seed), sum(sizes)
    return normec.Federation.from_arrays(
        rng.normal(size=(total, 4)).astype(np.float32), rng.integers(0, 5, total), np.repeat(np.arange(len(sizes)), sizes),
        classes=list("abcde"), empty_clients=range(len(sizes)),
    )  # fmt: skip


def flat(loss: Any = functional.cross_entropy, dtype: torch.dtype = torch.float32) -> FlatModel:
    torch.manual_seed(1)
    return FlatModel(nn.Linear(4, 5), loss, torch.device("cpu"), dtype)


@pytest.mark.parametrize("loss", [functional.cross_entropy, lambda outputs, targets: functional.cross_entropy(outputs, targets)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_losses_taken_at_once_are_those_of_each_client_bit_by_bit(loss: Any, dtype: torch.dtype) -> None:
    sizes = [0, *range(1, 40), 0, 2000, 3, *[2] * 600, 0, *[15, 16, 17] * 30]
    data, model = sized(sizes).to(torch.device("cpu"), dtype), flat(loss, dtype)
    outputs = torch.cat([model.outputs(model.vector.clone(), data.clients(*span)[0]) for span in spans(data.sizes)])
    parts = zip(torch.split(outputs, sizes), torch.split(data.y, sizes), strict=True)
    expected = torch.stack([functional.cross_entropy(part, own) for part, own in parts if len(own)]).double()
    assert torch.equal(client_losses(model, model.vector.clone(), data), expected)


def test_clients_are_scored_together_in_a_number_of_steps_that_follows_their_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 clients of one training and one test sample are 20 forward passes of at most 1,024 samples, each time."""
    calls: list[int] = []
    outputs = FlatModel.outputs
    monkeypatch.setattr(FlatModel, "outputs", lambda self, x, features: calls.append(len(features)) or outputs(self, x, features))
    data, model = sized([1] * 20_000), flat()
    model.reading = Reading("classes")
    data = dataclasses.replace(data, test=(data.x, data.y), test_owners=np.arange(20_000)[::-1].copy())
    client_losses(model, model.vector.clone(), data)
    assert len(calls) == 20 and max(calls) == 1024 and sum(calls) == 20_000
    rows = by_client(model, model.vector.clone(), data)
    assert len(calls) == 40 and len(rows) == 20_000 and data.sizes is data.sizes
    with torch.no_grad():
        right = (model.module(data.x).argmax(1) == data.y).float()
        loss = functional.cross_entropy(model.module(data.x), data.y, reduction="none")
    for client in (0, 7, 19_999):
        row = {"client": client, "train_samples": 1, "test_samples": 1, "test_loss": pytest.approx(float(loss[19_999 - client]))}
        assert rows[client] == row | {"test_accuracy": float(right[19_999 - client])} == list(rows)[client]
    found = spread(rows)
    assert found is not None and found["mean"] == pytest.approx(float(right.mean()))


def test_fewer_samples_than_clients_are_those_of_as_many_clients_evenly_apart() -> None:
    data = sized([2, 0, *[1] * 18])
    kept = data.thinned(5)
    assert kept.sizes.nonzero()[0].tolist() == [0, 4, 8, 12, 16] and kept.sizes.max() == 1  # of the 19 with samples every 19/5th
    for client in (0, 4, 16):
        assert torch.equal(kept.client(client)[0], data.client(client)[0][:1])


def nan_in(*clients: str) -> dict[str, Any]:
    """Ten clients; the samples of these make the model's outputs NaN, which no check of the data can see."""
    x = np.ones((20, 3))
    x[np.isin(np.repeat([*"abcdefghij"], 2), clients)] = -1.0
    return {
        "model": lambda: nn.Sequential(Root(), nn.Linear(3, 2)), "data": normec.Federation.from_arrays(x, [0, 1] * 10, np.repeat([*"abcdefghij"], 2)),
        "algorithm": normec.FedNormEC(), "local": normec.GD(steps=2), "participation": normec.Full(), "rounds": 2,
    }  # fmt: skip


class Root(nn.Module):
    """NaN for a negative number, which no check before training sees where it is a later client's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sqrt()


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (
            "i",
            "because of client 'i'. No step has been taken yet: check the data of such clients, the model's first parameters and the loss",
        ),
        ("fghij", r"because of 5 of 10 clients \('f', 'g', 'h', …\). No step has been taken yet"),
    ],
)
def test_a_loss_that_is_nan_before_training_names_the_clients_and_not_the_steps(broken: str, words: str) -> None:
    with pytest.raises(normec.TrainingFailed, match=f"round 0: the training loss is nan, {words}"):
        normec.train(privacy=normec.Privacy(trust="none"), **nan_in(*broken))
    run = normec.train(privacy=normec.Privacy(trust="central", epsilon=1.0), **nan_in(*broken))
    assert run.metrics[0]["train_loss"] is not None and run.metrics[-1]["simulation_only"]["dropped"] == len(broken)
