"""normec on Flower, in this process: the same algorithms as the simulator, nothing lost, nothing believed."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import normec
from normec.algorithms.base import REGISTRY
from normec.algorithms.error_feedback import ErrorFeedback
from normec.engine.memory import Layout
from normec.errors import BadInput, NormecError
from normec.operators import Clipping
from normec.privacy import Local, Mechanism, epsilon
from normec.privacy.ledger import read
from normec.privacy.promise import shown_epsilon

pytest.importorskip("flwr", reason="needs the extra normec[flower]")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore

from federation import Grid, Node, arrays_of, client_app, owner, size
from normec.audit.canaries import LENGTH, Canaries
from normec.audit.judge import judge
from normec.audit.releases import Seen
from normec.audit.witness import Witness
from normec.flower import ClientMod, Strategy
from normec.flower.keeper import Keeper
from normec.flower.owner import Owner
from normec.flower.wire import RECORD

D, ROUNDS = 10, 5
START = {"weight": torch.linspace(-0.5, 0.5, 8).reshape(2, 4), "bias": torch.zeros(2)}
GENERATOR = torch.Generator().manual_seed(7)
X = torch.randn(60, 4, generator=GENERATOR)
Y = (X.sum(1) > 0).long()
SAMPLES = {f"c{i}": (X[i::3], Y[i::3]) for i in range(3)}
NONE = normec.Privacy(trust="none")
LOCAL = normec.Privacy(trust="local", noise_multiplier=1.0)
NOISELESS = normec.Privacy(trust="local", noise_multiplier=0.0)
CENTRAL = normec.Privacy(trust="central", noise_multiplier=1.0)


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A power failure is not what these tests are about, and each round makes a dozen files durable."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


def linear() -> nn.Module:
    module = nn.Linear(4, 2)
    module.load_state_dict(START)
    return module


def federation(directory: Path, trust: str = "none", steps: int = 5, **limits: Any) -> Grid:
    app = client_app(linear, SAMPLES, steps)
    owners = {client: owner(directory, client, trust=trust, **limits) for client in SAMPLES}
    return Grid({10 + i: Node(app, owners[client], key=client.encode()) for i, client in enumerate(SAMPLES)})


def strategy(directory: Path, privacy: normec.Privacy = NONE, **changes: Any) -> Strategy:
    settings: dict[str, Any] = {
        "algorithm": normec.FedNormEC(beta=0.1, server_lr=1.0),
        "local_lr": 0.5,
        "clients": 3,
        "folder": directory / "server",
        "wait": 0.2,
        **changes,
    }
    return Strategy(privacy=privacy, **settings)


def start(chosen: Strategy, grid: Grid, rounds: int = ROUNDS, **settings: Any) -> Any:
    return chosen.start(grid, ArrayRecord(START), num_rounds=rounds, **settings)  # type: ignore[arg-type]  # it asks less of a grid


def simulated(algorithm: normec.Algorithm, participation: Any, steps: int = 5) -> dict[str, torch.Tensor]:
    data = normec.Federation.from_clients([(x.numpy(), y.numpy()) for x, y in SAMPLES.values()])
    run = normec.train(
        model=linear, data=data, algorithm=algorithm, local=normec.GD(steps=steps, lr=0.5), participation=participation,
        privacy=NONE, rounds=ROUNDS, seed=3,
    )  # fmt: skip
    return run.model.state_dict()


def memories(chosen: Strategy, directory: Path) -> torch.Tensor:
    """The clients' memories v (M, d) as their next instruction will find them."""
    found = []
    for client in chosen.state.clients:
        with Keeper(Owner.of(owner(directory, client, "none")), chosen.state.experiment, chosen.terms) as keeper:
            found.append(keeper.settle(chosen.state.settled.get(client, "0" * 32))[0])
    return torch.stack(found)


def releases(directory: Path) -> dict[str, int]:
    """How many releases each client's own ledgers count."""
    return {client: sum(read(p).counted() for p in (directory / client).glob("*/*/ledger.jsonl")) for client in SAMPLES}


