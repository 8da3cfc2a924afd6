"""Each client's own coin: a server that asks as it likes never gets more than one for a round, and a crash never a second one."""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import normec
from normec.algorithms.base import REGISTRY
from normec.errors import BadInput, NormecError
from normec.privacy.ledger import Ledger, read
from normec.streams import Streams

pytest.importorskip("flwr", reason="needs the extra normec[flower]")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from federation import Grid, Node, client_app, owner, size
from normec.flower import ClientMod, Strategy
from normec.flower import coin as coins
from normec.flower.coin import coin_of, heads
from normec.flower.index import Index
from normec.flower.keeper import Keeper
from normec.flower.owner import Owner
from normec.flower.terms import Sizes, Terms
from normec.flower.wire import RECORD

ROUNDS, RATE, SEED = 5, 0.5, 3
START = {"weight": torch.linspace(-0.5, 0.5, 8).reshape(2, 4), "bias": torch.zeros(2)}
GENERATOR = torch.Generator().manual_seed(7)
X = torch.randn(60, 4, generator=GENERATOR)
Y = (X.sum(1) > 0).long()
SAMPLES = {f"c{i}": (X[i::3], Y[i::3]) for i in range(3)}
LOCAL = normec.Privacy(trust="local", noise_multiplier=1.0, delta=1e-5)
NOISELESS = normec.Privacy(trust="local", noise_multiplier=0.0)


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture
def as_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coins that fall as a simulation of seed SEED draws its cohorts."""

    def draw(self: Keeper, k: int) -> bool:
        cohort = normec.Poisson(RATE).cohort(3, k, Streams(SEED))
        return bool(cohort[sorted(SAMPLES).index(self.owner.client_id)])

    monkeypatch.setattr(Keeper, "_draw", draw)


def linear() -> nn.Module:
    module = nn.Linear(4, 2)
    module.load_state_dict(START)
    return module


def federation(directory: Path, trust: str = "local", steps: int = 5, **limits: Any) -> Grid:
    app = client_app(linear, SAMPLES, steps)
    return Grid({10 + i: Node(app, owner(directory, name, trust, **limits), key=name.encode()) for i, name in enumerate(SAMPLES)})


def strategy(directory: Path, privacy: normec.Privacy = LOCAL, **changes: Any) -> Strategy:
    settings: dict[str, Any] = {
        "algorithm": normec.FedNormEC(beta=0.1, server_lr=1.0),
        "local_lr": 0.5,
        "clients": 3,
        "folder": directory / "server",
        "participation": normec.Poisson(RATE),
        "wait": 0.2,
        **changes,
    }
    return Strategy(privacy=privacy, **settings)


def start(chosen: Strategy, grid: Grid, rounds: int = ROUNDS, **settings: Any) -> Any:
    return chosen.start(grid, ArrayRecord(START), num_rounds=rounds, **settings)  # type: ignore[arg-type]


def simulated(algorithm: normec.Algorithm, steps: int = 5, rounds: int = ROUNDS) -> dict[str, torch.Tensor]:
    data = normec.Federation.from_clients([(x.numpy(), y.numpy()) for x, y in SAMPLES.values()])
    run = normec.train(
        model=linear, data=data, algorithm=algorithm, local=normec.GD(steps=steps, lr=0.5), participation=normec.Poisson(RATE),
        privacy=normec.Privacy(trust="none"), rounds=rounds, seed=SEED,
    )  # fmt: skip
    return run.model.state_dict()


def cohorts(rounds: int = ROUNDS) -> np.ndarray:
    """The simulation's cohorts, (rounds, 3)."""
    return np.array([normec.Poisson(RATE).cohort(3, k, Streams(SEED)) for k in range(rounds)])


def ledger_of(directory: Path, client: str) -> Ledger:
    (path,) = (directory / client).glob("*/*/ledger.jsonl")
    return read(path)


def messages(grid: Grid, client: str) -> list[bytes]:
    """Those of a client that the server has seen."""
    answers = [reply.content for reply in grid.heard if reply.has_content() and reply.content[RECORD]["client"] == client]
    return [answer[f"{RECORD}.message"]["message"].numpy().tobytes() for answer in answers if f"{RECORD}.message" in answer]


