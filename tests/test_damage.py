"""Every file of a run's folder holds a hash: a changed one is refused with a sentence, or changes nothing that anyone is shown."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import normec
from conftest import FailsAt, Outcome, checkpoint_of, quadratic, unless_refused, without_seconds
from normec.privacy.ledger import read
from normec.runs.folder import RunFolder
from normec.runs.record import Record

Command = Callable[..., Outcome]
CENTRES = list(np.random.default_rng(3).normal(size=(4, 3)))
ROUNDS = 3
RESULTS = ("run.toml", "metrics.jsonl", "summary.json", "clients.json", "audit.json", "ledger.jsonl", "ledger.head")
MODELS = ("model.safetensors", "best.safetensors")
CHECKPOINT = ("checkpoint/settings.json", "checkpoint/state.safetensors", "checkpoint/output.safetensors")


def private_run(folder: Path, **choices: Any) -> normec.Run:
    """Four clients, all in every round, each with noise of its own and from the operating system."""
    defaults: dict[str, Any] = {
        "algorithm": normec.FedNormEC(beta=0.2),
        "privacy": normec.Privacy(trust="local", noise_multiplier=3.0, delta=1e-5, noise="secure"),
        "rounds": ROUNDS,
        "out": folder,
    }
    return quadratic(CENTRES, **(defaults | choices))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with every file that one leaves, of an audit too."""
    from normec.config import resolve
    from normec.runs.loop import execute
    from normec.studies.start import start

    folder = tmp_path_factory.mktemp("finished") / "run"
    choices = ["data.clients=4", "model.name=logistic", "rounds=2", "participation.scheme=full", "privacy.noise_multiplier=3"]
    execute(*start(resolve(None, [*choices, "privacy.trust=local", "evaluation.best=test_loss"]), folder, resume=False))
    RunFolder(folder).save_audit({"canaries": 20})
    return folder


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that died in its last round, whose output is stored and not yet released."""
    folder = tmp_path_factory.mktemp("interrupted") / "run"
    with pytest.raises(OSError, match="stopped"):
        private_run(folder, observer=FailsAt(ROUNDS))
    assert read(folder / "ledger.jsonl").pending() is not None
    return folder


def changed(path: Path, times: int) -> Iterator[str]:
    """The file with one bit changed, at places all over it and at its last byte, or cut, or longer; it is whole again at the end."""
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for place in {0, len(whole) - 1, *rng.integers(len(whole), size=times).tolist()}:
        bit = int(rng.integers(8))
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
        yield f"{path.name}: byte {place}, bit {bit}"
    for damaged in (b"", whole[: len(whole) // 2], whole + b"x"):
        path.write_bytes(damaged)
        yield f"{path.name}: {len(damaged)} of {len(whole)} bytes"
    path.write_bytes(whole)


def shown(folder: Path) -> Any:
    """All that a reader shows of a run."""
    record = Record.read(folder)
    return record.settings, record.metrics, record.summary, record.clients, record.audit, record.epsilon


@pytest.mark.parametrize("name", RESULTS)
def test_a_changed_file_of_results_changes_nothing_that_is_shown(finished: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    whole = shown(folder)
    refused = 0
    for place in changed(folder / name, 60):
        found = unless_refused(lambda: shown(folder), name, "ledger.jsonl")
        refused += found is None
        assert found in (None, whole), place
    assert refused > 30 and shown(folder) == whole


@pytest.mark.parametrize("name", MODELS)
def test_a_changed_model_is_refused(finished: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    best = name.startswith("best")
    whole = normec.load_model(folder, best=best).state_dict()
    for place in changed(folder / name, 60):
        with pytest.raises(normec.BadInput, match=name):
            pytest.fail(f"{place}: {normec.load_model(folder, best=best)}")
    again = normec.load_model(folder, best=best).state_dict()
    assert all(torch.equal(value, again[key]) for key, value in whole.items())


@pytest.mark.filterwarnings("ignore:.*an incomplete last line")
@pytest.mark.parametrize("name", [*CHECKPOINT, "metrics.jsonl", "ledger.jsonl", "ledger.head"])
def test_a_changed_file_of_an_interrupted_run_changes_nothing_that_is_resumed(interrupted: Path, tmp_path: Path, name: str) -> None:
    """Read as well: what is shown of the run so far is what was shown."""
    before = shown(interrupted)
    whole = private_run(shutil.copytree(interrupted, tmp_path / "whole"), resume=True)
    kept = shutil.copytree(interrupted, tmp_path / "kept")
    for number, place in enumerate(changed(kept / name, 12)):
        said = Path(name).name, "ledger"
        found = unless_refused(lambda: shown(kept), *said)
        lost = name == "metrics.jsonl" and "bytes" in place  # whole lines at its end, which no other file counts before the run's end
        assert found in (None, before) or (lost and found[-1] == before[-1]), place
        again = partial(private_run, shutil.copytree(kept, tmp_path / str(number)), resume=True)
        run = unless_refused(again, *said)
        if run is None:
            continue
        assert run.epsilon == whole.epsilon, place
        assert all(np.array_equal(value, checkpoint_of(run)[key]) for key, value in checkpoint_of(whole).items()), place
        assert without_seconds(run.metrics) == without_seconds(whole.metrics), place


def test_a_checkpoint_goes_with_its_own_run_only(tmp_path: Path) -> None:
    """Of other settings, or, with noise that nobody can repeat, of another run of the same."""
    for name, choices in (("a", {}), ("b", {}), ("other", {"local": normec.GD(steps=1, lr=0.5)})):
        with pytest.raises(OSError, match="stopped"):
            private_run(tmp_path / name, observer=FailsAt(ROUNDS), **choices)
    held = {path: path.read_bytes() for path in (tmp_path / "a").rglob("*.safetensors")}
    for other, file, said in (
        ("other", "state", "state.safetensors is damaged .it is of another run"),
        ("b", "state", "the checkpoint is of another run than .*ledger.jsonl"),
        ("other", "output", "output.safetensors is damaged .it is of another run"),
        ("b", "output", "it is not the output that the ledger names"),
    ):
        shutil.copy(tmp_path / other / "checkpoint" / f"{file}.safetensors", tmp_path / "a" / "checkpoint")
        with pytest.raises(normec.BadInput, match=said):
            private_run(tmp_path / "a", resume=True)
        for path, content in held.items():
            path.write_bytes(content)
    assert private_run(tmp_path / "a", resume=True).summary["rounds"] == ROUNDS


def test_lost_settings_do_not_let_other_ones_go_on(tmp_path: Path) -> None:
    quadratic(CENTRES, algorithm=normec.FedAvg(), out=tmp_path / "a")
    (tmp_path / "a" / "checkpoint" / "settings.json").unlink()
    with pytest.raises(normec.BadInput, match=r"state\.safetensors is damaged .it is of another run"):
        quadratic(CENTRES, algorithm=normec.FedAvg(), local=normec.GD(steps=1, lr=0.5), out=tmp_path / "a", resume=True)


def test_results_of_another_run_are_refused(finished: Path, tmp_path: Path, command: Command) -> None:
    choices = ["data.clients=4", "model.name=logistic", "rounds=2", "participation.scheme=full", "privacy.noise_multiplier=3"]
    assert (
        command("train", *choices, "privacy.trust=local", "evaluation.best=test_loss", "data.partition=dirichlet", "--out", "other").code
        == 0
    )
    for name in ("metrics.jsonl", "clients.json", "model.safetensors", "best.safetensors"):
        folder = shutil.copytree(finished, tmp_path / name)
        shutil.copy(Path("other", name), folder)
        with pytest.raises(normec.BadInput, match=rf"{name} is not the one of which summary\.json speaks"):
            normec.load_model(folder, best=name.startswith("best")) if name in MODELS else shown(folder)


def test_a_user_finds_the_same_keys_and_can_check_every_file(finished: Path) -> None:
    import hashlib

    summary = json.loads((finished / "summary.json").read_text())
    assert summary["files"].keys() == {"run.toml", "metrics.jsonl", "clients.json", *MODELS}
    for name, found in summary["files"].items():
        assert hashlib.blake2b((finished / name).read_bytes(), digest_size=16).hexdigest() == found, name
    for line in (finished / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        found = row.pop("hash")
        assert hashlib.blake2b(json.dumps(row, ensure_ascii=False).encode(), digest_size=16).hexdigest() == found


def test_an_edited_configuration_resumes_where_nothing_is_decided_by_it(tmp_path: Path, command: Command) -> None:
    assert command("train", "rounds=1", "data.clients=4", "privacy.trust=none", "--out", "run").code == 0
    file = Path("run/run.toml")
    whole = file.read_text()
    file.write_text(whole.replace("rounds = 1", "rounds = 2"))
    with pytest.raises(normec.BadInput, match=r"run\.toml is damaged"):
        Record.read(Path("run"))
    done = command("train", "--out", "run", "--resume")
    assert done.code == 2 and "rounds=1 there, 2 here" in done.err
    file.write_text(whole.replace("checkpoint_every = 10", "checkpoint_every = 100"))
    assert command("train", "--out", "run", "--resume").code == 0
    assert Record.read(Path("run")).settings["engine"]["checkpoint_every"] == 100
    file.write_text(whole)
    assert command("train", str(file), "rounds=2", "--out", "again").code == 0
    assert Record.read(Path("again")).settings["rounds"] == 2
