"""Bad input: exit code 2, one sentence naming the setting, before any training, nothing written or overwritten."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from torch import nn

import normec
from conftest import Outcome, Point, half_square
from normec.errors import BadInput, shown_value

Command = Callable[..., Outcome]

NOT_NUMBERS = ['"x"', "true", "[1]", "nan", "inf", "-inf"]
POSITIVE = [*NOT_NUMBERS, "-1", "0", "-0.0", "1e-320", "1e39"]
COUNTS = [*POSITIVE, "1.5", "10000000000000", "1" + 5000 * "0"]
TEXTS = ["1", "true", '""', "nan"]

BAD_VALUES: dict[str, list[str]] = {
    "rounds": COUNTS,
    "seed": [*NOT_NUMBERS, "-1", "1.5", "9223372036854775808"],
    "data.source": [*TEXTS, "nothing.csv", "notes.txt", "nothing.here:at_all", "math:nothing", "math:sqrt"],
    "data.path": [*TEXTS, "nowhere"],
    "data.window": COUNTS,
    "data.pool": [*COUNTS, "2"],
    "data.resize": [*COUNTS, "[3]", "[3, 0]", "[3, 4, 5]", "8"],
    "data.channels": [*NOT_NUMBERS, "2", "0", "1"],
    "data.pixel_max": [*POSITIVE, "255.0"],
    "data.size_limit": COUNTS,
    "data.clients": [*COUNTS, "1439"],
    "data.partition": [*TEXTS, "even"],
    "data.concentration": POSITIVE,
    "data.classes_per_client": COUNTS,
    "data.size_exponent": POSITIVE,
    "data.min_size": [*NOT_NUMBERS, "-1", "1.5", "10000000000000", "15"],
    "data.client_column": TEXTS,
    "data.label_column": TEXTS,
    "data.drop_columns": ["1", '"a"', "[1]", '["a"]'],
    "data.time_column": [*TEXTS, "when"],
    "data.separator": [*TEXTS, ";"],
    "data.decimal": [*TEXTS, ";"],
    "data.encoding": [*TEXTS, "utf-8"],
    "data.test_source": [*TEXTS, "nothing.csv", "nothing/*.csv"],
    "data.test_fraction": [*NOT_NUMBERS, "-1", "1", "0.9999"],
    "model.name": [*TEXTS, "transformer", "nothing.here:at_all", "math:nothing", "math:pi", "builtins:dict"],
    "model.loss": [*TEXTS, "hinge", "nothing.here:at_all", "math:pi"],
    "model.class_weights": ["1", '"a"', "[-1]", '["x"]'],
    "local.method": [*TEXTS, "adam"],
    "local.steps": COUNTS,
    "local.lr": POSITIVE,
    "local.batch_size": COUNTS,
    "algorithm.name": [*TEXTS, "fed-normek"],
    "algorithm.alpha": POSITIVE,
    "algorithm.beta": POSITIVE,
    "algorithm.server_lr": POSITIVE,
    "algorithm.server_normalize": ["1", '"yes"', "nan"],
    "algorithm.lazy": ["1", '"yes"', "nan"],
    "algorithm.init": [*TEXTS, "random", "local"],
    "algorithm.init_offset": [*NOT_NUMBERS, "-1"],
    "server.optimizer": [*TEXTS, "lion"],
    "server.momentum": [*NOT_NUMBERS, "-1", "1"],
    "server.beta1": [*NOT_NUMBERS, "-1", "1"],
    "server.beta2": [*NOT_NUMBERS, "-1", "1"],
    "server.tau": POSITIVE,
    "participation.scheme": [*TEXTS, "weekly"],
    "participation.rate": [*POSITIVE, "1.5"],
    "privacy.trust": [*TEXTS, "secagg", "nobody"],
    "privacy.epsilon": POSITIVE,
    "privacy.noise_multiplier": [*NOT_NUMBERS, "-1"],
    "privacy.delta": [*POSITIVE, "1", "2"],
    "privacy.adjacency": [*TEXTS, "add-remove"],
    "privacy.noise": [*TEXTS, "quantum"],
    "privacy.stop_at": POSITIVE,
    "privacy.min_honest": [*COUNTS, "101"],
    "privacy.client_limit": POSITIVE,
    "privacy.colluders": [*NOT_NUMBERS, "-1", "1.5", "100"],
    "privacy.dropouts": [*TEXTS, "some"],
    "engine.backend": [*TEXTS, "ray"],
    "engine.workers": COUNTS,
    "engine.device": [*TEXTS, "cuda:99", "toaster", "meta", "hpu"],
    "engine.dtype": [*TEXTS, "float16"],
    "engine.eval_every": COUNTS,
    "engine.checkpoint_every": COUNTS,
    "engine.memory_limit": [*NOT_NUMBERS, "-1", "0"],
    "theory.check": ["1", '"yes"', "nan"],
    "evaluation.samples": COUNTS,
    "evaluation.metrics": [
        "1",
        '"a"',
        "[1]",
        '["nothing"]',
        '["nothing.here:at_all"]',
        '["math:sqrt"]',
        '["math:pi"]',
        '["builtins:dict"]',
    ],
    "evaluation.best": ["1", '"test_acuracy"', "rmse"],
    "evaluation.best_is": [*TEXTS, "largest"],
    "model.start": [*TEXTS, "nowhere", "."],
    "model.norm": [*TEXTS, "layer", "group"],
}
WITH = {
    "data.path": ["data.source=cifar10"],
    "data.window": ["data.source=play.txt"],
    "data.concentration": ["data.partition=dirichlet"],
    "data.classes_per_client": ["data.partition=shards"],
    "data.size_exponent": ["data.partition=power-law"],
    "server.momentum": ["server.optimizer=momentum"],
    "server.beta1": ["server.optimizer=adam"],
    "server.beta2": ["server.optimizer=adam"],
    "server.tau": ["server.optimizer=adam"],
    "privacy.min_honest": ["privacy.trust=secagg"],
    "privacy.client_limit": ["privacy.trust=local"],
    "privacy.colluders": ["privacy.trust=secagg", "privacy.min_honest=10"],
    "privacy.dropouts": ["privacy.trust=secagg", "privacy.min_honest=10"],
}
"""Settings that act only together with another one."""
NAMED = {
    ("privacy.trust", "secagg"): "privacy.min_honest is missing",
    ("privacy.colluders", "100"): "privacy.min_honest=10 with 100 colluders",
}
"""Where the error names another setting than the one that was changed."""


def refused(outcome: Outcome, *words: str) -> None:
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    lines = [line for line in outcome.err.strip().splitlines() if not line.startswith("calibrating: ")]  # told after two seconds
    assert len(lines) == 1, outcome.err
    assert lines[0].startswith("normec: ") and lines[0].endswith((".", "?")), lines[0]
    for word in words:
        assert word in lines[0], lines[0]
    assert not Path("runs").exists() and not Path("out").exists()


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in BAD_VALUES.items() for value in values])
def test_bad_value(command: Command, key: str, value: str) -> None:
    extra = WITH.get(key, [])
    refused(
        command("train", *extra, f"{key}={value}", "--out", "out"),
        NAMED.get((key, value), "model" if key in ("model.name", "model.loss") else key),
    )


@pytest.mark.parametrize(("key", "value"), [("local.lr", "nan"), ("rounds", "-1"), ("participation.rate", "2")])
def test_bad_value_in_a_file(command: Command, key: str, value: str) -> None:
    section, _, name = key.rpartition(".")
    Path("run.toml").write_text((f"[{section}]\n" if section else "") + f"{name} = {value}\n")
    refused(command("train", "run.toml"), key, value)


def test_every_key_of_the_configuration_is_covered() -> None:
    from normec.config import resolve

    resolved = resolve(None, ["data.partition=dirichlet", "privacy.epsilon=1"])
    sections = {
        name: getattr(resolved, name)
        for name in ("data", "model", "local", "algorithm", "participation", "privacy", "engine", "theory", "evaluation")
    }
    keys = {f"{section}.{key}" for section, group in sections.items() for key in type(group).model_fields}
    keys |= {"rounds", "seed", "local.method", "algorithm.name", "participation.scheme", "server.optimizer"}
    keys |= {f"server.{key}" for step in (normec.ServerMomentum, normec.ServerAdam) for key in step.model_fields}
    assert keys == set(BAD_VALUES)


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("round", "rounds"), ("data.sorce", "source"), ("local.learning_rate", "lr"), ("algorithm.alhpa", "alpha"),
        ("privacy.epsilom", "epsilon"), ("engine.worker", "workers"), ("participation.rates", "rate"), ("algorithm.clip_norm", "Known"),
        ("dta.source", "data"), ("privcy", "privacy"),
    ],
)  # fmt: skip
def test_unknown_key(command: Command, key: str, near: str) -> None:
    refused(command("train", f"{key}=1"), key.split(".")[0] if "dta" in key else key, near)


@pytest.mark.parametrize("argument", ["=1", "a.b.c=1", ".=1"])
def test_malformed_assignment(command: Command, argument: str) -> None:
    refused(command("train", "rounds=2", argument), "key=value")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.toml"], ["missing.toml", "does not exist"]),
        (["data=3"], ["data=3", "section"]),
        (["rounds=2", "missing.toml"], ["missing.toml"]),
        (["privacy.trust=none", "privacy.epsilon=3"], ["privacy.epsilon=3", "trust"]),
        (["data.concentration=1"], ["data.concentration", "dirichlet"]),
        (["data.classes_per_client=3"], ["data.classes_per_client", "shards"]),
        (["data.size_exponent=2"], ["data.size_exponent", "power-law"]),
        (["data.partition=shards", "data.clients=1000"], ["data.classes_per_client=2", "2000 shards"]),
        (["data.partition=column"], ["data.client_column", "digits"]),
        (["data.partition=column", "data.clients=3"], ["data.clients=3", "column"]),
        (["participation.scheme=full", "participation.rate=0.5"], ["participation.rate must be 1"]),
        (["participation.scheme=fixed", "participation.rate=0.001"], ["participation.rate=0.001", "nobody"]),
        (["algorithm.name=dp-fedavg-clip", "algorithm.alpha=1"], ["algorithm.alpha"]),
        (["privacy.min_honest=3"], ["privacy.min_honest=3", "secagg"]),
        (["privacy.stop_at=0.001"], ["privacy.stop_at=0.001", "single round"]),
        (["privacy.trust=none", "privacy.stop_at=3"], ["privacy.stop_at=3", "trust"]),
        (["privacy.epsilon=1e-9", "privacy.delta=1e-12"], ["privacy.epsilon", "cannot be reached"]),
    ],
)
def test_bad_combination(command: Command, arguments: list[str], words: list[str]) -> None:
    refused(command("train", *arguments), *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["epsilon=nan"], ["epsilon=nan"]),
        (["epsilon=1", "noise_multiplier=2"], ["only one"]),
        (["noise=paper"], ["epsilon is missing"]),
        (["rate=1.5"], ["rate=1.5"]),
        (["delta=1"], ["delta=1"]),
        (["clients=0"], ["clients=0"]),
        (["rounds=-1"], ["rounds=-1"]),
        (["epsilom=1"], ["epsilon?"]),
        (["trust=everyone"], ["trust="]),
        (["scheme=fixed", "rate=0.001"], ["nobody"]),
        (["min_honest=101"], ["min_honest=101", "gives up every round"]),
        (["min_honest=50", "colluders=60"], ["min_honest=50 with 60 colluders"]),
        (["rounds"], ["key=value"]),
        (["epsilon=1e-9", "delta=1e-12"], ["cannot be reached"]),
    ],
)
def test_bad_privacy_setting(command: Command, arguments: list[str], words: list[str]) -> None:
    refused(command("privacy", *arguments), *words)
    refused(command("privacy", *arguments, "--json"), *words)


def test_two_promises_in_one_file(command: Command) -> None:
    Path("run.toml").write_text("[privacy]\nepsilon = 1.0\nnoise_multiplier = 1.0\n")
    refused(command("train", "run.toml"), "privacy.epsilon=1, ", "noise_multiplier=1.0", "only one")


def test_broken_toml(command: Command) -> None:
    Path("run.toml").write_text("rounds = = 3")
    refused(command("train", "run.toml"), "run.toml", "not valid TOML")
    Path("bytes.toml").write_bytes(b"\xff\xfe")
    refused(command("train", "bytes.toml"), "bytes.toml")


def test_bad_options(command: Command) -> None:
    for arguments in (["--workers", "0"], ["--workers", "two"], ["--nonsense"], ["--resume", "--out", "nowhere"], ["--resume"]):
        outcome = command("train", *arguments)
        assert outcome.code == 2 and outcome.out == "", (arguments, outcome)
        assert not Path("runs").exists()


GOOD = "a,b,word,label,client\n0,1.5,x,cat,7\n1,0.5,y,dog,8\n1,0.1,y,dog,9\n0,2,x,cat,7\n"

BAD_FILES: dict[str, tuple[str, list[str]]] = {
    "empty": ("", ["cannot be read"]),
    "no rows": ("a,b,label,client\n", ["0 rows"]),
    "no features": ("label,client\ncat,1\ndog,2\n", ["0 numeric feature columns"]),
    "no label": ("a,b,client\n1,2,3\n", ["data.label_column='label'", "not a column"]),
    "one class": ("a,label,client\n1,cat,3\n2,cat,4\n", ["data.label_column", "one class only", "cat"]),
    "feature nan": ("a,label,client\n1,cat,1\nnan,dog,2\n3,dog,2\n", ["data.source", "1 row with", "first: row 1"]),
    "feature missing": ("a,label,client\n1,cat,1\n,dog,2\n3,dog,2\n", ["data.source", "1 row with", "first: row 1"]),
    "feature infinite": ("a,label,client\n1,cat,1\n3,dog,2\ninf,dog,2\n", ["data.source", "1 row with", "first: row 2"]),
    "label nan": ("a,label,client\n1,nan,1\n2,1,2\n", ["data.label_column"]),
    "label missing": ("a,label,client\n1,0,1\n2,,2\n3,1,2\n", ["data.label_column", "1 missing value ", "first: row 1"]),
    "label float": ("a,label,client\n1,3.5,1\n2,1,2\n", ["data.label_column", "3.5"]),
    "label negative": ("a,label,client\n1,-1,1\n2,0,2\n3,1,2\n", ["data.label_column", "1 label outside", "first: row 0", "-1"]),
    "label from one": ("a,label,client\n1,1,1\n2,2,2\n3,1,2\n", ["data.label_column", "first: row 1", "2"]),
    "label empty": ("a,label,client\n1,cat,1\n2,,2\n3,dog,1\n", ["data.label_column", "1 missing value ", "first: row 1"]),
    "two columns of one name": ("a,a,label,client\n1,2,cat,1\n2,3,dog,1\n", ["two columns"]),
    "beyond float32": ("a,label,client\n1,cat,1\n1e300,dog,2\n", ["float32", "1 row with"]),
    "client missing": ("a,label,client\n1,cat,1\n2,dog,\n", ["data.client_column", "1 missing value "]),
    "client float": ("a,label,client\n1,cat,1.5\n2,dog,2.5\n", ["data.client_column", "1.5"]),
    "ragged": ("a,label,client\n1,cat,1\n2,dog\n", ["data.source", "cannot be read"]),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_csv(command: Command, name: str) -> None:
    content, words = BAD_FILES[name]
    Path("table.csv").write_text(content)
    refused(command("train", "data.source=table.csv", "data.partition=column", "data.test_fraction=0", "privacy.trust=none"), *words)


@pytest.mark.parametrize("name", ["table.parquet", "table.npz", "table.csv"])
@pytest.mark.parametrize("content", [b"", b"PAR1 nonsense", b"\x00" * 100])
def test_garbage_file(command: Command, name: str, content: bytes) -> None:
    Path(name).write_bytes(content)
    refused(command("train", f"data.source={name}"), "data.source" if "csv" not in name else "data.")


def test_directory_as_source(command: Command) -> None:
    Path("folder.csv").mkdir()
    refused(command("train", "data.source=folder.csv"), "data.source")


@pytest.mark.parametrize(
    ("arrays", "word"),
    [
        ({"x": np.ones((4, 2))}, "no array y"),
        ({"x": np.ones((4, 2)), "y": np.array([0, 1, 0])}, "array y"),
        ({"x": np.ones((4, 2)), "y": np.array([0.0, 1.0, 0.0, 1.0])}, "holds numbers such as 0.0"),
        ({"x": np.array(["a", "b"]), "y": np.array([0, 1])}, "type <U1"),
        ({"x": np.ones((4, 2)), "y": np.array([0, 1, 0, 1]), "client": np.array([0, 1])}, "array client"),
        ({"x": np.full((4, 2), np.nan), "y": np.array([0, 1, 0, 1])}, "4 rows"),
        ({"x": np.array([{}, {}]), "y": np.array([0, 1])}, "holds Python objects, which are not read"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, dtype=int)}, "empty"),
    ],
)
def test_bad_npz(command: Command, arrays: dict[str, Any], word: str) -> None:
    np.savez("table.npz", **arrays)
    clients = "data.partition=column" if "client" in arrays else "data.clients=1"
    refused(command("train", "data.source=table.npz", clients), word)


def test_missing_column_in_parquet(command: Command) -> None:
    pyarrow.parquet.write_table(pa.table({"a": [1.0, 2.0], "target": ["x", "y"]}), "table.parquet")
    refused(command("train", "data.source=table.parquet", "data.clients=1", "data.label_column=targt"), "data.label_column", "target?")


def test_more_clients_than_samples(command: Command) -> None:
    Path("table.csv").write_text(GOOD)
    refused(command("train", "data.source=table.csv", "data.clients=5"), "data.clients=5", "samples")


def test_models_that_are_none(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine_models.py").write_text(
        "import torch\n"
        "def number(): return 3\n"
        "def broken(): raise KeyError('no weights')\n"
        "def wants(width): return torch.nn.Linear(64, width)\n"
        "def narrow(): return torch.nn.Linear(3, 10)\n"
        "def frozen():\n    m = torch.nn.Linear(64, 10)\n    m.requires_grad_(False)\n    return m\n"
        "def norm(): return torch.nn.Sequential(torch.nn.Linear(64, 10), torch.nn.BatchNorm1d(10))\n"
        "def lazy(): return torch.nn.LazyLinear(10)\n"
        "def complexity(): return torch.nn.Linear(64, 10, dtype=torch.complex64)\n"
        "def few(): return torch.nn.Linear(64, 9)\n"
        "class detached(torch.nn.Linear):\n"
        "    def __init__(self): super().__init__(64, 10)\n"
        "    def forward(self, x): return super().forward(x).detach()\n"
        "class pair(torch.nn.Linear):\n"
        "    def __init__(self): super().__init__(64, 10)\n"
        "    def forward(self, x): return super().forward(x), x\n"
        "value = 3\n"
    )
    Path("broken_module.py").write_text("1 / 0\n")
    for name, word in {
        "mine_models:number": "returned int",
        "mine_models:broken": "no weights",
        "mine_models:wants": "width",
        "mine_models:narrow": "samples of shape",
        "mine_models:frozen": "no trainable parameters",
        "mine_models:norm": "GroupNorm",
        "mine_models:value": "no callable value",
        "mine_models:brken": "broken?",
        "mine_models:lazy": "Pass one batch through the module first",
        "mine_models:complexity": "complex64",
        "mine_models:few": "for 10 classes",
        "mine_models:detached": "does not require grad",
        "mine_models:pair": "model or its loss fails",
        "broken_module:anything": "ZeroDivisionError",
    }.items():
        refused(command("train", f"model.name={name}"), "model", word)


def test_a_wrong_object_is_named_by_its_type_and_never_by_what_it_holds() -> None:
    right: dict[str, Any] = {
        "model": nn.Linear(2, 2), "algorithm": normec.FedNormEC(), "local": normec.GD(), "participation": normec.Full(), "rounds": 1,
        "privacy": normec.Privacy(trust="none"), "data": normec.Federation.from_arrays(np.ones((4, 2)), np.arange(4) % 2, np.arange(4)),
    }  # fmt: skip
    with pytest.raises(BadInput, match=r"data is a tuple\. Give a normec\.Federation, such as normec\.Federation\.from_arrays") as caught:
        normec.train(**right | {"data": (np.full((4, 2), 71.25), ["Jane Roe"] * 4)})
    assert "71.25" not in str(caught.value) and "Jane" not in str(caught.value)
    with pytest.raises(BadInput, match="algorithm is the class FedNormEC, not an object of it"):
        normec.train(**right | {"algorithm": normec.FedNormEC})


def test_a_folder_that_holds_a_run_is_left_alone(command: Command) -> None:
    assert command("train", "rounds=1", "--out", "kept").code == 0
    before = {path: path.read_bytes() for path in Path("kept").rglob("*") if path.is_file()}
    refused(command("train", "rounds=2", "--out", "kept"), "kept", "--resume")
    assert {path: path.read_bytes() for path in Path("kept").rglob("*") if path.is_file()} == before


def test_a_resume_with_other_settings_leaves_the_run_alone(command: Command) -> None:
    assert command("train", "rounds=1", "--out", "kept").code == 0
    before = {path: path.read_bytes() for path in Path("kept").rglob("*") if path.is_file()}
    outcome = command("train", "rounds=2", "--out", "kept", "--resume")
    assert outcome.code == 2 and "rounds=1 there, 2 here" in outcome.err
    assert {path: path.read_bytes() for path in Path("kept").rglob("*") if path.is_file()} == before


def test_foreign_folder_or_file_as_out(command: Command) -> None:
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("years of work")
    Path("file").write_text("x")
    for target in ("mine", "file", "file/below"):
        refused(command("train", "rounds=1", "--out", target), "out: ", target)
    assert Path("mine/thesis.txt").read_text() == "years of work"


def test_damaged_checkpoint(command: Command) -> None:
    assert command("train", "rounds=1", "--out", "kept").code == 0
    whole = {path: path.read_bytes() for path in Path("kept").rglob("*") if path.is_file()}
    for name in ("checkpoint/state.safetensors", "checkpoint/settings.json", "metrics.jsonl"):
        for content in (b"torn", b"", b"[1, 2]\n", b"\xff\xfe"):
            Path("kept", name).write_bytes(content)
            refused(command("train", "--out", "kept", "--resume"), "resume: ", name, "damaged")
        Path("kept", name).write_bytes(whole[Path("kept", name)])
    Path("kept/metrics.jsonl").unlink()
    refused(command("train", "--out", "kept", "--resume"), "resume: ", "0 lines for 1 rounds")


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 0.0, "1", None, True])
def test_bad_values_from_python(value: Any) -> None:
    for make in (normec.GD, normec.FedNormEC, normec.DPFedAvgClip):
        key = "lr" if make is normec.GD else "server_lr"
        with pytest.raises(normec.BadInput, match=f"{key}={shown_value(value)} must be a number > 0"):
            make(**{key: value})
    with pytest.raises(normec.BadInput, match="rate="):
        normec.Poisson(value if value is not True else 2.0)


def test_numpy_numbers_are_numbers() -> None:
    assert normec.GD(steps=np.int64(3), lr=np.float32(0.5)) == normec.GD(steps=3, lr=0.5)


@pytest.mark.parametrize(
    ("arrays", "word"),
    [
        (([], [], []), "shape \\(0,\\)"),
        (([[1.0]], [0, 1], [0]), "2 targets"),
        (([[1.0], [2.0]], [0, 1], [0]), "for 1 client_ids"),
        (([[1.0], [math.nan]], [0, 1], [0, 0]), "1 row with"),
        (([[1.0], [2.0]], [0.0, math.inf], [0, 0]), "1 row with"),
        (([[1.0], [2.0]], [0, 5], [0, 0]), "label 5"),
        (([[1.0], [2.0]], [0, 1], [0, math.nan]), "NaN"),
        (([[1.0], [2.0]], [None, {}], [0, 1]), "object"),
        ((None, [0, 1], [0, 0]), "type object"),
        ((["a", "b"], [0, 1], [0, 0]), "Give numbers"),
        (([[1.0], [2.0, 3.0]], [0, 1], [0, 0]), "cannot be read as an array"),
        ((3.0, [0, 1], [0, 0]), "shape \\(\\)"),
        (([[1.0], [2.0]], [[0, 1], [1, -1]], [0, 0]), "label -1"),
        (([[1.0], [2.0]], [0, 1], [[0], [0]]), "client_ids"),
        (([[1.0], [2.0]], [0, 1], 5), "client_ids"),
        (([[], []], [0, 1], [0, 0]), "shape \\(2, 0\\)"),
    ],
)
def test_bad_arrays(arrays: tuple[Any, Any, Any], word: str) -> None:
    with pytest.raises(normec.BadInput, match=word):
        normec.Federation.from_arrays(*arrays)


@pytest.mark.parametrize(
    ("test", "word"),
    [
        (([[1.0]], [0, 1]), "2 targets"),
        (([[1.0, 2.0]], [0]), "shaped as in training"),
        (([[1.0]], ["cat"]), "same kind"),
        (([[math.nan]], [0]), "test x has 1 row"),
    ],
)
def test_bad_test_set(test: tuple[Any, Any], word: str) -> None:
    with pytest.raises(normec.BadInput, match=word):
        normec.Federation.from_arrays([[1.0], [2.0]], [0, 1], [0, 0], test=test)


class Samples:
    """A dataset of these samples."""

    def __init__(self, *samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.samples[index], Exception):
            raise self.samples[index]
        return self.samples[index]


@pytest.mark.parametrize(
    ("samples", "word"),
    [
        ((([1.0], 0), ([1.0, 2.0], 1)), r"sample 1 is of shape \(2,\), the first of \(1,\)"),
        (({"x": 1, "y": 2},), r"sample 0 of the dataset is not a pair"),
        ((([1.0], 0, 0),), r"sample 0 of the dataset is not a pair"),
        ((KeyError("gone"),), "cannot be read sample by sample .KeyError: 'gone'"),
        (((object(), 0),), "sample 0 of the dataset holds no tensors or arrays of one shape .object is none"),
        ((([[1.0], [2.0, 3.0]], 0),), "holds no tensors or arrays of one shape"),
        ((), "is empty"),
    ],
)
def test_bad_datasets(samples: tuple[Any, ...], word: str) -> None:
    with pytest.raises(normec.BadInput, match=word):
        normec.Federation.from_dataset(Samples(*samples), [0] * len(samples))


def test_an_iterable_dataset_is_refused() -> None:
    with pytest.raises(normec.BadInput, match=r"cannot be read sample by sample .TypeError"):
        normec.Federation.from_dataset(iter([]), [])


@pytest.mark.parametrize(
    ("clients", "word"),
    [
        ([([[1.0], [2.0, 3.0]], [0, 1])], "client 0 holds no tensors or arrays"),
        ([(3, 4)], r"client 0 has samples of shape \(\)"),
        ([([[1.0]], [0], [0])], "client 0 is not a pair"),
        ([(np.ones((2, 1)), [0, 1]), (np.ones((2, 1)), ["a", "b"])], "targets of several kinds"),
    ],
)
def test_clients_that_are_no_pairs(clients: Any, word: str) -> None:
    with pytest.raises(normec.BadInput, match=word):
        normec.Federation.from_clients(clients)


def test_a_test_set_that_is_no_pair() -> None:
    with pytest.raises(normec.BadInput, match=r"test is not a pair \(x, y\)"):
        normec.Federation.from_arrays([[1.0], [2.0]], [0, 1], [0, 0], test=([[1.0]],))  # type: ignore[arg-type]


def test_bad_clients() -> None:
    five, four = (np.zeros((5, 1)), np.zeros(4, dtype=int)), (np.ones((4, 1)), np.ones(5, dtype=int))
    with pytest.raises(normec.BadInput, match=r"client 0 has samples of shape \(5, 1\) and targets of shape \(4,\)"):
        normec.Federation.from_clients([five, four])
    with pytest.raises(normec.BadInput, match="2 shapes"):
        normec.Federation.from_clients([(np.zeros((1, 2)), [0]), (np.zeros((1, 3)), [1])])
    with pytest.raises(normec.BadInput, match="0 shapes"):
        normec.Federation.from_clients([(np.zeros((0, 2)), [])])
    with pytest.raises(normec.BadInput, match="ids"):
        normec.Federation.from_clients([(np.zeros((1, 2)), [0])] * 2, ids=["a", "a"])
    with pytest.raises(normec.BadInput, match="a name twice"):
        normec.Federation.from_arrays([[1.0]], ["a"], [0], classes=["a", "a"])


def test_wrong_kinds_of_arguments() -> None:
    good: dict[str, Any] = {
        "model": Point, "algorithm": normec.FedNormEC(), "local": normec.GD(), "participation": normec.Full(), "rounds": 1,
        "privacy": normec.Privacy(trust="none"), "data": normec.Federation.from_arrays([[1.0]], [0.5], [0]), "loss": half_square,
    }  # fmt: skip
    for name, value in {
        "privacy": None,
        "local": "gd",
        "participation": 0.25,
        "data": (1, 2),
        "algorithm": "x",
        "model": 3,
        "loss": "mse",
    }.items():
        with pytest.raises(normec.BadInput, match=rf"^{name}( is a |=)"):
            normec.train(**{**good, name: value})
    with pytest.raises(normec.BadInput, match="resume"):
        normec.train(**good, resume=True)


def test_targets_that_would_broadcast_are_refused() -> None:
    from torch import nn

    data = normec.Federation.from_arrays(np.ones((4, 3)), np.zeros(4), [0, 0, 1, 1])
    with pytest.raises(normec.BadInput, match="target size"):
        normec.train(
            model=lambda: nn.Linear(3, 4), data=data, algorithm=normec.FedNormEC(), local=normec.GD(), participation=normec.Full(),
            privacy=normec.Privacy(trust="none"), rounds=1, loss=nn.MSELoss(),
        )  # fmt: skip


def test_privacy_needs_a_promise() -> None:
    with pytest.raises(normec.BadInput, match="Give epsilon or noise_multiplier"):
        normec.Privacy(trust="central")
    with pytest.raises(normec.BadInput, match="trust"):
        normec.Privacy(epsilon=1.0)


def test_labels_for_the_default_loss() -> None:
    choices: dict[str, Any] = {
        "model": Point, "algorithm": normec.FedNormEC(), "local": normec.GD(), "participation": normec.Full(), "rounds": 1,
        "privacy": normec.Privacy(trust="none"),
    }  # fmt: skip
    with pytest.raises(normec.BadInput, match="no class labels"):
        normec.train(data=normec.Federation.from_arrays([[1.0]], [0.5], [0]), **choices)
    with pytest.raises(normec.BadInput, match="one class only"):
        normec.train(data=normec.Federation.from_arrays([[1.0]], [0], [0]), **choices)
    normec.train(data=normec.Federation.from_arrays([[1.0]], [0.5], [0]), loss=half_square, **choices)
