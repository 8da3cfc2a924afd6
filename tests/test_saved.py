"""A trained model comes back from its folder as it was, or with one sentence why not."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import normec
from conftest import unless_refused
from normec.hashed import with_hash
from normec.models import mlp, start_from
from normec.runs.folder import Checkpoint, Output, RunFolder

X = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 3, 40)


def own_factory(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Tied weights, a frozen one and an integer buffer."""
    module = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, classes))
    module[1].weight = module[0].weight
    module[3].bias.requires_grad_(False)
    return module


def trained(model: Any, folder: Path, dtype: Any = "float32") -> normec.Run:
    return normec.train(
        model=model, data=normec.Federation.from_arrays(X, Y, np.arange(40) % 4), algorithm=normec.FedAvg(), local=normec.GD(),
        participation=normec.Full(), privacy=normec.Privacy(trust="none"), rounds=2, out=folder, engine=normec.Engine(dtype=dtype),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", [mlp, own_factory])
def test_a_model_comes_back_as_it_was(tmp_path: Path, model: Any, dtype: str) -> None:
    run = trained(model, tmp_path, dtype)
    loaded = normec.load_model(tmp_path, None if model is mlp else model)
    x = torch.from_numpy(X).to(torch.float64 if dtype == "float64" else torch.float32)
    assert not loaded.training and torch.equal(loaded(x), run.model.eval()(x))


def test_a_factory_without_a_name_must_be_given(tmp_path: Path) -> None:
    run = trained(lambda: nn.Linear(6, 3), tmp_path)
    with pytest.raises(normec.BadInput, match=r"made by a function without a name to import\. Give that module"):
        normec.load_model(tmp_path)
    x = torch.from_numpy(X)
    assert torch.equal(normec.load_model(tmp_path, lambda: nn.Linear(6, 3))(x), run.model(x))
    with pytest.raises(normec.BadInput, match="makes another module"):
        normec.load_model(tmp_path, lambda: nn.Linear(6, 4))


def test_a_module_is_copied_and_stays_as_it_is(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    module[0].bias.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    run = trained(module, tmp_path / "given")
    assert run.model is not module and module.training and all(p.grad is None for p in module.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert torch.equal(run.model[0].bias, before["0.bias"]) and not torch.equal(run.model[0].weight, before["0.weight"])
    made = trained(lambda: copy.deepcopy(module), tmp_path / "made")
    assert all(torch.equal(a, b) for a, b in zip(run.model.parameters(), made.model.parameters(), strict=True))
    x = torch.from_numpy(X)
    assert torch.equal(normec.load_model(tmp_path / "given", module)(x), run.model.eval()(x))
    assert trained(nn.Sequential(nn.Linear(6, 3)), tmp_path / "again", "float64").model[0].weight.dtype == torch.float64


def test_a_module_that_cannot_be_copied_is_refused(tmp_path: Path) -> None:
    module = nn.Linear(6, 3)
    module.lock = threading.Lock()
    with pytest.raises(normec.BadInput, match="model: Linear cannot be copied; give a function that makes it"):
        trained(module, tmp_path)
    with pytest.raises(normec.BadInput, match=r"model='mlp' cannot be called. Give a torch.nn.Module, or a function that makes one"):
        trained("mlp", tmp_path)


class Extra(nn.Linear):
    """Saves something that is no tensor."""

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 1}

    def set_extra_state(self, state: Any) -> None:
        """Nothing to set."""


def test_state_that_is_no_tensor_is_left_to_the_factory(tmp_path: Path) -> None:
    run = trained(lambda: Extra(6, 3), tmp_path)
    x = torch.from_numpy(X)
    assert torch.equal(normec.load_model(tmp_path, lambda: Extra(6, 3))(x), run.model(x))


def test_a_folder_runs_no_code_that_it_names(tmp_path: Path) -> None:
    trained(own_factory, tmp_path)
    with pytest.raises(normec.BadInput, match=r"made by test_saved:own_factory\. Give that module or function"):
        normec.load_model(tmp_path)
    named = {"model": json.dumps({"factory": {"name": "os:abort"}, "input_shape": [6], "classes": 3})}
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "model.safetensors").write_bytes(with_hash({"weight": torch.zeros(2)}, named))
    with pytest.raises(normec.BadInput, match="made by os:abort"):
        normec.load_model(tmp_path / "foreign")


def test_the_norm_of_a_built_in_model_is_kept(tmp_path: Path, command: Any) -> None:
    images = np.random.default_rng(0).random((12, 64), dtype=np.float32)
    np.savez(tmp_path / "t.npz", x=images.reshape(12, 8, 8), y=np.arange(12) % 2)
    for norm in ("batch", "group"):
        done = command(
            "train", f"data.source={tmp_path / 't.npz'}", "data.clients=2", "model.name=cnn", f"model.norm={norm}", "rounds=1",
            "privacy.trust=none", "local.steps=1", "--out", str(tmp_path / norm),
        )  # fmt: skip
        assert done.code == 0, done.err
        kinds = {type(module) for module in normec.load_model(tmp_path / norm).modules()}
        assert (nn.BatchNorm2d in kinds) == (norm == "batch")


def test_folders_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(normec.BadInput, match=r"holds no model\.safetensors"):
        normec.load_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(normec.BadInput, match="is damaged, or of another program"):
        normec.load_model(tmp_path)
    save_file({"weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(normec.BadInput, match="is damaged, or of another program"):
        normec.load_model(tmp_path)


def flipped(path: Path, places: int) -> Iterator[int]:
    """The file with one bit changed, at places spread over all of it; it is whole again at the end."""
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for place in [*range(8), *rng.integers(8, len(whole), places).tolist()]:
        changed = bytearray(whole)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(changed))
        yield place
    path.write_bytes(whole)


def test_a_damaged_model_is_never_loaded_as_another(tmp_path: Path) -> None:
    trained(mlp, tmp_path)
    whole = normec.load_model(tmp_path).state_dict()
    for place in flipped(tmp_path / "model.safetensors", 150):
        found = unless_refused(lambda: normec.load_model(tmp_path).state_dict(), "model")
        assert found is None or all(torch.equal(value, found[name]) for name, value in whole.items()), place


def test_a_damaged_checkpoint_is_never_resumed_as_another(tmp_path: Path) -> None:
    """Nor are tensors that were replaced, such as what clients have spent, or who takes part in a round yet to be released."""
    folder = RunFolder(tmp_path)
    folder.checkpoint.parent.mkdir()
    tensors = {"x": torch.arange(30.0), "exposure": torch.ones(4, dtype=torch.float64)}
    folder.save_checkpoint(Checkpoint(tensors, {"rounds_done": 3}))
    output = Output(np.array([True, False, True]), torch.arange(5.0, dtype=torch.float64))
    folder.save_output(output)
    for place in flipped(folder.checkpoint, 150):
        found = unless_refused(folder.load_checkpoint, "state.safetensors is damaged")
        same = found is None or all(torch.equal(value, found.tensors[name]) for name, value in tensors.items())
        assert same and (found is None or found.counts == {"rounds_done": 3}), place
    for place in flipped(tmp_path / "checkpoint" / "output.safetensors", 100):
        again = unless_refused(lambda: folder.load_output(output.fingerprint()), "output.safetensors is damaged")
        assert again is None or (np.array_equal(again.cohort, output.cohort) and torch.equal(again.released, output.released)), place
    with safe_open(folder.checkpoint, framework="pt") as file:
        metadata = file.metadata()
    for said in (metadata, {"rounds_done": "3"}):
        save_file(tensors | {"exposure": torch.zeros(4, dtype=torch.float64)}, folder.checkpoint, metadata=said)
        with pytest.raises(normec.BadInput, match=r"state\.safetensors is damaged .* hash"):
            folder.load_checkpoint()


def weights(path: Path, kind: str, module: nn.Module) -> Path:
    file = path / f"w.{kind}"
    torch.save(module.state_dict(), file) if kind == "pt" else save_file(module.state_dict(), file)
    return file


@pytest.mark.parametrize("kind", ["pt", "safetensors", "run"])
def test_a_model_starts_from_given_weights(tmp_path: Path, kind: str) -> None:
    earlier = trained(mlp, tmp_path / "earlier").model
    source = tmp_path / "earlier" if kind == "run" else weights(tmp_path, kind, earlier)
    data = normec.Federation.from_arrays(X, Y, np.arange(40) % 4)
    choices: dict[str, Any] = {
        "data": data, "algorithm": normec.FedAvg(), "local": normec.GD(), "participation": normec.Full(), "rounds": 2,
        "privacy": normec.Privacy(trust="none"),
    }  # fmt: skip
    started, whole = normec.train(model=mlp, start=source, **choices), normec.train(model=earlier, **choices)
    assert started.metrics[0]["train_loss"] == whole.metrics[0]["train_loss"]
    assert all(torch.equal(a, b) for a, b in zip(started.model.parameters(), whole.model.parameters(), strict=True))
    assert f"the model starts from {source}" in started.summary["notes"]
    private = {"algorithm": normec.FedNormEC(), "privacy": normec.Privacy(trust="central", epsilon=8.0)}
    notes = normec.train(model=mlp, start=source, **choices | private).summary["notes"]
    assert any("the claim is that of this run alone: nothing in it protects those" in note for note in notes)
    normec.train(model=mlp, out=tmp_path / "private", **choices | private)
    notes = normec.train(model=mlp, start=tmp_path / "private", **choices | private).summary["notes"]
    assert any("the earlier run has spent an ε of its own" in note for note in notes)


def test_a_damaged_run_is_no_start(tmp_path: Path) -> None:
    trained(mlp, tmp_path / "earlier")
    file = tmp_path / "earlier" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 4
    file.write_bytes(bytes(content))
    with pytest.raises(normec.BadInput, match=r"model.start=.* cannot be read .its content is not what was written"):
        start_from(mlp((6,), 3), tmp_path / "earlier")


def test_a_resume_notices_another_start(tmp_path: Path, command: Any) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    assert command("train", "rounds=1", "data.clients=5", "--out", "a").code == 0
    start = ["train", "rounds=2", "data.clients=5", f"model.start={tmp_path / 'w.pt'}", "--out", "b"]
    weights(tmp_path, "pt", module)
    assert command(*start).code == 0
    with torch.no_grad():
        module[1].bias += 1
    weights(tmp_path, "pt", module)
    found = command(*start, "--resume")
    assert found.code == 2 and "model.fingerprint" in found.err


def test_a_start_of_another_model_is_named(tmp_path: Path) -> None:
    class Runs:
        def __reduce__(self) -> Any:
            return (open, (str(tmp_path / "ran"), "w"))

    cases = {
        "names.pt": ({"weight": torch.zeros(3, 6)}, "it holds no 1.weight, 1.bias and also weight"),
        "shape.pt": ({"1.weight": torch.zeros(3, 5), "1.bias": torch.zeros(3)}, r"holds 1.weight of shape \(3, 5\), the model of \(3, 6\)"),
        "nan.pt": ({"1.weight": torch.full((3, 6), float("nan")), "1.bias": torch.zeros(3)}, "in 1.weight that are not finite"),
        "nested.pt": ({"epoch": 3, "state_dict": {}}, "is not a state dict of tensors .it holds 'epoch'"),
        "code.pt": ({"1.weight": Runs()}, "holds no plain state dict .UnpicklingError"),
    }
    data = normec.Federation.from_arrays(X, Y, np.arange(40) % 4)
    for name, (content, said) in cases.items():
        torch.save(content, tmp_path / name)
        with pytest.raises(normec.BadInput, match=rf"model.start=.*{said}"):
            normec.train(
                model=nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), data=data, algorithm=normec.FedAvg(), local=normec.GD(), rounds=1,
                participation=normec.Full(), privacy=normec.Privacy(trust="none"), start=tmp_path / name,
            )  # fmt: skip
    assert not (tmp_path / "ran").exists()


def test_a_run_as_json(command: Any) -> None:
    found = command("train", "rounds=2", "data.clients=5", "--out", "run", "--json")
    saved = json.loads(Path("run/summary.json").read_text())
    assert found.code == 0 and json.loads(found.out) == {key: value for key, value in saved.items() if key not in ("files", "hash")}
    assert "round" in found.err
    assert "--json acts on a run" in command("train", "--dry-run", "--json").err


def test_a_run_is_short_and_shows_no_smaller_epsilon_than_it_claims(tmp_path: Path) -> None:
    assert repr(trained(mlp, tmp_path)) == f"Run(fedavg, 2 rounds, not private, folder='{tmp_path}')"
    summary = {"algorithm": "dp-fedavg-clip", "rounds": 1, "test_accuracy": None, "delta": 1e-5}
    run = normec.Run(model=nn.Linear(1, 1), metrics=[], summary=summary, epsilon=7.9991, folder=None)
    assert repr(run) == "Run(dp-fedavg-clip, 1 round, (ε, δ) = (8.000, 1e-05), folder=None)"
    summary["test_accuracy"] = 0.9123
    assert "1 round, test accuracy 91.2%, (ε, δ)" in repr(run)
    assert repr(normec.Run(model=nn.Linear(1, 1), metrics=[], summary={}, epsilon=1.0, folder=None)) == "Run(of another rank)"


def test_files_of_another_run_are_named(tmp_path: Path, command: Any) -> None:
    """Each is intact, and its own hash says nothing: the metrics of a checkpoint, and the configuration of a finished run."""
    for seed in ("1", "2"):
        assert command("train", "rounds=2", "privacy.trust=none", f"seed={seed}", "--out", str(tmp_path / seed)).code == 0
    theirs, mine = tmp_path / "2", tmp_path / "1"
    kept = {name: (mine / name).read_bytes() for name in ("run.toml", "metrics.jsonl")}
    for name, whole in kept.items():
        (mine / name).write_bytes((theirs / name).read_bytes())
        done = command("report", str(mine))
        assert done.code == 2 and f"{name} is not the one of which summary.json speaks" in done.err
        (mine / name).write_bytes(whole)
    (mine / "summary.json").unlink()
    (mine / "metrics.jsonl").write_bytes((theirs / "metrics.jsonl").read_bytes())
    done = command("train", "--out", str(mine), "--resume")
    assert done.code == 2 and "metrics.jsonl is damaged (its lines are not those of the checkpoint's run)" in done.err
    (mine / "metrics.jsonl").write_bytes(kept["metrics.jsonl"])
    assert command("train", "--out", str(mine), "--resume").code == 0
