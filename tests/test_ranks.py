"""Several processes under torchrun: the same run, resumed by any number of them, and a clear end when one dies."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import failing_ranks
import normec
from normec.engine.memory import NOWHERE, dense_rows, merged
from ranked import train
from resumed import cases, run_and_resume, without_chance

SCRIPT = Path(__file__).with_name("ranked.py")


def torchrun(ranks: int, *arguments: str, script: str = str(SCRIPT)) -> subprocess.CompletedProcess[str]:
    """Runs a script in several processes that meet on a free port of this machine.

    torchrun looks every three seconds whether one has died, so that the others can say so before it ends them.
    """
    options = ["--standalone", "--monitor-interval", "3", "--nproc-per-node", str(ranks)]
    launch = [sys.executable, "-m", "torch.distributed.run", *options, script, *arguments]
    return subprocess.run(launch, capture_output=True, text=True, check=False, timeout=240)


def vectors(folder: Path) -> dict[str, np.ndarray]:
    saved = dense_rows(load_file(folder / "checkpoint" / "state.safetensors"))
    return {name: value.numpy() for name, value in saved.items()}


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_same(one: Path, other: Path) -> None:
    first, second = vectors(one), vectors(other)
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_allclose(value, second[name], rtol=1e-10, atol=1e-12)
    for a, b in zip(rows(one), rows(other), strict=True):
        assert a["transmissions"] == b["transmissions"] and a["bytes_down"] == b["bytes_down"]
        assert a["train_loss"] == (None if b["train_loss"] is None else pytest.approx(b["train_loss"], rel=1e-10))
        for name, seen in (a["simulation_only"] or {}).items():
            assert seen == pytest.approx(b["simulation_only"][name], rel=1e-10)


@pytest.mark.parametrize(
    ("ranks", "name", "noise"), [(2, "fed-normec", "seeded"), (4, "clip21-sgd2m", "seeded"), (2, "fed-normec", "none")]
)
def test_several_ranks_give_the_run_of_one(tmp_path: Path, ranks: int, name: str, noise: str) -> None:
    train(tmp_path / "one", name, noise, resume=False)
    done = torchrun(ranks, str(tmp_path / "several"), name, noise)
    assert done.returncode == 0, done.stderr
    assert_same(tmp_path / "one", tmp_path / "several")
    summary = json.loads((tmp_path / "several" / "summary.json").read_text())
    assert summary["rounds"] == 12 and (tmp_path / "several" / "model.safetensors").exists()
    at_the_start = 1 if noise == "none" else 0  # of memories that start at the clients' first updates
    assert int((tmp_path / "several.all_reduces").read_text()) == 12 + at_the_start, "one all_reduce a round"


@pytest.mark.parametrize(("name", "noise"), [("clip21", "seeded"), ("fed-normec", "secure")])
def test_a_dead_rank_ends_the_run_which_can_go_on(tmp_path: Path, name: str, noise: str) -> None:
    """In as many processes as before, since their number decides in what order sums are rounded."""
    dead = torchrun(2, str(tmp_path / "run"), name, noise, "7")
    assert dead.returncode != 0 and "lost the others" in dead.stderr and "resume with --resume" in dead.stderr
    assert vectors(tmp_path / "run")["x"].shape == (6,)
    with pytest.raises(normec.BadInput, match=r"engine\.ranks=2 there, 1 here"):
        train(tmp_path / "run", name, noise, resume=True)
    done = torchrun(2, str(tmp_path / "run"), name, noise, "resume")
    assert done.returncode == 0, done.stderr
    if noise == "seeded":
        train(tmp_path / "one", name, noise, resume=False)
        assert_same(tmp_path / "one", tmp_path / "run")
    else:
        summary = json.loads((tmp_path / "run" / "summary.json").read_text())
        assert summary["epsilon"] <= 4.0 and summary["rounds"] == 11  # the attempt that the dead rank ended counts


@pytest.mark.parametrize("name", cases())
def test_a_run_resumes_exactly_at_every_round(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without_chance(monkeypatch)
    assert run_and_resume(tmp_path / name) == []


def test_runs_of_several_ranks_resume_exactly_at_every_round_and_follow_each_other(tmp_path: Path) -> None:
    done = torchrun(2, str(tmp_path), script=str(SCRIPT.with_name("resumed.py")))
    assert done.returncode == 0, done.stderr


def test_a_client_that_fails_on_any_rank_counts_as_zero_and_ends_a_run_without_privacy_on_all(tmp_path: Path) -> None:
    """Also where the caller has a group of its own, and keeps the error."""
    done = torchrun(2, str(tmp_path), script=str(SCRIPT.with_name("failing_ranks.py")))
    assert done.returncode == 0, done.stderr
    for broken in (4, 5):
        expected = failing_ranks.train(broken, "central").metrics
        for group in ("none", "own"):
            found = rows(tmp_path / f"{group}-{broken}")
            assert [row["simulation_only"]["dropped"] for row in found[1:]] == [1, 1, 1]
            assert found[-1]["train_loss"] == pytest.approx(expected[-1]["train_loss"], rel=1e-6)


def test_the_command_runs_under_torchrun(tmp_path: Path) -> None:
    main = Path(__file__).parent.parent / "src" / "normec" / "__main__.py"
    done = torchrun(2, "train", "rounds=3", "--out", str(tmp_path / "run"), script=str(main))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Result") == 1 and done.stdout.count("differential privacy under") == 1
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 3


def test_states_of_ranks_as_one() -> None:
    place = torch.tensor([0, NOWHERE, 1, NOWHERE]), torch.tensor([NOWHERE, 0, NOWHERE, NOWHERE])
    rows = torch.tensor([[1.0], [3.0]]), torch.tensor([[2.0]])
    both = merged([{"place": p, "memory.v": r} for p, r in zip(place, rows, strict=True)])
    assert both["place"].tolist() == [0, 2, 1, NOWHERE] and both["memory.v"][both["place"][:3]].flatten().tolist() == [1.0, 2.0, 3.0]
    assert merged([{}, {}]) == {}
