"""Targets of every kind: which number each has, and where there is none."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import normec
from conftest import FailsAt


class Says(nn.Module):
    """Its outputs are its inputs, in a shape of one's choice; its parameter does nothing."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape, self.idle = shape, nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), *self.shape) + 0 * self.idle


def said(x: Any, y: Any, loss: Any, shape: tuple[int, ...] = (), **choices: Any) -> normec.Run:
    """One round on four clients with these outputs and targets, which are the test set too."""
    x = np.asarray(x, dtype=np.float32).reshape(len(y), -1)
    classes, ignored = choices.pop("classes", None), choices.pop("ignored", None)
    data = normec.Federation.from_arrays(
        x, y, np.arange(len(y)) % 4, test=(x, y), test_client_ids=np.arange(len(y)) % 4, classes=classes, ignored=ignored
    )
    return normec.train(
        model=lambda: Says(*shape), data=data, algorithm=normec.FedAvg(), local=normec.GD(steps=1), participation=normec.Full(),
        privacy=normec.Privacy(trust="none"), rounds=1, loss=loss, **choices,
    )  # fmt: skip


RNG = np.random.default_rng(0)
TWO = RNG.integers(0, 2, 500)
RIGHT = np.where(np.arange(500) < 494, 2 * TWO - 1, 1 - 2 * TWO)
"""A sign for each of TWO, right on 494 of 500: on 98.8%."""
LOGITS = RIGHT * RNG.uniform(0.1, 9, 500)


def bce(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(outputs.reshape(-1), targets.float())


def hinge(outputs: Tensor, targets: Tensor) -> Tensor:
    return (1 - outputs * (2 * targets - 1)).clamp(min=0).mean()


def poisson(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.poisson_nll_loss(outputs.reshape(targets.shape), targets.float())


def ranking(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of pairs: no score says of itself which class it is."""
    return functional.softplus(outputs[targets == 0][None] - outputs[targets == 1][:, None]).mean() + 0 * outputs.sum()


def prototypes(outputs: Tensor, targets: Tensor) -> Tensor:
    """Embeddings near a point of their class."""
    centres = torch.tensor([[1.0, 1.0], [2.0, 2.0]])
    return (outputs - centres[targets]).square().mean()


def ordinal(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of three ordered classes, whether the target is above the first, and above the second."""
    above = (targets[:, None] > torch.arange(2)).float()
    return functional.binary_cross_entropy_with_logits(outputs, above)


def own_weights(outputs: Tensor, targets: Tensor) -> Tensor:
    return (torch.tensor([1.0, 99.0])[targets] * functional.cross_entropy(outputs, targets, reduction="none")).mean()


@pytest.mark.parametrize(
    ("loss", "outputs", "shape", "targets"),
    [
        (bce, LOGITS, (), TWO),
        (bce, LOGITS, (1,), TWO),
        (functional.binary_cross_entropy_with_logits, LOGITS, (1,), TWO),
        (functional.binary_cross_entropy_with_logits, LOGITS, (), TWO.astype(float)),
        (nn.BCEWithLogitsLoss(pos_weight=torch.tensor(5.0)), LOGITS, (), TWO[:, None]),
        (functional.binary_cross_entropy, 1 / (1 + np.exp(-LOGITS)), (), TWO),
        (nn.SoftMarginLoss(), LOGITS, (), 2.0 * TWO - 1),
        (hinge, LOGITS, (), TWO),
        (functional.cross_entropy, np.stack([-LOGITS, LOGITS], 1), (2,), TWO),
        (functional.cross_entropy, np.stack([-LOGITS, LOGITS], 1), (2,), TWO[:, None]),
        (functional.nll_loss, np.stack([-LOGITS, LOGITS], 1), (2,), TWO),
        (functional.multi_margin_loss, np.stack([-LOGITS, LOGITS], 1), (2,), TWO),
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 99.0])), np.stack([-LOGITS, LOGITS], 1), (2,), TWO),
        (nn.CrossEntropyLoss(label_smoothing=0.2), np.stack([-LOGITS, LOGITS], 1), (2,), TWO),
        (own_weights, np.stack([-LOGITS, LOGITS], 1), (2,), TWO),
    ],
)
def test_accuracy_of_two_classes_is_what_it_is(loss: Any, outputs: Any, shape: tuple[int, ...], targets: Any) -> None:
    run = said(outputs, targets, loss, shape)
    assert run.metrics[-1]["test_accuracy"] == pytest.approx(0.988) == run.summary["test_accuracy"]
    spread = run.summary["simulation_only"]["spread"]
    assert spread["metric"] == "test_accuracy" and spread["mean"] == pytest.approx(0.988)


