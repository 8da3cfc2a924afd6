"""Who speaks for which client: names stay with keys, silence is waited for, and nobody's words are believed or shown as they are."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import normec
from normec.errors import BadInput, NormecError

pytest.importorskip("flwr", reason="needs the extra normec[flower]")

from flwr.app import ArrayRecord, Message, RecordDict

from federation import Grid, Node, client_app, owner
from normec.flower import Strategy
from normec.flower.terms import Terms
from normec.flower.wire import RECORD, plain

SAMPLES = {f"c{i}": (torch.ones(4, 2), torch.zeros(4, dtype=torch.long)) for i in range(2)}
APP = client_app(lambda: nn.Linear(2, 2), SAMPLES, 1)
ROUNDS = 6


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normec.flower.roster.POLL", 0.01)


def node(directory: Path, client: str, key: bytes, **limits: Any) -> Node:
    return Node(APP, owner(directory, client, trust="none", **limits), key=key)


def federation(directory: Path, keys: tuple[bytes, bytes] = (b"key0", b"key1")) -> Grid:
    return Grid({10 + i: node(directory, f"c{i}", key) for i, key in enumerate(keys)})


def strategy(directory: Path, **changes: Any) -> Strategy:
    settings: dict[str, Any] = {"folder": directory / "server", "wait": 0.2, "clients": 2, **changes}
    return Strategy(normec.FedNormEC(beta=0.1, server_lr=1.0), local_lr=0.5, privacy=normec.Privacy(trust="none"), **settings)


def start(chosen: Strategy, grid: Grid, look: Any = None, rounds: int = ROUNDS) -> list[int]:
    """Runs an experiment; returns how many answers each round counted."""
    found = chosen.start(grid, nn.Linear(2, 2), rounds, timeout=30.0, evaluate_fn=look)  # type: ignore[arg-type]
    return [int(counts["answered"]) for counts in found.train_metrics_clientapp.values()]  # type: ignore[call-overload]


@pytest.mark.parametrize("keys", [(b"key0", b"key1"), (b"", b"")], ids=["by key", "by number"])
def test_a_name_stays_with_its_node_while_that_is_away(keys: tuple[bytes, bytes], tmp_path: Path, caplog: Any) -> None:
    """Another node says c1 while c1 is away: it never counts, and the real one goes on when it is back."""
    grid, away = federation(tmp_path, keys), []

    def look(current: int, arrays: ArrayRecord) -> None:
        if current == 1:
            away.append(grid.nodes.pop(11))
            grid.nodes[66] = node(tmp_path / "thief", "c1", keys[1] and b"thief")
        if current == 3:
            grid.nodes[11] = away.pop()

    assert start(strategy(tmp_path), grid, look) == [2, 1, 1, 1, 2, 2]
    assert "has spoken for client 'c1' before, and names stay with a node's key" in caplog.text
    assert not (tmp_path / "thief").exists()


def test_a_name_stays_with_its_node_over_runs_until_its_move_is_allowed(tmp_path: Path) -> None:
    answered: list[int] = []

    def run(keys: tuple[bytes, bytes], until: int, **changes: Any) -> None:
        def look(current: int, arrays: ArrayRecord) -> None:
            if current == until:
                raise KeyboardInterrupt

        grid = federation(tmp_path, keys)
        with pytest.raises(KeyboardInterrupt):
            start(strategy(tmp_path, **changes), grid, look)
        answered.append(len([reply for reply in grid.heard if reply.content[RECORD]["client"] == "c1" and reply.content.array_records]))

    new = (b"key0", b"key of the new machine")
    run((b"key0", b"key1"), 2)
    run(new, 3)
    with pytest.raises(BadInput, match=r"moved names 'c7', and the experiment's clients are c0, c1\. Leave it out"):
        start(strategy(tmp_path, moved=["c7"]), federation(tmp_path))
    run(new, 4, moved=["c1"])
    run(new, 5)
    assert answered == [2, 0, 2, 2]  # what the server was killed before counting is asked again


@pytest.mark.parametrize("silent", [1, 3])
def test_silence_is_waited_for_as_long_as_wait_says(silent: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that does not answer its first greetings is starting; LAST_CALL is for those that have refused."""
    monkeypatch.setattr("normec.flower.roster.LAST_CALL", 0.0)
    grid, greeted = federation(tmp_path), []

    def starting(instruction: dict[str, Any], reply: Message) -> Message | None:
        greeted.append(instruction)
        return None if len(greeted) <= silent else reply

    grid.nodes[11].spoil = starting
    assert start(strategy(tmp_path, wait=20.0), grid, rounds=1) == [2]
    assert len(greeted) == silent + 2


