"""Trust models: who adds noise, what is claimed for it, and `normec privacy`."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from scipy.stats import binom

import normec
from conftest import FailsAt, Outcome, checkpoint_of, quadratic, x_of
from normec.privacy import Central, Mechanism, SecAgg, SpentSoFar, affordable_rounds, calibrate, epsilon, realised, trust_model
from normec.privacy.gaussian import gaussian_delta
from normec.privacy.ledger import read
from normec.privacy.participation import Fixed, Full, Participation, Poisson
from normec.streams import Streams

Command = Callable[..., Outcome]


def mechanism(
    trust: Any, noise: float, participation: Participation, rounds: int, honest: int = 1, adjacency: Any = "zero-out"
) -> Mechanism:
    return Mechanism(
        trust=trust_model(trust, min_honest=honest),
        adjacency=adjacency,
        noise_multiplier=noise,
        participation=participation,
        clients=20,
        rounds=rounds,
    )


@pytest.mark.parametrize(
    ("rate", "noise", "local", "secagg", "central"),
    [(1.0, 7.346, 12.27, 2.12, 12.27), (0.5, 3.673, 19.4, 4.70, 12.58), (0.25, 1.837, 32.2, 11.1, 13.70)],
)
def test_what_the_papers_noise_really_buys(rate: float, noise: float, local: float, secagg: float, central: float) -> None:
    """σ = p √(K ln(1/δ)) / ε at K = 300, M = 20, δ = 1e-5, "ε = 8", to the digits of the published table (rounded up)."""
    exact = rate * math.sqrt(300 * math.log(1e5)) / 8
    assert exact == pytest.approx(noise, abs=5e-4)
    honest = round(20 * rate)
    got = [epsilon(mechanism(trust, exact, Poisson(rate), 300, honest), 1e-5).epsilon for trust in ("local", "secagg", "central")]
    assert got[0] == pytest.approx(local, abs=0.04)
    assert got[1] == pytest.approx(secagg, abs=0.07 if secagg > 10 else 0.006)
    assert got[2] == pytest.approx(central, abs=0.006)


@pytest.mark.parametrize(("rate", "right"), [(1.0, 10.40), (0.5, 7.42), (0.25, 5.33)])
def test_right_noise_for_epsilon_8_local(rate: float, right: float) -> None:
    plan = mechanism("local", 0.0, Poisson(rate), 300)
    noise = calibrate(plan, 8.0, 1e-5)
    assert noise == pytest.approx(right, abs=6e-3)
    assert 8 - 1e-3 <= epsilon(replace(plan, noise_multiplier=noise), 1e-5).epsilon <= 8


@pytest.mark.parametrize("participation", [Poisson(0.3), Fixed(0.3)])
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_local_is_the_expectation_over_participations(participation: Participation, adjacency: str) -> None:
    """δ(ε) as the explicit sum over n ~ Bin(K, p), each term from dp-accounting's Gaussian."""
    from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

    spent = epsilon(mechanism("local", 3.0, participation, 40, adjacency=adjacency), 1e-5).epsilon
    distance = 2.0 if adjacency == "replace-one" else 1.0
    total = sum(
        binom.pmf(n, 40, 0.3) * GaussianPrivacyLoss(3.0, sensitivity=distance * math.sqrt(n)).get_delta_for_epsilon(spent)
        for n in range(1, 41)
    )
    assert total == pytest.approx(1e-5, rel=1e-6)


def test_colluders_give_no_protection_and_the_honest_all_of_theirs() -> None:
    plan = Mechanism(trust=SecAgg(min_honest=9, colluders=30), noise_multiplier=3.0, participation=Full(), clients=50, rounds=20)
    assert epsilon(plan, 1e-5).epsilon == pytest.approx(dp_accounting.get_epsilon_gaussian(3.0 * 3 / math.sqrt(20), 1e-5), rel=1e-8)
    assert not plan.trust.gives_up(39) and plan.trust.gives_up(38)
    assert plan.trust.exposure(40) == pytest.approx(1 / 10)


