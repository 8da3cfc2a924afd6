"""Who draws the cohorts, where the server is the adversary; and the number beside a claim that leaves the draw to it."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest

import normec
from conftest import Outcome, quadratic, rewritten
from normec.privacy import Central, Local, Mechanism, Privacy, SecAgg, epsilon
from normec.privacy.account import Evaluated
from normec.privacy.accountant import within_limit
from normec.privacy.gaussian import Spent
from normec.privacy.header import Header
from normec.privacy.ledger import Ledger, read
from normec.privacy.participation import Fixed, Full, Participation, Poisson
from normec.privacy.promise import shown_epsilon
from normec.report.claims import claim, voids
from normec.runs.record import Record

Command = Callable[..., Outcome]
LOCAL = normec.Privacy(trust="local", noise_multiplier=4.0, delta=1e-5)
ALWAYS = dp_accounting.get_epsilon_gaussian(4.0 / 3, 1e-5)
"""ε of nine releases at a noise multiplier of 4."""


def trained(folder: Path, participation: Participation, privacy: Privacy = LOCAL) -> normec.Run:
    centres = list(np.random.default_rng(0).normal(size=(8, 3)))
    return quadratic(centres, algorithm=normec.FedNormEC(), participation=participation, privacy=privacy, rounds=9, out=folder)


def test_a_client_that_the_server_asks_in_every_round_has_the_epsilon_beside_the_claim() -> None:
    """M = 1000, p = .1, K = 300, z = 3.5062, δ = 1e-5: 8.000, and √300 / z standard deviations without sampling: 32.55."""
    poisson = Mechanism(trust=Local(), noise_multiplier=3.5062, participation=Poisson(0.1), clients=1000, rounds=300)
    always = dp_accounting.get_epsilon_gaussian(3.5062 / math.sqrt(300), 1e-5)
    assert always == pytest.approx(32.55, abs=5e-3)
    assert poisson.own_coins and epsilon(poisson, 1e-5).every_round is None
    for drawn in (replace(poisson, server_draws=True), replace(poisson, participation=Fixed(0.1))):
        spent = epsilon(drawn, 1e-5)
        assert not drawn.own_coins and spent.epsilon == pytest.approx(8.0, abs=5e-4)
        assert spent.every_round == pytest.approx(always, rel=1e-9)
    for known in (replace(poisson, participation=Full()), replace(poisson, trust=Central()), replace(poisson, participation=Poisson(1.0))):
        assert not known.own_coins and epsilon(replace(known, server_draws=True), 1e-5).every_round is None


def test_in_every_round_a_client_hides_among_the_fewest_honest_and_spends_up_to_its_limit() -> None:
    fixed = Mechanism(trust=SecAgg(min_honest=4), noise_multiplier=3.0, participation=Fixed(0.1), clients=100, rounds=36)
    moved = replace(fixed, adjacency="replace-one")
    assert epsilon(moved, 1e-5).every_round == pytest.approx(dp_accounting.get_epsilon_gaussian(1 / 2, 1e-5), rel=1e-9)  # 3 / (2 √(36 / 4))
    local = replace(fixed, trust=Local())
    assert epsilon(local, 1e-5).every_round == pytest.approx(dp_accounting.get_epsilon_gaussian(1 / 2, 1e-5), rel=1e-9)  # 3 / √36
    assert epsilon(within_limit(local, 5.0, 1e-5), 1e-5).every_round == pytest.approx(5.0, rel=1e-6)


def test_evaluations_enter_both_numbers() -> None:
    evaluated = Evaluated(3, 2.0, Spent(1.5, "gaussian closed form"), 1e-6)
    assert evaluated.with_training(Spent(8.0, "gaussian over participations", 32.5)).every_round == 34.0
    assert evaluated.with_training(Spent(8.0, "gaussian over participations")).every_round is None


@pytest.mark.parametrize("participation", [Poisson(0.5), Fixed(0.5), Full()], ids=lambda each: each.scheme)
@pytest.mark.parametrize("trust", ["local", "secagg", "central"])
def test_the_claim_says_who_draws_where_the_server_is_the_adversary(trust: Any, participation: Participation, tmp_path: Path) -> None:
    honest = 4 if trust == "secagg" else None
    run = trained(tmp_path, participation, normec.Privacy(trust=trust, noise_multiplier=4.0, delta=1e-5, min_honest=honest))
    said, every, record = run.summary["claim"], run.summary["epsilon_every_round"], Record.read(tmp_path)
    assert ("; each client draws its own coin" in said) == (trust != "central" and participation.scheme == "poisson")
    if trust == "central" or participation.scheme != "fixed":
        assert every is record.epsilon_every_round is None and "every round" not in said
        return
    always = dp_accounting.get_epsilon_gaussian(4.0 * math.sqrt(honest or 1) / 3, 1e-5)
    assert every == pytest.approx(always) == record.epsilon_every_round
    assert f"; the server draws the cohorts, and a client that it asks in every round has ε = {shown_epsilon(always)};" in said
    assert any("the ε of a client that is asked in every round holds" in line for line in voids(record))


def test_wherever_the_claim_of_a_run_stands_the_number_stands_beside_it(command: Command) -> None:
    shown, settings = shown_epsilon(ALWAYS), ["privacy.trust=local", "privacy.noise_multiplier=4", "privacy.delta=1e-5", "rounds=9"]
    settings += ["data.clients=20", "participation.scheme=fixed"]
    done = command("train", *settings, "--out", "run")
    assert done.code == 0, done.err
    said = " ".join((done.out + done.err).split())
    assert f"({shown} if asked in every round) at δ" in said and f"a client that it asks in every round has ε = {shown}" in said
    assert json.loads(Path("run/summary.json").read_text())["epsilon_every_round"] == pytest.approx(ALWAYS)
    ledger = command("ledger", "run").out
    assert f"({shown} if asked in every round) at δ" in ledger
    assert json.loads(command("ledger", "run", "--json").out)["spent"]["epsilon_every_round"] == pytest.approx(ALWAYS)
    compared = command("compare", "--algorithms", "fed-normec,dp-sgd", *settings, "--seeds", "1", "--out", "compared")
    assert compared.code == 0, compared.err
    assert f"({shown} if asked in every round)" in " ".join(compared.out.split())
    Path("sweep.toml").write_text('participation.scheme = ["fixed", "poisson"]')
    swept = command("sweep", "sweep.toml", *settings[:-1], "--out", "swept")
    assert swept.code == 0, swept.err
    rows = json.loads(Path("swept/results.json").read_text())
    assert [row["epsilon_every_round"] for row in rows] == [pytest.approx(ALWAYS), None]


def test_the_page_shows_it_in_its_table_and_of_unfinished_runs(tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="plotly is not installed")
    from normec.report.page import read as runs_of
    from normec.report.page import write

    trained(tmp_path / "run", Fixed(0.5))
    assert f"({shown_epsilon(ALWAYS)} if asked in every round)</td>" in str(write(runs_of([tmp_path])))
    (tmp_path / "run" / "summary.json").unlink()
    assert f"({shown_epsilon(ALWAYS)} if asked in every round), δ = 1e-05 spent so far" in claim(Record.read(tmp_path / "run"))


def test_privacy_command(command: Command) -> None:
    setting = ["trust=local", "noise_multiplier=3.5062", "clients=1000", "rate=0.1", "rounds=300", "delta=1e-5"]
    own = command("privacy", *setting)
    assert own.code == 0 and "secagg, local: each client draws its own coin, and not the server" in own.out
    assert "every round" not in own.out
    for drawn in ("own_coins=false", "scheme=fixed"):
        shown = " ".join(command("privacy", *setting, drawn).out.split())
        assert "beside ε stands that of a client that it asks in every round" in shown
        by_trust = {row["trust"]: row for row in json.loads(command("privacy", *setting, drawn, "--json").out)}
        assert by_trust["local"]["epsilon"] == pytest.approx(8.0, abs=5e-4)
        assert by_trust["local"]["epsilon_every_round"] == pytest.approx(32.55, abs=5e-3)
        assert by_trust["central"]["epsilon_every_round"] is by_trust["none"]["epsilon_every_round"] is None
    assert "coin" not in command("privacy", *setting[:-2], "scheme=full", "rate=1").out


def test_plan_says_that_its_run_has_own_coins(command: Command) -> None:
    done = command("plan", "epsilon=8", "trust=local", "rate=0.5", "clients=50", "rounds=30")
    assert done.code == 0 and "trust local, each client draws its own coin" in " ".join(done.out.split())


def older(folder: Path) -> None:
    """Makes of a run one whose ledger and summary were written before they said who draws."""
    lines = read(folder / "ledger.jsonl").lines
    (folder / "ledger.jsonl").unlink()
    (folder / "ledger.head").unlink()
    kept = [{name: value for name, value in line.items() if name not in ("previous", "hash", "own_coins")} for line in lines]
    ledger = Ledger.open(folder / "ledger.jsonl", {name: value for name, value in kept[0].items() if name != "kind"})
    for line in kept[1:]:
        ledger.note(line.pop("kind"), line)
    summary = json.loads((folder / "summary.json").read_text())
    summary["claim"] = summary["claim"].replace("; each client draws its own coin", "")
    summary.pop("epsilon_every_round")
    (folder / "summary.json").unlink()
    (folder / "summary.json").write_text(json.dumps(summary))
    rewritten(folder)


def test_a_ledger_that_does_not_say_who_drew_is_of_cohorts_that_the_server_drew(command: Command, tmp_path: Path) -> None:
    trained(tmp_path / "run", Poisson(0.5))
    shutil.copytree(tmp_path / "run", tmp_path / "older")
    older(tmp_path / "older")
    record = Record.read(tmp_path / "older")
    assert Record.read(tmp_path / "run").epsilon_every_round is None
    assert record.epsilon_every_round == pytest.approx(ALWAYS)
    assert claim(record).endswith(f"The server drew the cohorts; a client that it asked in every round has ε = {shown_epsilon(ALWAYS)}.")
    assert f"({shown_epsilon(ALWAYS)} if asked in every round) at δ" in command("ledger", str(tmp_path / "older")).out


def test_a_claim_of_an_older_run_is_compared_with_its_ledger_too(tmp_path: Path) -> None:
    trained(tmp_path / "run", Poisson(0.5))
    older(tmp_path / "run")
    said = str(json.loads((tmp_path / "run" / "summary.json").read_text())["claim"])
    rewritten(tmp_path / "run", claim=said.replace("9 rounds", "3 rounds"))
    with pytest.raises(normec.BadInput, match="names another claim than the run's ledger"):
        Record.read(tmp_path / "run")


def test_the_ledger_says_that_clients_draw_and_nothing_where_they_do_not(tmp_path: Path) -> None:
    for name, participation in (("own", Poisson(0.5)), ("drawn", Fixed(0.5))):
        trained(tmp_path / name, participation)
        line = read(tmp_path / name / "ledger.jsonl").lines[0]
        assert line.get("own_coins", False) == (name == "own") == Header.read(line).mechanism().own_coins
