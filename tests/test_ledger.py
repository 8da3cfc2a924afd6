"""The ledger: every release is on it before it can be seen, whatever happens; and secure noise, which it counts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import normec
from conftest import FailsAt, Outcome, quadratic, x_of
from normec.privacy import Central, Mechanism, SecAgg, epsilon
from normec.privacy.aggregation import lattice_for
from normec.privacy.ledger import Ledger, read
from normec.privacy.noise import with_secure_gaussian

Command = Callable[..., Outcome]
CPU = torch.device("cpu")


def private_run(folder: Path | None, **choices: Any) -> normec.Run:
    defaults: dict[str, Any] = {
        "algorithm": normec.FedNormEC(beta=0.2),
        "participation": normec.Poisson(0.5),
        "privacy": normec.Privacy(trust="central", epsilon=3.0),
        "rounds": 6,
        "out": folder,
    }
    return quadratic(list(np.random.default_rng(1).normal(size=(5, 4))), **(defaults | choices))


def test_every_release_is_written_down_in_order(tmp_path: Path) -> None:
    run = private_run(tmp_path / "a")
    lines = read(tmp_path / "a" / "ledger.jsonl").lines
    assert [(line["kind"], line.get("round")) for line in lines[1:]] == [
        (kind, k) for k in range(6) for kind in ("intent", "commit", "release")
    ]
    header = lines[0]
    assert header["trust"] == "central" and header["rounds"] == 6 and header["delta"] == 1e-5 and header["denominator"] == 2.5
    plan = Mechanism(trust=Central(), noise_multiplier=header["noise_multiplier"], participation=normec.Poisson(0.5), clients=5, rounds=6)
    assert run.epsilon == epsilon(plan, 1e-5).epsilon
    assert not (tmp_path / "b").exists()
    private_run(tmp_path / "b", privacy=normec.Privacy(trust="none"))
    assert not (tmp_path / "b" / "ledger.jsonl").exists()


def test_changed_or_missing_lines_are_named(tmp_path: Path, command: Command) -> None:
    private_run(tmp_path / "a", rounds=3)
    path = tmp_path / "a" / "ledger.jsonl"
    whole = path.read_bytes()
    assert command("ledger", str(tmp_path / "a")).code == 0
    lines = whole.splitlines(keepends=True)
    for number in range(1, len(lines) + 1):
        path.write_bytes(b"".join(lines[: number - 1] + lines[number:]))
        missing = command("ledger", str(tmp_path / "a"))
        assert missing.code == 2 and "line" in missing.err and "ledger" in missing.err, (number, missing)
        with pytest.raises(normec.BadInput, match="line"):
            private_run(tmp_path / "a", rounds=3, resume=True)
    rng = np.random.default_rng(0)
    for position in rng.choice(len(whole), 60, replace=False).tolist():
        changed = bytearray(whole)
        changed[position] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(changed))
        number = whole[:position].count(b"\n") + 1
        outcome = command("ledger", str(tmp_path / "a"))
        assert outcome.code == 2 and "line" in outcome.err, (position, outcome)
        if whole[position : position + 1] != b"\n" and b"\n" not in bytes([changed[position]]):
            assert f"line {number} of" in outcome.err
    path.write_bytes(whole)
    assert command("ledger", str(tmp_path / "a")).code == 0


def test_a_ledger_that_was_deleted_is_missed(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="stopped"):
        private_run(tmp_path / "a", observer=FailsAt(3), engine=normec.Engine(checkpoint_every=100))
    (tmp_path / "a" / "ledger.jsonl").unlink()
    (tmp_path / "a" / "ledger.head").unlink()
    with pytest.raises(normec.BadInput, match="knows of 0 rounds and 3 were seen"):
        private_run(tmp_path / "a", resume=True, engine=normec.Engine(checkpoint_every=100))
    private_run(tmp_path / "b")
    (tmp_path / "b" / "ledger.head").unlink()
    with pytest.raises(normec.BadInput, match=r"ledger\.head is missing"):
        private_run(tmp_path / "b", resume=True)
    (tmp_path / "b" / "ledger.head").write_text("{}")
    with pytest.raises(normec.BadInput, match=r"ledger\.head, which .* is damaged"):
        private_run(tmp_path / "b", resume=True)


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_the_end_of_an_unfinished_ledger_is_missed_too(tmp_path: Path, noise: str) -> None:
    privacy = normec.Privacy(trust="central", epsilon=3.0, noise=noise)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="stopped"):
        private_run(tmp_path / "a", privacy=privacy, observer=FailsAt(3))
    path = tmp_path / "a" / "ledger.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)
    for dropped in range(1, len(whole)):
        path.write_bytes(b"".join(whole[:-dropped]))
        with pytest.raises(normec.BadInput, match="Lines are missing"):
            private_run(tmp_path / "a", privacy=privacy, resume=True)
    path.write_bytes(b"".join(whole))
    private_run(tmp_path / "a", privacy=privacy, resume=True)


def test_a_committed_output_is_released_without_another_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And each draw finds its intent on the ledger already."""
    from normec.privacy import noise as module

    draws: list[str] = []
    original = module.with_secure_gaussian

    def watching(*arguments: Any) -> torch.Tensor:
        draws.append(read(tmp_path / "a" / "ledger.jsonl").lines[-1]["kind"])
        return original(*arguments)

    monkeypatch.setattr(module, "with_secure_gaussian", watching)
    privacy = normec.Privacy(trust="central", epsilon=3.0, noise="secure")
    with pytest.raises(OSError, match="stopped"):
        private_run(tmp_path / "a", privacy=privacy, observer=FailsAt(3))
    seen = json.loads((tmp_path / "a" / "metrics.jsonl").read_text().splitlines()[3])
    run = private_run(tmp_path / "a", privacy=privacy, resume=True)
    assert draws == ["intent"] * 6
    assert read(tmp_path / "a" / "ledger.jsonl").counted() == 6 and run.summary["rounds"] == 6
    assert run.metrics[3]["train_loss"] == seen["train_loss"] and run.metrics[3]["transmissions"] == seen["transmissions"]