@pytest.mark.parametrize("trust", ["local", "secagg"])
def test_no_amplified_bound_is_shown_where_participants_are_known(trust: str) -> None:
    honest = 2 if trust == "secagg" else None
    privacy = normec.Privacy(trust=trust, noise_multiplier=4.0, adjacency="replace-one", min_honest=honest)  # type: ignore[arg-type]
    run = quadratic([[1.0]] * 8, algorithm=normec.FedNormEC(), participation=normec.Poisson(0.5), privacy=privacy, rounds=5)
    assert "(before sampling, without amplification;" in run.summary["claim"]
    assert run.summary["accountant"] == "gaussian over participations"


def test_realised_under_replacement_is_at_twice_the_distance() -> None:
    plan = mechanism("local", 4.0, Full(), 1, adjacency="replace-one")
    assert realised(plan, 1e-5, 7.0).epsilon == pytest.approx(dp_accounting.get_epsilon_gaussian(2.0 / math.sqrt(7), 1e-5), rel=1e-9)


@pytest.mark.parametrize("delta", [0.0, 1.0, 2.0, math.nan, math.inf, -1.0])
@pytest.mark.parametrize("trust", ["central", "local"])
def test_the_accountant_refuses_an_impossible_delta(trust: str, delta: float) -> None:
    with pytest.raises(normec.BadInput, match="delta"):
        epsilon(mechanism(trust, 2.0, Poisson(0.5), 5), delta)
    for target in (0.0, math.nan, math.inf):
        with pytest.raises(normec.BadInput, match="epsilon"):
            calibrate(mechanism(trust, 0.0, Poisson(0.5), 5), target, 1e-5)


def test_a_tiny_delta_is_answered() -> None:
    for delta in (1e-12, 1e-20):
        spent = [epsilon(mechanism("local", 2.0, Poisson(rate), 300), delta).epsilon for rate in (0.25, 1.0)]
        assert 0 < spent[0] < spent[1] < math.inf
        assert epsilon(mechanism("central", 2.0, Poisson(0.25), 300), delta).epsilon < spent[0]


def test_lost_attempts_count_for_every_client(tmp_path: Any) -> None:
    """Secure noise under local trust: an attempt that was lost may have reached the server, from any client."""
    from normec.privacy.ledger import Ledger

    choices: dict[str, Any] = {
        "algorithm": normec.FedNormEC(),
        "privacy": normec.Privacy(trust="local", noise_multiplier=4.0, noise="secure"),
    }
    with pytest.raises(OSError, match="stopped"):
        quadratic([[1.0]] * 3, rounds=6, out=tmp_path / "a", observer=FailsAt(3), **choices)
    with open(tmp_path / "a" / "ledger.jsonl") as lines:
        header = {k: v for k, v in json.loads(lines.readline()).items() if k not in ("kind", "previous", "hash")}
    ledger = Ledger.open(tmp_path / "a" / "ledger.jsonl", header)
    ledger.intent(2)  # an attempt at round 3 that came to nothing
    run = quadratic([[1.0]] * 3, rounds=6, out=tmp_path / "a", resume=True, **choices)
    assert run.summary["rounds"] < 6  # the budget of six releases is used up
    assert run.summary["epsilon_realised_max"] == pytest.approx(run.epsilon)


def test_gaussian_delta_is_dp_accountings() -> None:
    from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

    mu = np.array([0.01, 0.5, 3.0, 20.0])
    for eps in (0.0, 0.3, 5.0, 150.0):
        right = [GaussianPrivacyLoss(1.0, sensitivity=m).get_delta_for_epsilon(eps) for m in mu]
        np.testing.assert_allclose(gaussian_delta(eps, mu), right, rtol=1e-9, atol=1e-300)