@pytest.mark.parametrize(
    ("loss", "outputs", "shape", "targets"),
    [
        (poisson, LOGITS, (1,), TWO),
        (functional.mse_loss, LOGITS, (), TWO),
        (functional.mse_loss, LOGITS, (1,), TWO.astype(float)),
        (ranking, LOGITS, (), TWO),
        (prototypes, np.stack([-LOGITS, LOGITS], 1), (2,), TWO),
        (ordinal, np.stack([-LOGITS, LOGITS], 1), (2,), np.arange(500) % 3),
        (functional.cross_entropy, np.stack([LOGITS] * 5, 1), (5,), TWO),
        (lambda outputs, targets: outputs.square().mean(), np.stack([-LOGITS, LOGITS], 1), (2,), TWO),
    ],
)
def test_no_accuracy_where_nothing_is_classified(loss: Any, outputs: Any, shape: tuple[int, ...], targets: Any) -> None:
    run = said(outputs, targets, loss, shape)
    assert run.metrics[-1]["test_accuracy"] is None and run.summary["test_accuracy"] is None
    assert run.summary["simulation_only"]["spread"]["metric"] == "test_loss"


def test_classes_that_the_data_do_not_show_are_classes() -> None:
    scores = np.stack([-LOGITS, LOGITS, np.full(500, -99.0)], 1)
    assert said(scores, TWO, functional.cross_entropy, (3,), classes=["a", "b", "c"]).summary["test_accuracy"] == pytest.approx(0.988)


TOKENS = np.array([[0, 1, 2], [2, 1, 0], [1, 1, -100], [0, 0, -100]])
GUESSED = np.array([[0, 1, 1], [2, 1, 0], [0, 1, 0], [0, 0, 2]])
"""Right on 8 of the 10 tokens that are classes."""
SCORES = np.eye(3)[GUESSED]


def last_axis(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.reshape(-1, 3), targets.reshape(-1))


@pytest.mark.parametrize(
    ("loss", "outputs", "shape"),
    [(functional.cross_entropy, SCORES.transpose(0, 2, 1), (3, 3)), (last_axis, SCORES, (3, 3))],
)
def test_tokens_are_counted_one_by_one_and_ignored_ones_are_not(loss: Any, outputs: Any, shape: tuple[int, ...]) -> None:
    run = said(outputs, TOKENS, loss, shape)
    assert run.summary["test_accuracy"] == pytest.approx(8 / 10)
    expected = [functional.cross_entropy(torch.tensor(s), torch.tensor(t)) for s, t in zip(SCORES, TOKENS, strict=True)]
    assert run.summary["train_loss"] == pytest.approx(float(torch.stack(expected).mean()))


def test_pixels_with_a_void_label() -> None:
    labels = np.array([[[0, 1], [255, 1]]] * 4)
    scores = np.eye(2)[np.where(labels == 0, 1, 1)].transpose(0, 3, 1, 2)
    run = said(scores, labels, nn.CrossEntropyLoss(ignore_index=255), (2, 2, 2), ignored=255)
    assert run.summary["test_accuracy"] == pytest.approx(2 / 3)
    with pytest.raises(normec.BadInput, match=r"Targets 255 are not classes.*ignore_index=255"):
        said(scores, labels, functional.cross_entropy, (2, 2, 2), ignored=255)
    with pytest.raises(normec.BadInput, match="axis 1 of 4"):
        said(scores.transpose(0, 2, 3, 1), labels * 0 + 1, functional.cross_entropy, (2, 2, 2), classes=list("abcd"))