def test_secure_cohorts_are_secret() -> None:
    from normec.streams import Streams

    scheme = normec.Poisson(0.5)
    secret = [scheme.cohort(200, 0, Streams(1, secret_cohorts=True)) for _ in range(2)]
    assert not np.array_equal(*secret) and not np.array_equal(secret[0], scheme.cohort(200, 0, Streams(1)))
    secure = normec.Privacy(trust="central", epsilon=3.0, noise="secure")
    sent = [[row["transmissions"] for row in private_run(None, privacy=secure, rounds=40).metrics] for _ in range(2)]
    assert sent[0] != sent[1]


def test_a_torn_last_line_is_dropped(tmp_path: Path, command: Command) -> None:
    private_run(tmp_path / "a", rounds=3)
    path = tmp_path / "a" / "ledger.jsonl"
    whole = path.read_bytes()
    for end in (b'{"kind": "inte', b'{"kind": "intent"', b'{"kind": "intent", "round": 3', b'{"kind": "intent", "round": 3}'):
        path.write_bytes(whole + end)
        assert "incomplete last line" in command("ledger", str(tmp_path / "a")).out
    with pytest.warns(UserWarning, match="incomplete last line"):
        private_run(tmp_path / "a", rounds=3, resume=True)
    assert path.read_bytes() == whole
    for changed in (whole[:-1] + b" ", whole[:-1] + b"\x0b", whole[:-1]):
        path.write_bytes(changed)
        assert "line 10 of" in command("ledger", str(tmp_path / "a")).err


def test_a_ledger_cut_anywhere_while_writing_is_torn(tmp_path: Path) -> None:
    """As a process leaves it that is killed while it writes a line, before the head counts that line."""
    ledger = Ledger.open(tmp_path / "l", {"noise": "seeded"})
    ledger.intent(0)
    whole, head = (tmp_path / "l").read_bytes(), (tmp_path / "l.head").read_bytes()
    ledger.commit(0, "abc")
    longer = (tmp_path / "l").read_bytes()
    (tmp_path / "l.head").write_bytes(head)
    for end in range(len(whole) + 1, len(longer)):
        (tmp_path / "l").write_bytes(longer[:end])
        found = read(tmp_path / "l")
        assert found.torn and len(found.lines) == 2


def test_a_ledger_without_a_whole_line(tmp_path: Path, command: Command) -> None:
    (tmp_path / "ledger.jsonl").write_text('{"kind": "head')
    shown = command("ledger", str(tmp_path))
    assert shown.code == 2 and "without a whole line" in shown.err