def test_full_participation_agrees_with_the_closed_form() -> None:
    local = epsilon(mechanism("local", 5.0, Full(), 30), 1e-5).epsilon
    assert local == pytest.approx(dp_accounting.get_epsilon_gaussian(5.0 / math.sqrt(30), 1e-5), rel=1e-8)
    assert epsilon(mechanism("secagg", 5.0, Full(), 30, honest=4), 1e-5).epsilon == pytest.approx(
        dp_accounting.get_epsilon_gaussian(10.0 / math.sqrt(30), 1e-5), rel=1e-8
    )


@pytest.mark.parametrize("trust", ["local", "secagg"])
def test_monotone_without_amplification(trust: str) -> None:
    def spent(noise: float = 2.0, rate: float = 0.3, rounds: int = 50, honest: int = 2) -> float:
        return epsilon(mechanism(trust, noise, Poisson(rate), rounds, honest), 1e-5).epsilon

    assert all(a > b for a, b in itertools.pairwise(spent(noise=noise) for noise in (0.5, 1.0, 2.0, 8.0)))
    assert all(a < b for a, b in itertools.pairwise(spent(rounds=rounds) for rounds in (1, 5, 50, 500)))
    assert all(a < b for a, b in itertools.pairwise(spent(rate=rate) for rate in (0.01, 0.1, 0.5, 1.0)))
    assert spent(rate=0.3) > epsilon(mechanism("central", 2.0, Poisson(0.3), 50), 1e-5).epsilon or trust == "secagg"
    plan = mechanism(trust, 2.0, Poisson(0.3), 50, 2)
    so_far = SpentSoFar(plan, 1e-5)
    assert so_far.after(20) == spent(rounds=20) and so_far.after(50) == spent()


def test_noise_of_many_participants_is_that_of_the_server_at_the_root_of_their_number() -> None:
    """n participants with σ each give the mean the same variance as one server with σ √n; never both."""
    zero = torch.zeros(20_000, dtype=torch.float64)
    local = mechanism("local", 2.0, Poisson(0.5), 5)
    for participants in (1, 4, 9):
        released = local.release(zero, participants, (), Streams(0), 0)[0]
        assert released.std().item() == pytest.approx(2.0 * math.sqrt(participants) / 10, rel=0.03)
    assert local.release(zero, 0, (), Streams(0), 0)[0].abs().max() == 0  # nobody transmits, nobody adds noise


def test_secagg_gives_up_small_rounds_and_moves_nothing(tmp_path: Any) -> None:
    """Cohorts of 2 of 6 with min_honest = 3 never open their sum: model and memories stay, transmissions count."""
    centres = list(np.random.default_rng(0).normal(size=(6, 3)))
    privacy = normec.Privacy(trust="secagg", noise_multiplier=1.0, min_honest=3)
    run = quadratic(centres, algorithm=normec.FedNormEC(), participation=normec.Fixed(1 / 3), privacy=privacy, rounds=4, out=tmp_path / "a")
    assert x_of(run).tolist() == [0.0] * 3
    assert np.abs(checkpoint_of(run)["memory.v"]).max() == 0
    assert run.summary["given_up_rounds"] == 4 and run.summary["transmissions"] == 8
    assert run.summary["epsilon_realised_max"] == 0
    bigger = quadratic(centres, algorithm=normec.FedNormEC(), participation=normec.Fixed(0.5), privacy=privacy, rounds=4)
    assert np.abs(x_of(bigger)).min() > 0 and bigger.summary["given_up_rounds"] == 0


