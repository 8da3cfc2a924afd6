"""An exported model computes what the torch model computes, or is refused in one sentence."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import normec
from conftest import Outcome
from normec.data.alphabet import CLASSES
from normec.models.zoo import MODELS

Command = Callable[..., Outcome]
N = 24
INSTALLED = all(map(importlib.util.find_spec, ("onnx", "onnxscript")))
needs_onnx = pytest.mark.skipif(not INSTALLED, reason="needs the extra onnx")


class Wary(nn.Module):
    """Three outputs; what it computes depends on the samples, or asks for their number by `len`."""

    def __init__(self, branches: bool) -> None:
        super().__init__()
        self.linear, self.branches = nn.Linear(6, 3), branches

    def forward(self, x: Tensor) -> Tensor:
        if self.branches and float(x.sum()) > 0:
            return self.linear(-x)
        return self.linear(x.reshape(len(x), 6))


def lengthwise() -> nn.Module:
    return Wary(branches=False)


def branching() -> nn.Module:
    return Wary(branches=True)


def trained(model: Any, shape: tuple[int, ...], folder: Path, lr: float = 0.05, **more: Any) -> None:
    """A run of two rounds; of text for charlm, of numbers otherwise."""
    random = np.random.default_rng(0)
    if model is MODELS["charlm"]:
        x, y, classes = random.integers(0, len(CLASSES), (N, *shape)), np.arange(N), CLASSES
    else:
        x, y, classes = random.normal(size=(N, *shape)).astype(np.float32), np.arange(N) % 3, ("cat", "dog", "Ωmega")
    normec.train(
        model=model, data=normec.Federation.from_arrays(x, y, np.arange(N) % 2, classes=classes), algorithm=normec.FedAvg(),
        local=normec.GD(lr=lr), participation=normec.Full(), privacy=normec.Privacy(trust="none"), rounds=2, out=folder, **more,
    )  # fmt: skip


def evaluated(file: Path, x: np.ndarray) -> np.ndarray:
    """The outputs by onnx's own reference implementation."""
    from onnx.reference import ReferenceEvaluator

    (outputs,) = ReferenceEvaluator(str(file)).run(["outputs"], {"x": x})
    return np.asarray(outputs)


@needs_onnx
@pytest.mark.parametrize(
    ("name", "shape"), [("logistic", (6,)), ("mlp", (2, 3)), ("cnn", (3, 8, 8)), ("resnet20", (1, 8, 8)), ("charlm", (3,))]
)
def test_the_exported_model_is_the_trained_one_for_any_number_of_samples(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    import onnx

    trained(MODELS[name], shape, tmp_path / "run")
    file = normec.export_onnx(tmp_path / "run", tmp_path / "model.onnx")
    module = normec.load_model(tmp_path / "run")
    random = np.random.default_rng(1)
    for n in (1, 5):
        text = name == "charlm"
        x = random.integers(0, len(CLASSES), (n, *shape)) if text else random.normal(size=(n, *shape)).astype(np.float32)
        expected = module(torch.from_numpy(x)).detach().numpy()
        np.testing.assert_allclose(evaluated(file, x), expected, rtol=1e-4, atol=1e-5)
    (metadata,) = [each.value for each in onnx.load(file).metadata_props if each.key == "classes"]
    assert json.loads(metadata) == (list(CLASSES) if name == "charlm" else ["cat", "dog", "Ωmega"])


@needs_onnx
def test_the_best_model_and_a_model_of_ones_own_are_exported(command: Command) -> None:
    trained(lengthwise, (6,), Path("run"), lr=50.0, evaluation=normec.Evaluation(best="train_loss"), engine=normec.Engine(dtype="float64"))
    x, outputs = np.random.default_rng(2).normal(size=(7, 6)), []
    for best in (False, True):
        done = command("export", "run", "model.onnx", "--model", f"{__name__}:lengthwise", *["--best"] * best)
        assert (done.code, done.out) == (0, "written: model.onnx\n")
        outputs.append(normec.load_model("run", lengthwise, best=best)(torch.from_numpy(x)).detach().numpy())
        np.testing.assert_allclose(evaluated(Path("model.onnx"), x), outputs[-1], rtol=1e-10)
    assert np.abs(outputs[0] - outputs[1]).min() > 0.01  # steps of this length make the last model the worse one


@needs_onnx
def test_what_the_exporter_cannot_express_is_one_sentence(command: Command) -> None:
    trained(branching, (6,), Path("run"))
    done = command("export", "run", "model.onnx", "--model", f"{__name__}:branching")
    assert done.code == 2 and not Path("model.onnx").exists() and "Traceback" not in done.err
    assert "normec: model: torch's exporter cannot express Wary of run (" in done.err and "data-dependent" in done.err
    assert done.err.count("\n") <= 2 and done.out == ""


@pytest.mark.parametrize(
    ("file", "said"),
    [("model.pt", "file='model.pt' must end in .onnx."), ("no/model.onnx", "no is not a folder. Make it, or name another.")],
)
def test_a_file_that_cannot_be_written_is_refused_first(command: Command, file: str, said: str) -> None:
    done = command("export", "run", file)
    assert done.code == 2 and said in done.err


def test_the_missing_extra_is_named(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = command("export", "run", "model.onnx")
    assert done.code == 2 and "Install them with pip install 'normec[onnx]'." in done.err
