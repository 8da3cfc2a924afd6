"""The examples run as they stand, and do what they say."""

from __future__ import annotations

import os
import re
import runpy
import sys
from pathlib import Path

import pytest

import normec
from normec.config import resolve
from normec.runs.experiment import Experiment

EXAMPLES = Path(__file__).parent.parent / "examples"


def printed(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def test_quickstart_learns_under_its_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    out = printed("quickstart.py", capsys, monkeypatch)
    assert out.startswith("Client-level (ε = 4.000, δ = 1e-05)")
    accuracy = re.search(r"test accuracy ([\d.]+)%", out)
    assert accuracy is not None and float(accuracy[1]) > 75
    assert normec.load_model(tmp_path / "runs" / "quickstart").training is False


def test_own_model_trains_its_head_alone(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    out = printed("own_model.py", capsys, monkeypatch)
    errors = re.search(r"test error ([\d.]+), predicting the mean ([\d.]+)", out)
    assert errors is not None and float(errors[1]) < 0.8 * float(errors[2])
    assert "trained: 65 of 321 numbers" in out and "'clients': 200" in out


def test_a_trained_model_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    run = normec.train(**vars_of(resolve(None, ["rounds=40", "privacy.trust=none"]).experiment()), out="runs/a")
    share = re.search(r"([\d.]+)% of all digits", printed("use_model.py", capsys, monkeypatch, "runs/a"))
    assert share is not None and run.metrics[-1]["test_accuracy"] > 0.85 and float(share[1]) > 85


def vars_of(experiment: Experiment) -> dict[str, object]:
    """An experiment as the arguments of `normec.train`."""
    given = dict(vars(experiment))
    schedule = given.pop("schedule")
    return given | {"rounds": schedule.rounds, "seed": schedule.seed}


def test_the_play_is_learned_a_little_by_its_speakers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES.parent)
    changes = ["rounds=4", "local.steps=5", "participation.rate=0.3", "engine.eval_every=4"]
    run = normec.train(**vars_of(resolve(EXAMPLES / "text.toml", changes).experiment()))
    assert run.summary["settings"]["data"]["clients"] == 38
    assert run.metrics[-1]["test_loss"] < 0.85 * run.metrics[0]["test_loss"]
    spread = run.summary["simulation_only"]["spread"]
    assert spread["metric"] == "test_accuracy" and spread["clients"] == 38
    assert spread["worst_decile"] <= spread["median"] <= spread["best"]


@pytest.mark.skipif("NORMEC_CIFAR10" not in os.environ, reason="NORMEC_CIFAR10 does not name the folder of CIFAR-10")
def test_cifar_10_by_its_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMEC_CACHE", str(tmp_path))
    changes = [
        f"data.path={os.environ['NORMEC_CIFAR10']}",
        "data.clients=1000",
        "rounds=3",
        "participation.rate=0.02",
        "engine.eval_every=3",
    ]
    run = normec.train(**vars_of(resolve(EXAMPLES / "cifar10.toml", changes).experiment()))
    assert run.metrics[-1]["test_loss"] < run.metrics[0]["test_loss"]