@pytest.mark.parametrize("trust", ["local", "secagg"])
def test_the_busiest_client_is_reported(trust: str) -> None:
    """Σ 1/h_k over each client's own rounds, recomputed from the cohorts."""
    honest, colluders = (2, 1) if trust == "secagg" else (None, 0)
    privacy = normec.Privacy(trust=trust, noise_multiplier=4.0, min_honest=honest, colluders=colluders)  # type: ignore[arg-type]
    run = quadratic([[1.0]] * 8, algorithm=normec.FedNormEC(), participation=normec.Poisson(0.5), privacy=privacy, rounds=30, seed=3)
    exposure = np.zeros(8)
    for k in range(30):
        cohort = Poisson(0.5).cohort(8, k, Streams(3))
        if trust == "local":
            exposure[cohort] += 1
        elif cohort.sum() - 1 >= 2:
            exposure[cohort] += 1 / (cohort.sum() - 1)
    right = dp_accounting.get_epsilon_gaussian(4.0 / math.sqrt(exposure.max()), 1e-5)
    assert run.summary["epsilon_realised_max"] == pytest.approx(right)
    assert realised(mechanism("local", 4.0, Full(), 1), 1e-5, 0.0).epsilon == 0
    assert "realised by the busiest client" in run.summary["claim"]


def test_a_run_stops_before_the_round_that_would_exceed_its_limit(command: Command) -> None:
    done = command("train", "rounds=30", "privacy.stop_at=4.0", "--out", "run")
    assert done.code == 0, done.err
    with open("run/metrics.jsonl") as lines:
        rows = [json.loads(line) for line in lines]
    with open("run/summary.json") as file:
        summary = json.load(file)
    stopped = rows[-1]["round"]
    assert 0 < stopped < 30 and f"stops after round {stopped} of 30" in done.out
    assert summary["epsilon"] <= 4.0 and rows[-1]["epsilon"] == summary["epsilon"] and f"{stopped} rounds" in summary["claim"]
    plan = Mechanism(
        trust=Central(), noise_multiplier=summary["noise_multiplier"], participation=Poisson(0.5), clients=100, rounds=stopped + 1
    )
    assert epsilon(plan, 1e-5).epsilon > 4.0
    assert affordable_rounds(replace(plan, rounds=30), 4.0, 1e-5) == stopped


def test_privacy_command(command: Command) -> None:
    done = command("privacy", "epsilon=8", "clients=20", "rate=0.25", "rounds=300", "delta=1e-5", "trust=local", "--json")
    assert done.code == 0, done.err
    rows = json.loads(done.out)
    assert [row["trust"] for row in rows] == ["local", "central", "secagg", "none"]
    keys = {"trust", "adjacency", "sampling", "rate", "rounds", "delta", "epsilon", "noise_multiplier", "accountant"}
    assert all(keys <= row.keys() for row in rows)
    by_trust = {row["trust"]: row for row in rows}
    assert by_trust["local"]["noise_multiplier"] == pytest.approx(5.33, abs=6e-3)
    assert by_trust["central"]["noise_multiplier"] == pytest.approx(2.73, abs=6e-3)
    assert by_trust["none"]["epsilon"] is None and by_trust["secagg"]["min_honest"] == 5
    assert all(7.999 <= row["epsilon"] <= 8 for row in rows if row["trust"] != "none")
    back = command(
        "privacy", f"noise_multiplier={by_trust['central']['noise_multiplier']}", "clients=20", "rate=0.25", "rounds=300", "--json"
    )
    assert json.loads(back.out)[0]["epsilon"] == pytest.approx(by_trust["central"]["epsilon"], abs=1e-9)


def test_privacy_command_shows_the_papers_formula_and_warns(command: Command) -> None:
    done = command("privacy", "noise=paper", "epsilon=8", "clients=20", "rate=0.25", "rounds=300", "delta=0.06")
    assert done.code == 0, done.err
    assert "warning: δ is not below 1/clients = 0.05" in done.out and "claims ε = 8" in done.out
    paper = json.loads(command("privacy", "noise=paper", "epsilon=8", "clients=20", "rate=0.25", "rounds=300", "--json").out)
    assert paper[0]["noise_multiplier"] == pytest.approx(1.8366, abs=1e-4) and paper[0]["epsilon"] == pytest.approx(13.70, abs=6e-3)


def test_privacy_command_says_where_nothing_is_amplified(command: Command) -> None:
    fixed = json.loads(command("privacy", "noise_multiplier=5", "scheme=fixed", "rate=0.25", "cohort_memories=true", "--json").out)
    assert fixed[0]["sampling"] == "fixed" and "over participations" in fixed[0]["accountant"]