@pytest.mark.parametrize("kind", [int, float])
def test_several_labels_of_a_sample(kind: Any) -> None:
    labels = np.array([[0, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 1]])
    logits = np.where(labels == 1, 3.0, -2.0)
    logits[0] = -logits[0]  # three of twelve are wrong
    run = said(logits, labels.astype(kind), functional.binary_cross_entropy_with_logits, (3,))
    assert run.summary["test_accuracy"] == pytest.approx(9 / 12)


def test_a_column_of_outputs_meets_its_own_targets() -> None:
    """(n, 1) − (n,) is (n, n) in torch: each target would meet every output."""
    run = said([1.0, 2, 3, 4], np.array([1.5, 2, 3, 2]), lambda outputs, targets: ((outputs - targets) ** 2).mean(), (1,))
    assert run.summary["test_loss"] == pytest.approx((0.25 + 4) / 4)
    assert run.summary["metrics"] == {"rmse": pytest.approx(np.sqrt(4.25 / 4)), "r2": pytest.approx(1 - 4.25 / 1.1875)}


def test_estimates_of_several_numbers_have_their_errors() -> None:
    y = RNG.normal(size=(40, 2)) * [1, 10] + [1000, 0]
    found = y + RNG.normal(size=(40, 2))
    run = said(found, y, functional.mse_loss, (2,), engine=normec.Engine(dtype="float64"))
    x = found.astype(np.float32)
    residual, spread = (x - y) ** 2, (y - y.mean(0)) ** 2
    assert run.summary["metrics"]["rmse"] == pytest.approx(np.sqrt(residual.mean()), rel=1e-6)
    assert run.summary["metrics"]["r2"] == pytest.approx((1 - residual.sum(0) / spread.sum(0)).mean(), rel=1e-6)