def test_a_coin_shows_heads_with_exactly_its_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that `randbelow` can return, where those are few; the fraction that a float is, where they are many."""
    for rate, right in ((0.375, (3, 8)), (0.5, (1, 2)), (1.0, (1, 1))):
        drawn = iter(range(right[1]))
        monkeypatch.setattr(coins.secrets, "randbelow", lambda end, drawn=drawn, right=right: next(drawn) if end == right[1] else -1)
        assert sum(heads(rate) for _ in range(right[1])) == right[0]
    asked: list[int] = []
    tenth = Fraction(0.1)
    for last, right_ in ((tenth.numerator - 1, True), (tenth.numerator, False)):
        monkeypatch.setattr(coins.secrets, "randbelow", lambda end, last=last: asked.append(end) or last)
        assert heads(0.1) is right_
    assert set(asked) == {tenth.denominator}


@pytest.mark.usefixtures("as_simulated")
@pytest.mark.parametrize("name", [name for name in sorted(REGISTRY) if REGISTRY[name].__module__.startswith("normec.")])
def test_each_algorithm_gives_the_simulators_model_where_the_coins_fall_as_its_cohorts(name: str, tmp_path: Path) -> None:
    """Without noise, and on the lattice of secure noise, whose step is a millionth of the bound."""
    algorithm = REGISTRY[name]()
    if name in ("scaffold", "dp-scaffold", "fedprox") or not np.isfinite(algorithm.operator.bound):
        return
    steps = 1 if algorithm.one_gradient else 5
    chosen, grid = strategy(tmp_path, NOISELESS, algorithm=algorithm), federation(tmp_path, "none", steps)
    result = start(chosen, grid)
    assert chosen.terms.own_coins
    for key, value in simulated(algorithm, steps).items():
        torch.testing.assert_close(torch.from_numpy(result.arrays[key].numpy()), value, rtol=1e-4, atol=1e-5)
    counts = [result.train_metrics_clientapp[k] for k in range(1, ROUNDS + 1)]
    assert [each["participants"] for each in counts] == cohorts().sum(1).tolist()
    assert {(each["sent"], each["answered"], each["refused"], each["absent"]) for each in counts} == {(3, 3, 0, 0)}
    assert chosen.state.transmissions == cohorts().sum()


@pytest.mark.usefixtures("as_simulated")
@pytest.mark.parametrize("lazy", [True, False])
def test_who_sits_out_answers_without_a_message_and_computes_only_where_every_memory_moves(lazy: bool, tmp_path: Path) -> None:
    grid, trained = federation(tmp_path), Counter[str]()
    app = ClientApp(mods=[ClientMod()])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        trained[str(context.node_config["client-id"])] += 1
        moved = {name: Array(array.numpy() + 0.1) for name, array in message.content["arrays"].items()}
        return Message(RecordDict({"arrays": ArrayRecord(moved)}), reply_to=message)

    for node in grid.nodes.values():
        node.app = app
    chosen = strategy(tmp_path, algorithm=normec.FedNormEC(beta=0.1, server_lr=1.0, lazy=lazy))
    start(chosen, grid)
    parts = dict(zip(SAMPLES, cohorts().sum(0).tolist(), strict=True))
    assert trained == (parts if lazy else dict.fromkeys(SAMPLES, ROUNDS)) and min(parts.values()) < ROUNDS
    for client, number in parts.items():
        assert len(messages(grid, client)) == ledger_of(tmp_path, client).counted() == number
    out = [reply.content for reply in grid.heard if f"{RECORD}.message" not in reply.content]
    assert len(out) == 3 + 3 * ROUNDS - sum(parts.values())  # the greetings, too
    assert all(set(each) == {RECORD} and not each[RECORD]["refused"] and size(each) < 600 for each in out)
    server = read(tmp_path / "server" / "ledger.jsonl")
    seen = Counter(i for line in server.lines if line["kind"] == "commit" for i in line["participants"])
    assert [seen[i] for i in range(3)] == list(parts.values())


def test_the_claim_and_the_owners_account_say_whose_coins_they_are(command: Callable[..., Any], tmp_path: Path) -> None:
    start(strategy(tmp_path), federation(tmp_path))
    summary = json.loads((tmp_path / "server" / "summary.json").read_text())
    assert summary["epsilon_every_round"] is None and "each client draws its own coin" in summary["claim"]
    told = command("ledger", str(tmp_path / "c1" / "c1"))
    assert told.code == 0 and "every round" not in told.out
    almost_all = normec.Poisson(1 - 1e-9)
    start(strategy(tmp_path, folder=tmp_path / "second", own_coins=False, participation=almost_all), federation(tmp_path))
    summary = json.loads((tmp_path / "second" / "summary.json").read_text())
    assert summary["epsilon_every_round"] == pytest.approx(11.481, abs=1e-3) and "the server draws the cohorts" in summary["claim"]
    assert "asked in every round: ε = 11.48" in command("ledger", str(tmp_path / "c1" / "c1")).out


class Hostile:
    """A server that asks client c1 as it likes, in attempts that are ever newer. terms: of its experiment."""

    def __init__(self, directory: Path, rounds: int = 40, rate: float = RATE, **limits: Any) -> None:
        self.directory = directory
        self.config = owner(directory, "c1", **(limits or {"max_epsilon": 1e4}))
        self.terms = self.terms_of(rounds, rate)
        self.grid, self.attempts = Grid({1: Node(self._app(), self.config)}), itertools.count(1)
        self.trainings = 0

    def _app(self) -> ClientApp:
        app = ClientApp(mods=[ClientMod()])

        @app.train()
        def train(message: Message, context: Context) -> Message:
            self.trainings += 1
            moved = {name: Array(array.numpy() + 0.1) for name, array in message.content["arrays"].items()}
            return Message(RecordDict({"arrays": ArrayRecord(moved)}), reply_to=message)

        return app

    @staticmethod
    def terms_of(rounds: int, rate: float, lazy: bool = True, **privacy: Any) -> Terms:
        sizes = Sizes(local_lr=0.5, clients=10, rounds=rounds, parameters=4)
        algorithm = normec.FedNormEC(beta=0.1, server_lr=1.0, lazy=lazy)
        return Terms.settled(algorithm, normec.Poisson(rate), LOCAL.changed(**privacy), sizes)

    def ask(self, k: int, settled: str = "0" * 32, x: float = 0.0, terms: Terms | None = None, **changes: Any) -> RecordDict:
        record: dict[str, Any] = {
            "task": "train",
            "experiment": "e" * 32,
            "round": k,
            "attempt": f"{next(self.attempts):032x}",
            "settled": settled,
            "transmits": "own",
            "names": ["x"],
            "copies": [],
            "terms": (terms or self.terms).text(),
            **changes,
        }
        content = RecordDict({"arrays": ArrayRecord({"x": Array(np.full(4, x, np.float32))}), RECORD: ConfigRecord(record)})
        (reply,) = self.grid.send_and_receive([Message(content, dst_node_id=1, message_type="train")])
        if reply.has_error():
            raise RuntimeError(reply.error.reason)
        return reply.content

    @property
    def ledger(self) -> Ledger:
        return ledger_of(self.directory, "c1")


def scripted(monkeypatch: pytest.MonkeyPatch, script: Iterator[bool]) -> list[int]:
    """Coins as a script says, one after the other; returns the rounds for which one was drawn."""
    drawn: list[int] = []

    def draw(self: Keeper, k: int) -> bool:
        drawn.append(k)
        return next(script)

    monkeypatch.setattr(Keeper, "_draw", draw)
    return drawn


@pytest.mark.parametrize("lazy", [True, False])
def test_a_server_that_asks_again_and_again_gets_one_coin_and_one_message_for_each_round(
    lazy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round three times, with other models and other words on what it has counted, and then all rounds once more."""
    fell = [True, False, False, True, True, False, True, False]
    drawn = scripted(monkeypatch, iter(fell))
    server = Hostile(tmp_path)
    server.terms = server.terms_of(8, RATE, lazy)
    settled = last = "0" * 32
    for k in range(8):
        answers = []
        for again in range(3):
            settled = settled if lazy or again == 1 else last
            answers.append(server.ask(k, settled=settled, x=float(again)))
            assert not answers[-1][RECORD]["refused"]
            last = str(answers[-1][RECORD]["attempt"])
        sent = {answer[f"{RECORD}.message"]["message"].numpy().tobytes() for answer in answers if f"{RECORD}.message" in answer}
        assert len(sent) == fell[k]
    for k in range(8):
        server.ask(k, settled=settled)
    assert drawn == list(range(8))
    assert len(set(messages(server.grid, "c1"))) == server.ledger.counted() == sum(fell)
    assert {k: coin_of(server.ledger, k) for k in range(8)} == dict(enumerate(fell))


