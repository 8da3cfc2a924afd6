"""What a client's directory remembers of its releases: damaged, lost or older files never let it spend more than its owner allows."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import normec
from normec.errors import BadInput, NormecError
from normec.privacy import Central, Local, Mechanism, TrustModel, epsilon
from normec.privacy.header import Header

pytest.importorskip("flwr", reason="needs the extra normec[flower]")

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from federation import Grid, Node, owner
from normec.flower import ClientMod, Strategy
from normec.flower.index import Account, Index
from normec.flower.keeper import Keeper
from normec.flower.owner import Owner, account, share_of, spent
from normec.flower.terms import Sizes, Terms
from normec.flower.wire import RECORD
from normec.privacy.ledger import Ledger

LIMIT, ALLOWED = 12.0, 5
"""Gaussian releases of noise multiplier 1 compose to ε(5) = 11.48 and ε(6) = 12.87 at δ = 1e-5."""
LOCAL = normec.Privacy(trust="local", noise_multiplier=1.0)


@pytest.fixture(autouse=True, scope="module")
def no_waiting_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


def federation(directory: Path, **limits: Any) -> Grid:
    app = ClientApp(mods=[ClientMod()])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        moved = {name: Array(array.numpy() + 0.1) for name, array in message.content["arrays"].items()}
        return Message(RecordDict({"arrays": ArrayRecord(moved)}), reply_to=message)

    limits = limits or {"max_epsilon": LIMIT}
    return Grid({0: Node(app, owner(directory, "c0")), 1: Node(app, owner(directory, "c1", **limits))})


def train(directory: Path, folder: str, grid: Grid, rounds: int = 5, look: Any = None, privacy: normec.Privacy = LOCAL) -> str:
    """Runs an experiment as far as it goes; returns why it ended before its end."""
    chosen = Strategy(
        normec.FedNormEC(beta=0.1, server_lr=1.0), local_lr=0.5, clients=2, privacy=privacy, folder=directory / folder, wait=0.0
    )
    start = ArrayRecord({"x": torch.zeros(4)})
    try:
        chosen.start(grid, start, num_rounds=rounds, evaluate_fn=look)  # type: ignore[arg-type]
    except NormecError as error:
        return str(error)
    return ""


def sent(grid: Grid, client: str = "c1") -> int:
    """How many messages of a client the server has seen."""
    answers = [reply.content for reply in grid.heard if reply.has_content()]
    return sum(answer[RECORD]["client"] == client and f"{RECORD}.message" in answer for answer in answers)


def gaussian(releases: int) -> float:
    return epsilon(Mechanism(trust=Local(), noise_multiplier=1.0, participation=normec.Full(), clients=2, rounds=releases), 0.9e-5).epsilon


@pytest.fixture(scope="module")
def after_three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment whose server was killed after three of five rounds, with the client's directory after each (`old1`, …)."""
    directory = tmp_path_factory.mktemp("budget")

    def look(current: int, arrays: ArrayRecord) -> None:
        if current:
            shutil.copytree(directory / "c1", directory / f"old{current}")
        if current == 4:
            raise KeyboardInterrupt

    grid = federation(directory)
    with pytest.raises(KeyboardInterrupt):
        train(directory, "first", grid, look=look)
    assert sent(grid) == 4
    return directory


def files(state: Path) -> dict[str, list[Path]]:
    """What may get lost of a client's directory, by name."""
    (experiment,) = (path for path in (state / "c1").iterdir() if path.is_dir())
    inside = {name: experiment / name for name in ("ledger.jsonl", "ledger.head", "memory.safetensors", "attempt")}
    above = {name: state / "c1" / name for name in ("index.jsonl", "index.head")}
    single = {name: [path] for name, path in {**inside, **above}.items()}
    ledger, index = [inside["ledger.jsonl"], inside["ledger.head"]], list(above.values())
    return {
        **single,
        "ledger": ledger,
        "index": index,
        "ledger and index": [*ledger, *index],
        "ledger and memory": [*ledger, inside["memory.safetensors"], inside["attempt"]],
        "all but the attempt": [*ledger, *index, inside["memory.safetensors"]],
        "all but the memory": [*ledger, *index, inside["attempt"]],
        "experiment": [experiment],
        "everything": [state / "c1"],
    }