class Centred(nn.Module):
    """Batch normalization that keeps no statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(1, track_running_stats=False), nn.Linear(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x))


class Deviation(Centred):
    """The same, by hand."""

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x - x.mean(0))


@pytest.mark.parametrize("model", [Centred, Deviation])
def test_the_training_loss_is_that_of_each_client_alone(model: Callable[[], nn.Module]) -> None:
    x = np.arange(12, dtype=np.float32)[:, None] ** 2
    y, owners = np.arange(12) % 2, np.arange(12) // 4
    run = normec.train(
        model=model, data=normec.Federation.from_arrays(x, y, owners), algorithm=normec.FedAvg(), local=normec.GD(steps=1),
        participation=normec.Full(), privacy=normec.Privacy(trust="none"), rounds=1,
    )  # fmt: skip
    with torch.no_grad():
        losses = [
            functional.cross_entropy(run.model(torch.tensor(x[owners == client])), torch.tensor(y[owners == client])) for client in range(3)
        ]
    assert run.summary["train_loss"] == pytest.approx(float(torch.stack(losses).mean()), rel=1e-5)


AUROC, F1 = "torchmetrics.classification:BinaryAUROC", "torchmetrics.classification:MulticlassF1Score"


@pytest.mark.parametrize(
    ("loss", "outputs", "shape"),
    [
        (functional.binary_cross_entropy_with_logits, 40 * LOGITS, (1,)),
        (functional.cross_entropy, np.stack([-20 * LOGITS, 20 * LOGITS], 1), (2,)),
    ],
)
def test_metrics_of_two_classes_get_the_score_of_the_second(loss: Any, outputs: Any, shape: tuple[int, ...]) -> None:
    """Of logits up to 360, in single precision; the rank of positives among negatives, counted."""
    pytest.importorskip("torchmetrics", reason="torchmetrics is not installed")
    run = said(outputs, TWO, loss, shape, evaluation=normec.Evaluation(metrics=[AUROC, F1, "torchmetrics:Accuracy"]))
    score = 1 / (1 + np.exp(-40 * LOGITS))
    positive, negative = score[TWO == 1][:, None], score[TWO == 0][None]
    found = run.summary["metrics"]
    assert found["BinaryAUROC"] == pytest.approx(float(((positive > negative) + 0.5 * (positive == negative)).mean()), abs=1e-6)
    assert found["Accuracy"] == pytest.approx(0.988) and 0.98 < found["MulticlassF1Score"] < 0.99


@pytest.mark.parametrize(("metric", "words"), [(AUROC, "of two classes, and the model names 3 classes"), ("math:sqrt", "cannot be made")])
def test_metrics_that_do_not_suit(metric: str, words: str) -> None:
    pytest.importorskip("torchmetrics", reason="torchmetrics is not installed")
    with pytest.raises(normec.BadInput, match=words):
        said(np.eye(3), [0, 1, 2], functional.cross_entropy, (3,), evaluation=normec.Evaluation(metrics=[metric]))


def test_metrics_of_tokens_and_of_several_labels() -> None:
    pytest.importorskip("torchmetrics", reason="torchmetrics is not installed")
    micro = {"name": F1, "arguments": {"average": "micro"}}
    run = said(SCORES, TOKENS, last_axis, (3, 3), evaluation=normec.Evaluation(metrics=[micro]))
    assert run.summary["metrics"] == {"MulticlassF1Score(average=micro)": pytest.approx(0.8)}
    labels = np.array([[0, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 1]])
    logits = np.where(labels == 1, 3.0, -2.0) * np.array([[-1], [1], [1], [1]])
    chosen = normec.Evaluation(metrics=["torchmetrics.classification:MultilabelAccuracy", "torchmetrics:Accuracy"])
    found = said(logits, labels, functional.binary_cross_entropy_with_logits, (3,), evaluation=chosen).summary["metrics"]
    assert found == {"MultilabelAccuracy": pytest.approx(0.75), "Accuracy": pytest.approx(0.75)}


def test_class_weights_weigh_the_loss_and_are_said_to_be_constants(command: Any, tmp_path: Any) -> None:
    """The logistic model starts at zero, where each class has the loss log 2: the first gradient is that of torch's weighted mean."""
    x, y = RNG.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 4 // 3
    np.savez(tmp_path / "t.npz", x=x, y=y)
    arguments = ("train", f"data.source={tmp_path / 't.npz'}", "data.clients=1", "data.test_fraction=0", "rounds=1", "local.steps=1")
    weights = "model.class_weights=[1, 3]"
    plain = ("algorithm.name=fedavg", "local.lr=1", "participation.scheme=full", "privacy.trust=none")
    assert command(*arguments, weights, *plain, "--out", "run").code == 0
    linear = nn.Linear(3, 2)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    functional.cross_entropy(linear(torch.tensor(x)), torch.tensor(y), weight=torch.tensor([1.0, 3.0])).backward()
    trained = normec.load_model("run").state_dict()
    assert torch.allclose(trained["1.weight"], -linear.weight.grad, atol=1e-6)
    changed = command("train", "run/run.toml", "model.class_weights=[1, 4]", "--out", "run", "--resume")
    assert changed.code == 2 and "holds another run (model.fingerprint" in changed.err
    assert "taken for public constants" in " ".join(command(*arguments, weights).out.split())
    refused = {
        "are 3 for 2 classes": ("model.class_weights=[1, 3, 1]",),
        "a list of numbers > 0": ("model.class_weights=[1, 0]",),
        "acts only with loss": (weights, "model.loss=torch.nn.functional:nll_loss"),
    }
    for words, wrong in refused.items():
        found = command(*arguments, *wrong)
        assert found.code == 2 and words in found.err


