"""Results pooled and by client, and metrics by import path."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import normec
from normec.evaluation import spread


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


@pytest.mark.parametrize(("ids", "words"), [(["a"], "names 1 clients for 2"), (["a", "z"], "'z', which is no client")])
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
    found = read(evaluation=normec.Evaluation(metrics=names)).metrics[-1]["metrics"]
    assert found["Accuracy"] == pytest.approx(4 / 6) and 0 < found["MulticlassF1Score"] < 1
