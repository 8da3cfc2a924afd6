"""Comparisons: the same data, cohorts and ε for all, the same number of tries for each, and nothing hidden."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from conftest import Outcome
from normec.algorithms import REGISTRY
from normec.compare import Comparison, grid
from normec.experiment import prepare
from normec.training import execute

Command = Callable[..., Outcome]
SMALL = ("rounds=4", "data.clients=20")


def test_all_share_cohorts_and_epsilon(command: Command) -> None:
    done = command("compare", *SMALL, "--algorithms", "fed-normec, dp-fedavg-clip,dp-sgd", "--seeds", "2", "--json")
    assert done.code == 0, done.err
    rows = json.loads(done.out)
    assert [row["algorithm"] for row in rows] == ["fed-normec", "dp-fedavg-clip", "dp-sgd"]
    assert {row["epsilon"] for row in rows} == {rows[0]["epsilon"]} and 7.99 < rows[0]["epsilon"] <= 8
    assert {row["transmissions"] for row in rows} == {rows[0]["transmissions"]} and rows[0]["transmissions"] > 0
    assert [row["local"]["steps"] for row in rows] == [5, 5, 1]
    assert all(row["bytes_up"] == 4 * 650 * row["transmissions"] for row in rows)
    assert rows[0]["bytes_down"] == 4 * 650 * 20 * 4 > rows[1]["bytes_down"] == rows[1]["bytes_up"]
    comparison = Comparison({"rounds": 4, "data": {"clients": 20}}, ("dp-fedavg-clip",))
    runs = [execute(prepare(comparison.config("dp-fedavg-clip", {}, seed).experiment())) for seed in (42, 43)]
    accuracies = [run.summary["test_accuracy"] for run in runs]
    assert rows[1]["test_accuracy"] == pytest.approx(statistics.fmean(accuracies))
    assert rows[1]["test_accuracy_se"] == pytest.approx(abs(accuracies[0] - accuracies[1]) / 2)
    assert rows[1]["curves"] == [[row["test_accuracy"] for row in run.metrics] for run in runs]


def test_the_table_says_how_it_came_about(command: Command) -> None:
    done = command("compare", *SMALL, "--algorithms", "clip21,dp-sgd", "--seeds", "2", "--tune", "--tries", "4", "--out", "c")
    assert done.code == 0, done.err
    for text in (
        "over 2 seeds, 4 rounds",
        "tuned: 4 configurations each, on another seed",
        "not accounted",
        "δ = 1e-05",
        "dp-sgd: one gradient a round",
    ):
        assert text in done.out
    rows = json.loads(Path("c/comparison.json").read_text())
    for row in rows:
        points = grid(REGISTRY[row["algorithm"]], 4)
        assert len(points) == row["tries"] == 4
        assert {name: row["settings"][name] for name in points[0]} in points
    assert "comparing 0/12" in done.err
    assert command("compare", *SMALL, "--algorithms", "clip21", "--out", "c").code == 2


def test_tuning_takes_the_best_of_the_grid_on_another_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    from normec import compare as module

    seen: list[tuple[int, float, float]] = []

    def outcome(config: module.RunConfig, curve: bool) -> dict[str, object]:
        settings = config.algorithm.table()
        seen.append((config.schedule.seed, settings["clip_norm"], settings["server_lr"]))
        accuracy = 1.0 if len(seen) == 6 else 0.5
        keys = ("train_loss", "transmissions", "bytes_up", "bytes_down")
        return {"promise": {}, "summary": {"test_accuracy": accuracy, **dict.fromkeys(keys, None)}, "curve": [], "rose": False}

    monkeypatch.setattr(module, "_outcome", outcome)
    (row,) = Comparison({}, ("clip21",), seeds=2, tries=9).rows()
    assert [seed for seed, *_ in seen] == [1042] * 9 + [42, 43]
    assert len(set(seen[:9])) == 9 and [each[1:] for each in seen[9:]] == [seen[5][1:]] * 2
    assert (row["settings"]["clip_norm"], row["settings"]["server_lr"]) == seen[5][1:] and row["chosen"]


def test_tuning_without_a_test_set_takes_the_smallest_loss(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from normec import compare as module

    assert module._score({"summary": {"test_accuracy": None, "train_loss": 0.5}}) > module._score(
        {"summary": {"test_accuracy": None, "train_loss": 0.7}}
    )
    assert module._score({"summary": None}) == -np.inf
    done = command("compare", *SMALL, "data.test_fraction=0", "--algorithms", "clip21", "--seeds", "1", "--tune", "--tries", "1")
    assert done.code == 0 and "by final training loss" in done.out, done.err


def test_an_algorithm_that_diverges_on_every_try_keeps_its_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    from normec import compare as module

    monkeypatch.setattr(module, "_outcome", lambda config, curve: {"promise": {}, "summary": None, "curve": None})
    (row,) = Comparison({}, ("clip21",), seeds=2, tries=4).rows()
    assert row["failed"] == 2 and row["chosen"] == {} and row["test_accuracy"] is None


def test_methods_with_one_gradient_keep_sgd() -> None:
    comparison = Comparison({"local": {"method": "sgd", "steps": 7}}, ("dp-sgd", "clip21"))
    assert (comparison.config("dp-sgd", {}, 0).local.method, comparison.config("dp-sgd", {}, 0).local.steps) == ("sgd", 1)
    assert comparison.config("clip21", {}, 0).local.steps == 7
    assert Comparison({"local": {"method": "rr"}}, ("dp-sgd",)).config("dp-sgd", {}, 0).local.method == "gd"


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_every_algorithm_gets_the_same_number_of_tries(name: str) -> None:
    points = grid(REGISTRY[name], 9)
    assert len({tuple(point.items()) for point in points}) == 9
    for point in points:
        REGISTRY[name](**point)
    for key, (low, high) in REGISTRY[name].tuned.items():
        values = sorted({point[key] for point in points})
        assert (values[0], values[-1]) == pytest.approx((low, high), rel=1e-2)
        assert np.allclose(np.diff(np.log(values)), np.diff(np.log(values))[0], rtol=0.05)


def test_settings_of_single_algorithms(command: Command, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('rounds = 3\n[data]\nclients = 20\n[algorithm]\nname = "clip21"\nclip_norm = 0.25\n')
    done = command(
        "compare", "run.toml", "privacy.epsilon=3", "dp-sgd.clip_norm=0.5", "--algorithms", "clip21,dp-sgd", "--seeds", "1", "--json"
    )
    assert done.code == 0, done.err
    clip21, dp_sgd = json.loads(done.out)
    assert clip21["settings"]["clip_norm"] == 0.25 and dp_sgd["settings"]["clip_norm"] == 0.5
    assert 2.99 < clip21["epsilon"] <= 3 and clip21["test_accuracy_se"] is None


def test_a_diverged_run_is_reported(command: Command) -> None:
    arguments = ("--algorithms", "fedavg,scaffold", "--seeds", "2", "scaffold.server_lr=1e29")
    done = command("compare", *SMALL, "privacy.trust=none", "model.name=mlp", *arguments)
    assert done.code == 0 and "warning: scaffold diverged on 2 of 2 seeds" in done.out and "∞" in done.out
    arguments = ("--algorithms", "clip21,dp-sgd", "--seeds", "2", "clip21.server_lr=1e30", "clip21.clip_norm=1e20", "--json")
    clip21, _ = json.loads(command("compare", *SMALL, "model.name=mlp", *arguments).out)
    assert clip21["failed"] == 2 and 7.99 < clip21["epsilon"] <= 8 and clip21["delta"] == 1e-5  # a promise does not depend on the outcome


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        ([], ["algorithms", "names none", "--algorithms A,B"]),
        (["--algorithms", "clip12"], ["algorithms='clip12' is not known", "clip21"]),
        (["--algorithms", "clip21,clip21"], ["Name each once"]),
        (["--algorithms", "clip21,fedavg"], ["fedavg", "privacy.trust=none"]),
        (["--algorithms", "clip21", "--tune", "--tries", "5"], ["tries=5", "square"]),
        (["--algorithms", "clip21", "clip21.clip=3"], ["clip", "clip_norm"]),
        (["--algorithms", "clip21", "rounds=0"], ["rounds=0"]),
        (["nothing.toml", "--algorithms", "clip21"], ["nothing.toml"]),
        (["--algorithms", "clip21", "clip21.name=ef21"], ["clip21.name='ef21'", "another algorithm"]),
        (["--algorithms", "clip21", "clip21.clip_norm=0.7", "--tune"], ["clip21.clip_norm=0.7", "--tune would move it"]),
        (["--algorithms", "clip21,dp-sgd", "algorithm.server_lr=7"], ["algorithm.server_lr", "clip21.server_lr"]),
        (["--algorithms", "dp-sgd", "local=3"], ["local=3", "section"]),
        (["--algorithms", "clip21,ef21", "ef21.k=100000", "privacy.trust=none"], ["algorithm.k=100000", "650 parameters"]),
        (["--algorithms", "clip21", "--tries", "16"], ["tries=16", "--tune"]),
        (["--algorithms", "clip21,normec.algorithms.clip21:Clip21"], ["Name each once"]),
    ],
)  # fmt: skip
def test_bad_comparisons(command: Command, arguments: list[str], texts: list[str]) -> None:
    done = command("compare", *arguments, "--out", "c")
    assert not Path("c").exists()
    assert done.code == 2 and all(text in done.err for text in texts), done.err


def test_the_list_of_algorithms(command: Command) -> None:
    rows = json.loads(command("algorithms", "--json").out)
    assert [row["name"] for row in rows] == sorted(REGISTRY)
    by_name = {row["name"]: row for row in rows}
    assert by_name["clip21-sgd2m"]["memory"] == 2 and by_name["scaffold"]["down"] == 2 and by_name["ef21"]["compressed"]
    private = {name for name, row in by_name.items() if row["private"]}
    assert set(by_name) - private == {"fedavg", "fedprox", "scaffold", "ef14", "ef21", "ef21-sgdm"}
    assert all(row["paper"] != "–" and row["year"] and row["guarantee"] for row in rows)
    shown = command("algorithms").out
    assert all(name in shown for name in by_name) and "Clip21: Error Feedback for Gradient Clipping" in shown


def test_an_algorithm_with_a_required_setting_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    from normec.algorithms.catalogue import rows

    class Demanding(REGISTRY["clip21"]):  # type: ignore[misc]
        gain: float

    monkeypatch.setitem(REGISTRY, "demanding", Demanding)
    (row,) = [row for row in rows() if row["name"] == "demanding"]
    assert row["private"] is None and row["settings"] is None


def test_an_algorithm_by_its_import_path(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, so that it is registered there alone; run.toml repeats the run."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent / "examples"))
    train = [sys.executable, "-W", "error", "-m", "normec"]

    def normec(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*train, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path)

    first = normec("train", *SMALL, "algorithm.name=new_algorithm:SignEF21", "--out", "a")
    assert first.returncode == 0, first.stderr
    again = normec("train", "a/run.toml", "--out", "b")
    assert again.returncode == 0, again.stderr
    both = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("a", "b")]
    assert both[0]["algorithm"] == "sign-ef21" and both[0]["train_loss"] == both[1]["train_loss"]
    compared = normec("compare", *SMALL, "--algorithms", "new_algorithm:SignEF21,clip21", "--seeds", "1", "--json")
    assert [row["algorithm"] for row in json.loads(compared.stdout)] == ["new_algorithm:SignEF21", "clip21"]
    refused = normec("train", "algorithm.name=new_algorithm:Sign")
    assert refused.returncode == 2 and "is no registered algorithm" in refused.stderr


def test_the_example_of_a_new_algorithm() -> None:
    script = Path(__file__).parent.parent / "examples" / "new_algorithm.py"
    assert len(script.read_text().splitlines()) < 60
    done = subprocess.run([sys.executable, "-W", "error", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "ε = 8.000" in done.stdout, done.stderr
