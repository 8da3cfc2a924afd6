"""Comparisons: the same data, cohorts and ε for all, the same number of tries for each, and nothing hidden."""

from __future__ import annotations

import json
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Outcome
from normec.algorithms import REGISTRY
from normec.config import resolve
from normec.local import PoissonBatches
from normec.runs.experiment import prepare
from normec.runs.loop import execute
from normec.runs.record import Record
from normec.settings import Tree
from normec.studies import outcomes
from normec.studies.compare import Comparison, Trained
from normec.studies.contenders import edges, spread
from normec.studies.sweep import Sweep
from normec.terminal.runs import _wider, comparison_notes, comparison_table, sweep_table

Command = Callable[..., Outcome]
SMALL = ("rounds=4", "data.clients=20")


def test_all_share_cohorts_and_epsilon(command: Command) -> None:
    done = command("compare", *SMALL, "--algorithms", "fed-normec, dp-sgd+momentum", "--seeds", "2", "--json")
    assert done.code == 0, done.err
    rows = json.loads(done.out)
    assert [row["algorithm"] for row in rows] == ["fed-normec", "dp-sgd+momentum"]
    assert {row["epsilon"] for row in rows} == {rows[0]["epsilon"]} and 7.99 < rows[0]["epsilon"] <= 8
    assert {row["transmissions"] for row in rows} == {rows[0]["transmissions"]} and rows[0]["transmissions"] > 0
    assert [row["local"]["steps"] for row in rows] == [5, 1]
    assert [row["server"] for row in rows] == [{"optimizer": "sgd"}, {"optimizer": "momentum", "momentum": 0.9}]
    assert all(row["bytes_up"] == 4 * 650 * row["transmissions"] for row in rows)
    assert rows[0]["bytes_down"] == 4 * 650 * 20 * 4 > rows[1]["bytes_down"] == rows[1]["bytes_up"]
    settings = ["algorithm.name=dp-sgd", "server.optimizer=momentum", "local.steps=1", *SMALL]
    runs = [execute(prepare(resolve(None, [*settings, f"seed={seed}"]).experiment())) for seed in (42, 43)]
    accuracies = [run.summary["test_accuracy"] for run in runs]
    assert rows[1]["test_accuracy"] == pytest.approx(statistics.fmean(accuracies))
    assert rows[1]["test_accuracy_se"] == pytest.approx(abs(accuracies[0] - accuracies[1]) / 2)
    assert rows[1]["curves"] == [[row["test_accuracy"] for row in run.metrics] for run in runs]