def test_a_lost_ledger_is_missed_before_anything_was_seen(tmp_path: Path) -> None:
    """A secure run that ends after a commit and before its metrics: its head, or the stored output, tells of the release."""
    privacy = normec.Privacy(trust="central", epsilon=3.0, noise="secure")
    with pytest.raises(OSError, match="stopped"):
        private_run(tmp_path / "a", privacy=privacy, observer=FailsAt(1))
    metrics = tmp_path / "a" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().splitlines(keepends=True)[0])
    (tmp_path / "a" / "ledger.jsonl").unlink()
    with pytest.raises(normec.BadInput, match=r"ledger\.jsonl is missing, and ledger\.head says"):
        private_run(tmp_path / "a", privacy=privacy, resume=True)
    (tmp_path / "a" / "ledger.head").unlink()
    with pytest.raises(normec.BadInput, match="knows of no round and the output of one is stored"):
        private_run(tmp_path / "a", privacy=privacy, resume=True)


def test_a_head_that_counts_no_line_is_damaged(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "l", {"noise": "seeded"})
    (tmp_path / "l.head").write_text(json.dumps([0, ledger.head]))
    with pytest.raises(normec.BadInput, match="is damaged"):
        read(tmp_path / "l")


@pytest.mark.parametrize(("noise", "right"), [("seeded", [1.5, 1.0, 0.5]), ("secure", [2.5, 2.0, 1.0])])
def test_accounts_of_the_clients(tmp_path: Path, noise: str, right: list[float]) -> None:
    """Rounds 0 and 1 with 1/h = 1/2; round 1 is retried; round 2 begins, and nobody knows with whom, so that 1/min_honest counts.

    With seeded noise the retry is the same release. With secure noise it counts again, and a client that was silent when the
    lost attempt began was not in it.
    """
    ledger = Ledger.open(tmp_path / "l", {"noise": noise})
    for k, who in ((0, [0, 1]), (1, [0]), (1, [0, 1])):
        ledger.intent(k)
        ledger.commit(k, f"output {k}", participants=who, exposure=0.5)
        ledger.release(k)
    ledger.intent(2)
    mechanism = Mechanism(
        trust=SecAgg(min_honest=2 if noise == "seeded" else 1), noise_multiplier=3.0, participation=normec.Full(), clients=3, rounds=4
    )
    if noise == "seeded":
        right = [1.5, 1.5, 0.5]
    np.testing.assert_allclose(ledger.exposures(mechanism), right)
    silent = replace(mechanism, most_exposure=1.2)
    np.testing.assert_allclose(ledger.exposures(silent), [1.0 if noise == "seeded" else 1.5, 1.0, right[2]])
    ledger.commit(2, "output 2", participants=[2], exposure=0.25)
    with_it, without = ledger.exposures(mechanism), ledger.exposures(mechanism, pending=False)
    assert with_it[2] == 0.25 and without[2] == 0.0 and with_it[0] == without[0] == (1.0 if noise == "seeded" else 1.5)


def test_another_mechanism_is_refused(tmp_path: Path) -> None:
    header = {"noise": "seeded", "noise_multiplier": 2.0}
    Ledger.open(tmp_path / "l", header)
    with pytest.raises(normec.BadInput, match=r"noise_multiplier=2\.0 there, 1\.0 here"):
        Ledger.open(tmp_path / "l", header | {"noise_multiplier": 1.0})


def test_counting_of_retries(tmp_path: Path) -> None:
    for noise, counted in (("seeded", 2), ("secure", 3)):
        ledger = Ledger.open(tmp_path / noise, {"noise": noise})
        for k in (0, 1, 1):
            ledger.intent(k)
        again = read(tmp_path / noise)
        assert ledger.counted() == again.counted() == counted and again.retried() == [1] and again.pending() is None
        ledger.commit(1, "abc")
        assert read(tmp_path / noise).pending() == (1, "abc")
    seeded = Ledger.open(tmp_path / "seeded", {"noise": "seeded"})
    seeded.intent(1)
    with pytest.raises(normec.BadInput, match="another output than before"):
        seeded.commit(1, "other")


def test_two_halves_spend_what_the_whole_does(tmp_path: Path) -> None:
    whole = private_run(tmp_path / "whole", rounds=100)
    with pytest.raises(OSError, match="stopped"):
        private_run(tmp_path / "half", rounds=100, observer=FailsAt(50))
    halves = private_run(tmp_path / "half", rounds=100, resume=True)
    assert halves.epsilon == pytest.approx(whole.epsilon, abs=1e-9)
    assert read(tmp_path / "half" / "ledger.jsonl").counted() == 100


