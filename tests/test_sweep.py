"""Grids of runs: which runs there are, what a kill costs, and that one failure leaves the others alone."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import normec
from conftest import Outcome
from normec.studies.grid import expand
from normec.studies.sweep import Sweep

Command = Callable[..., Outcome]

SMALL = """
rounds = 4
[data]
clients = 10
[privacy]
trust = "none"
"""


def test_lists_become_every_combination_with_names_that_tell_them_apart() -> None:
    runs = expand({"seed": [1, 2], "algorithm": {"beta": [0.1, 0.01]}, "local": {"lr": 0.5}})
    assert list(runs) == ["seed=1_beta=0.1", "seed=1_beta=0.01", "seed=2_beta=0.1", "seed=2_beta=0.01"]
    assert runs["seed=2_beta=0.1"] == ({"seed": 2, "algorithm": {"beta": 0.1}, "local": {"lr": 0.5}}, {"seed": 2, "algorithm.beta": 0.1})


def test_cases_change_settings_together_and_win_over_lists() -> None:
    tree = {
        "seed": [1, 2], "local": {"lr": [1.0, 2.0]},
        "case": [{"algorithm": {"beta": 0.1}, "local": {"lr": 5.0}}, {"algorithm": {"name": "fedavg", "server_lr": [1.0, 3.0]}}],
    }  # fmt: skip
    runs = expand(tree)
    assert len(runs) == 2 + 2 * 2 * 2
    assert {run.tree["local"]["lr"] for run in runs.values() if "beta" in run.tree["algorithm"]} == {5.0}


def test_a_case_takes_back_what_contradicts_it() -> None:
    runs = expand({"privacy": {"epsilon": 8.0}, "case": [{"privacy": {"trust": "none"}}, {"privacy": {"trust": "local"}}]})
    assert [run.tree["privacy"] for run in runs.values()] == [{"trust": "none"}, {"epsilon": 8.0, "trust": "local"}]


def test_metrics_are_a_list_of_their_own() -> None:
    assert list(expand({"evaluation": {"metrics": ["a:B", "c:D"]}})) == ["run"]
    assert len(expand({"evaluation": {"metrics": [["a:B"], []]}})) == 2


def test_names_that_are_no_folder_s_get_a_hash() -> None:
    runs = expand({"data": {"source": ["a/b.csv", "a-b.csv", "x" * 300 + ".csv"]}})
    assert len({name.lower() for name in runs}) == 3 and all("/" not in name and len(name) < 120 for name in runs)


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"algorithm": {"beta": []}}, r"algorithm\.beta=\[\] holds no value to try"),
        ({"algorithm": {"bta": [0.1]}}, r"algorithm\.bta.*Did you mean beta.*in the run bta=0\.1"),
        ({"seed": [1, 1]}, "two runs that are one: seed=1 and seed=1"),
        ({"rounds": [1, "many"]}, "rounds='many'.*in the run rounds=many"),
        ({"case": 3}, "case=3 must be tables"),
        ({"case": []}, "case=.. must be tables"),
        ({"sweep": {"goal": 0.5}}, r"sweep\.goal.*Known: target"),
        ({"sweep": 1}, "sweep=1 must be a section"),
        ({"sweep": {"target": 1.5}}, r"sweep\.target=1\.5"),
        ({"local": [{"lr": 1.0}]}, "local is a list of sections"),
        ({"local": {"lr": [1, 1.0]}}, "two runs that are one: lr=1.0 and lr=1"),
        ({"local.lr": [1.0, 2.0]}, "'local.lr' is one key with a dot"),
        ({"sweep": {"target": 1}}, r"must be a number in \[0, 1\)"),
    ],
)
def test_what_is_no_sweep_is_refused_before_anything_runs(tree: dict[str, Any], words: str) -> None:
    with pytest.raises(normec.BadInput, match=words):
        Sweep.of(tree)


def test_a_sweep_trains_what_train_does_and_goes_on_where_it_stopped(tmp_path: Path, command: Command) -> None:
    file, out = tmp_path / "s.toml", tmp_path / "out"
    file.write_text(SMALL + "[algorithm]\nbeta = [0.1, 1.0]\n[sweep]\ntarget = 0.3\n")
    done = command("sweep", str(file), "--out", str(out), "--workers", "2")
    assert done.code == 0, done.err
    rows = json.loads((out / "results.json").read_text())
    assert [(row["run"], row["status"], row["rounds"]) for row in rows] == [("beta=0.1", "done", 4), ("beta=1.0", "done", 4)]
    alone = command("train", str(out / "beta=1.0" / "run.toml"), "--out", str(tmp_path / "alone"))
    assert alone.code == 0, alone.err
    metrics = [json.loads(line) for line in (tmp_path / "alone" / "metrics.jsonl").read_text().splitlines()]
    accuracies = [row["test_accuracy"] for row in metrics]
    assert (rows[1]["best_accuracy"], rows[1]["last_accuracy"]) == (max(accuracies), accuracies[-1])
    first = next(row for row in metrics if row["test_accuracy"] >= 0.3)
    assert (rows[1]["rounds_to_target"], rows[1]["transmissions_to_target"]) == (first["round"], first["transmissions"])
    with (out / "results.csv").open() as text:
        assert [row["algorithm.beta"] for row in csv.DictReader(text)] == ["0.1", "1.0"]

    before = (out / "beta=0.1" / "metrics.jsonl").stat().st_mtime_ns
    again = command("sweep", str(file), "algorithm.beta=[0.1,1.0,2.0]", "--out", str(out), "--json")
    assert again.code == 0 and [row["status"] for row in json.loads(again.out)] == ["done"] * 3
    assert (out / "beta=0.1" / "metrics.jsonl").stat().st_mtime_ns == before

    other = command("sweep", str(file), "local.lr=0.3", "--out", str(out))
    assert other.code == 2 and "run of other settings or data (local.lr=" in other.err and other.err.count("\n") == 1


def test_one_failure_leaves_the_others_alone(tmp_path: Path, command: Command) -> None:
    file = tmp_path / "s.toml"
    file.write_text(SMALL + '[model]\nname = ["logistic", "mlp"]\n[[case]]\nlocal.lr = 1e20\n[[case]]\nlocal.lr = 0.5\n')
    done = command("sweep", str(file), "--out", str(tmp_path / "out"), "algorithm.name=fedavg", "rounds=6")
    rows = {row["run"]: row for row in json.loads((tmp_path / "out" / "results.json").read_text())}
    assert done.code == 1 and "runs failed, for the reasons above" in done.err
    assert rows["lr=0.5_name=mlp"]["status"] == "done" == rows["lr=0.5_name=logistic"]["status"]
    assert rows["lr=1e+20_name=mlp"]["status"] == "failed" and "not finite" in rows["lr=1e+20_name=mlp"]["problem"]


def test_a_killed_sweep_loses_only_the_runs_in_flight(tmp_path: Path, command: Command) -> None:
    """Killed with its runs, resumed, it gives what an undisturbed one gives."""
    file, out = tmp_path / "s.toml", tmp_path / "out"
    file.write_text(SMALL + "[engine]\ncheckpoint_every = 1\n[algorithm]\nbeta = [0.1, 1.0]\n")
    arguments = [str(file), "rounds=300", "--workers", "1", "--out"]
    process = subprocess.Popen([sys.executable, "-m", "normec", "sweep", *arguments, str(out)], stderr=subprocess.DEVNULL)
    second = out / "beta=1.0" / "metrics.jsonl"
    while not second.exists() or second.read_text().count("\n") < 10:
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    for _ in range(500):  # its run ends with it
        before = second.stat().st_size
        time.sleep(0.1)
        if second.stat().st_size == before:
            break
    assert 10 <= second.read_text().count("\n") < 301, "the run went on after the sweep was killed"
    first = (out / "beta=0.1" / "model.safetensors").stat().st_mtime_ns
    assert command("sweep", *arguments, str(out)).code == 0 and command("sweep", *arguments, str(tmp_path / "whole")).code == 0
    assert (out / "beta=0.1" / "model.safetensors").stat().st_mtime_ns == first
    for name in ("beta=0.1", "beta=1.0"):
        assert (out / name / "model.safetensors").read_bytes() == (tmp_path / "whole" / name / "model.safetensors").read_bytes()


def test_folders_that_are_no_sweep_s(tmp_path: Path, command: Command) -> None:
    file = tmp_path / "s.toml"
    file.write_text(SMALL)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    for out, words in (("other", "holds something else than a sweep"), ("s.toml", "cannot be made")):
        done = command("sweep", str(file), "--out", str(tmp_path / out))
        assert done.code == 2 and words in done.err, done.err
    done = command("sweep", "rounds=3")
    assert done.code == 2 and "SWEEP.toml is missing" in done.err


def test_keys_of_one_name_are_told_apart() -> None:
    base = {"privacy": {"trust": "none"}, "algorithm": {"name": "clip21-sgd2m"}, "server": {"optimizer": "momentum"}}
    runs = expand({**base, "case": [{"algorithm": {"momentum": 0.5}}, {"server": {"momentum": 0.5}}]})
    assert list(runs) == ["algorithm.momentum=0.5", "server.momentum=0.5"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ('[model]\nname = ["logistic", "cnnn"]\n', "model.name='cnnn' is not known.*in the run name=cnnn"),
        ('[model]\nloss = ["cross-entropy", "math:nothing"]\n', "math has no callable nothing.*in the run loss=math-nothing"),
        ('[[case]]\ndata.source = "digits"\n[[case]]\ndata.source = "nowhere.csv"\n', "nowhere.csv.*is not a file.*in the run source="),
        ("[[case]]\ndata.clients = 10\n[[case]]\ndata.clients = 5000\n", "data.clients=5000 is more than"),
    ],
)
def test_what_cannot_be_had_is_refused_before_anything_runs(tmp_path: Path, command: Command, changes: str, words: str) -> None:
    file = tmp_path / "s.toml"
    file.write_text(SMALL + changes)
    done = command("sweep", str(file), "--out", str(tmp_path / "out"), "--trust-code")
    assert done.code == 2 and re.search(words, done.err) and done.err.count("\n") == 1, done.err
    assert not list((tmp_path / "out").glob("*/metrics.jsonl"))


def test_kills_while_files_are_first_written(tmp_path: Path, command: Command) -> None:
    """Between run.toml and metrics.jsonl, and before sweep.toml is there."""
    file, out = tmp_path / "s.toml", tmp_path / "out"
    file.write_text(SMALL + "[algorithm]\nbeta = [0.1, 1.0]\n")
    out.mkdir()
    (out / ".sweep.toml.part").write_text("half")
    assert command("sweep", str(file), "--out", str(out)).code == 0
    for name in ("metrics.jsonl", "summary.json", "clients.json", "model.safetensors", "checkpoint/state.safetensors"):
        (out / "beta=0.1" / name).unlink()
    done = command("sweep", str(file), "--out", str(out))
    assert done.code == 0, done.err
    assert [row["status"] for row in json.loads((out / "results.json").read_text())] == ["done", "done"]


def test_other_data_and_other_sweeps_are_not_taken_for_this_one(tmp_path: Path, command: Command) -> None:
    file, table, out = tmp_path / "s.toml", tmp_path / "t.csv", tmp_path / "out"
    table.write_text("a,label\n" + "".join(f"{i % 7},{i % 2}\n" for i in range(60)))
    file.write_text(SMALL.replace("[data]", f'[data]\nsource = "{table}"') + "[algorithm]\nbeta = [0.1, 1.0]\n")
    assert command("sweep", str(file), "--out", str(out)).code == 0
    before = (out / "results.json").read_text()
    other = command("sweep", str(file), "algorithm.beta=[5.0]", "--out", str(out))
    assert other.code == 2 and "holds another sweep, of beta=0.1" in other.err
    table.write_text(table.read_text() + "3,1\n")
    done = command("sweep", str(file), "--out", str(out))
    assert done.code == 2 and "other settings or data (data.fingerprint=" in done.err
    assert (out / "results.json").read_text() == before