def test_rounds_in_any_order_and_beyond_the_last_give_no_more_coins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = scripted(monkeypatch, itertools.repeat(True))
    server = Hostile(tmp_path, rounds=4)
    for k in (2, 0, 3, 1, 3, 0):
        server.ask(k)
    assert "round=4 is none of the experiment's 4" in server.ask(4)[RECORD]["refused"]
    assert sorted(drawn) == [0, 1, 2, 3] and server.ledger.counted() == len(set(messages(server.grid, "c1"))) == 4
    assert "round 2 is over for this client, and its message has left" in server.ask(2)[RECORD]["refused"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rate": 1.0}, "is of another experiment or other terms (participation.rate=0.5 there, 1.0 here)"),
        ({"rate": 0.9}, "is of another experiment or other terms (participation.rate=0.5 there, 0.9 here)"),
        ({"transmits": "yes"}, "transmits='yes', and by the terms each client draws its own coin"),
        ({"transmits": "no "}, "transmits='no ', and by the terms each client draws its own coin"),
    ],
)
def test_a_server_that_turns_the_coin_in_its_favour_midway_is_refused(
    change: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = scripted(monkeypatch, iter([False, True, False]))
    server = Hostile(tmp_path, rounds=9)
    server.ask(0)
    changes = (
        {"terms": Hostile.terms_of(9, change["rate"]), "transmits": "yes" if change["rate"] == 1 else "own"} if "rate" in change else change
    )
    for k in (0, 1):
        assert said in server.ask(k, **changes)[RECORD]["refused"]
    assert drawn == [0] and not messages(server.grid, "c1")
    server.ask(1)
    assert drawn == [0, 1] and len(messages(server.grid, "c1")) == 1


def test_a_server_that_says_own_coins_where_the_terms_leave_the_draw_to_it_is_refused(tmp_path: Path) -> None:
    server = Hostile(tmp_path)
    drawn_by_it = Terms.settled(server.terms.algorithm, normec.Poisson(RATE), LOCAL, server.terms.sizes, own_coins=False)
    assert "and by the terms the server draws the cohorts" in server.ask(0, terms=drawn_by_it)[RECORD]["refused"]


def test_participations_are_binomial_for_a_client_that_is_asked_in_every_round_many_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over all 16 outcomes of four fair coins, n messages leave in binom(4, n) of them."""
    left = Counter[int]()
    for number, fell in enumerate(itertools.product([True, False], repeat=4)):
        scripted(monkeypatch, iter(fell))
        server = Hostile(tmp_path / str(number), rounds=4)
        for k in range(4):
            for _ in range(2):
                server.ask(k)
        left[len(set(messages(server.grid, "c1")))] += 1
        assert server.ledger.counted() == sum(fell)
    assert left == {0: 1, 1: 4, 2: 6, 3: 4, 4: 1}


class Killed(BaseException):
    """What ends a client where its process would be killed."""


@pytest.mark.parametrize("after", [False, True], ids=["before the step", "after it"])
@pytest.mark.parametrize("fell", [True, False], ids=["heads", "tails"])
@pytest.mark.parametrize("lazy", [True, False])
def test_a_client_killed_at_any_durable_step_keeps_its_coin_and_releases_once(
    after: bool, fell: bool, lazy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coin that would be drawn anew shows the other side, so that a second one is seen."""

    def run(directory: Path, dies: int | None) -> int:
        """Asks until an answer comes, in a round after one that was answered; dies: at which durable step. How many there are."""
        script, steps = itertools.chain([True], itertools.cycle([fell, not fell])), 0
        drawn = scripted(monkeypatch, script)
        server = Hostile(directory, rounds=3)
        server.terms = server.terms_of(3, RATE, lazy)
        first = str(server.ask(0)[RECORD]["attempt"])

        def fsync(file: int) -> None:
            nonlocal steps
            steps += 1
            if steps == dies:
                raise Killed

        name = "replace" if after else "fsync"
        target = Path if after else os
        done = getattr(target, name)

        def step(*args: Any) -> Any:
            if after:
                found = done(*args)
                fsync(0)
                return found
            return fsync(0)

        known = None
        with monkeypatch.context() as patch:
            patch.setattr(target, name, step)
            try:
                answer = server.ask(1, settled=first)
            except Killed:
                answer = None
        if answer is None:
            known = coin_of(server.ledger, 1)
            answer = server.ask(1, settled=first)
        coin = coin_of(server.ledger, 1)
        assert known in (None, coin) and not answer[RECORD]["refused"]
        assert drawn.count(1) == (2 if known is None and dies is not None and coin is not fell else 1)
        assert (f"{RECORD}.message" in answer) == coin
        again = server.ask(1, settled=first)
        assert (f"{RECORD}.message" in again) == coin
        assert len(set(messages(server.grid, "c1"))) == server.ledger.counted() == 1 + bool(coin)
        assert server.ledger.committed(1) == coin
        return steps

    total = run(tmp_path / "whole", None)
    assert total >= 3
    for number in range(1, total + 1):
        run(tmp_path / str(number), number)


def test_a_client_killed_after_its_coin_and_before_the_index_knows_it_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, server = scripted(monkeypatch, iter([False, True])), Hostile(tmp_path)

    def dies(self: Index, path: Path, ledger: Ledger) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Index, "note", dies)
        with pytest.raises(Killed):
            server.ask(0)
    server.ask(0)
    assert drawn == [0] and not messages(server.grid, "c1")
    server.ask(1)
    assert drawn == [0, 1] and len(messages(server.grid, "c1")) == 1