def test_the_largest_class_stands_beside_an_accuracy(command: Any, tmp_path: Any) -> None:
    pytest.importorskip("torchmetrics", reason="torchmetrics is not installed")
    labels = (np.arange(1000) % 100 == 0).astype(int)
    np.savez(tmp_path / "rare.npz", x=np.zeros((1000, 1)), y=labels)
    metric = 'evaluation.metrics=[{name="torchmetrics.classification:MulticlassRecall", arguments={average="macro"}}]'
    shown = command("train", f"data.source={tmp_path / 'rare.npz'}", "data.test_fraction=0.5", "rounds=1", metric).out
    shown = " ".join(shown.replace("│", " ").split())
    summary = next(tmp_path.glob("runs/*/summary.json")).read_text()
    share = float(summary.split('"test_largest_class": ')[1].split(",")[0])
    assert f"{share:.1%} (naming the largest class alone: {share:.1%})" in shown and share > 0.98
    assert "test MulticlassRecall(average=macro) 0.5 " in shown


def test_the_largest_class_is_counted() -> None:
    assert said(SCORES, TOKENS, last_axis, (3, 3)).summary["test_largest_class"] == pytest.approx(0.4)  # four of ten
    assert said([1.0, 2], np.array([1.0, 2]), functional.mse_loss).summary["test_largest_class"] is None


def table_of(tmp_path: Any, rows: int = 120) -> Any:
    """A CSV: a label with decimals, one of whole numbers from 18, a mark, and two that are 3 a + 2 b and time with an event."""
    x = RNG.normal(size=(rows, 2)).round(3)
    dose = 3 * x[:, 0] + 2 * x[:, 1]
    age = 18 + np.arange(rows) % 60
    lines = [f"{a},{b},{d:.4f},{n},{int(d > 0)},{i % 2}" for i, (a, b, d, n) in enumerate(zip(*x.T, dose, age, strict=True))]
    path = tmp_path / "t.csv"
    path.write_text("a,b,dose,age,sick,event\n" + "\n".join(lines) + "\n")
    return path


GIVEN = ("rounds=40", "data.clients=4", "algorithm.name=fedavg", "participation.scheme=full", "privacy.trust=none", "local.steps=5")
MSE = "model.loss=torch.nn.functional:mse_loss"


def test_a_regression_from_the_command_line(command: Any, tmp_path: Any) -> None:
    drop = 'data.drop_columns=["age", "sick", "event"]'
    source = ("train", f"data.source={table_of(tmp_path)}", "data.label_column=dose", drop)
    refused = command(*source, *GIVEN)
    assert refused.code == 2 and "holds numbers such as" in refused.err and MSE in refused.err and "whole numbers" not in refused.err
    done = command(*source, *GIVEN, MSE, "--out", "run")
    assert done.code == 0 and "test r2" in done.out and "test rmse" in done.out
    state = normec.load_model("run").state_dict()
    assert state["1.weight"].numpy() == pytest.approx(np.array([[3, 2]]), abs=0.05)
    assert "whole" not in done.out


def test_whole_numbers_are_numbers_where_the_loss_predicts_numbers(command: Any, tmp_path: Any) -> None:
    drop = 'data.drop_columns=["dose", "sick", "event"]'
    done = command("train", f"data.source={table_of(tmp_path)}", "data.label_column=age", drop, *GIVEN, MSE, "rounds=1", "--out", "run")
    assert done.code == 0, done.err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["test_accuracy"] is None and summary["classes"] is None and summary["metrics"]["rmse"] > 1