@pytest.mark.parametrize("trust", ["local", "secagg"])
def test_a_client_at_its_limit_stays_silent(tmp_path: Path, command: Command, trust: str) -> None:
    """Under local, noise 4 and ε = 2 at δ = 1e-5 allow as many rounds n as √n / 4 <= μ(2), whatever the sampling asks for."""
    honest = {"min_honest": 2} if trust == "secagg" else {}
    privacy = normec.Privacy(trust=trust, noise_multiplier=4.0, delta=1e-5, client_limit=2.0, **honest)  # type: ignore[arg-type]
    centres = list(np.random.default_rng(0).normal(size=(6, 3)))
    choices: dict[str, Any] = {"algorithm": normec.FedNormEC(beta=0.2), "participation": normec.Poisson(0.6), "privacy": privacy}
    run = quadratic(centres, **choices, rounds=40, out=tmp_path / "run")
    lines = read(tmp_path / "run" / "ledger.jsonl").lines
    rounds_of, spent = np.zeros(6), np.zeros(6)
    for line in lines:
        if "participants" in line:
            rounds_of[line["participants"]] += 1
            spent[line["participants"]] += line["exposure"]
            if trust == "local":
                assert line["exposure"] == 1.0
            else:
                assert line["exposure"] == 1.0 / len(line["participants"])
    most = (4.0 / dp_accounting.get_sigma_gaussian(2.0, 1e-5)) ** 2
    assert spent.max() <= most < spent.max() + (1.0 if trust == "local" else 0.5)
    if trust == "local":
        assert set(rounds_of) == {int(most)} and run.summary["clients_at_limit"] == 6
        assert run.metrics[-1]["transmissions"] == 6 * int(most)  # nobody transmits in the last rounds
    right = dp_accounting.get_epsilon_gaussian(4.0 / math.sqrt(spent.max()), 1e-5)
    assert run.summary["epsilon_realised_max"] == pytest.approx(right) and right <= 2.0
    assert (
        run.epsilon
        <= 2.0
        < quadratic(centres, **(choices | {"privacy": privacy.model_copy(update={"client_limit": None})}), rounds=40).epsilon
    )
    shown = command("ledger", str(tmp_path / "run")).out
    assert "the client whose own rounds spent most: ε = " in shown and "silent before it exceeds 2" in shown


def test_the_clients_limit_is_checked(command: Command) -> None:
    refused = command("train", "privacy.client_limit=2")
    assert refused.code == 2 and "privacy.client_limit=2" in refused.err and "trust='local'" in refused.err
    refused = command("train", "privacy.trust=local", "privacy.noise_multiplier=0.5", "privacy.client_limit=0.1")
    assert refused.code == 2 and "does not allow a client a single round" in refused.err
    rows = json.loads(command("privacy", "trust=local", "noise_multiplier=4", "rate=0.6", "rounds=40", "client_limit=2", "--json").out)
    assert rows[0]["epsilon"] <= 2.0 < next(row for row in rows if row["trust"] == "central")["epsilon"] + 10
    free = json.loads(command("privacy", "trust=local", "noise_multiplier=4", "rate=0.6", "rounds=40", "--json").out)
    assert free[0]["epsilon"] > 2.0


