"""Noise of one's own: it trains, resumes, is accounted by its own event, is read back without its code, and is audited."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest

import normec
from conftest import checkpoint_of, quadratic, x_of
from normec.audit.run import Audit, prepare_audit
from normec.cli import main
from normec.privacy import Central, Mechanism, calibrate, epsilon
from normec.privacy.events import of_table, to_table
from normec.privacy.noise import Accounted
from normec.privacy.participation import Full
from normec.runs.experiment import Schedule
from normec.runs.record import Record

ROUNDS, CENTRES = 6, [np.full(5, float(i)) for i in range(4)]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def echoing(noise: str = "noises:Echo", **changes: Any) -> normec.Run:
    privacy = normec.Privacy(trust="central", noise=noise, **(changes.pop("privacy", None) or {"noise_multiplier": 2.0}))
    return quadratic(CENTRES, algorithm=normec.FedNormEC(), privacy=privacy, rounds=ROUNDS, **changes)


def closed_form(multiplier: float, delta: float = 1e-5) -> float:
    """ε of one Gaussian at the distance √(1² + 2² + … + K²)."""
    return float(dp_accounting.get_epsilon_gaussian(multiplier / math.sqrt(91), delta))


def test_each_release_carries_its_draw_and_the_one_before() -> None:
    """Messages are too short to matter, so that the model moves by the noise alone."""

    def moves(noise: str) -> np.ndarray:
        states = [np.zeros(5)]
        for rounds in (1, 2, 3):
            privacy = normec.Privacy(trust="central", noise=noise, noise_multiplier=1e8)
            run = quadratic([np.zeros(5)] * 4, algorithm=normec.DPFedAvgClip(clip_norm=1e-12), privacy=privacy, rounds=rounds)
            states.append(x_of(run))
        return np.diff(np.stack(states), axis=0)

    plain, echo = moves("seeded"), moves("noises:Echo")
    assert np.allclose(echo[0], plain[0], rtol=1e-6)
    assert np.allclose(echo[1:], plain[1:] + plain[:-1], atol=1e-6 * np.abs(plain).max())


def test_it_resumes_bit_equally_after_a_kill(tmp_path: Path) -> None:
    class Killed:
        def started(self, plan: Any) -> None: ...

        def round(self, row: dict[str, Any]) -> None:
            if row["round"] == 3:
                raise InterruptedError

    whole = echoing(out=tmp_path / "a")
    with pytest.raises(InterruptedError):
        echoing(out=tmp_path / "b", observer=Killed())
    resumed = echoing(out=tmp_path / "b", resume=True)
    ours, theirs = checkpoint_of(resumed), checkpoint_of(whole)
    assert "noise.previous" in ours and np.abs(ours["noise.previous"]).max() > 0
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def test_epsilon_is_that_of_its_own_event(tmp_path: Path) -> None:
    run = echoing(out=tmp_path / "run")
    assert run.epsilon == pytest.approx(closed_form(2.0), rel=1e-9)
    assert [row["epsilon"] for row in run.metrics] == [0.0] + [run.epsilon] * ROUNDS  # from the first round on all of it
    assert "The noise is not this library's own" in run.summary["claim"]
    mechanism = Mechanism(trust=Central(), participation=Full(), clients=4, rounds=ROUNDS, noise=Accounted("noises:Echo", None))
    assert not mechanism.private and epsilon(mechanism, 1e-5).epsilon == math.inf


def test_a_promised_epsilon_is_reached_with_its_event() -> None:
    run = echoing(privacy={"epsilon": 4.0, "delta": 1e-5})
    assert 3.999 <= run.epsilon <= 4.0
    assert run.epsilon == pytest.approx(closed_form(run.summary["noise_multiplier"]), rel=1e-9)


def test_its_ledger_is_read_without_its_code(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run = echoing(out=tmp_path / "run")
    for name in [name for name in sys.modules if name == "noises"]:
        monkeypatch.delitem(sys.modules, name)
    assert Record.read(tmp_path / "run").epsilon == run.epsilon
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", ["normec", "ledger", str(tmp_path / "run"), "--json"])
        with contextlib.suppress(SystemExit):
            main()
    found = json.loads(capsys.readouterr().out)
    assert found["spent"]["epsilon"] == run.epsilon and found["other_trusts"] == []
    assert "noises" not in sys.modules


def test_noise_that_names_no_event_gets_no_claim(tmp_path: Path) -> None:
    run = echoing("noises:Unaccounted", out=tmp_path / "run")
    assert run.epsilon == math.inf and run.summary["epsilon"] is None and not run.summary["private"]
    assert run.summary["claim"] == "Not private: the noise names no event that it could be accounted by, ε = ∞."
    assert all(row["epsilon"] is None for row in run.metrics)
    assert Record.read(tmp_path / "run").epsilon is None
    with pytest.raises(normec.BadInput, match="epsilon"):
        echoing("noises:Unaccounted", privacy={"epsilon": 4.0})


@pytest.mark.parametrize(
    ("noise", "trust", "problem"),
    [
        ("sedeed", "central", "'sedeed' must be 'seeded', 'secure'"),
        ("noises:Echo", "local", "acts only with trust='central'"),
        ("noises:missing", "central", "has no callable missing"),
        ("math:sqrt", "central", "is not a class of noise"),
        ("noises:CallsItselfSecure", "central", "calls itself secure"),
    ],
)
def test_what_is_no_noise_is_refused(noise: str, trust: Any, problem: str) -> None:
    with pytest.raises(normec.BadInput, match=problem):
        quadratic(CENTRES, algorithm=normec.FedNormEC(), privacy=normec.Privacy(trust=trust, noise=noise, noise_multiplier=1.0))


def audited(noise: str, seed: int = 1) -> set[str]:
    from test_audit import experiment

    privacy = normec.Privacy(trust="central", noise=noise, noise_multiplier=1.0)
    audit = prepare_audit(experiment(privacy=privacy, schedule=Schedule(rounds=100, seed=seed)), Audit())
    audit.execute()
    return {test.name for test in audit.verdict()[0].tests if test.flagged}


def test_it_passes_the_audit_and_one_that_lies_does_not() -> None:
    assert audited("noises:Echo") == set()
    assert "noise from round to round" in audited("noises:Forgetful")


def test_no_theorem_covers_it() -> None:
    assert "earlier rounds" in str(echoing().summary["convergence"])


def test_events_are_read_as_they_were_written() -> None:
    event = dp_accounting.ComposedDpEvent(
        [dp_accounting.SelfComposedDpEvent(dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(2.0)), 7)]
    )
    assert of_table(to_table(event)) == event
    for wrong in ('{"kind": "DpEventBuilder"}', '{"kind": "os.system"}', "3", "[", '{"kind": "GaussianDpEvent", "multiplier": 1}'):
        with pytest.raises(normec.BadInput):
            of_table(wrong)


def test_calibration_never_gives_less_than_its_event_needs() -> None:
    from noises import Echo

    mechanism = Mechanism(trust=Central(), participation=Full(), clients=4, rounds=ROUNDS, noise=Echo())
    for target in (0.1, 1.0, 50.0):
        assert target * 0.999 <= closed_form(calibrate(mechanism, target, 1e-5)) <= target * (1 + 1e-9)
