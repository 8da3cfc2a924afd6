"""Every ε that anyone is shown is the ledger's, and files that say another one are refused."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normec
from conftest import FailsAt, Outcome, quadratic, rewritten
from normec.privacy import Central, Mechanism, epsilon
from normec.privacy.account import Account
from normec.privacy.aggregation import LatticeSum
from normec.privacy.ledger import read
from normec.privacy.noise import Secure
from normec.privacy.promise import shown_epsilon
from normec.report.claims import claim
from normec.report.page import Shown, write
from normec.runs.record import Record

Command = Callable[..., Outcome]
NOISE, RATE, ROUNDS, DELTA = 1.5, 0.5, 8, 1e-5


def private_run(folder: Path, **choices: Any) -> normec.Run:
    defaults: dict[str, Any] = {
        "algorithm": normec.FedNormEC(beta=0.2),
        "participation": normec.Poisson(RATE),
        "privacy": normec.Privacy(trust="central", noise_multiplier=NOISE, delta=DELTA, noise="secure"),
        "rounds": ROUNDS,
        "out": folder,
    }
    return quadratic(list(np.random.default_rng(1).normal(size=(5, 4))), **(defaults | choices))


def after(releases: int) -> float:
    """ε of so many releases, from a mechanism that is written down here."""
    return epsilon(
        Mechanism(
            trust=Central(),
            noise_multiplier=NOISE,
            participation=normec.Poisson(RATE),
            clients=5,
            rounds=releases,
            noise=Secure(),
            aggregation=LatticeSum(2.0 ** (-20)),
        ),
        DELTA,
    ).epsilon


def crashes(folder: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Attempts of a run that draw their noise and die before their output is stored."""

    def dies(*arguments: Any) -> None:
        raise OSError("crashed")

    with monkeypatch.context() as patch:
        patch.setattr("normec.runs.folder.RunFolder.save_output", dies)
        for _ in range(times):
            with pytest.raises(OSError, match="crashed"):
                private_run(folder, resume=True)


@pytest.fixture
def crashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose metrics show three rounds, after which three more attempts came to nothing: six releases count."""
    folder = tmp_path / "crashed"
    with pytest.raises(OSError, match="stopped"):
        private_run(folder, observer=FailsAt(4))
    crashes(folder, monkeypatch, 2)
    return folder


def test_after_crashes_all_readers_show_what_the_ledger_counts(crashed: Path, command: Command) -> None:
    assert read(crashed / "ledger.jsonl").counted() == 6
    right = shown_epsilon(after(6))
    shown = Shown.read([crashed])
    (record,) = shown.runs.values()
    assert record.epsilon == record.metrics[-1]["epsilon"] == after(6)
    assert f"ε = {right}, δ = 1e-05 spent so far" in claim(record)
    page = write(shown)
    assert f">{right}<" in page and f"ε = {right}" in page and shown_epsilon(after(4)) not in page
    assert f"ε = {right} at δ" in command("ledger", str(crashed)).out


def test_a_run_that_ended_early_shows_its_claim_everywhere(crashed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    crashes(crashed, monkeypatch, 2)
    seen: list[dict[str, Any]] = []

    class Watching:
        def started(self, plan: Any) -> None: ...

        def round(self, row: dict[str, Any]) -> None:
            seen.append(row)

    run = private_run(crashed, resume=True, observer=Watching())
    assert run.summary["rounds"] < ROUNDS and read(crashed / "ledger.jsonl").counted() == ROUNDS
    assert run.epsilon == run.summary["epsilon"] == run.metrics[-1]["epsilon"] == seen[-1]["epsilon"] == after(ROUNDS)
    assert Record.read(crashed).epsilon == after(ROUNDS)


def edited(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes a summary by hand, and its hash with it."""
    content = json.loads(path.read_text())
    change(content)
    rewritten(path.parent, **content)


def text(page: Path) -> str:
    """What stands in a page before its data."""
    whole = page.read_text()
    return whole[whole.index("<main>") : whole.index('<script type="application/json"')]


CHANGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "epsilon": lambda summary: summary.update(epsilon=0.1),
    "claim": lambda summary: summary.update(claim=summary["claim"].replace("ε = ", "ε = 0.1 (not ") + ")"),
    "delta": lambda summary: summary.update(delta=1e-9),
    "private": lambda summary: summary.update(private=False, epsilon=None),
    "noise": lambda summary: summary.update(noise="secure"),
    "trust": lambda summary: summary.update(trust="local"),
    "larger": lambda summary: summary.update(epsilon=80.0),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    private_run(folder, privacy=normec.Privacy(trust="central", noise_multiplier=NOISE, delta=DELTA))
    return folder


@pytest.mark.parametrize("change", list(CHANGES))
def test_a_summary_that_contradicts_the_ledger_is_refused(whole: Path, change: str, tmp_path: Path, command: Command) -> None:
    folder = shutil.copytree(whole, tmp_path / "run")
    edited(folder / "summary.json", CHANGES[change])
    with pytest.raises(normec.BadInput, match=r"summary\.json"):
        Record.read(folder)
    done = command("report", str(whole), str(folder), "--out", "page.html")
    assert done.code == 0 and "left out" in done.err and "summary.json" in done.err and "ε = 0.1" not in text(Path("page.html"))


@pytest.mark.parametrize(("round", "factor"), [(ROUNDS, 0.1), (4, 0.1), (2, 0.01), (6, 100.0)])
def test_metrics_that_contradict_the_ledger_are_refused(whole: Path, tmp_path: Path, round: int, factor: float) -> None:
    folder = shutil.copytree(whole, tmp_path / "run")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows[round]["epsilon"] *= factor
    rewritten(folder, rows)
    with pytest.raises(normec.BadInput, match=r"metrics\.jsonl"):
        Record.read(folder)


def test_a_private_run_without_its_ledger_is_left_out(whole: Path, tmp_path: Path, command: Command) -> None:
    folder = shutil.copytree(whole, tmp_path / "run")
    (folder / "ledger.jsonl").unlink()
    (folder / "ledger.head").unlink()
    done = command("report", str(folder))
    assert done.code == 2 and "ledger.jsonl is missing, and without it no ε can be shown" in done.err
    quadratic([[1.0, 0.0], [0.0, 1.0]], out=tmp_path / "open", algorithm=normec.FedAvg())
    record = Record.read(tmp_path / "open")
    assert record.epsilon is None and record.account is None and "not private" in write(Shown.read([tmp_path / "open"]))


@pytest.mark.parametrize(
    "choices",
    [
        {"participation": normec.Fixed(0.4)},
        {"participation": normec.Full()},
        {"privacy": normec.Privacy(trust="local", noise_multiplier=2.0, client_limit=4.0, noise="secure")},
        {"privacy": normec.Privacy(trust="secagg", noise_multiplier=2.0, min_honest=2, colluders=1)},
        {"privacy": normec.Privacy(trust="central", epsilon=3.0, adjacency="replace-one", stop_at=2.0)},
        {"privacy": normec.Privacy(trust="central", noise_multiplier=0.0)},
    ],
)
def test_what_a_run_says_is_what_its_ledger_says(tmp_path: Path, choices: dict[str, Any]) -> None:
    run = private_run(tmp_path / "run", **choices)
    record = Record.read(tmp_path / "run")
    assert record.epsilon == run.summary["epsilon"] and record.account is not None
    assert record.account.realised_max == run.summary["epsilon_realised_max"]
    assert Account.of(read(tmp_path / "run" / "ledger.jsonl")).spent.epsilon == run.epsilon


def test_a_sweep_shows_what_the_ledgers_say(tmp_path: Path, command: Command) -> None:
    Path("s.toml").write_text("rounds = 2\nseed = [1, 2]\n[data]\nclients = 10\n[privacy]\nnoise_multiplier = 2.0\n")
    assert command("sweep", "s.toml", "--out", "s").code == 0
    edited(tmp_path / "s" / "seed=1" / "summary.json", CHANGES["epsilon"])
    done = command("sweep", "s.toml", "--out", "s")
    assert done.code == 1 and "summary.json" in done.out
    with open("s/results.csv") as lines:
        shown = {row["run"]: row["epsilon"] for row in csv.DictReader(lines)}
    right = Record.read(tmp_path / "s" / "seed=2").epsilon
    assert not shown["seed=1"] and right is not None and float(shown["seed=2"]) == right