def test_two_classes_by_one_score_from_the_command_line(command: Any, tmp_path: Any) -> None:
    drop, loss = 'data.drop_columns=["dose", "age", "event"]', "model.loss=torch.nn.functional:binary_cross_entropy_with_logits"
    source = ("train", f"data.source={table_of(tmp_path)}", "data.label_column=sick", drop, *GIVEN, loss)
    assert command(*source, "--out", "run").code == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["test_accuracy"] > 0.9 and summary["settings"]["model"]["parameters"] == 3
    refused = command("train", "data.source=digits", loss, "rounds=1")
    assert refused.code == 2 and "10 classes, and the loss tells two apart" in refused.err


def cox(outputs: Tensor, targets: Tensor) -> Tensor:
    """Breslow's negative partial likelihood of (time, event)."""
    order = targets[:, 0].argsort(descending=True)
    risk, event = outputs[order, 0], targets[order, 1]
    return -((risk - risk.logcumsumexp(0)) * event).sum() / event.sum().clamp(min=1)


class Survivors:
    """The mean risk of those with an event: an own metric, which is given outputs and targets as they are."""

    higher_is_better = True

    def reset(self) -> None:
        self.risks: list[Tensor] = []

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        assert outputs.shape[1:] == targets.shape[1:] == (2,)
        self.risks.append(outputs[targets[:, 1] == 1, 0])

    def compute(self) -> Tensor:
        return torch.cat(self.risks).mean()


def test_survival_has_two_label_columns_and_its_own_metric(command: Any, tmp_path: Any) -> None:
    source = ("train", f"data.source={table_of(tmp_path)}", 'data.label_column=["age", "event"]', *GIVEN, "model.loss=test_targets:cox")
    done = command(*source, 'evaluation.metrics=["test_targets:Survivors"]', "evaluation.best=Survivors", "--out", "run")
    assert done.code == 0, done.err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["test_accuracy"] is None and list(summary["metrics"]) == ["Survivors"]


def test_several_label_columns_are_labels_of_their_own(command: Any, tmp_path: Any) -> None:
    loss = "model.loss=torch.nn.functional:binary_cross_entropy_with_logits"
    source = f"data.source={table_of(tmp_path)}"
    done = command("train", source, 'data.label_column=["sick", "event"]', 'data.drop_columns=["dose"]', *GIVEN, loss, "--out", "run")
    assert done.code == 0 and json.loads((tmp_path / "run" / "summary.json").read_text())["test_accuracy"] > 0.4
    assert command("train", source, 'data.label_column=["sick", "sick"]').code == 2


def test_numbers_are_not_dealt_by_class(command: Any, tmp_path: Any) -> None:
    found = command("train", f"data.source={table_of(tmp_path)}", "data.label_column=dose", MSE, *GIVEN, "data.partition=dirichlet")
    assert found.code == 2 and "deals by class, and the targets are numbers" in found.err


def wavering(tmp_path: Any, stop: int | None = None, **choices: Any) -> normec.Run:
    """A model whose test loss falls and rises again: the step is too long for the last rounds, which momentum adds to."""
    x = np.linspace(-1, 1, 40, dtype=np.float32)[:, None]
    data = normec.Federation.from_arrays(x, 2 * x[:, 0], np.arange(40) % 4, test=(x, 2 * x[:, 0]))
    defaults: dict[str, Any] = {"evaluation": normec.Evaluation(best="rmse"), "privacy": normec.Privacy(trust="none")}
    defaults |= {"algorithm": normec.FedAvg()}
    return normec.train(
        model=lambda: nn.Linear(1, 1, bias=False), data=data, local=normec.GD(steps=1, lr=0.5),
        participation=normec.Full(), rounds=9, loss=functional.mse_loss, server=normec.ServerMomentum(momentum=0.9), out=tmp_path,
        observer=None if stop is None else FailsAt(stop), engine=normec.Engine(checkpoint_every=2), **(defaults | choices),
    )  # fmt: skip