def test_a_lost_ledger_or_memory_gives_no_second_coin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = scripted(monkeypatch, iter([False, True, True]))
    for name in ("ledger.*", "memory.safetensors"):
        server = Hostile(tmp_path / name[:6])
        server.ask(0)
        number = len(drawn)
        for path in (tmp_path / name[:6] / "c1").glob(f"c1/{'e' * 32}/{name}"):
            path.unlink()
        assert server.ask(0)[RECORD]["refused"] and len(drawn) == number


def test_a_client_at_the_experiments_limit_sits_out_in_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At z = 1 and δ = 1e-5 three releases spend ε = 8.44, four 10.05."""
    scripted(monkeypatch, itertools.repeat(True))
    server = Hostile(tmp_path)
    server.terms = server.terms_of(9, RATE, client_limit=9.0)
    answers = [server.ask(k) for k in range(9)]
    assert not any(answer[RECORD]["refused"] for answer in answers)
    assert [f"{RECORD}.message" in answer for answer in answers] == [True] * 3 + [False] * 6
    assert f"{RECORD}.message" in server.ask(2)  # once more, and nothing new
    assert server.ledger.counted() == 3 == len(set(messages(server.grid, "c1")))


def test_an_owners_limit_refuses_before_a_coin_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = scripted(monkeypatch, itertools.repeat(True))
    server = Hostile(tmp_path, max_epsilon=9.0)
    answers = [server.ask(k) for k in range(5)]
    assert [bool(answer[RECORD]["refused"]) for answer in answers] == [False] * 3 + [True] * 2
    assert drawn == [0, 1, 2]


def test_an_owner_may_accept_no_draw_of_the_servers(tmp_path: Path) -> None:
    grid = federation(tmp_path, max_epsilon=100.0, own_coins=True)
    start(strategy(tmp_path), grid)
    for changes in ({"own_coins": False}, {"participation": normec.Fixed(1 / 3)}):
        with pytest.raises(NormecError, match="own-coins of this client's owner accepts no experiment whose server draws who takes part"):
            start(strategy(tmp_path, folder=tmp_path / "second", wait=0.0, **changes), grid)
    start(strategy(tmp_path, folder=tmp_path / "third", participation=normec.Full()), grid)


@pytest.mark.usefixtures("as_simulated")
@pytest.mark.parametrize("lazy", [True, False])
def test_a_server_that_dies_in_a_round_gets_the_same_messages_again(lazy: bool, tmp_path: Path) -> None:
    """The model is that of a simulation without interruption; the attempt counts at the server, so that the last round is left out."""
    algorithm, killed = normec.FedNormEC(beta=0.1, server_lr=1.0, lazy=lazy), []

    def dies(current: int, arrays: ArrayRecord) -> MetricRecord | None:
        if current == 3 and not killed:  # after the clients have answered, before the round is durable
            killed.append(current)
            raise KeyboardInterrupt
        return None

    grid = federation(tmp_path, "none")
    with pytest.raises(KeyboardInterrupt):
        start(strategy(tmp_path, NOISELESS, algorithm=algorithm), grid, evaluate_fn=dies)
    chosen = strategy(tmp_path, NOISELESS, algorithm=algorithm)
    result = start(chosen, grid, evaluate_fn=dies)
    assert chosen.state.rounds_done == ROUNDS - 1
    for key, value in simulated(algorithm, rounds=ROUNDS - 1).items():
        torch.testing.assert_close(torch.from_numpy(result.arrays[key].numpy()), value, rtol=1e-4, atol=1e-5)
    parts = cohorts(ROUNDS - 1).sum(0).tolist()
    assert [ledger_of(tmp_path, client).counted() for client in SAMPLES] == parts
    assert [len(set(messages(grid, client))) for client in SAMPLES] == parts


@pytest.mark.usefixtures("as_simulated")
def test_what_may_have_left_counts_at_the_server_and_a_refusal_does_not(tmp_path: Path) -> None:
    """c1's answers get lost, so that each may have been a message; c2 refuses after its first participation."""
    grid = federation(tmp_path)
    grid.nodes[11].spoil = lambda instruction, reply: None if instruction.get("task") == "train" else reply
    grid.nodes[12].config = owner(tmp_path, "c2", max_epsilon=5.0)  # one release at z = 1 spends 4.38
    chosen = strategy(tmp_path)
    start(chosen, grid)
    server = read(tmp_path / "server" / "ledger.jsonl")
    seen = [line["participants"] for line in server.lines if line["kind"] == "commit"]
    assert all(1 in participants for participants in seen)
    parts = cohorts()
    assert sum(0 in participants for participants in seen) == parts[:, 0].sum()
    assert parts[:, 2].sum() > 1 == sum(2 in participants for participants in seen)