@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize("name", [name for name in sorted(REGISTRY) if REGISTRY[name].__module__.startswith("normec.")])
def test_each_algorithm_gives_the_simulators_model_or_says_why_it_cannot(name: str, rate: float, tmp_path: Path) -> None:
    algorithm, participation = REGISTRY[name](), normec.Poisson(rate)
    if name in ("scaffold", "dp-scaffold", "fedprox"):
        with pytest.raises(BadInput, match=f"{name}' changes each local step, .* Use another algorithm"):
            start(strategy(tmp_path, algorithm=algorithm), federation(tmp_path))
        return
    steps = 1 if algorithm.one_gradient else 5
    chosen = strategy(tmp_path, algorithm=algorithm, participation=participation, seed=3)
    result = start(chosen, federation(tmp_path, steps=steps)).arrays.to_torch_state_dict()
    for key, value in simulated(algorithm, participation, steps).items():
        torch.testing.assert_close(result[key], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("lost", ["before the client", "on the way back"])
@pytest.mark.parametrize("lazy", [True, False])
def test_a_lost_message_leaves_the_servers_estimate_the_mean_of_the_memories(lost: str, lazy: bool, tmp_path: Path) -> None:
    grid, seen = federation(tmp_path), []

    def lose(instruction: dict[str, Any], reply: Message) -> Message | None:
        seen.append(instruction)
        return None if len(seen) in (3, 4) else reply

    if lost == "on the way back":
        grid.nodes[11].spoil = lose
    else:
        app = grid.nodes[11].app

        def dead(message: Message, context: Context) -> Message:
            seen.append(message)
            if len(seen) in (3, 4):
                raise RuntimeError("killed")
            return app(message, context)

        grid.nodes[11].app = dead  # type: ignore[assignment]
    chosen = strategy(tmp_path, algorithm=normec.FedNormEC(beta=0.1, server_lr=1.0, lazy=lazy))
    result = start(chosen, grid)
    assert [result.train_metrics_clientapp[k]["absent"] for k in range(1, ROUNDS + 1)] == [0, 1, 1, 0, 0]
    torch.testing.assert_close(chosen.state.server.slots[0], memories(chosen, tmp_path).mean(0), rtol=0, atol=1e-6)
    assert len(set(map(tuple, memories(chosen, tmp_path).tolist()))) == 3


@pytest.mark.parametrize("privacy", [LOCAL, CENTRAL, NONE], ids=["local", "central", "none"])
def test_a_server_that_dies_between_or_within_rounds_goes_on_from_its_folder(privacy: normec.Privacy, tmp_path: Path) -> None:
    tiny = privacy if privacy.trust == "none" else privacy.model_copy(update={"noise_multiplier": 1e-5})
    grid, killed = federation(tmp_path), []

    def dies(current: int, arrays: ArrayRecord) -> MetricRecord | None:
        if current == 3 and not killed:  # after the clients have answered, before the round is durable
            killed.append(current)
            raise KeyboardInterrupt
        return MetricRecord({"accuracy": 0.5})

    first = strategy(tmp_path, tiny)
    with pytest.raises(KeyboardInterrupt):
        start(first, grid, evaluate_fn=dies)
    second = strategy(tmp_path, tiny)
    result = start(second, grid, evaluate_fn=dies)
    attempts = ROUNDS if tiny.trust == "none" else ROUNDS - 1  # a retried round is a second release, and the plan had five
    assert second.state.rounds_done == attempts
    assert second.state.experiment == first.state.experiment
    torch.testing.assert_close(second.state.server.slots[0], memories(second, tmp_path).mean(0), rtol=0, atol=1e-4)
    if tiny.trust == "none":
        for key, value in simulated(second.algorithm, normec.Full()).items():
            torch.testing.assert_close(torch.from_numpy(result.arrays[key].numpy()), value, rtol=1e-5, atol=1e-6)
        return
    assert read(tmp_path / "server" / "ledger.jsonl").counted() == ROUNDS
    assert releases(tmp_path) == dict.fromkeys(SAMPLES, ROUNDS)


def test_the_server_may_have_other_folders_but_not_other_settings(tmp_path: Path) -> None:
    start(strategy(tmp_path), federation(tmp_path))
    with pytest.raises(BadInput, match=r"holds another run \(sizes.local_lr=0.5 there, 0.25 here\)"):
        start(strategy(tmp_path, local_lr=0.25), federation(tmp_path))


def test_under_local_the_client_adds_the_noise_and_its_ledger_counts_what_left(tmp_path: Path) -> None:
    wide = {"x": torch.zeros(40_000)}
    app = ClientApp(mods=[ClientMod()])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        moved = message.content["arrays"]["x"].numpy() - 1.0
        return Message(RecordDict({"arrays": arrays_of(moved)}), reply_to=message)

    nodes = {i: Node(app, owner(tmp_path, f"c{i}")) for i in range(3)}
    privacy = normec.Privacy(trust="local", noise_multiplier=2.0)
    chosen = strategy(tmp_path, privacy, participation=normec.Poisson(0.5), algorithm=normec.DPFedAvgClip(clip_norm=3.0))
    grid = Grid(nodes)
    chosen.start(grid, ArrayRecord(wide), num_rounds=6)  # type: ignore[arg-type]
    sent = [arrays["message"].numpy() for reply in grid.heard for name, arrays in reply.content.array_records.items()]
    lattice = chosen.terms.mechanism.lattice
    for message in sent:
        assert np.array_equal(np.round(message / lattice) * lattice, message)
        assert 5.8 < message.std() < 6.2  # σ = 2 · 3, of 40,000 draws
        assert abs(message.mean() - 3 / 200) < 0.18  # C / √d, and the mean of the noise
    assert len({message.tobytes() for message in sent}) == len(sent)
    counted = {client: sum(read(p).counted() for p in (tmp_path / client).glob("*/*/ledger.jsonl")) for client in ("c0", "c1", "c2")}
    assert sum(counted.values()) == len(sent) == chosen.state.transmissions < 18
    assert all(set(reply.content) <= {RECORD, f"{RECORD}.message"} for reply in grid.heard)


def test_under_central_nobody_on_the_network_sees_who_takes_part(tmp_path: Path) -> None:
    grid, sizes = federation(tmp_path, "central"), []

    stores: dict[int, Any] = {}

    def upload(instruction: dict[str, Any], reply: Message) -> Message:
        """As a SuperNode does: what the SuperLink holds of a round already is not sent again."""
        if instruction["task"] == "train":
            store = stores.setdefault(instruction["round"], InMemoryObjectStore())
            reply.metadata.__dict__["_message_id"] = reply.object_id
            objects = get_all_nested_objects(reply)
            wanted = store.preregister(1, get_object_tree(reply))
            for key in wanted:
                store.put(key, objects[key].deflate())
            sizes.append((len(wanted), sum(len(objects[key].deflate()) for key in wanted)))
        return reply

    for node in grid.nodes.values():
        node.spoil = upload
    chosen = strategy(tmp_path, CENTRAL, participation=normec.Poisson(0.5), algorithm=normec.FedNormEC(lazy=True))
    start(chosen, grid)
    assert len(sizes) == 3 * ROUNDS
    assert len(set(sizes)) == 1
    assert 0 < chosen.state.transmissions < 3 * ROUNDS


def test_instructions_of_a_round_have_one_size(tmp_path: Path) -> None:
    chosen = strategy(tmp_path, CENTRAL, participation=normec.Poisson(0.5))
    start(chosen, federation(tmp_path, "central"))
    chosen.state.rounds_done = ROUNDS - 1
    chosen.state.cohort = np.array([True, False, True])
    records = [chosen._message(node, client, {}).content for node, client in ((1, "c0"), (2, "c1"), (3, "c2"))]
    assert len({size(record) for record in records}) == 1
    assert {record[RECORD]["transmits"] for record in records} == {"yes", "no "}


@pytest.mark.parametrize(
    ("limits", "privacy", "said"),
    [
        ({}, CENTRAL, "privacy.trust='central' is less than this client's owner accepts"),
        ({}, NONE, "privacy.trust='none' is less than this client's owner accepts"),
        ({"min_noise_multiplier": 1.5}, LOCAL, "privacy.noise_multiplier=1 is below the 1.5 that this client's owner asks for"),
        ({"min_noise_multiplier": 1.5, "trust": "none"}, NONE, "privacy.noise_multiplier=0 is below the 1.5"),
        ({"max_epsilon": 3.0}, LOCAL, "max-epsilon=3 of this client's owner does not allow another release: with it ε = 4.402"),
        ({"max_epsilon": 3.0, "trust": "central"}, CENTRAL, "max-epsilon=3 of this client's owner does not allow another release"),
        ({"max_epsilon": 3.0, "trust": "none"}, NONE, "privacy spends ε = ∞, and this client's owner has set limits"),
        ({"max_epsilon": 3.0}, NOISELESS, "privacy spends ε = ∞, and this client's owner has set limits"),
        ({"min_noise_multiplier": 0.5, "adjacency": "replace-one"}, LOCAL, "privacy.adjacency='zero-out' protects less"),
    ],
)
def test_a_stricter_owner_refuses_before_any_training_and_the_server_says_so(
    limits: dict[str, Any], privacy: normec.Privacy, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("normec.flower.roster.LAST_CALL", 0.0)
    grid = federation(tmp_path)
    grid.nodes[12].config = owner(tmp_path, "c2", **limits)
    with pytest.raises(NormecError, match="2 clients of 3 came") as error:
        start(strategy(tmp_path, privacy), grid)
    assert f"client 'c2': {said}" in str(error.value)
    assert str(tmp_path) not in str(error.value)
    assert not any(releases(tmp_path).values())


def test_an_owners_limit_covers_all_experiments_and_ends_one_in_the_middle(tmp_path: Path) -> None:
    grid = federation(tmp_path, "local")
    grid.nodes[11].config = owner(tmp_path, "c1", max_epsilon=12.0)
    start(strategy(tmp_path, LOCAL), grid)
    assert releases(tmp_path) == {"c0": 5, "c1": 5, "c2": 5}  # 5 releases: ε = 11.2
    second = strategy(tmp_path, LOCAL.model_copy(update={"noise_multiplier": 2.0}), folder=tmp_path / "second")
    result = start(second, grid)
    assert releases(tmp_path) == {"c0": 10, "c1": 6, "c2": 10}
    assert [result.train_metrics_clientapp[k]["refused"] for k in range(1, ROUNDS + 1)] == [0, 1, 1, 1, 1]
    torch.testing.assert_close(second.state.server.slots[0], second.state.server.slots[0].nan_to_num(), rtol=0, atol=0)


def message_of(reply: Message, **changes: Any) -> Message:
    record = reply.content[RECORD]
    for key, value in changes.items():
        record[key] = value
    return reply


def with_array(reply: Message, array: np.ndarray, name: str = "message") -> Message:
    reply.content[f"{RECORD}.message"] = ArrayRecord({name: Array(array)})
    return reply


def with_record(reply: Message, name: str, record: Any) -> Message:
    reply.content[name] = record
    return reply


def without_record(reply: Message) -> Message:
    del reply.content[RECORD]
    return reply


def archive() -> Array:
    file = io.BytesIO()
    np.savez(file, message=np.zeros(D, np.float32))
    return Array("float32", (D,), "numpy.ndarray", file.getvalue())


SPOILED: dict[str, Callable[[Message], Message]] = {
    "nan": lambda reply: with_array(reply, np.full(D, np.nan, np.float32)),
    "infinite": lambda reply: with_array(reply, np.full(D, np.inf, np.float32)),
    "too long": lambda reply: with_array(reply, np.full(D, 10.0, np.float32)),
    "another shape": lambda reply: with_array(reply, np.zeros((D, 1), np.float32)),
    "another size": lambda reply: with_array(reply, np.zeros(D + 1, np.float32)),
    "integers": lambda reply: with_array(reply, np.zeros(D, np.int64)),
    "objects": lambda reply: with_record(reply, f"{RECORD}.message", ArrayRecord({"message": Array("float32", (D,), "pickle", b"\x80")})),
    "another name": lambda reply: with_array(reply, np.zeros(D, np.float32), "weights"),
    "another round": lambda reply: message_of(reply, round=77),
    "another experiment": lambda reply: message_of(reply, experiment="f" * 32),
    "another attempt": lambda reply: message_of(reply, attempt="f" * 32),
    "another client": lambda reply: message_of(reply, client="c0"),
    "numbers for words": lambda reply: message_of(reply, client=3),
    "metrics of its own": lambda reply: with_record(reply, "metrics", MetricRecord({"num-examples": 10**9})),
    "no answer": without_record,
    "a truth for a number": lambda reply: message_of(reply, round=True),
    "endless words": lambda reply: message_of(reply, client="c" * 10**5),
    "an archive": lambda reply: with_record(reply, f"{RECORD}.message", ArrayRecord({"message": archive()})),
    "norm beyond float32": lambda reply: with_array(reply, np.full(D, 1e38, np.float32)),
}


@pytest.mark.parametrize("kind", SPOILED)
def test_a_reply_that_no_honest_client_sends_is_refused_and_counted(kind: str, tmp_path: Path) -> None:
    grid = federation(tmp_path)

    def spoil(instruction: dict[str, Any], reply: Message) -> Message:
        return SPOILED[kind](reply) if instruction["task"] == "train" and instruction["round"] in (1, 2) else reply

    grid.nodes[11].spoil = spoil
    chosen = strategy(tmp_path)
    result = start(chosen, grid)
    assert [result.train_metrics_clientapp[k]["refused"] for k in range(1, ROUNDS + 1)] == [0, 1, 1, 0, 0]
    torch.testing.assert_close(chosen.state.server.slots[0], memories(chosen, tmp_path).mean(0), rtol=0, atol=1e-6)


def test_a_number_of_examples_is_no_weight_and_does_not_leave_the_client(tmp_path: Path) -> None:
    grid = federation(tmp_path)
    start(strategy(tmp_path), grid)
    assert not any(reply.content.metric_records for reply in grid.heard)


def test_two_nodes_with_one_name_and_strangers_are_turned_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normec.flower.roster.LAST_CALL", 0.0)
    grid = federation(tmp_path)
    app = grid.nodes[10].app
    grid.nodes[12] = Node(app, owner(tmp_path / "copy", "c1", "none"))
    with pytest.raises(NormecError, match="another node speaks for client 'c1' already"):
        start(strategy(tmp_path), grid)
    fresh = federation(tmp_path)
    chosen = strategy(tmp_path, folder=tmp_path / "fresh")

    def joins(current: int, arrays: ArrayRecord) -> None:
        if current == 2:
            fresh.nodes[99] = Node(app, owner(tmp_path, "late", trust="none"))

    result = start(chosen, fresh, evaluate_fn=joins)
    assert chosen.state.clients == ("c0", "c1", "c2")
    assert {counts["sent"] for counts in result.train_metrics_clientapp.values()} == {3}


def test_a_node_that_comes_back_under_another_number_goes_on(tmp_path: Path) -> None:
    grid = federation(tmp_path)
    chosen = strategy(tmp_path)

    def restart(current: int, arrays: ArrayRecord) -> None:
        if current == 2:
            grid.nodes[77] = grid.nodes.pop(11)

    result = start(chosen, grid, evaluate_fn=restart)
    assert [result.train_metrics_clientapp[k]["answered"] for k in range(1, ROUNDS + 1)] == [3, 3, 2, 3, 3]
    torch.testing.assert_close(chosen.state.server.slots[0], memories(chosen, tmp_path).mean(0), rtol=0, atol=1e-6)


def handed(grid: Grid, node: int, content: RecordDict, kind: str = "train") -> Message:
    (reply,) = grid.send_and_receive([Message(content, dst_node_id=node, message_type=kind)])
    return reply


@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
def test_a_server_cannot_turn_privacy_off_by_leaving_out_the_instruction(kind: str, tmp_path: Path) -> None:
    grid = federation(tmp_path, "central")
    reply = handed(grid, 10, RecordDict({"arrays": ArrayRecord(START), "config": ConfigRecord()}), kind)
    assert f"a {kind} message without one is not answered" in reply.content[RECORD]["refused"]
    assert not reply.content.array_records and not reply.content.metric_records


def test_an_owner_who_asks_for_no_protection_may_use_other_strategies_and_no_limit_holds_afterwards(tmp_path: Path) -> None:
    plain = RecordDict({"arrays": ArrayRecord(START), "config": ConfigRecord()})
    assert "not answered" in handed(federation(tmp_path, "none", max_epsilon=5.0), 10, plain.copy()).content[RECORD]["refused"]
    assert "metrics" in handed(federation(tmp_path, "none"), 10, plain).content
    with pytest.raises(NormecError, match="cannot hold any more: messages have left without protection before"):
        start(strategy(tmp_path, LOCAL, wait=0.0), federation(tmp_path, max_epsilon=50.0))


def test_after_a_run_without_privacy_no_limit_of_epsilon_holds(tmp_path: Path) -> None:
    start(strategy(tmp_path), federation(tmp_path))
    with pytest.raises(NormecError, match="cannot hold any more: messages have left without protection before"):
        start(strategy(tmp_path, LOCAL, folder=tmp_path / "second", wait=0.0), federation(tmp_path, "local", max_epsilon=50.0))


def failing(grid: Grid, node: int, on: int, error: Exception) -> None:
    """Lets a node's train function raise at its call number `on`, counted from 1."""
    app, calls = ClientApp(mods=[ClientMod()]), []

    @app.train()
    def train(message: Message, context: Context) -> Message:
        calls.append(1)
        if len(calls) == on:
            raise error
        moved = {name: Array(array.numpy() + 0.1) for name, array in message.content["arrays"].items()}
        return Message(RecordDict({"arrays": ArrayRecord(moved)}), reply_to=message)

    grid.nodes[node].app = app


def moving(grid: Grid, node: int, by: float) -> None:
    """Lets a node's train function move every number of the model by as much."""
    app = ClientApp(mods=[ClientMod()])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        moved = {name: Array(array.numpy() + by) for name, array in message.content["arrays"].items()}
        return Message(RecordDict({"arrays": ArrayRecord(moved)}), reply_to=message)

    grid.nodes[node].app = app


@pytest.mark.parametrize(
    "error", [ValueError("row 7: Jane Doe"), BadInput("targets", ": Jane Doe"), MemoryError(), SystemExit("Jane Doe")], ids=repr
)
@pytest.mark.parametrize("on", [1, 3])
def test_what_a_train_function_fails_of_does_not_leave_the_client_nor_that_it_failed(error: Exception, on: int, tmp_path: Path) -> None:
    grid = federation(tmp_path, "local")
    failing(grid, 11, on, error)
    chosen = strategy(tmp_path, LOCAL)
    result = start(chosen, grid)
    assert [result.train_metrics_clientapp[k]["answered"] for k in range(1, ROUNDS + 1)] == [3] * ROUNDS
    assert not any(reply.has_error() or reply.content[RECORD]["refused"] for reply in grid.heard)
    assert "Jane" not in repr([reply.content for reply in grid.heard])
    assert releases(tmp_path) == dict.fromkeys(SAMPLES, ROUNDS)


class TooLong(ErrorFeedback):
    """Says that its messages are clipped to 1, and sends the whole residual where its first number is below zero."""

    @property
    def operator(self) -> Clipping:
        return Clipping(1.0)

    def client(self, update: torch.Tensor, memory: normec.Slots, context: normec.Context) -> normec.ClientStep:
        step = super().client(update, memory, context)
        return step._replace(message=torch.where(step.residual[:, :1] < 0, 9.0, step.message))


@pytest.mark.parametrize("trust", ["local", "central"])
def test_a_message_past_its_bound_does_not_leave_the_client_nor_that_there_was_one(
    trust: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(TooLong, "name", "too-long", raising=False)
    monkeypatch.setitem(REGISTRY, "too-long", TooLong)
    grid = federation(tmp_path)
    for node, step in ((10, -1.0), (11, -1.0), (12, 1.0)):  # the last one's update, x − y, is below zero
        moving(grid, node, step)
    chosen = strategy(tmp_path, normec.Privacy(trust=trust, noise_multiplier=0.0), algorithm=TooLong())
    result = start(chosen, grid, rounds=1)
    assert result.train_metrics_clientapp[1]["answered"] == 3 and releases(tmp_path) == dict.fromkeys(SAMPLES, 1)
    assert not any(reply.content[RECORD]["refused"] for reply in grid.heard)
    assert caplog.text.count("too-long sends a message that is longer than its bound, 1, on which") == 1
    held = memories(chosen, tmp_path).norm(dim=1)
    torch.testing.assert_close(held, torch.tensor([1.0, 1.0, 0.0]), rtol=1e-4, atol=0)
    torch.testing.assert_close(
        chosen.state.server.x - chosen.layout.flat(ArrayRecord(START)), torch.full((D,), -2 / 3 / D**0.5), rtol=1e-4, atol=0
    )


@pytest.mark.parametrize("on", [1, 3])
def test_without_privacy_a_failure_is_an_error_and_the_client_goes_on_afterwards(on: int, tmp_path: Path) -> None:
    grid = federation(tmp_path)
    failing(grid, 11, on, ValueError("a bug"))
    chosen = strategy(tmp_path)
    result = start(chosen, grid)
    assert [result.train_metrics_clientapp[k]["absent"] for k in range(1, ROUNDS + 1)] == [int(k == on) for k in range(1, ROUNDS + 1)]
    torch.testing.assert_close(chosen.state.server.slots[0], memories(chosen, tmp_path).mean(0), rtol=0, atol=1e-6)


def test_a_client_killed_before_its_first_memory_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid, propose, killed = federation(tmp_path, "local"), Keeper.propose, []

    def killed_once(self: Keeper, attempt: str, memory: Any, *message: Any) -> None:
        if self.owner.client_id == "c1" and not killed:
            killed.append(1)
            raise RuntimeError("killed")
        propose(self, attempt, memory, *message)

    monkeypatch.setattr(Keeper, "propose", killed_once)
    result = start(strategy(tmp_path, LOCAL), grid)
    assert [result.train_metrics_clientapp[k]["answered"] for k in range(1, ROUNDS + 1)] == [2, 3, 3, 3, 3]
    assert releases(tmp_path) == dict.fromkeys(SAMPLES, ROUNDS)


def test_an_instruction_that_comes_twice_or_late_moves_nothing(tmp_path: Path) -> None:
    grid, chosen, kept = federation(tmp_path), strategy(tmp_path), []
    app = grid.nodes[11].app

    def twice(message: Message, context: Context) -> Message:
        content = RecordDict({name: record.copy() for name, record in message.content.items()})
        if content[RECORD]["task"] == "train":
            kept.append(content)
        reply = app(message, context)
        for late in kept[-2:]:  # this one again, and the one before
            again = Message(RecordDict({name: record.copy() for name, record in late.items()}), dst_node_id=11, message_type="train")
            again.metadata.__dict__["_message_id"] = "again"
            assert "is not newer than" in app(again, context).content[RECORD]["refused"]
        return reply

    grid.nodes[11].app = twice  # type: ignore[assignment]
    start(chosen, grid)
    assert len(kept) == ROUNDS
    torch.testing.assert_close(chosen.state.server.slots[0], memories(chosen, tmp_path).mean(0), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("limit", "affordable"), [(4.5, 1), (8.5, 3), (2.0, 0)])
def test_the_experiments_own_limit_holds_at_the_server_and_at_the_client(limit: float, affordable: int, tmp_path: Path) -> None:
    privacy = normec.Privacy(trust="local", noise_multiplier=1.0, client_limit=limit)
    if not affordable:
        with pytest.raises(BadInput, match="does not allow a client a single round"):
            start(strategy(tmp_path, privacy), federation(tmp_path, "local"))
        return
    chosen, grid = strategy(tmp_path, privacy), federation(tmp_path, "local")
    start(chosen, grid)
    assert releases(tmp_path) == dict.fromkeys(SAMPLES, affordable)
    chosen.state.cohort, chosen.state.attempt, chosen.state.rounds_done = np.ones(3, bool), "f" * 32, 4
    greedy = chosen._message(10, "c0", {"arrays": ArrayRecord(START)}).content
    assert "privacy.client_limit" in handed(grid, 10, greedy).content[RECORD]["refused"]
    assert releases(tmp_path)["c0"] == affordable


def test_a_node_that_restarts_while_its_old_self_is_still_listed_is_asked_again(tmp_path: Path) -> None:
    grid, chosen = federation(tmp_path), strategy(tmp_path)

    def restart(current: int, arrays: ArrayRecord) -> None:
        if current == 1:
            grid.nodes[77] = Node(grid.nodes[11].app, grid.nodes[11].config, key=grid.nodes[11].key)
            grid.nodes[11].spoil = lambda instruction, reply: None
        if current == 2:
            del grid.nodes[11]

    result = start(chosen, grid, rounds=8, evaluate_fn=restart)
    assert [result.train_metrics_clientapp[k]["answered"] for k in (1, 2, 7, 8)] == [3, 2, 3, 3]


def test_without_anyone_connected_no_round_is_spent_and_the_run_goes_on_later(tmp_path: Path) -> None:
    grid, chosen = federation(tmp_path, "local"), strategy(tmp_path, LOCAL)
    gone = dict(grid.nodes)

    def leave(current: int, arrays: ArrayRecord) -> None:
        if current == 2:
            grid.nodes.clear()

    with pytest.raises(NormecError, match="the experiment cannot continue: 0 clients of 1 came"):
        start(chosen, grid, evaluate_fn=leave)
    assert read(tmp_path / "server" / "ledger.jsonl").counted() == 2
    grid.nodes.update(gone)
    again = strategy(tmp_path, LOCAL)
    start(again, grid)
    assert again.state.rounds_done == ROUNDS


def test_a_run_ends_when_nobody_gives_an_answer_that_counts(tmp_path: Path) -> None:
    grid = federation(tmp_path)
    for node in grid.nodes.values():
        node.spoil = lambda instruction, reply: message_of(reply, round=9) if instruction["task"] == "train" else reply
    with pytest.raises(NormecError, match=r"in 3 rounds running no client has given an answer that counts\..*to another round"):
        start(strategy(tmp_path), grid)


def test_of_more_nodes_than_clients_the_first_by_name_are_the_experiments(tmp_path: Path) -> None:
    grid = federation(tmp_path)
    grid.nodes[13] = Node(client_app(linear, {**SAMPLES, "a0": SAMPLES["c0"]}), owner(tmp_path, "a0", "none"))
    chosen = strategy(tmp_path)
    result = start(chosen, grid)
    assert chosen.state.clients == ("a0", "c0", "c1")
    assert {counts["answered"] for counts in result.train_metrics_clientapp.values()} == {3}


def test_a_node_that_is_set_up_wrongly_says_so_at_the_server(tmp_path: Path) -> None:
    grid = federation(tmp_path)
    grid.nodes[11].config = {"client-id": "c1"}
    with pytest.raises(NormecError, match="node 11: node-config: state-dir is missing"):
        start(strategy(tmp_path, wait=0.0), grid)


def test_settings_may_change_as_long_as_no_round_has_begun(tmp_path: Path) -> None:
    grid = federation(tmp_path, "local", min_noise_multiplier=2.0)
    with pytest.raises(NormecError, match="noise_multiplier=1 is below the 2"):
        start(strategy(tmp_path, LOCAL, wait=0.0), grid)
    start(strategy(tmp_path, LOCAL.model_copy(update={"noise_multiplier": 2.0})), grid)


def test_a_server_killed_before_its_first_checkpoint_starts_afresh(tmp_path: Path) -> None:
    def dies(current: int, arrays: ArrayRecord) -> None:
        raise KeyboardInterrupt

    (tmp_path / "server" / "checkpoint").mkdir(parents=True)
    (tmp_path / "server" / "metrics.jsonl").write_text('{"round": 0}\n')
    with pytest.raises(KeyboardInterrupt):
        start(strategy(tmp_path), federation(tmp_path), evaluate_fn=dies)
    for _ in range(2):
        chosen = strategy(tmp_path)
        start(chosen, federation(tmp_path))
    assert [row["round"] for row in chosen.state.journal.rows] == list(range(ROUNDS + 1))


def instruction(tmp_path: Path, **changes: Any) -> tuple[Grid, RecordDict]:
    grid = federation(tmp_path)
    chosen = strategy(tmp_path)
    start(chosen, grid)
    chosen.state.rounds_done = 0
    content = chosen._message(10, "c0", {"arrays": ArrayRecord(START)}).content
    for key, value in changes.items():
        content[RECORD][key] = value
    return grid, content


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"experiment": "../../../../etc"}, "experiment='../../../../etc' must be 32 hexadecimal digits"),
        ({"attempt": "short"}, "attempt='short' must be 32 hexadecimal digits"),
        ({"task": "shell"}, "task='shell'"),
        ({"round": 99}, "round=99 is none of the experiment's 5"),
        ({"round": "1"}, "round='1' is none of"),
        ({"terms": "{"}, "terms are malformed"),
        ({"terms": '{"algorithm": {"name": "os:system"}}'}, "algorithm.name='os:system' is not known"),
        (
            {"settled": "e" * 32, "attempt": "f" * 32},
            "the server has counted attempt e+ and state-dir/c0/[0-9a-f]+/memory.safetensors does not hold it",
        ),
    ],
)
def test_a_malformed_instruction_is_refused_in_one_sentence(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    grid, content = instruction(tmp_path, **changes)
    refused = handed(grid, 10, content).content[RECORD]["refused"]
    assert re.search(said.replace("(", r"\("), refused), refused
    assert str(tmp_path) not in refused


def test_terms_do_not_change_within_an_experiment(tmp_path: Path) -> None:
    grid, content = instruction(tmp_path)
    content[RECORD]["terms"] = str(content[RECORD]["terms"]).replace('"beta": 0.1', '"beta": 0.2')
    assert "other terms (algorithm.beta=0.1 there, 0.2 here), and is not loaded" in handed(grid, 10, content).content[RECORD]["refused"]


def test_memories_of_another_experiment_are_not_loaded(tmp_path: Path) -> None:
    start(strategy(tmp_path), federation(tmp_path))
    second = strategy(tmp_path, folder=tmp_path / "second")
    grid = federation(tmp_path)
    (old,) = (tmp_path / "c1").glob("*/*/memory.safetensors")

    def swaps(current: int, arrays: ArrayRecord) -> None:
        if current == 2:
            (tmp_path / "c1" / "c1" / second.state.experiment / "memory.safetensors").write_bytes(old.read_bytes())

    result = start(second, grid, evaluate_fn=swaps)
    assert [result.train_metrics_clientapp[k]["refused"] for k in range(1, ROUNDS + 1)] == [0, 0, 1, 1, 1]


@pytest.mark.parametrize("harm", ["deleted", "cut", "empty"])
def test_a_memory_that_is_lost_or_damaged_is_never_replaced_by_zeros(harm: str, tmp_path: Path) -> None:
    grid, chosen = federation(tmp_path), strategy(tmp_path)

    def harms(current: int, arrays: ArrayRecord) -> None:
        if current == 2:
            (path,) = (tmp_path / "c1").glob("*/*/memory.safetensors")
            whole = path.read_bytes()
            path.unlink() if harm == "deleted" else path.write_bytes(b"" if harm == "empty" else whole[:50])

    result = start(chosen, grid, evaluate_fn=harms)
    assert [result.train_metrics_clientapp[k]["refused"] for k in range(1, ROUNDS + 1)] == [0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"privacy": normec.Privacy(trust="secagg", epsilon=8.0, min_honest=2)}, "privacy.trust='secagg' needs a sum that hides"),
        ({"algorithm": normec.FedNormEC(init="local")}, "algorithm.init='local' releases a first update"),
        ({"local_lr": float("nan")}, "local_lr=nan must be a number > 0"),
        ({"clients": 0}, "clients=0 must be a whole number >= 1"),
        ({"trained": ["weights"]}, "trained names 'weights', and the model's arrays are weight, bias"),
        ({"algorithm": normec.FedAvg(), "privacy": LOCAL}, "algorithm.name='fedavg' bounds no message"),
    ],
)
def test_what_a_deployment_cannot_keep_is_refused_before_anyone_is_asked(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    grid = federation(tmp_path)
    with pytest.raises(BadInput) as error:
        start(strategy(tmp_path, **{"privacy": NONE, **changes}), grid)
    assert str(error.value).startswith(said)
    assert not grid.heard


def test_arrays_that_are_not_trained_stay_and_whole_numbers_are_refused(tmp_path: Path) -> None:
    arrays = ArrayRecord({**{name: Array(value.numpy()) for name, value in START.items()}, "seen": Array(np.array([3]))})
    with pytest.raises(BadInput, match="'seen' holds int64"):
        strategy(tmp_path).start(federation(tmp_path), arrays)  # type: ignore[arg-type]
    app = ClientApp(mods=[ClientMod()])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        moved = {name: Array(array.numpy() + 1) for name, array in message.content["arrays"].items()}
        return Message(RecordDict({"arrays": ArrayRecord(moved)}), reply_to=message)

    nodes = {i: Node(app, owner(tmp_path, f"c{i}", trust="none")) for i in range(3)}
    chosen = strategy(tmp_path, trained=["bias"])
    found = chosen.start(Grid(nodes), arrays, num_rounds=2).arrays  # type: ignore[arg-type]
    assert int(found["seen"].numpy()[0]) == 3
    assert np.array_equal(found["weight"].numpy(), START["weight"].numpy())
    assert not np.array_equal(found["bias"].numpy(), START["bias"].numpy())


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"client-id": "a"}, "node-config: state-dir is missing"),
        ({"state-dir": "/tmp/x", "client-id": "../b"}, "node-config: client-id='../b' must be up to 64 letters"),
        ({"state-dir": "/tmp/x", "client-id": "a", "trust": "nobody"}, "node-config: trust='nobody' must be"),
        ({"state-dir": "/tmp/x", "client-id": "a"}, "node-config: max-epsilon is missing: with trust='local' say what ε"),
        ({"state-dir": "/tmp/x", "client-id": "a", "min-noise-multiplier": 0.0}, "node-config: max-epsilon is missing"),
        ({"state-dir": "/tmp/x", "client-id": "a", "max-epsilom": 3.0}, "node-config: max-epsilom is not known. Did you mean max-epsilon?"),
        (
            {"state-dir": "/tmp/x", "client-id": "a", "min-noise": 3.0},
            "node-config: min-noise is not known. Did you mean min-noise-multiplier?",
        ),
        ({"state-dir": "/tmp/x", "client-id": "a", "max-epsilon": float("nan")}, "node-config: max-epsilon=nan must be"),
        ({"state-dir": "/tmp/x", "client-id": "a", "min-noise-multiplier": -1.0}, "node-config: min-noise-multiplier=-1 must be"),
    ],
)
def test_an_owner_who_is_misunderstood_is_told_so(config: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as error:
        Owner.of(config)
    assert str(error.value).startswith(said)


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("trust", ["central", "local"])
def test_the_servers_step_passes_the_audit(trust: Any, lazy: bool, tmp_path: Path) -> None:
    """Canaries on nodes among others that learn: what the server releases is theirs, made again from their updates, and noise."""
    number, honest, d, rounds = 5, 4, 400, 60
    canaries = Canaries.draw(number, d, 1)
    moves = dict(zip(canaries.ids, LENGTH * canaries.directions, strict=True))
    centres = {f"a{i}": torch.linspace(-1, 1, d).roll(100 * i).double() for i in range(honest)}
    names = (*sorted(centres), *canaries.ids)
    app, updates = ClientApp(mods=[ClientMod()]), dict[str, torch.Tensor]()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        name = str(context.node_config["client-id"])
        x = torch.from_numpy(message.content["arrays"]["x"].numpy())
        moved = (x.double() - 0.5 * (moves[name] if name in moves else x - centres[name])).float()
        updates[name] = (x - moved) / 0.5
        return Message(RecordDict({"arrays": ArrayRecord({"x": moved})}), reply_to=message)

    grid = Grid({i: Node(app, owner(tmp_path, name, trust, max_epsilon=1e4)) for i, name in enumerate(names)})
    algorithm = normec.FedNormEC(beta=0.1, server_lr=0.1, lazy=lazy)
    privacy = normec.Privacy(trust=trust, noise_multiplier=0.7)
    chosen = strategy(tmp_path, privacy, algorithm=algorithm, participation=normec.Poisson(0.5), clients=len(names))
    watched: list[Witness] = []

    def look(current: int, arrays: ArrayRecord) -> None:
        state = chosen.state
        if not watched:
            layout, start = Layout(True, False, 0), Seen.of(state.server)
            watched.append(
                Witness(
                    algorithm=algorithm,
                    optimizer=chosen.server,
                    scale=1.0,
                    mechanism=state.mechanism,
                    canaries=canaries,
                    names=names,
                    layout=layout,
                    start=start,
                )
            )
        (witness,) = watched
        asked = [name for name in updates if not lazy or state.transmits(name)] if current else []
        if asked:
            witness.computed(asked, torch.stack([updates[name] for name in asked]))
        updates.clear()
        witness.released(current, state.server, state.cohort if current else None, None)

    chosen.start(grid, ArrayRecord({"x": torch.zeros(d)}), num_rounds=rounds, evaluate_fn=look)  # type: ignore[arg-type]
    found = judge(watched[0].evidence(), chosen.state.mechanism, 1e-5, error=1e-5)  # secure noise has no seed
    assert chosen.state.clients == names and found.rounds >= rounds - 3
    assert not found.flagged, [test for test in found.tests if test.flagged]
    assert found.signal[0] == pytest.approx(1, abs=0.6)
    assert found.noise[0] == pytest.approx(1, abs=0.15)


def test_where_the_server_draws_the_cohorts_its_claim_says_what_a_client_spends_that_is_always_asked(tmp_path: Path) -> None:
    """√5 standard deviations of noise 1 at δ = 1e-5: 11.48 in five rounds."""
    chosen = strategy(tmp_path, LOCAL.model_copy(update={"delta": 1e-5}), participation=normec.Fixed(1 / 3))
    start(chosen, federation(tmp_path, "local"))
    summary = json.loads((tmp_path / "server" / "summary.json").read_text())
    assert summary["epsilon_every_round"] == pytest.approx(11.48, abs=5e-3)
    assert f"asks in every round has ε = {shown_epsilon(summary['epsilon_every_round'])}" in summary["claim"]
    assert epsilon(replace(chosen.terms.mechanism, participation=normec.Full()), 1e-5).epsilon == pytest.approx(
        summary["epsilon_every_round"], rel=1e-8
    )


def test_an_app_to_start_from_is_written_once_and_holds_what_flower_needs(command: Callable[..., Any], tmp_path: Path) -> None:
    assert command("flower-app", "mine").code == 0
    names = {str(path.relative_to(tmp_path / "mine")) for path in (tmp_path / "mine").rglob("*") if path.is_file()}
    code = {f"federated/{name}.py" for name in ("__init__", "client_app", "server_app", "task")}
    assert names == code | {"README.md", "pyproject.toml", ".gitignore"}
    again = command("flower-app", "mine")
    assert again.code == 2 and "mine is not an empty folder" in again.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "APP='nowhere' holds no pyproject.toml. Write an app with: normec flower-app DIR"),
        (["mine", "--owners", "nobody"], "owners='nobody' must be local, central or none."),
        (["mine", "--out", "mine/here"], "--out='mine/here' lies in the app, and Flower would ship"),
        (
            ["mine", "epsilonn=3"],
            "epsilonn is not a setting of the app ([tool.flwr.app.config] in its pyproject.toml). Did you mean epsilon?",
        ),
    ],
)
def test_what_cannot_be_tried_is_refused_before_anything_starts(
    arguments: list[str], said: str, command: Callable[..., Any], tmp_path: Path
) -> None:
    command("flower-app", "mine")
    outcome = command("flower-run", *arguments)
    assert outcome.code == 2 and outcome.err.startswith(f"normec: {said}")
    assert not (tmp_path / "loopback").exists()


