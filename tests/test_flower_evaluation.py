"""Evaluation by the clients on Flower: plain means without privacy; otherwise bounded, noised, and accounted by itself."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import normec
from normec.errors import BadInput
from normec.hashed import unsealed
from normec.privacy import Local, Mechanism, epsilon, trust_model
from normec.privacy.ledger import Ledger, read

pytest.importorskip("flwr", reason="needs the extra normec[flower]")

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from federation import Grid, Node, owner
from normec.flower import ClientEvaluation, ClientMod, Strategy
from normec.flower.evaluations import Evaluations
from normec.flower.owner import account
from normec.flower.server_state import ServerState
from normec.flower.terms import Sizes, Terms
from normec.flower.wire import RECORD
from normec.privacy.promise import shown_epsilon
from normec.report.page import Shown, write
from normec.runs.folder import RunFolder, line_of
from normec.runs.record import Record
from normec.runs.spending import evaluations_of

ANSWERS: dict[str, dict[str, Any]] = {
    "c0": {"loss": 1.0, "accuracy": 0.5, "num-examples": 10},
    "c1": {"loss": 3.0, "accuracy": 1.0, "num-examples": 30},
}
NONE = normec.Privacy(trust="none")
ALGORITHM = normec.FedNormEC(beta=0.1, server_lr=1.0)


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)


def private(trust: Any) -> normec.Privacy:
    return normec.Privacy(trust=trust, noise_multiplier=2.0, delta=1e-5)


def federation(directory: Path, trust: str, answers: dict[str, Any] = ANSWERS, **limits: Any) -> Grid:
    app = ClientApp(mods=[ClientMod()])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        moved = {name: Array(array.numpy() + 0.1) for name, array in message.content["arrays"].items()}
        return Message(RecordDict({"arrays": ArrayRecord(moved)}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        said = answers[str(context.node_config["client-id"])]
        if isinstance(said, Exception):
            raise said
        return Message(RecordDict({"metrics": MetricRecord(said)}), reply_to=message)

    return Grid({i: Node(app, owner(directory, client, trust, **limits)) for i, client in enumerate(ANSWERS)})


def run(
    directory: Path, grid: Grid, privacy: normec.Privacy, rounds: int = 5, **evaluation: Any
) -> tuple[Strategy, dict[int, dict[str, Any]]]:
    asked = ClientEvaluation(**evaluation) if evaluation else None
    chosen = Strategy(ALGORITHM, local_lr=0.5, clients=2, privacy=privacy, folder=directory / "server", wait=0.0, evaluation=asked)
    found = chosen.start(grid, ArrayRecord({"x": torch.zeros(4)}), num_rounds=rounds)  # type: ignore[arg-type]
    return chosen, {k: dict(values) for k, values in found.evaluate_metrics_clientapp.items()}


def test_it_is_off_by_default(tmp_path: Path) -> None:
    grid = federation(tmp_path, "none")
    chosen, found = run(tmp_path, grid, NONE)
    assert not found and {reply.metadata.message_type for reply in grid.heard} == {"train"}
    assert not (tmp_path / "server" / "evaluation").exists() and "evaluate" not in chosen.state.claim().sentence


def test_without_privacy_metrics_are_means_over_samples(tmp_path: Path) -> None:
    """(10 · 1 + 30 · 3) / 40 = 2.5 and (10 · 0.5 + 30 · 1) / 40 = 0.875, after rounds 2, 4 and the last."""
    _, found = run(tmp_path, federation(tmp_path, "none"), NONE, every=2)
    assert found == {k: {"loss": 2.5, "accuracy": 0.875} for k in (2, 4, 5)}
    rows = [unsealed(line) for line in (tmp_path / "server" / "evaluation" / "metrics.jsonl").read_text().splitlines()]
    assert rows[0] == {"round": 2, "loss": 2.5, "accuracy": 0.875, "answered": 2}
    assert (tmp_path / "c0" / "c0" / "unprotected").exists()


@pytest.mark.parametrize("trust", ["central", "local"])
def test_under_privacy_the_noised_mean_over_clients_of_clipped_metrics_is_released(trust: str, tmp_path: Path) -> None:
    """With next to no noise: losses 1 and 9, clipped at 5, have the mean 3; accuracies 0.5 and 1 have 0.75."""
    answers = {**ANSWERS, "c1": {**ANSWERS["c1"], "loss": 9.0}}
    grid = federation(tmp_path, trust, answers, max_epsilon=1e4, delta=0.1)
    privacy = normec.Privacy(trust=trust, noise_multiplier=3.0, delta=1e-5)  # type: ignore[arg-type]
    chosen, found = run(tmp_path, grid, privacy, rounds=2, every=2, noise_multiplier=0.02)
    assert found[2]["loss"] == pytest.approx(3.0, abs=5 * 0.02 * math.sqrt(2) * 5)
    assert found[2]["accuracy"] == pytest.approx(0.75, abs=5 * 0.02 * math.sqrt(2))
    assert found[2]["loss"] != 3.0
    replies = [reply for reply in grid.heard if reply.metadata.message_type == "evaluate"]
    assert len(replies) == 2 and all(set(reply.content) == {RECORD, f"{RECORD}.message"} for reply in replies)
    sizes = {reply.content[f"{RECORD}.message"]["message"].numpy().shape for reply in replies}
    assert sizes == {(2,)}
    assert chosen.state.evaluations is not None and chosen.state.evaluations.ledger is not None
    assert read(tmp_path / "server" / "evaluation" / "ledger.jsonl").counted() == 1


@pytest.mark.parametrize("trust", ["central", "local"])
def test_the_noise_is_the_one_that_is_stated(trust: Any, tmp_path: Path) -> None:
    """σ = 2 on the sum of 100 clients, or of each: on a mean of m = 2 values, 2 √2 / 100 or 2 √2 / 10, times the largest value."""
    sizes = Sizes(local_lr=0.5, clients=100, rounds=300, parameters=4)
    terms = Terms.settled(ALGORITHM, normec.Full(), private(trust), sizes).evaluated(ClientEvaluation(noise_multiplier=2.0))
    assert terms.evaluation is not None
    evaluations, mechanism = Evaluations(tmp_path, terms, terms.evaluation), terms.evaluation_mechanism
    zero = terms.evaluation.message({"loss": 0.0, "accuracy": 0.0}, mechanism)
    found = []
    for k in range(300):
        messages = [mechanism.noised(zero, 1, (), normec.streams.Streams(0), 0)[0] if trust == "local" else zero for _ in range(100)]
        found.append(list(evaluations.end(k, messages).values()))
    std = 2 * math.sqrt(2) / (10 if trust == "local" else 100)
    assert np.std(found, axis=0) / [std, 5 * std] == pytest.approx([1, 1], abs=0.15)  # 3.7 of its own standard deviations
    row = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert row["noise_std"] == {"loss": pytest.approx(5 * std, rel=1e-4), "accuracy": pytest.approx(std, rel=1e-4)}


def test_whatever_a_client_measures_its_message_is_no_longer_than_one() -> None:
    evaluation = ClientEvaluation(noise_multiplier=1.0, metrics={"loss": 5.0, "accuracy": 1.0, "auc": 1.0}, delta=1e-5)
    mechanism = evaluation.mechanism(private("central"), 10, 4)
    values = [0.0, 1.0, 5.0, -3.0, 1e300, math.inf, -math.inf, math.nan, "much", None]
    for a in values:
        for b in values:
            message = evaluation.message({"loss": a, "accuracy": b, "auc": 1}, mechanism)
            assert message.shape == (3,) and float(message.norm()) <= mechanism.bound <= 1.00001
    assert evaluation.message({"loss": 10.0, "accuracy": 0.5}, mechanism) * math.sqrt(3) == pytest.approx(
        [0.5, 0.0, 1.0], abs=1e-5
    )  # by name
    assert float(evaluation.message(None, mechanism).abs().sum()) == 0
    assert (mechanism.rounds, mechanism.sensitivity) == (4, mechanism.bound)


@pytest.mark.parametrize("trust", ["central", "local"])
def test_the_claim_says_training_and_evaluation_together(trust: Any, tmp_path: Path) -> None:
    """3 evaluations at z = 4 are one Gaussian of μ = √3 / 4, beside 5 rounds at z = 2; ε and δ add up."""
    grid = federation(tmp_path, trust)
    run(tmp_path, grid, private(trust), every=2, noise_multiplier=4.0, delta=1e-6)
    full = normec.Full()
    training = epsilon(Mechanism(trust=trust_model(trust), noise_multiplier=2.0, participation=full, clients=2, rounds=5), 1e-5).epsilon
    own = epsilon(Mechanism(trust=trust_model(trust), noise_multiplier=4.0, participation=full, clients=2, rounds=3), 1e-6).epsilon
    summary = json.loads((tmp_path / "server" / "summary.json").read_text())
    assert summary["evaluation"]["epsilon"] == pytest.approx(own)
    assert summary["evaluation"]["training"] == {"epsilon": pytest.approx(training), "delta": 1e-5}
    assert summary["evaluation"]["together"] == {"epsilon": pytest.approx(training + own), "delta": pytest.approx(1.1e-5)}
    assert (summary["epsilon"], summary["delta"]) == (pytest.approx(training + own), pytest.approx(1.1e-5))
    assert summary["claim"].startswith(f"Client-level (ε = {shown_epsilon(training + own)}, δ = 1.1e-05) differential privacy")
    assert f"training, (ε = {shown_epsilon(training)}, δ = 1e-05), and 3 evaluations by the clients" in summary["claim"]
    assert f"(ε = {shown_epsilon(own)}, δ = 1e-06) at noise multiplier 4." in summary["claim"]
    if trust == "local":  # every client takes part in all of both
        assert summary["epsilon_realised_max"] == pytest.approx(training + own)


def at(trust: Any, noise: float, releases: int, delta: float) -> float:
    return (
        epsilon(
            Mechanism(trust=trust_model(trust), noise_multiplier=noise, participation=normec.Full(), clients=2, rounds=releases), delta
        ).epsilon
        if releases
        else 0.0
    )


@pytest.mark.parametrize("trust", ["central", "local"])
def test_every_epsilon_of_the_run_covers_its_evaluations(trust: Any, tmp_path: Path, command: Any) -> None:
    """After round k of 5: k rounds at z = 2 and, evaluated every 2 rounds and at the end, k // 2 (3 at last) at z = 4."""
    run(tmp_path, federation(tmp_path, trust), private(trust), every=2, noise_multiplier=4.0, delta=1e-6)
    folder = tmp_path / "server"
    rows = [json.loads(line)["epsilon"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    right = [at(trust, 2.0, k, 1e-5) + at(trust, 4.0, 3 if k == 5 else k // 2, 1e-6) for k in range(6)]
    assert rows == pytest.approx(right, rel=1e-3) and all(row >= least - 1e-9 for row, least in zip(rows, right, strict=True))
    record = Record.read(folder)
    assert record.epsilon == record.metrics[-1]["epsilon"] == pytest.approx(right[-1])
    shown = shown_epsilon(right[-1])
    assert f">{shown}<" in write(Shown.read([folder])) and shown_epsilon(right[-1] - at(trust, 4.0, 3, 1e-6)) != shown
    said = command("ledger", str(folder))
    assert f"spent: ε = {shown} at δ = 1.1e-05" in said.out and "3 evaluations by the clients" in said.out
    told = json.loads(command("ledger", str(folder), "--json").out)
    assert (told["spent"]["epsilon"], told["spent"]["delta"]) == (pytest.approx(right[-1]), pytest.approx(1.1e-5))


def test_a_run_without_the_ledger_of_its_evaluations_or_with_a_smaller_epsilon_is_refused(tmp_path: Path, command: Any) -> None:
    run(tmp_path, federation(tmp_path, "central"), private("central"), every=2, noise_multiplier=4.0)
    folder = tmp_path / "server"
    whole = (folder / "metrics.jsonl").read_text()
    rows = [unsealed(line) for line in whole.splitlines()]
    rows[-1]["epsilon"] = at("central", 2.0, 5, 1e-5)  # of the training alone
    (folder / "summary.json").rename(tmp_path / "summary.json")  # which names the hash of the metrics
    (folder / "metrics.jsonl").write_text("".join(map(line_of, rows)))
    with pytest.raises(BadInput, match="names a smaller ε after round 5"):
        Record.read(folder)
    (folder / "metrics.jsonl").write_text(whole)
    (tmp_path / "summary.json").rename(folder / "summary.json")
    for path in (folder / "evaluation").glob("ledger.*"):
        path.unlink()
    for reader in (lambda: Record.read(folder), lambda: evaluations_of(RunFolder(folder))):
        with pytest.raises(BadInput, match=r"evaluation/ledger\.jsonl is missing"):
            reader()
    assert command("ledger", str(folder)).code == 2


def test_a_clients_own_account_holds_its_evaluations_too(tmp_path: Path) -> None:
    """5 releases at z = 2 and 3 at z = 4: μ² = 5/4 + 3/16 = 23/16, one Gaussian of z = 4/√23."""
    run(tmp_path, federation(tmp_path, "local"), private("local"), every=2, noise_multiplier=4.0)
    told = account(tmp_path / "c1" / "c1", 1e-5)
    assert [(each["of"], each["releases"]) for each in told["experiments"]] == [("evaluation", 3), ("training", 5)]
    one = epsilon(
        Mechanism(trust=Local(), noise_multiplier=4 / math.sqrt(23), participation=normec.Full(), clients=2, rounds=1), 0.9e-5
    ).epsilon
    assert told["epsilon"] == pytest.approx(one, rel=1e-5)


def test_an_owners_limit_holds_for_evaluations_as_well(tmp_path: Path) -> None:
    """At z = 1 four releases have ε = 10.04 and five 11.53 at 0.9 δ, whichever of them train and which evaluate."""
    grid = federation(tmp_path, "local", max_epsilon=11.0)
    privacy = normec.Privacy(trust="local", noise_multiplier=1.0, delta=1e-5)
    with pytest.raises(normec.errors.NormecError, match=r"does not allow another release: with it ε = 11\.53"):
        run(tmp_path, grid, privacy, every=1, noise_multiplier=1.0)
    told = account(tmp_path / "c0" / "c0", 1e-5)
    assert sum(each["releases"] for each in told["experiments"]) == 4
    assert sum(f"{RECORD}.message" in reply.content for reply in grid.heard) == 8  # of two clients


@pytest.mark.parametrize("failing", [ValueError("row 7: Jane Doe"), {"loss": math.nan}, {}], ids=["raises", "nan", "nothing"])
def test_what_an_evaluate_function_fails_of_does_not_leave_the_client(failing: Any, tmp_path: Path) -> None:
    grid = federation(tmp_path, "central", {**ANSWERS, "c1": failing})
    run(tmp_path, grid, private("central"), rounds=2, noise_multiplier=2.0)
    replies = [reply for reply in grid.heard if reply.metadata.message_type == "evaluate"]
    assert len(replies) == 4 and not any(reply.has_error() or reply.content[RECORD]["refused"] for reply in replies)
    assert "Jane" not in repr([reply.content for reply in grid.heard])


@pytest.mark.parametrize(
    ("privacy", "evaluation", "said"),
    [
        (private("central"), {}, "evaluation.epsilon=None, noise_multiplier=None: give one of the two"),
        (private("local"), {"epsilon": 1.0, "noise_multiplier": 1.0}, "evaluation.epsilon=1, noise_multiplier=1.0: give one of the two"),
        (NONE, {"epsilon": 1.0}, "evaluation.epsilon=1 has no meaning with privacy.trust='none'"),
    ],
)
def test_an_evaluation_that_promises_too_much_or_too_little_is_refused(
    privacy: normec.Privacy, evaluation: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput) as error:
        run(tmp_path, federation(tmp_path, privacy.trust), privacy, every=2, **evaluation)
    assert str(error.value).startswith(said)


def test_the_noise_that_a_promised_epsilon_needs_is_found_and_owners_compare_it_with_theirs(tmp_path: Path) -> None:
    chosen, _ = run(tmp_path, federation(tmp_path, "local"), private("local"), every=2, epsilon=1.5)
    assert chosen.state.evaluations is not None
    spent = chosen.state.evaluations.spent().epsilon
    assert 1.5 - 1e-3 <= spent <= 1.5
    grid = federation(tmp_path / "strict", "local", min_noise_multiplier=1.5)
    grid.nodes[0].config = owner(tmp_path / "strict", "c0")
    with pytest.raises(normec.errors.NormecError, match=r"evaluation.noise_multiplier=1 is below the 1.5"):
        run(tmp_path / "strict", grid, private("local"), noise_multiplier=1.0)


def test_terms_with_an_evaluation_come_back_from_their_text_and_unsettled_ones_are_refused() -> None:
    sizes = Sizes(local_lr=0.5, clients=100, rounds=7, parameters=4)
    plain = Terms.settled(ALGORITHM, normec.Full(), private("central"), sizes)
    assert "evaluation" not in plain.table()
    terms = plain.evaluated(ClientEvaluation(every=3, epsilon=1.0, metrics={"auc": 1.0}))
    again = Terms.read(terms.text())
    assert again == terms and again.evaluation_mechanism == terms.evaluation_mechanism and again.evaluation_mechanism.rounds == 3
    for name, value in (("epsilon", 1.0), ("noise_multiplier", 0.0), ("noise_multiplier", None)):
        table = terms.table()
        table["evaluation"][name] = value
        with pytest.raises(BadInput, match=r"^evaluation"):
            Terms.read(json.dumps(table))
    table = terms.table()
    table["privacy"]["delta"] = None
    with pytest.raises(BadInput, match=r"^privacy.delta is missing"):
        Terms.read(json.dumps(table))


class Killed(BaseException):
    """What no handler of errors catches."""


def killed_in_an_evaluation(patch: pytest.MonkeyPatch, moment: int) -> None:
    """The nth step of durable bookkeeping since the first evaluation began is the last, counted before and after each."""
    steps = itertools.count(1)
    append = Ledger._append

    def around(ledger: Ledger, kind: str, content: dict[str, Any]) -> None:
        evaluating.update({"yes"} if ledger.path.parent.name == "evaluation" and kind == "intent" else ())
        if evaluating and next(steps) == moment:
            raise Killed
        append(ledger, kind, content)
        if evaluating and next(steps) == moment:
            raise Killed

    evaluating: set[str] = set()
    patch.setattr(Ledger, "_append", around)


@pytest.mark.parametrize("trust", ["central", "local"])
def test_an_evaluation_that_a_crash_interrupts_counts_at_the_server_and_at_each_client_it_has_left(
    trust: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at every step of its first evaluation: nothing is asked twice, and who has answered counts it.

    Under local at z = 1 four releases have ε = 9.997 and five 11.48, so that a limit of 11 allows four of train and evaluate.
    """
    privacy = normec.Privacy(trust=trust, noise_multiplier=1.0, delta=1e-5)
    for moment in itertools.count(1):
        directory, left = tmp_path / str(moment), Counter[tuple[str, str]]()

        def leaves(said: dict[str, Any], reply: Message, left: Counter[tuple[str, str]] = left) -> Message:
            left[reply.content[RECORD]["client"], said["task"]] += f"{RECORD}.message" in reply.content
            return reply

        grid = federation(directory, trust, max_epsilon=11.0 if trust == "local" else 100.0)
        for node in grid.nodes.values():
            node.spoil = leaves
        with monkeypatch.context() as patch:
            killed_in_an_evaluation(patch, moment)
            try:
                run(directory, grid, privacy, rounds=3, noise_multiplier=1.0)
            except (Killed, normec.errors.NormecError) as error:
                died = isinstance(error, Killed)
            else:
                died = False
        ledger = directory / "server" / "evaluation" / "ledger.jsonl"
        first = read(ledger).counted()
        with contextlib.suppress(normec.errors.NormecError):
            run(directory, grid, privacy, rounds=3, noise_multiplier=1.0)
        for client in ANSWERS:
            told = account(directory / client / client, 1e-5)
            counted = {each["of"]: each["releases"] for each in told["experiments"]}
            assert counted["training"] >= left[client, "train"] and counted.get("evaluation", 0) >= left[client, "evaluate"]
            assert trust == "central" or left[client, "train"] + left[client, "evaluate"] <= 4
        visible = (directory / "server" / "evaluation" / "metrics.jsonl").read_text().count("\n")
        assert max(visible, *(left[client, "evaluate"] for client in ANSWERS)) <= read(ledger).counted() <= 3
        assert read(ledger).counted() >= first and Record.read(directory / "server").epsilon is not None
        assert died
        if first > 1:  # in the second evaluation
            break
        assert first == (moment > 1)
    assert moment > 20


@pytest.mark.parametrize("trust", ["none", "central", "local"])
@pytest.mark.parametrize("last", [False, True], ids=["between", "at the end"])
def test_an_evaluation_before_which_the_server_was_killed_is_done_when_it_is_back(
    trust: Any, last: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three rounds and an evaluation after each, killed between the checkpoint of the second or third and its evaluation."""
    privacy, chosen = (NONE, {}) if trust == "none" else (private(trust), {"noise_multiplier": 2.0})
    grid, killed = federation(tmp_path, trust), 3 if last else 2
    ended = ServerState.ended

    def dying(state: ServerState, *rest: Any) -> None:
        ended(state, *rest)
        if state.rounds_done == killed:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(ServerState, "ended", dying)
        with pytest.raises(Killed):
            run(tmp_path, grid, privacy, rounds=3, every=1, **chosen)
    for _ in range(2):  # the second time nothing is left to do
        run(tmp_path, grid, privacy, rounds=3, every=1, **chosen)
    lines = (tmp_path / "server" / "evaluation" / "metrics.jsonl").read_text().splitlines()
    assert [(row["round"], row["answered"]) for row in map(unsealed, lines)] == [(1, 2), (2, 2), (3, 2)]
    assert sum(reply.metadata.message_type == "evaluate" for reply in grid.heard) == 6
    if trust != "none":
        assert read(tmp_path / "server" / "evaluation" / "ledger.jsonl").counted() == 3


def test_an_interrupted_evaluation_is_given_up_and_a_torn_line_of_metrics_is_cut_off(tmp_path: Path, caplog: Any) -> None:
    """It has begun, so that it counts and is not asked again, and the ledger and the log say that it has no result."""
    sizes = Sizes(local_lr=0.5, clients=2, rounds=3, parameters=4)
    terms = Terms.settled(ALGORITHM, normec.Full(), private("central"), sizes).evaluated(ClientEvaluation(noise_multiplier=2.0))
    assert terms.evaluation is not None
    first = Evaluations(tmp_path, terms, terms.evaluation)
    first.begin(0)
    first.end(0, [torch.zeros(2), torch.zeros(2)])
    first.begin(1)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 2, "lo')
    again = Evaluations(tmp_path, terms, terms.evaluation)
    assert [line["kind"] for line in read(tmp_path / "ledger.jsonl").lines[-2:]] == ["intent", "given up"]
    assert "evaluation after round 2 was interrupted: it counts, and has no result" in caplog.text
    assert (again.counted, again.owed(1), again.owed(2), again.owed(3)) == (2, False, False, True)
    assert [unsealed(line)["round"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [1]


def test_noise_that_its_lattice_cannot_hold_is_refused_by_the_server_and_by_each_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """σ = 1e9 over 2^-20 is 2^49.9; of 100,000 clients, times 2^8.3: past the 2^58 that whole numbers of 63 bits leave room for."""
    sizes = Sizes(local_lr=0.5, clients=100_000, rounds=1, parameters=4)
    plain = Terms.settled(ALGORITHM, normec.Full(), normec.Privacy(trust="central", noise_multiplier=2.0, delta=1e-6), sizes)
    metrics = {f"m{i}": 1.0 for i in range(64)}
    said = r"^evaluation.noise_multiplier=1e\+09 is beyond the whole numbers of secure noise. Use less noise.$"
    with pytest.raises(BadInput, match=said):
        plain.evaluated(ClientEvaluation(noise_multiplier=1e9, metrics=metrics))
    table = plain.evaluated(ClientEvaluation(noise_multiplier=0.01, metrics=metrics)).table()
    text = json.dumps(table | {"evaluation": table["evaluation"] | {"noise_multiplier": 1e9}})
    with pytest.raises(BadInput, match=said):
        Terms.read(text)
    monkeypatch.setattr("normec.privacy.promise.LATTICE_GAP", 1e-11)  # else ε is past all that can be asked for first
    with pytest.raises(
        BadInput, match=r"^evaluation.noise_multiplier=0.01 is too small for secure noise on 64 numbers over 1 round"
    ) as error:
        Terms.read(json.dumps(table))
    found = re.search(r"Use at least ([0-9.e-]+) or a smaller epsilon\.$", str(error.value))
    assert found
    plain.evaluated(ClientEvaluation(noise_multiplier=float(found[1]), metrics=metrics))


@pytest.mark.parametrize("older", [True, False], ids=["older", "gone"])
def test_a_server_that_has_lost_the_ledger_of_its_evaluations_does_not_go_on(older: bool, tmp_path: Path) -> None:
    """After two of four rounds and evaluations; the older one is of the time after the first."""
    evaluation = tmp_path / "server" / "evaluation"
    asked = ClientEvaluation(noise_multiplier=2.0)
    chosen = Strategy(
        ALGORITHM, local_lr=0.5, clients=2, privacy=private("central"), folder=tmp_path / "server", wait=0.0, evaluation=asked
    )
    grid, start = federation(tmp_path, "central"), ArrayRecord({"x": torch.zeros(4)})

    def look(current: int, arrays: ArrayRecord) -> None:
        if current == 2:
            shutil.copytree(evaluation, tmp_path / "old")
        if current == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        chosen.start(grid, start, num_rounds=4, evaluate_fn=look)  # type: ignore[arg-type]
    shutil.rmtree(evaluation)
    if older:
        shutil.copytree(tmp_path / "old", evaluation)
    for _ in range(2):
        with pytest.raises(BadInput, match=rf"counts {int(older)} evaluations?, and 2 have begun"):
            run(tmp_path, grid, private("central"), rounds=4, noise_multiplier=2.0)