def test_an_older_experiment_goes_on_with_the_draws_of_its_server(tmp_path: Path) -> None:
    """Its settings do not say who draws; nor do the clients' ledgers."""
    grid, killed = federation(tmp_path), []

    def dies(current: int, arrays: ArrayRecord) -> None:
        if current == 2 and not killed:
            killed.append(current)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(strategy(tmp_path, own_coins=False), grid, evaluate_fn=dies)
    assert "own_coins" not in (tmp_path / "server" / "checkpoint" / "settings.json").read_text()
    with pytest.raises(BadInput, match=r"holds another run \(own_coins"):
        start(strategy(tmp_path, own_coins=True), grid)
    chosen = strategy(tmp_path)
    start(chosen, grid, evaluate_fn=dies)
    assert not chosen.terms.own_coins and "the server draws the cohorts" in chosen.state.claim().sentence


@pytest.mark.parametrize(
    "changes",
    [
        {"participation": normec.Fixed(1 / 3)},
        {"participation": normec.Poisson(1.0)},
        {"participation": normec.Full()},
        {"privacy": normec.Privacy(trust="central", noise_multiplier=1.0)},
        {"privacy": normec.Privacy(trust="none")},
    ],
)
def test_coins_are_asked_for_only_where_clients_can_draw_them(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="own_coins=True acts only with trust='local' and Poisson cohorts of a rate below 1"):
        start(strategy(tmp_path, own_coins=True, **changes), federation(tmp_path))
    sizes = Sizes(local_lr=0.5, clients=3, rounds=5, parameters=10)
    privacy, participation = changes.get("privacy", LOCAL), changes.get("participation", normec.Poisson(RATE))
    terms = Terms.settled(normec.FedNormEC(), participation, privacy, sizes)
    assert not terms.own_coins and Terms.read(terms.text()) == terms
    with pytest.raises(BadInput, match="own_coins=True acts only with"):
        Terms.read(json.dumps({**terms.table(), "own_coins": True}))


def test_greetings_draw_no_coin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = scripted(monkeypatch, itertools.repeat(True))
    server = Hostile(tmp_path)
    assert not server.ask(0, task="greet", transmits="no ")[RECORD]["refused"]
    assert not drawn and not Owner.of(server.config).folder.exists()