def test_of_silent_nodes_the_run_says_so_when_wait_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normec.flower.roster.LAST_CALL", 0.0)
    grid = federation(tmp_path)
    grid.nodes[11].spoil = lambda instruction, reply: None
    begun = time.monotonic()
    with pytest.raises(NormecError, match=r"1 client of 2 came within .* node 11: it has not answered"):
        start(strategy(tmp_path, wait=0.5), grid)
    assert time.monotonic() - begun >= 0.5


def test_a_slow_node_is_given_twice_the_patience_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid, given = federation(tmp_path), []
    send = grid.send_and_receive

    def watched(messages: Any, *, timeout: float | None = None) -> list[Message]:
        messages = list(messages)
        given.extend((timeout, message.metadata.ttl) for message in messages if message.metadata.dst_node_id == 11)
        return send(messages, timeout=timeout)

    monkeypatch.setattr(grid, "send_and_receive", watched)
    grid.nodes[11].spoil = lambda instruction, reply: None if len(given) < 3 else reply
    start(strategy(tmp_path, wait=600.0), grid, rounds=1)
    assert given[:3] == [(60.0, 60.0), (120.0, 120.0), (240.0, 240.0)]


def refusing(grid: Grid, words: str) -> None:
    def says(instruction: dict[str, Any], reply: Message) -> Message:
        reply.content[RECORD]["refused"] = words
        return reply

    grid.nodes[11].spoil = says


@pytest.mark.parametrize("words", ["a\x1b[2J\nround 9 of 9\r\x07", "\u202eevil\u2028next", "x" * 1999], ids=["control", "bidi", "long"])
def test_a_clients_words_are_shown_escaped_and_cut(words: str, tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normec.flower.roster.LAST_CALL", 0.0)
    grid = federation(tmp_path)
    refusing(grid, words)
    with pytest.raises(NormecError) as error:
        start(strategy(tmp_path), grid)
    for text in (str(error.value), *(record.getMessage() for record in caplog.records)):
        assert text.isprintable() and len(text) < 900


@pytest.mark.parametrize("name", ["a\nb", "../up", "c" * 65, "<b>", "é"])
def test_a_name_that_no_owner_can_give_is_not_taken(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normec.flower.roster.LAST_CALL", 0.0)
    grid = federation(tmp_path)

    def says(instruction: dict[str, Any], reply: Message) -> Message:
        reply.content[RECORD]["client"] = name
        return reply

    grid.nodes[11].spoil = says
    with pytest.raises(NormecError, match="which is not a client's name"):
        start(strategy(tmp_path), grid)


def test_words_are_escaped_by_hand() -> None:
    assert plain("a\tb\x1b[0m") == r"a\tb\x1b[0m"
    assert plain("ε = ∞, straße") == "ε = ∞, straße"
    assert plain("x" * 10, 4) == "xxx…"


def test_terms_that_are_deep_or_endless_are_refused_in_one_sentence(tmp_path: Path) -> None:
    for text in ("[" * 100_000, '{"a":' * 3_000, '{"sizes": "' + "x" * 10**6 + '"}'):
        begun = time.monotonic()
        with pytest.raises(BadInput, match=r"^terms") as error:
            Terms.read(text)
        assert len(str(error.value)) < 200 and time.monotonic() - begun < 1


@pytest.mark.parametrize("noise", [0.0, 1e-9])
def test_a_limit_without_noise_is_refused_at_once(noise: float) -> None:
    sizes = {"local_lr": 0.5, "clients": 3, "rounds": 5, "parameters": 10}
    privacy = {"trust": "local", "noise_multiplier": noise, "noise": "secure", "client_limit": 8.0, "delta": 1e-5}
    table = {"sizes": sizes, "algorithm": {"name": "fed-normec", "beta": 0.1}, "participation": {"scheme": "full"}, "privacy": privacy}
    begun = time.monotonic()
    with pytest.raises(BadInput, match=r"privacy.noise_multiplier=.* counts as no noise, with which client_limit=8 allows no round"):
        Terms.read(json.dumps(table))
    assert time.monotonic() - begun < 1


def test_a_client_shows_no_words_of_the_server_as_they_are(tmp_path: Path, caplog: Any) -> None:
    grid = federation(tmp_path)
    start(chosen := strategy(tmp_path), grid, rounds=1)
    chosen.state.rounds_done = 0
    content: RecordDict = chosen._message(10, "c0", {}).content
    content[RECORD]["terms"] = json.dumps({"algorithm": {"name": "\x1b[2J\n" + "x" * 5_000}})
    (reply,) = grid.send_and_receive([Message(content, dst_node_id=10, message_type="train")])
    for text in (str(reply.content[RECORD]["refused"]), *(record.getMessage() for record in caplog.records)):
        assert text.isprintable() and len(text) < 900