def test_the_best_model_is_kept_beside_the_last_and_a_resume_keeps_it(tmp_path: Any) -> None:
    run = wavering(tmp_path / "whole")
    errors = [row["metrics"]["rmse"] for row in run.metrics]
    best = int(np.argmin(errors))
    assert 0 < best < 9 and run.summary["best"] == {
        "by": "rmse", "round": best, "value": errors[best], "file": "best.safetensors", "note": None
    }  # fmt: skip

    def made() -> nn.Module:
        return nn.Linear(1, 1, bias=False)

    weight = float(normec.load_model(tmp_path / "whole", made, best=True).weight.detach())
    assert abs(weight - 2) * np.sqrt((np.linspace(-1, 1, 40) ** 2).mean()) == pytest.approx(errors[best], rel=1e-4)
    assert weight != float(normec.load_model(tmp_path / "whole", made).weight.detach())
    with pytest.raises(OSError, match="stopped"):
        wavering(tmp_path / "part", stop=best + 3)
    resumed = wavering(tmp_path / "part", resume=True)
    assert resumed.summary["best"] == run.summary["best"]
    assert (tmp_path / "part" / "best.safetensors").read_bytes() == (tmp_path / "whole" / "best.safetensors").read_bytes()


def test_what_the_best_model_costs_is_said(tmp_path: Any) -> None:
    found = wavering(tmp_path / "a", algorithm=normec.DPFedAvgClip(), privacy=normec.Privacy(epsilon=8, trust="central"))
    assert "unless it is public, no ε covers" in found.summary["best"]["note"]
    with pytest.raises(normec.BadInput, match=r"holds no best\.safetensors"):
        normec.load_model(wavering(tmp_path / "b", evaluation=normec.Evaluation()).folder, best=True)


@pytest.mark.parametrize(
    ("evaluation", "words"),
    [
        ({"best": "test_acuracy"}, "not a number of this run"),
        ({"best": "test_accuracy"}, "not a number of this run"),
        ({"best_is": "largest"}, "acts only with best"),
        ({"best": "best", "best_is": "most"}, "best_is"),
    ],
)
def test_a_best_that_cannot_be_told(evaluation: dict[str, Any], words: str) -> None:
    with pytest.raises(normec.BadInput, match=words):
        wavering(None, evaluation=normec.Evaluation(**evaluation))


class Samples:
    """A metric that counts the samples that it has seen."""

    def __init__(self, scale: float) -> None:
        self.scale, self.seen = scale, 0

    def reset(self) -> None:
        self.seen = 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.seen += len(targets)

    def compute(self) -> float:
        return self.scale * self.seen


halves = Samples(0.5)
smoothed = nn.CrossEntropyLoss(label_smoothing=0.1)
each_alone = functools.partial(functional.cross_entropy, reduction="none")


def test_objects_as_loss_and_metric(command: Callable[..., Any]) -> None:
    digits = ("train", "data.clients=10", "rounds=1", "privacy.trust=none")
    done = command(*digits, "model.loss=test_targets:smoothed", 'evaluation.metrics=["test_targets:halves"]', "--out", "run")
    assert done.code == 0 and re.search(r"test halves +│ 179.5 ", done.out), done.err
    told = command(*digits, "model.loss=test_targets:each_alone", "--out", "other")
    assert told.code == 2 and "the loss returns (8,) numbers; return their mean" in told.err
    told = command(*digits, "model.loss=torch.nn:MSELoss", "--out", "other")
    assert told.code == 2 and "is a class. Name a function of outputs and targets, or an object: write loss = MSELoss()" in told.err


def test_a_regression_shows_no_row_of_accuracy(command: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,dose\n" + "".join(f"{i},{i / 2}\n" for i in range(20)))
    done = command("train", f"data.source={tmp_path}/t.csv", "data.label_column=dose", "data.clients=2", "rounds=1", "privacy.trust=none",
                   "model.loss=torch.nn.functional:mse_loss", "local.lr=1e-4", "--out", "run")  # fmt: skip
    assert done.code == 0 and "test rmse" in done.out and "accuracy" not in done.out, done.err
