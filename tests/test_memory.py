"""Client memories: the same run however they are kept, and no row before its client computes."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import normec
from conftest import FailsAt, Outcome, checkpoint_of, quadratic
from normec.engine.memory import Layout, MappedFile, Memory, layout_for
from normec.streams import Streams

CENTRES = list(np.random.default_rng(0).uniform(-2, 2, (40, 5)))
LIKE = torch.zeros(5, dtype=torch.float64)


def run(**choices: Any) -> normec.Run:
    defaults: dict[str, Any] = {"algorithm": normec.Clip21SGD2M(), "participation": normec.Poisson(0.05), "rounds": 9}
    return quadratic(CENTRES, **(defaults | choices))


def as_if_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "normec.runs.experiment.layout_for", lambda slots, clients, like, computing, limit: layout_for(slots, clients, like, 1.0, limit)
    )


def test_lazy_rows_are_those_of_clients_that_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = run(out=tmp_path / "lazy")
    saved = load_file(tmp_path / "lazy" / "checkpoint" / "state.safetensors")
    computed = int((saved["place"] >= 0).sum())
    participants = {client for k in range(9) for client in np.flatnonzero(normec.Poisson(0.05).cohort(40, k, Streams(42)))}
    assert computed == len(participants)
    assert 0 < computed < 40 and saved["memory.v"].shape == saved["memory.m"].shape == (computed, 5)
    as_if_dense(monkeypatch)
    dense = checkpoint_of(run(out=tmp_path / "dense"))
    for name, value in checkpoint_of(lazy).items():
        np.testing.assert_array_equal(value, dense[name])


@pytest.mark.parametrize("algorithm", [normec.Clip21SGD2M(), normec.FedNormEC(beta=0.3)])
def test_mapped_memories_give_the_same_run(tmp_path: Path, algorithm: normec.Algorithm) -> None:
    mapped = normec.Engine(dtype="float64", checkpoint_every=1, memory_limit=1)
    in_ram, in_file = run(algorithm=algorithm, out=tmp_path / "a"), run(algorithm=algorithm, out=tmp_path / "b", engine=mapped)
    for name, value in checkpoint_of(in_ram).items():
        np.testing.assert_array_equal(value, checkpoint_of(in_file)[name])


@pytest.mark.parametrize("limit", ["auto", 1])
def test_lazy_memories_resume_exactly(tmp_path: Path, limit: Any) -> None:
    engine = normec.Engine(dtype="float64", checkpoint_every=1, memory_limit=limit)
    whole = run(out=tmp_path / "whole", engine=engine)
    for stop in (1, 4, 8):
        folder = tmp_path / str(stop)
        with pytest.raises(OSError, match="stopped"):
            run(out=folder, engine=engine, observer=FailsAt(stop))
        resumed = run(out=folder, engine=engine, resume=True)
        for name, value in checkpoint_of(whole).items():
            np.testing.assert_array_equal(value, checkpoint_of(resumed)[name])


def test_a_memory_grows_with_its_clients() -> None:
    memory = Memory(("v",), 1000, LIKE, Layout(lazy=True, mapped=False, expected=0))
    rng, seen = np.random.default_rng(0), {}
    for _ in range(30):
        clients = rng.choice(1000, 20, replace=False)
        memory.reserve(clients)
        (held,) = memory.read(clients)
        for client, row in zip(clients, held, strict=True):
            assert torch.equal(row, seen.get(int(client), torch.zeros(5, dtype=torch.float64)))
        new = torch.from_numpy(rng.uniform(-1, 1, (20, 5)))
        memory.write(clients, (new,))
        seen |= {int(client): row for client, row in zip(clients, new, strict=True)}
        assert memory.state()["memory.v"].shape == (len(seen), 5)
    other = Memory(("v",), 1000, LIKE, Layout(lazy=True, mapped=False, expected=0))
    other.load(memory.state())
    everyone = np.array(sorted(seen))
    assert torch.equal(other.read(everyone)[0], memory.read(everyone)[0])


def full_after(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """A disk with so many bytes left for each file."""

    def take(handle: int, start: int, length: int) -> None:
        if start + length > size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.pwrite(handle, bytes(length), start)

    monkeypatch.setattr(os, "posix_fallocate", take, raising=False)


FULL = r"client memories need [\d,]+ more bytes in a mapped file in .* which has no room \(No space left on device\)\. Make room"


def test_a_full_disk_ends_a_run_with_a_sentence_and_its_checkpoint_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 40 bytes: the tenth client that computes finds no room. What was saved goes on, in RAM too, as if nothing had been."""
    engine = normec.Engine(dtype="float64", checkpoint_every=1, memory_limit=1)
    whole = run(out=tmp_path / "whole", engine=engine)
    with monkeypatch.context() as patch:
        full_after(patch, 9 * 40)
        for resume in (False, True):
            with pytest.raises(normec.errors.TrainingFailed, match=FULL):
                run(out=tmp_path / "a", engine=engine, resume=resume)
    before = len((tmp_path / "a" / "metrics.jsonl").read_text().splitlines())
    assert 1 < before < 10
    resumed = run(out=tmp_path / "a", engine=normec.Engine(dtype="float64", checkpoint_every=1), resume=True)
    for name, value in checkpoint_of(whole).items():
        np.testing.assert_array_equal(value, checkpoint_of(resumed)[name])


