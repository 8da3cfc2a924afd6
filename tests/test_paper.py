"""The paper's figures: which runs they are, under which noise, and that the pictures hold what the runs found."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import Outcome
from normec.config import parse_assignments
from normec.errors import BadInput
from normec.privacy.table import Query, rows
from normec.studies.paper.experiments import FIGURES, SCALES, Experiments
from normec.studies.paper.pictures import caption

Command = Callable[..., Outcome]


def tiny(noise: Any = "total", **changes: Any) -> Experiments:
    return Experiments.at("tiny", noise, None, changes)


def test_the_total_reading_is_the_norm_of_the_vector_and_the_other_each_coordinate() -> None:
    s = 0.5 * math.sqrt(15 * math.log(1e5)) / 8
    assert tiny("coordinate").noise_multiplier(0.5) == pytest.approx(s)
    total = tiny("total")
    assert total.d == 64 * 64 + 64 + 64 * 10 + 10
    assert total.noise_multiplier(0.5) * math.sqrt(total.d) == pytest.approx(s)


def test_the_true_epsilon_is_that_of_the_privacy_table() -> None:
    experiments = tiny("coordinate")
    table = rows(Query(noise_multiplier=experiments.noise_multiplier(1), clients=5, scheme="full", rounds=15, delta=1e-5))
    expected = {row["trust"]: row["epsilon"] for row in table}
    found = experiments.true_epsilon(1)
    assert (found["local"], found["secagg"]) == (expected["local"], expected["secagg"])
    assert 0 < found["central"] <= 1.0001 * expected["secagg"]  # the same total noise, seen by fewer, when all take part


@pytest.mark.parametrize("scale", SCALES)
def test_every_scale_holds_the_paper_s_setting(scale: Any) -> None:
    """β and p as in the paper; the step of the server is γ; no γ without its β."""
    from importlib import resources

    tree = tomllib.loads(resources.files("normec.studies.paper").joinpath(f"{scale}.toml").read_text(encoding="utf-8"))
    assert tree["figures"]["rates"] == [1.0, 0.5, 0.25] and tree["algorithm"]["alpha"] == 0.01
    if scale != "tiny":
        assert (tree["rounds"], tree["data"]["clients"], tree["local"]["batch_size"]) == (300, 20, 32)
        assert {beta for beta, _ in tree["figures"]["ours"]} == {0.001, 0.01, 0.1} == {beta for beta, _ in tree["figures"]["fedavg"]}


def test_the_runs_of_a_figure() -> None:
    experiments = tiny()
    names = {figure: list(experiments.sweep(figure).runs) for figure in FIGURES}
    assert {name.partition("_")[0] for name in names["figure1"]} == {"ours", "honest"}
    assert set(names["figure3"]) > set(names["figure4"]) and {name.partition("_")[0] for name in names["figure4"]} == {"fedavg"}
    run = experiments.sweep("figure2").runs["ours_p=0.25_beta=0.1_gamma=1"].tree
    assert run["algorithm"] == {"alpha": 0.01, "name": "fed-normec", "beta": 0.1, "server_lr": 1.0}
    assert run["local"]["lr"] == 1.0 and run["participation"] == {"scheme": "poisson", "rate": 0.25}
    assert run["privacy"] == {"trust": "local", "noise_multiplier": experiments.noise_multiplier(0.25), "delta": 1e-5}
    fedavg = experiments.sweep("figure4").runs["fedavg_p=1_beta=0.1_gamma=10"].tree
    assert fedavg["algorithm"] == {"alpha": 0.01, "name": "dp-fedavg-norm", "on": "update", "beta": 0.1, "server_lr": 10.0}


def test_the_figures_at_the_tiny_scale(tmp_path: Path, command: Command) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    for figure in FIGURES:
        done = command("paper", figure, "rounds=4", "--out", str(tmp_path))
        assert done.code == 0, done.err
        assert "noise read as a whole" in done.out.replace("\n", " ") and f"{figure}.png" in done.out.replace("\n", "")
        found = json.loads((tmp_path / f"{figure}.json").read_text())
        for series in found["series"]:
            folder = (
                tmp_path
                / f"{'honest' if series['honest'] else series['method']}_p={series['rate']:g}_beta={series['beta']:g}_gamma={series['gamma']:g}"
            )
            metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
            assert [row["test_accuracy"] for row in series["rows"]] == [row["test_accuracy"] for row in metrics]
            assert [row["transmissions"] for row in series["rows"]] == [row["transmissions"] for row in metrics]
        assert (tmp_path / f"{figure}.png").read_bytes()[:4] == b"\x89PNG" and "<svg" in (tmp_path / f"{figure}.svg").read_text()
        assert any(re.search(r"claimed ε = 8; true: local ε = .*, secagg ε = .*, central ε = ", line) for line in caption(found))
    tuned = json.loads((tmp_path / "figure3.json").read_text())["series"]
    best = {(s["beta"], s["gamma"]): s["best_accuracy"] for s in json.loads((tmp_path / "figure4.json").read_text())["series"]}
    for series in tuned:
        if series["method"] == "fedavg":
            assert series["best_accuracy"] == max(value for (beta, _), value in best.items() if beta == series["beta"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["figure5"], "FIGURE='figure5' is not known. Use figure1, figure2, figure3 or figure4"),
        (["figure1", "--scale", "huge"], "--scale='huge' is not known"),
        (["figure1", "--noise", "none"], "--noise='none' is not known. Use total or coordinate"),
        (["figure1", "--scale", "small"], "--data is missing"),
        (["figure1", "--scale", "paper", "--data", "nowhere"], "data.path=.*nowhere.* is not a folder"),
        (["figure1", "rundes=3"], "rundes is not a setting"),
    ],
)
def test_what_is_no_figure(arguments: list[str], words: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = command("paper", *arguments)
    assert done.code == 2 and done.err.count("\n") == 1, done.err
    assert re.search(words, done.err), done.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "change", ["algorithm.beta=0.5", "algorithm.name=fedavg", "local.lr=0.3", "participation.rate=0.1", "privacy.trust=none"]
)
def test_what_a_figure_sets_itself_cannot_be_changed(change: str) -> None:
    with pytest.raises(BadInput, match=f"{change.split('=')[0]} is set by the figure for each of its runs"):
        Experiments.at("tiny", "total", None, parse_assignments([change]))