def killed(*arguments: str) -> list[dict[str, Any]]:
    script = Path(__file__).with_name("interrupted.py")
    done = subprocess.run([sys.executable, "-W", "error", str(script), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(("noise", "seed"), [("seeded", 100), ("secure", 200)])
def test_killed_at_random_moments(tmp_path: Path, noise: str, seed: int) -> None:
    """10 runs each, killed 5 times each at random steps of their writing: the ledger counts what was released, and the run ends within its ε."""
    results = killed(str(tmp_path), noise, "10", str(seed))
    assert [result["killed"] for result in results] == [5] * 10
    for result in results:
        assert result["epsilon"] <= 4.0 and result["counted"] <= 25
        if noise == "seeded":
            assert result["equal"] and result["counted"] == result["rounds"] == 25
        else:
            assert result["rounds"] <= result["counted"]
    assert any(result["retried"] for result in results)


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_killed_at_every_moment(tmp_path: Path, noise: str) -> None:
    """Runs of 2 rounds, killed once before or after each durable step: with secure noise an attempt without a commit costs a round."""
    results = killed(str(tmp_path), noise)
    assert len(results) > 50
    lost = [result["counted"] - result["committed"] if noise == "secure" else 0 for result in results]
    assert [result["rounds"] for result in results] == [2 - each for each in lost]
    assert all(result["epsilon"] <= 4.0 and result["counted"] == 2 for result in results)
    assert set(lost) == ({0, 1} if noise == "secure" else {0})
    assert noise == "secure" or all(result["equal"] for result in results)


def test_secure_runs_release_on_the_lattice_and_never_repeat(tmp_path: Path) -> None:
    secure = normec.Privacy(trust="central", epsilon=3.0, noise="secure")
    a, b = private_run(tmp_path / "a", privacy=secure), private_run(tmp_path / "b", privacy=secure)
    assert not np.array_equal(x_of(a), x_of(b))
    assert "Secure noise" in a.summary["claim"] and a.epsilon <= 3.0
    lattice = lattice_for(1.0).step
    assert a.summary["sensitivity"] == pytest.approx(1.0 + lattice * np.sqrt(4) / 2, rel=1e-12)
    from safetensors.torch import load_file

    steps = load_file(tmp_path / "a" / "checkpoint" / "output.safetensors")["released"] * 2.5 / lattice
    assert torch.equal(steps, steps.round())


def test_trailing_bits_tell_nothing() -> None:
    """d = 272,000, 30 messages: the share of odd lattice steps is the same for a zero message and for a real one.

    In floating point the trailing bits of message + noise tell a message from zero in every trial.
    """
    d, lattice = 272_000, lattice_for(1.0).step
    message = lattice_for(1.0).encode(torch.from_numpy(np.random.default_rng(0).normal(size=(1, d)) / np.sqrt(d)))[0]
    scores: dict[bool, list[float]] = {False: [], True: []}
    for trial in range(30):
        present = trial % 2 == 0
        released = with_secure_gaussian(message if present else torch.zeros_like(message), 1.0, lattice)
        steps = (released / lattice).long()
        assert torch.equal(steps.double() * lattice, released)
        scores[present].append(float((steps & 1).double().mean()))
    difference = np.mean(scores[True]) - np.mean(scores[False])
    assert abs(difference) < 5 * np.sqrt(2 * 0.25 / d / 15)


def test_quantization_inflates_by_no_more_than_stated() -> None:
    encoded = lattice_for(0.3)
    lattice = encoded.step
    assert lattice == 2.0**-22
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(5, 1000)))
    moved = torch.linalg.vector_norm(encoded.encode(rows) - rows, dim=1)
    assert float(moved.max()) <= lattice * np.sqrt(1000) / 2


def test_secure_noise_without_privacy_is_refused() -> None:
    with pytest.raises(normec.BadInput, match="noise='secure' has no meaning"):
        normec.Privacy(trust="none", noise="secure")


def test_ledger_command(command: Command, tmp_path: Path) -> None:
    assert command("train", "rounds=4", "--out", "run").code == 0
    done = command("ledger", "run")
    assert done.code == 0 and "13 lines, the chain is whole" in done.out and "4 releases of 4 planned count" in done.out
    assert "8.000" in done.out
    found = json.loads(command("ledger", "run", "--json").out)
    assert (found["lines"], found["releases"], found["retried"], found["torn"]) == (13, 4, [], False)
    assert found["spent"]["trust"] == "central" and found["spent"]["epsilon"] == pytest.approx(8, abs=1e-2)
    assert found["mechanism"]["rounds"] == 4 and {row["trust"] for row in found["other_trusts"]} == {"secagg", "local", "none"}
    assert command("ledger", "nowhere").code == 2