def test_the_clients_accounts_outlive_a_crash_with_secure_noise(tmp_path: Path) -> None:
    """Round 3 is released and loses its checkpoint; round 4 begins, and nobody knows with whom, so that it counts for all.

    Of 9 releases 4 are gone then, and 2 rounds are saved: the run ends after round 7, with its last line evaluated.
    """
    privacy = normec.Privacy(trust="local", noise_multiplier=4.0, delta=1e-5, noise="secure")
    engine = normec.Engine(dtype="float64", eval_every=5)
    choices: dict[str, Any] = {
        "algorithm": normec.FedNormEC(beta=0.2), "participation": normec.Poisson(0.5), "privacy": privacy, "rounds": 9, "engine": engine,
    }  # fmt: skip
    centres = list(np.random.default_rng(0).normal(size=(6, 3)))
    with pytest.raises(OSError, match="stopped"):
        quadratic(centres, **choices, out=tmp_path / "run", observer=FailsAt(3))
    ledger = read(tmp_path / "run" / "ledger.jsonl")
    ledger.release(2)
    ledger.intent(3)
    run = quadratic(centres, **choices, out=tmp_path / "run", resume=True)
    exposure = np.ones(6)
    for line in read(tmp_path / "run" / "ledger.jsonl").lines:
        if "participants" in line:
            exposure[line["participants"]] += 1
    right = dp_accounting.get_epsilon_gaussian(4.0 / math.sqrt(exposure.max()), 1e-5)
    assert run.summary["epsilon_realised_max"] == pytest.approx(right)
    assert run.summary["rounds"] == 7 and run.metrics[-1]["train_loss"] is not None


def test_cohorts_stay_secret_under_central_trust(tmp_path: Path) -> None:
    quadratic([[1.0], [2.0]], algorithm=normec.FedNormEC(), privacy=normec.Privacy(trust="central", epsilon=1.0), out=tmp_path / "run")
    assert not any("participants" in line for line in read(tmp_path / "run" / "ledger.jsonl").lines)


def test_a_spent_budget_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    """The model that was trained must not be replaced by the untrained one."""
    choices: dict[str, Any] = {"algorithm": normec.FedNormEC(), "privacy": normec.Privacy(trust="central", epsilon=1.0, noise="secure")}
    quadratic([[1.0], [2.0]], **choices, out=tmp_path / "run")
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    (tmp_path / "run" / "checkpoint" / "state.safetensors").unlink()
    with pytest.raises(normec.BadInput, match="there is no checkpoint"):
        quadratic([[1.0], [2.0]], **choices, out=tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before


def test_a_long_calibration_tells_how_far_it_has_come(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normec.privacy.calibration.PATIENCE", -1.0)
    done = command("privacy", "epsilon=8", "rate=0.25", "--json")
    assert json.loads(done.out) and "calibrating: a noise multiplier of" in done.err and "8 is wanted" in done.err


def test_privacy_json_carries_its_warnings(command: Command) -> None:
    rows = json.loads(command("privacy", "epsilon=8", "clients=20", "delta=0.05", "--json").out)
    assert all("δ is not below 1/clients" in row["warnings"][0] for row in rows)
    assert all(not row["warnings"] for row in json.loads(command("privacy", "epsilon=8", "clients=20", "--json").out))


def test_a_limit_that_allows_no_round_is_told_and_loses_no_table(command: Command) -> None:
    rows = json.loads(command("privacy", "noise_multiplier=0.5", "client_limit=1", "clients=100", "rounds=20", "--json").out)
    by_trust = {row["trust"]: row for row in rows}
    assert any("does not allow a client a single round" in text for text in by_trust["local"]["warnings"])
    assert by_trust["local"]["epsilon"] <= 1 and by_trust["local"]["client_limit"] == 1 and by_trust["central"]["client_limit"] is None
    shown = command("privacy", "epsilon=8", "client_limit=2", "clients=100", "rounds=20")
    assert "client_limit = 2" in shown.out


def test_the_ledger_of_a_limited_run_shows_every_trust_model(command: Command) -> None:
    limited = ["privacy.trust=secagg", "privacy.noise_multiplier=2", "privacy.min_honest=50", "privacy.client_limit=1.0"]
    done = command("train", "rounds=4", "participation.scheme=full", *limited, "--out", "r")
    assert done.code == 0 and "silent before its own rounds spend more than ε = 1" in done.out and "besides 0 colluders" in done.out
    shown = command("ledger", "r")
    assert shown.code == 0 and "central" in shown.out and "local" in shown.out, shown.err