def test_a_finished_experiment_wakes_nobody(tmp_path: Path) -> None:
    first = strategy(tmp_path)
    result = start(first, federation(tmp_path))
    again = start(strategy(tmp_path), Grid({}))
    assert all(np.array_equal(again.arrays[name].numpy(), result.arrays[name].numpy()) for name in START)


def test_a_refusal_keeps_its_reason_and_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid = federation(tmp_path)
    grid.nodes[12].config = owner(tmp_path, "c2", max_epsilon=3.0)
    asked: list[int] = []
    app = grid.nodes[12].app

    def silent_later(message: Message, context: Context) -> Message:
        asked.append(1)
        return app(message, context)

    grid.nodes[12].app = silent_later  # type: ignore[assignment]
    with pytest.raises(NormecError, match=r"client 'c2': privacy\.trust='none' is less than"):
        start(strategy(tmp_path, wait=1.5), grid)
    assert len(asked) == 1


def test_a_clients_directory_says_what_all_its_experiments_have_spent(command: Callable[..., Any], tmp_path: Path) -> None:
    start(strategy(tmp_path, LOCAL), federation(tmp_path, "local"))
    start(strategy(tmp_path, LOCAL, folder=tmp_path / "second"), federation(tmp_path, "local"), rounds=2)
    outcome = command("ledger", str(tmp_path / "c1" / "c1"))
    assert outcome.code == 0 and outcome.out.count("releases under trust local, noise multiplier 1") == 2
    seven = epsilon(Mechanism(trust=Local(), noise_multiplier=1.0, participation=normec.Full(), clients=3, rounds=7), 0.9e-5).epsilon
    assert f"all together: ε = {shown_epsilon(seven)} at δ = 1e-05" in outcome.out
    for rounds in (5, 2):  # what each experiment asks for in all its rounds
        asked = Mechanism(trust=Local(), noise_multiplier=1.0, participation=normec.Full(), clients=3, rounds=rounds)
        assert f"noise multiplier 1; asked in every round: ε = {shown_epsilon(epsilon(asked, 1e-5).epsilon)}" in outcome.out
    found = json.loads(command("ledger", str(tmp_path / "c1" / "c1"), "--json").out)
    assert found["epsilon"] == pytest.approx(seven) and not found["unprotected"]
    start(strategy(tmp_path, folder=tmp_path / "third"), federation(tmp_path))
    assert "all together: ε = ∞: messages have left without noise" in command("ledger", str(tmp_path / "c1" / "c1")).out