def test_dense_memories_take_their_room_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full_after(monkeypatch, 40 * 40 - 1)
    with pytest.raises(normec.errors.TrainingFailed, match=FULL):
        run(algorithm=normec.FedNormEC(beta=0.3), out=tmp_path / "a", engine=normec.Engine(dtype="float64", memory_limit=1))
    assert not (tmp_path / "a" / "metrics.jsonl").exists()


@pytest.mark.parametrize("missing", [True, False])
def test_where_the_system_cannot_allocate_zeros_are_written(monkeypatch: pytest.MonkeyPatch, missing: bool) -> None:
    def cannot(handle: int, start: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.delattr(os, "posix_fallocate", raising=False) if missing else monkeypatch.setattr(os, "posix_fallocate", cannot)
    file = MappedFile("normec-", 3 * 2**20)
    file.make_room(2**19 + 5)
    rows = file.tensor(torch.float32)
    rows[: 2**17] = 7.0
    file.make_room(3 * 2**20)
    assert os.fstat(file._handle).st_blocks * 512 >= 3 * 2**20
    assert bool((rows[: 2**17] == 7).all()) and not bool(rows[2**17 :].any()) and len(rows) == 3 * 2**18


def test_a_file_beyond_the_limit_of_the_process_ends_with_a_sentence() -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        with pytest.raises(normec.errors.TrainingFailed, match=r"need 2,097,152 more bytes .* \(File too large\)"):
            MappedFile("normec-", 2**21)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert layout_for(1, 10, LIKE, 1.0, None) == Layout(lazy=False, mapped=False, expected=400)
    assert layout_for(2, 10, LIKE, 0.5, None) == Layout(lazy=True, mapped=False, expected=400)
    assert layout_for(1, 10, LIKE, 1.0, 399).mapped and not layout_for(1, 10, LIKE, 1.0, 400).mapped
    assert layout_for(0, 10, LIKE, 1.0, 1) == Layout(lazy=False, mapped=False, expected=0)
    with pytest.raises(normec.BadInput, match=r"need 40,000,000,000,000,000,000 bytes, 1,000 of RAM are allowed and [\d,]+ are free"):
        layout_for(1, 10**18, LIKE, 1.0, 1000)
    monkeypatch.setattr("normec.engine.memory.available", lambda: 800)
    assert layout_for(1, 10, LIKE, 1.0, None).mapped is False and layout_for(1, 11, LIKE, 1.0, None).mapped


def test_the_size_is_shown_before_the_run(command: Callable[..., Outcome]) -> None:
    done = command("train", "rounds=1", "engine.memory_limit=1000")
    assert "client memories: 260,000 bytes (dense, in a mapped file)" in done.out
    done = command("train", "rounds=2", "algorithm.name=clip21")
    assert "client memories: 195,000 bytes (a row from a client's first computation on)" in done.out
    assert "client memories" not in command("train", "rounds=1", "algorithm.name=dp-sgd").out


def test_a_slot_may_take_over_the_old_rows_of_another() -> None:
    """What is read may be views: writing (new, old first slot) must not see the new one in both."""
    for clients in (np.arange(4), np.array([0, 2, 3])):
        memory = Memory(("a", "b"), 4, torch.zeros(2), Layout(lazy=False, mapped=False, expected=0))
        memory.write(clients, (torch.ones(len(clients), 2), torch.zeros(len(clients), 2)))
        a, _ = memory.read(clients)
        memory.write(clients, (torch.full((len(clients), 2), 5.0), a))
        first, second = memory.read(clients)
        assert bool((first == 5).all()) and bool((second == 1).all())