def remove(path: Path, was: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def older(path: Path, was: Path) -> None:
    remove(path, was)
    shutil.copytree(was, path) if was.is_dir() else shutil.copy(was, path)


def cut(path: Path, was: Path) -> None:
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty(path: Path, was: Path) -> None:
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            file.write_bytes(b"")


LOST = ["ledger.jsonl", "ledger.head", "memory.safetensors", "attempt", "index.jsonl", "index.head", "ledger", "index"]
LOST += ["ledger and index", "ledger and memory", "all but the attempt", "all but the memory", "experiment", "everything"]


@pytest.mark.parametrize("harm", [remove, cut, empty, older], ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("lost", LOST)
def test_whatever_is_lost_of_a_clients_directory_its_limit_holds(
    lost: str, harm: Callable[[Path, Path], None], after_three: Path, tmp_path: Path
) -> None:
    """In the middle of an experiment, and then in a second one: a refusal, or no more releases than the limit allows."""
    shutil.copytree(after_three, tmp_path, dirs_exist_ok=True)
    for path in files(tmp_path / "c1")[lost]:
        was = tmp_path / "old2" / path.relative_to(tmp_path / "c1")
        if path.exists():
            harm(path, was)
    grid = federation(tmp_path)
    goes_on = train(tmp_path, "first", grid)
    train(tmp_path, "second", grid)
    released = 4 + sent(grid)
    assert gaussian(released) <= LIMIT
    try:
        told = account(tmp_path / "c1" / "c1", 1e-5)
    except BadInput:
        told = None
    if lost != "everything":
        assert told is None or told["epsilon"] is None or told["epsilon"] >= gaussian(released) - 1e-6
    if released < ALLOWED and lost not in ("ledger", "experiment"):
        said = [goes_on, *(str(reply.content[RECORD]["refused"]) for reply in grid.heard)]
        assert any(said)


def test_without_damage_the_limit_is_reached_and_not_passed(after_three: Path, tmp_path: Path) -> None:
    shutil.copytree(after_three, tmp_path, dirs_exist_ok=True)
    grid = federation(tmp_path)
    train(tmp_path, "first", grid)
    assert 4 + sent(grid) == ALLOWED
    assert account(tmp_path / "c1" / "c1", 1e-5)["epsilon"] == pytest.approx(gaussian(ALLOWED))
    assert "max-epsilon=12 of this client's owner does not allow another release: with it ε = 12.93" in train(tmp_path, "second", grid)


def test_a_deleted_experiment_still_counts_and_the_next_one_goes_on(after_three: Path, tmp_path: Path) -> None:
    shutil.copytree(after_three, tmp_path, dirs_exist_ok=True)
    remove(*files(tmp_path / "c1")["experiment"], tmp_path)
    grid = federation(tmp_path)
    assert account(tmp_path / "c1" / "c1", 1e-5)["epsilon"] == pytest.approx(gaussian(4))
    train(tmp_path, "second", grid)
    assert sent(grid) == 1 and sent(grid, "c0") == 5


def test_a_directory_restored_within_an_experiment_contradicts_the_server(after_three: Path, tmp_path: Path) -> None:
    shutil.copytree(after_three, tmp_path, dirs_exist_ok=True)
    older(tmp_path / "c1", tmp_path / "old1")
    grid = federation(tmp_path)
    train(tmp_path, "first", grid)
    assert sent(grid) == 0
    assert any("having been lost or restored" in str(reply.content[RECORD]["refused"]) for reply in grid.heard)


def test_greetings_leave_nothing_behind(tmp_path: Path) -> None:
    grid = federation(tmp_path, min_noise_multiplier=2.0)
    assert "is below the 2" in train(tmp_path, "first", grid)
    generous = federation(tmp_path)
    generous.nodes[0].config = {"client-id": "c0"}  # c1 alone is ready, and the experiment does not begin
    assert "state-dir is missing" in train(tmp_path, "second", generous)
    assert not (tmp_path / "c0").exists() and not (tmp_path / "c1").exists()


@pytest.mark.parametrize("noted", [False, True], ids=["at the first sight", "while catching up"])
def test_a_client_killed_between_its_ledger_and_the_index_goes_on_and_both_count(
    noted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note, notes = Index.note, []

    def dies(self: Index, path: Path, ledger: Ledger) -> None:
        notes.append(self.client)
        if self.client == "c1" and notes.count("c1") in (
            (1, 3) if noted else (1, 2)
        ):  # the second time before, or after the lost one is noted
            raise RuntimeError("killed")
        note(self, path, ledger)

    monkeypatch.setattr(Index, "note", dies)
    grid = federation(tmp_path)
    train(tmp_path, "first", grid)
    told = account(tmp_path / "c1" / "c1", 1e-5)
    assert sent(grid) == 3 and sent(grid, "c0") == 5
    assert told["experiments"][0]["releases"] == (5 if noted else 4)


def header(trust: TrustModel, noise: float, clients: int, rounds: int) -> dict[str, Any]:
    mechanism = Mechanism(trust=trust, noise_multiplier=noise, participation=normec.Full(), clients=clients, rounds=rounds)
    return Header.of(mechanism, normec.Privacy(trust=trust.name, noise_multiplier=noise), 1e-5, "of the client").table()


def in_every_round(trust: TrustModel, noise: float, rounds: int, delta: float) -> float:
    full = Mechanism(trust=trust, noise_multiplier=noise, participation=normec.Full(), clients=100, rounds=rounds)
    return epsilon(full, delta).epsilon


def test_noise_of_ones_own_adds_up_as_gaussians_and_servers_claims_add_up_at_shares_of_delta() -> None:
    """3 releases at z = 1 and 4 at z = 2 are one mechanism of μ = √(3 + 4/4) = 2, which began first; two servers' claims follow."""
    own = [Account(header(Local(), 1.0, 1, 9), 3), Account(header(Local(), 2.0, 1, 9), 4)]
    four = in_every_round(Local(), 1.0, 4, 0.9e-5)
    assert spent(own, 1e-5) == pytest.approx(four, rel=1e-6)
    claim = Account(header(Central(), 2.0, 100, 8), 1)  # μ = √8 / 2
    second, third = (in_every_round(Central(), 2.0, 8, share) for share in (0.1e-5 / 2, 0.1e-5 / 6))
    assert spent([*own, claim, claim], 1e-5) == pytest.approx(four + second + third, rel=1e-6)
    assert spent([own[0], claim, own[1], claim], 1e-5) == pytest.approx(four + second + third, rel=1e-6)  # the own ones are one
    first = in_every_round(Central(), 2.0, 8, 0.9e-5)
    assert spent([claim, *own], 1e-5) == pytest.approx(first + in_every_round(Local(), 1.0, 4, 0.1e-5 / 2), rel=1e-6)
    assert spent([claim], 1e-5) == pytest.approx(first, rel=1e-9) and first == pytest.approx(6.573, rel=0.01)
    assert spent([claim._replace(releases=0)], 1e-5) == spent([], 1e-5) == 0.0


def test_later_experiments_change_no_earlier_share_of_delta_and_all_sum_to_it() -> None:
    assert [share_of(1.0, j) for j in (1, 2, 3, 4)] == pytest.approx([0.9, 1 / 20, 1 / 60, 1 / 120])
    assert math.fsum(share_of(1.0, j) for j in range(1, 100_000)) <= 1
    claims = [Account(header(Central(), 4.0, 100, rounds), 1) for rounds in (8, 3, 5)]
    growing = [spent(claims[:number], 1e-5) for number in (1, 2, 3)]
    alone = [in_every_round(Central(), 4.0, rounds, share_of(1e-5, j)) for j, rounds in ((1, 8), (2, 3), (3, 5))]
    assert growing == pytest.approx([alone[0], sum(alone[:2]), sum(alone)], rel=1e-9)
    waiting = claims[0]._replace(releases=0)  # it has drawn a coin and released nothing: its place is taken all the same
    assert spent([waiting, claims[1]], 1e-5) == pytest.approx(alone[1], rel=1e-9)


def test_that_something_left_without_noise_is_not_forgotten_with_the_file_that_says_so(command: Any, tmp_path: Path) -> None:
    grid = federation(tmp_path)
    for name, node in enumerate(grid.nodes.values()):
        node.config = owner(tmp_path, f"c{name}", trust="none")
    train(tmp_path, "open", grid, privacy=normec.Privacy(trust="none"))
    for path in (tmp_path / "c1" / "c1").iterdir():
        if not path.name.startswith("index"):
            remove(path, tmp_path)
    assert account(tmp_path / "c1" / "c1", 1e-5)["epsilon"] is None
    assert "all together: ε = ∞: messages have left without noise" in command("ledger", str(tmp_path / "c1" / "c1")).out
    assert "cannot hold any more: messages have left without protection before" in train(tmp_path, "second", federation(tmp_path))


def test_an_index_of_another_client_is_not_taken(after_three: Path, tmp_path: Path) -> None:
    shutil.copytree(after_three, tmp_path, dirs_exist_ok=True)
    shutil.copytree(tmp_path / "c1" / "c1", tmp_path / "c1" / "c2")
    with pytest.raises(BadInput, match=r"is of client .c1.\. Use a state-dir of its own"):
        Owner.of({**owner(tmp_path, "c1"), "client-id": "c2"}).index()
    assert json.loads((tmp_path / "c1" / "c1" / "index.head").read_text())[0] == 5
    assert np.isfinite(account(tmp_path / "c1" / "c2", 1e-5)["epsilon"])


@pytest.mark.parametrize("was", ["nothing", "old1", "old2"])
def test_a_directory_that_a_server_has_shown_to_be_older_takes_no_part_in_other_experiments(
    was: str, after_three: Path, command: Any, tmp_path: Path
) -> None:
    """It has forgotten releases in one experiment, and perhaps in others; the newest copy, restored, goes on to its limit."""
    shutil.copytree(after_three, tmp_path, dirs_exist_ok=True)
    shutil.move(tmp_path / "c1", tmp_path / "newest")
    if was != "nothing":
        shutil.copytree(tmp_path / was, tmp_path / "c1")
    grid = federation(tmp_path)
    train(tmp_path, "first", grid)
    assert "state-dir is an older copy" in train(tmp_path, "second", grid)
    assert sent(grid) == 0
    told = command("ledger", str(tmp_path / "c1" / "c1"))
    assert "all together: unknown: this directory is an older copy" in told.out
    shutil.rmtree(tmp_path / "c1")
    shutil.copytree(tmp_path / "newest", tmp_path / "c1")
    train(tmp_path, "third", grid)
    assert sent(grid) == ALLOWED - 4


def test_a_server_that_goes_back_is_no_sign_of_an_older_directory(tmp_path: Path) -> None:
    """Its settled attempt is older than those that the client has seen; one that is newer than all is such a sign."""
    client = Owner.of(owner(tmp_path, "c1"))
    sizes = Sizes(local_lr=0.5, clients=2, rounds=9, parameters=4)
    privacy = normec.Privacy(trust="local", noise_multiplier=1.0, delta=1e-5)
    terms = Terms.settled(normec.FedNormEC(beta=0.1, server_lr=1.0), normec.Full(), privacy, sizes)
    attempts = [f"{number:032x}" for number in range(7)]

    def asked(attempt: str, settled: str) -> None:
        with Keeper(client, "e" * 32, terms) as keeper:
            keeper.begin(attempt)
            keeper.propose(attempt, keeper.settle(settled))

    for before, attempt in itertools.pairwise(attempts[:4]):
        asked(attempt, before)
    with pytest.raises(BadInput, match="has counted attempt"):
        asked(attempts[4], attempts[1])
    assert not client.index().outdated
    with pytest.raises(BadInput, match="has counted attempt"):
        asked(attempts[6], attempts[5])
    assert client.index().outdated