def test_a_tuned_comparison_resumes_says_how_it_came_about_and_how_to_train_what_it_chose(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    arguments = (
        "compare",
        *SMALL,
        "--algorithms",
        "dp-fedavg-clip+momentum,dp-sgd",
        "--seeds",
        "1",
        "--tune",
        "--tries",
        "2",
        "--out",
        "c",
    )
    done = command(*arguments)
    assert done.code == 0, done.err
    for words in (
        "over 1 seed, 4 rounds",
        "tuned: 2 tries each, on another seed",
        "not accounted",
        "δ = 1e-05",
        "dp-sgd: one gradient per round",
    ):
        assert words in done.out
    table = done.out.splitlines()[: 3 + 2 + 1 + 1]
    assert all(len(line) <= 80 for line in table) and sum("dp-" in line for line in table) == 2, "a row of the table is broken"
    rows = json.loads(Path("c/comparison.json").read_text())
    tuning = {row["run"]: row for row in json.loads(Path("c/tuning/results.json").read_text())}
    assert len(tuning) == 4
    for row in rows:
        tries = [each for name, each in tuning.items() if name.startswith(row["algorithm"] + "_")]
        best = max(tries, key=lambda each: each["last_accuracy"])
        assert len(tries) == row["tries"] == 2 and best["settings"]["seed"] == 1042
        assert all(row["settings"][key] == best["settings"][f"algorithm.{key}"] for key in ("clip_norm", "server_lr"))
        assert set(row["edges"]) == {"clip_norm", "server_lr"}, "of two tries each is at an edge"
        assert f"clip_norm={row['settings']['clip_norm']:g} is the" in done.out and row["command"] in done.out
    stamps = {path: path.stat().st_mtime_ns for path in Path("c").rglob("model.safetensors")}
    again = command(*arguments, "--json")
    assert again.code == 0 and json.loads(again.out) == rows and len(stamps) == 6
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    page = command("report", "c")
    assert page.code == 0 and "2 of 6 runs" in page.out and "4 tuning runs in c/tuning" in page.err, page.err
    other = command("compare", *SMALL, "--algorithms", "clip21", "--out", "c")
    assert other.code == 2 and "holds another comparison (algorithms=" in other.err and other.err.count("\n") == 1


@pytest.mark.parametrize(
    "own", ["server.optimizer=adam server.tau=0.01", "algorithm.name=dp-sgd algorithm.clip_norm=0.2", "local.method=rr"]
)
def test_the_command_that_is_printed_trains_the_run_that_was_compared(own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("a b.toml")
    file.write_text("\n".join(["rounds = 3", *_sections(own)]))
    given = ["privacy.epsilon=3", "clip21.clip_norm=3", "seed=7"]
    comparison = Comparison.of(file, given, "clip21,dp-sgd+momentum,fed-normec+sgd", 1, 0)
    for contender in comparison.contenders:
        found = {"server_lr": 0.1 + 0.2}
        words = shlex.split(comparison._command(contender, found))
        assert words[:3] == ["normec", "train", "a b.toml"]
        assert resolve(file, words[3:]) == comparison.config(contender, found, 7)


def _sections(own: str) -> list[str]:
    lines = {}
    for word in own.split():
        key, _, value = word.partition("=")
        section, _, key = key.partition(".")
        lines.setdefault(f"[{section}]", []).append(f"{key} = {value if value[0].isdigit() else json.dumps(value)}")
    return [line for head, body in lines.items() for line in (head, *body)]


def _answering(scores: list[float | None], seen: list[tuple[str, Tree]]) -> Trained:
    """Stands for training: tries end with these accuracies, None for a failure; results all fail."""

    def trained(sweep: Sweep, folder: Path) -> list[dict[str, Any]]:
        seen.extend((folder.name, point.tree) for point in sweep.runs.values())
        tried = folder.name == "tuning"
        ends = scores if tried else [None] * len(sweep.runs)
        states = [
            {"status": "failed" if end is None else "done", "last_accuracy": end, "problem": "why" if end is None else None} for end in ends
        ]
        return [{"run": name} | state for name, state in zip(sweep.runs, states, strict=True)]

    return trained


def test_tuning_takes_the_best_try_on_another_seed(tmp_path: Path) -> None:
    seen: list[tuple[str, Tree]] = []
    comparison = Comparison({}, ("clip21",), seeds=2, tries=5)
    (row,) = comparison.run(tmp_path / "c", _answering([0.2, None, 0.4, 0.9, 0.1], seen))
    tuning, results = ([tree for folder, tree in seen if folder == each] for each in ("tuning", "results"))
    assert [tree["seed"] for tree in tuning] == [1042] * 5 and [tree["seed"] for tree in results] == [42, 43]
    assert {tree["engine"]["eval_every"] for tree in tuning} == {60} and "engine" not in results[0]
    assert [tree["algorithm"] for tree in results] == [tuning[3]["algorithm"]] * 2
    assert (row["tries_failed"], row["failed"], row["problem"]) == (1, 2, "why")
    assert "warning: 1 of 5 tries of clip21 failed: why" in comparison_notes([row], tmp_path)


def test_an_algorithm_that_fails_on_every_try_keeps_its_defaults(tmp_path: Path) -> None:
    (row,) = Comparison({}, ("clip21",), seeds=2, tries=4).run(tmp_path / "c", _answering([None] * 4, []))
    assert row["failed"] == 2 and row["chosen"] == {} and row["edges"] == {} and row["test_accuracy"] is None


def test_tuning_is_judged_by_what_there_is() -> None:
    """Accuracy, or else the test loss, or else the training loss; a failure is worse than all."""
    rows = [{"status": "done", "last_accuracy": accuracy, "test_loss": 0.5, "train_loss": 0.1} for accuracy in (0.2, 0.3)]
    assert outcomes.judged_by(rows) == ("test accuracy", "last_accuracy", 1)
    rows = [{"status": "done", "last_accuracy": None, "test_loss": loss, "train_loss": -loss} for loss in (0.5, 0.7)]
    assert outcomes.judged_by(rows) == ("test loss", "test_loss", -1)
    scores = [outcomes.score({"status": "done", "train_loss": loss}, "train_loss", -1) for loss in (0.5, 0.7, None)]
    assert outcomes.judged_by([{"train_loss": 0.5}])[0] == "training loss" and scores[0] > scores[1] > scores[2]
    assert scores[2] == outcomes.score({"status": "failed", "train_loss": 0.1}, "train_loss", -1) == -np.inf


def test_without_an_accuracy_the_test_loss_is_shown() -> None:
    row = {"algorithm": "a", "epsilon": 8.0, "test_accuracy": None, "test_loss": 0.25, "test_loss_se": 0.1, "train_loss": 0.2}
    row |= {"train_loss_se": None, "bytes_up": None, "metrics": {}}
    assert [column.header for column in comparison_table([row]).columns] == ["algorithm", "test loss", "training loss", "MB up"]
    sweep = {"run": "r", "settings": {"seed": 1}, "status": "done", "last_accuracy": None, "best_accuracy": None, "test_loss": 0.25}
    heads = [str(column.header) for column in sweep_table([sweep, sweep | {"status": "failed"}], None).columns]
    assert "test loss" in heads and not {"best", "last"} & set(heads)


def test_the_epsilon_of_a_row_holds_for_every_run(tmp_path: Path) -> None:
    runs = [Record(tmp_path, {}, [{"round": 1, "epsilon": spent}], None, []) for spent in (7.9, 8.5)]
    assert outcomes.largest(8.0, runs) == 8.5 and outcomes.largest(8.0, runs[:1]) == 8.0 and outcomes.largest(None, []) is None


def test_a_range_is_searched_and_the_remedy_for_an_edge_is_one() -> None:
    given = ["clip21.server_lr=[1,100]"]
    comparison = Comparison.of(None, given, "clip21", 1, 8)
    points = comparison.points(comparison.contenders[0])
    values = sorted(point["server_lr"] for point in points)
    np.testing.assert_allclose(values, [100 ** (k / 9) for k in range(1, 9)], rtol=5e-3)
    chosen = {"server_lr": values[-1], "clip_norm": sorted(point["clip_norm"] for point in points)[3]}
    assert edges(chosen, points) == {"server_lr": "largest"} and edges(points[0], points[:1]) == {}
    row = {"algorithm": "clip21", "edges": {"server_lr": "largest"}, "ranges": {"server_lr": [1.0, 100.0]}}
    remedy = _wider(row, "server_lr").rpartition("'")[0].rpartition("'")[2]
    assert remedy == "clip21.server_lr=[1, 1e+03]"
    widened = Comparison.of(None, [remedy], "clip21", 1, 4)
    assert widened.contenders[0].ranges == {"server_lr": (1.0, 1000.0)}


def test_the_range_of_the_servers_stepsize_is_that_of_its_step() -> None:
    comparison = Comparison({}, ("dp-fedavg-clip", "dp-fedavg-clip+momentum", "dp-fedavg-clip+adam"), tries=1)
    found = [each.searched(comparison.config(each, {}, 0))["server_lr"] for each in comparison.contenders]
    assert found == [(0.5, 50.0), (0.05, 5.0), (0.001, 0.1)]


def test_methods_with_one_gradient_keep_sgd_and_poisson() -> None:
    comparison = Comparison({"local": {"method": "sgd", "steps": 7}}, ("dp-sgd", "clip21"))
    dp_sgd, clip21 = (comparison.config(each, {}, 0).local for each in comparison.contenders)
    assert (dp_sgd.method, dp_sgd.steps) == ("sgd", 1) and clip21.steps == 7
    comparison = Comparison({"local": {"method": "poisson", "rate": 0.2, "steps": 7}}, ("dp-sgd",))
    assert comparison.config(comparison.contenders[0], {}, 0).local == PoissonBatches(steps=1, rate=0.2)
    comparison = Comparison({"local": {"method": "rr"}}, ("dp-sgd",))
    assert comparison.config(comparison.contenders[0], {}, 0).local.method == "gd"


@pytest.mark.parametrize("name", sorted(REGISTRY))
@pytest.mark.parametrize("tries", [4, 9])
def test_every_algorithm_gets_the_same_number_of_tries_which_fill_its_ranges(name: str, tries: int) -> None:
    """The sequences of van der Corput in bases 2 and 3, worked out by hand, in the logarithms of the ranges."""
    ends = REGISTRY[name].tuned
    points = spread(ends, tries)
    assert len({tuple(point.items()) for point in points}) == tries and points == spread(ends, 16)[:tries]
    by_hand = ([1 / 2, 1 / 4, 3 / 4, 1 / 8, 5 / 8], [1 / 3, 2 / 3, 1 / 9, 4 / 9, 7 / 9])
    for (key, (low, high)), shares in zip(ends.items(), by_hand, strict=False):
        wanted = [low * (high / low) ** share for share in shares]
        np.testing.assert_allclose([point[key] for point in points][:5], wanted[:tries], rtol=6e-3)
    for point in points:
        REGISTRY[name](**point)


def test_settings_of_single_algorithms(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('rounds = 3\n[data]\nclients = 20\n[algorithm]\nname = "clip21"\nclip_norm = 0.25\n')
    given = ["privacy.epsilon=3", "dp-sgd.clip_norm=0.5", "clip21+momentum.momentum=0.5"]
    comparison = Comparison.of(tmp_path / "run.toml", given, "clip21,dp-sgd,clip21+momentum", 1, 0)
    clip21, dp_sgd, both = (comparison.config(each, {}, 0) for each in comparison.contenders)
    assert clip21.algorithm.table()["clip_norm"] == 0.25 == both.algorithm.table()["clip_norm"]
    assert dp_sgd.algorithm.table()["clip_norm"] == 0.5 and both.server.table() == {"momentum": 0.5}
    assert {2.99 < promise["epsilon"] <= 3 for promise in comparison.promises.values()} == {True}


def test_a_diverged_run_is_reported(command: Command) -> None:
    arguments = ("--algorithms", "fedavg,scaffold", "--seeds", "1", "scaffold.server_lr=1e29")
    done = command("compare", *SMALL, "privacy.trust=none", "model.name=mlp", *arguments)
    assert (
        done.code == 0
        and "warning: scaffold failed on 1 of 1 seed: " in done.out
        and "∞" in done.out
        and "the training loss is nan" in done.out
    )
    arguments = ("--algorithms", "clip21", "--seeds", "1", "clip21.server_lr=1e30", "clip21.clip_norm=1e20", "--json")
    (clip21,) = json.loads(command("compare", *SMALL, "model.name=mlp", *arguments).out)
    assert clip21["failed"] == 1 and 7.99 < clip21["epsilon"] <= 8 and clip21["delta"] == 1e-5  # a promise does not depend on the outcome


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        ([], ["algorithms", "names none", "--algorithms A,B"]),
        (["--algorithms", "clip12"], ["algorithms='clip12' is not known", "clip21"]),
        (["--algorithms", "clip21,clip21"], ["Name each once"]),
        (["--algorithms", "clip21,fedavg"], ["fedavg", "privacy.trust=none"]),
        (["--algorithms", "clip21", "clip21.server_lr=[1,10]"], ["clip21.server_lr=[1.0, 10.0]", "--tune"]),
        (["--algorithms", "clip21", "clip21.server_lr=[10,1]", "--tune"], ["clip21.server_lr=[10, 1]", "LOW < HIGH"]),
        (["--algorithms", "clip21", 'clip21.on=["a","b"]', "--tune"], ["clip21.on", "range"]),
        (["--algorithms", "clip21+momentum", "clip21+momentum.momentum=[0.1,0.9]", "--tune"], ["momentum", "Give one value"]),
        (["--algorithms", "fed-normec", "fed-normec.beta=[0.1,1e31]", "--tune"], ["beta=1e+31"]),
        (["--algorithms", "clip21+adma"], ["algorithms='adma' is not known", "adam"]),
        (["--algorithms", "clip21,clip21+sgd"], ["Name each once"]),
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
    again = normec("train", "a/run.toml", "--out", "b", "--trust-code")
    assert again.returncode == 0, again.stderr
    both = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("a", "b")]
    assert both[0]["algorithm"] == "sign-ef21" and both[0]["train_loss"] == both[1]["train_loss"]
    compared = normec("compare", *SMALL, "--algorithms", "new_algorithm:SignEF21,clip21", "--seeds", "1", "--json")
    assert [row["algorithm"] for row in json.loads(compared.stdout)] == ["new_algorithm:SignEF21", "clip21"]
    refused = normec("train", "algorithm.name=new_algorithm:Sign")
    assert refused.returncode == 2 and "is not a registered algorithm" in refused.stderr


def test_the_example_of_a_new_algorithm() -> None:
    script = Path(__file__).parent.parent / "examples" / "new_algorithm.py"
    assert len(script.read_text().splitlines()) < 60
    done = subprocess.run([sys.executable, "-W", "error", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "ε = 8.000" in done.stdout, done.stderr
