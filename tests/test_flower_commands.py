"""normec flower-app and flower-run: an app over tables, a config for each node, and a log that ends in a sentence."""

from __future__ import annotations

import csv
import importlib
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import normec
from normec.errors import BadInput

pytest.importorskip("flwr", reason="needs the extra normec[flower]")

from federation import Grid, Node, owner
from normec.commands.flower import WithoutTracebacks, node_config
from normec.flower import ClientEvaluation, Strategy

OPEN = {"trust": "none"}


@pytest.fixture
def table_app(command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The app that `normec flower-app mine --table` writes, importable."""
    outcome = command("flower-app", "mine", "--table")
    assert outcome.code == 0, outcome.err
    assert "normec flower-run mine --node data=mine-data/a.csv --node data=mine-data/b.csv" in outcome.out
    monkeypatch.syspath_prepend(str(tmp_path / "mine"))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "federated"]:
        del sys.modules[name]


def test_the_table_app_reads_each_nodes_file_and_learns_from_all(table_app: Path) -> None:
    task, client = importlib.import_module("federated.task"), importlib.import_module("federated.client_app")
    config = tomllib.loads((table_app / "mine" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    files = {name: table_app / "mine-data" / f"{name}.csv" for name in "abc"}
    nodes = {i: Node(client.app, {**owner(table_app, name, "none"), "data": str(path)}) for i, (name, path) in enumerate(files.items())}
    chosen = Strategy(
        normec.FedNormEC(beta=config["beta"], server_lr=config["server-lr"]), local_lr=config["local-lr"], clients=3,
        privacy=normec.Privacy(trust="none"), folder=table_app / "server", wait=0.0, evaluation=ClientEvaluation(every=6),
    )  # fmt: skip
    found = chosen.start(Grid(nodes, config), task.make_model(), num_rounds=6)  # type: ignore[arg-type]

    weight, bias = (found.arrays[name].numpy() for name in ("weight", "bias"))
    right, rows = 0, []
    for path in files.values():
        with path.open() as file:
            held_out = list(csv.DictReader(file))[::5]
        x = np.array([[float(r["age"]) / 50 - 1, (float(r["pressure"]) - 80) / 60 - 1, float(r["marker"]) / 5 - 1] for r in held_out])
        y = np.array([int(r["outcome"]) for r in held_out])
        right += int(((x.clip(-1, 1) @ weight.T + bias).argmax(1) == y).sum())
        rows += list(y)
    told = dict(found.evaluate_metrics_clientapp[6])
    assert told["accuracy"] == pytest.approx(right / len(rows), abs=1e-6)
    assert told["accuracy"] > max(np.mean(rows), 1 - np.mean(rows)) + 0.02  # better than the larger class


def test_the_table_app_holds_what_flower_needs_and_example_tables_lie_outside(table_app: Path) -> None:
    names = {str(path.relative_to(table_app / "mine")) for path in (table_app / "mine").rglob("*") if path.is_file()}
    code = {f"federated/{name}.py" for name in ("__init__", "client_app", "server_app", "task")}
    assert names - {name for name in names if "__pycache__" in name} == code | {"README.md", "pyproject.toml", ".gitignore"}
    assert sorted(path.name for path in (table_app / "mine-data").iterdir()) == ["a.csv", "b.csv", "c.csv"]
    config = tomllib.loads((table_app / "mine" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    server = (table_app / "mine" / "federated" / "server_app.py").read_text() + (
        table_app / "mine" / "federated" / "client_app.py"
    ).read_text()
    assert all(f'config["{key}"]' in server for key in config)


def test_a_tables_mistakes_are_named(table_app: Path) -> None:
    task = importlib.import_module("federated.task")
    path = table_app / "bad.csv"
    path.write_text("age,pressure,outcome\n60,120,1\n61,121,0\n")
    with pytest.raises(ValueError, match=r"bad.csv has no column 'marker'"):
        task.samples(str(path), held_out=False)
    path.write_text("age,pressure,marker,outcome\n")
    with pytest.raises(ValueError, match="holds no rows"):
        task.samples(str(path), held_out=True)
    path.write_text("\ufeffage,pressure,marker,outcome\n100,80,10,0\n50,140,99,1\n", encoding="utf-8")
    x, y = task.samples(str(path), held_out=False)
    assert torch.equal(x, torch.tensor([[0.0, 0.0, 1.0]])) and y.tolist() == [1]


def test_a_nodes_config_is_its_own_and_files_have_their_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b.csv").touch()
    made = node_config(1, tmp_path / "here", {"trust": "local", "max-epsilon": 10.0}, "'data=a b.csv' max-epsilon=2 site=7 name=Ü")
    said = dict(
        tomllib.loads("\n".join(made.replace('" ', '"\n').replace("=2 ", "=2\n").replace("=7 ", "=7\n").replace("=1 ", "=1\n").split("\n")))
    )
    assert said == {
        "partition-id": 1, "client-id": "node1", "state-dir": str(tmp_path / "here" / "node1"), "trust": "local", "max-epsilon": 2,
        "data": str(tmp_path / "a b.csv"), "site": 7, "name": "Ü",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("data", "'data' is not a setting. Write key=value"),
        ("max-epsilom=2", "node-config: max-epsilom is not known. Did you mean max-epsilon?"),
        ("trust=nobody", "node-config: trust='nobody' must be"),
        ("'data=a", '--node="\'data=a" cannot be read (No closing quotation)'),
        ("a=[1,2]", "--node: a=[1, 2] must be a text or a number"),
    ],
)
def test_a_nodes_config_that_cannot_be_is_refused_before_anything_starts(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as error:
        node_config(0, tmp_path, OPEN, text)
    assert str(error.value).startswith(said)


def test_more_configs_than_clients_are_refused(command: Callable[..., Any], tmp_path: Path) -> None:
    command("flower-app", "mine")
    outcome = command("flower-run", "mine", "--clients", "1", "--node", "a=1", "--node", "a=2")
    assert outcome.code == 2 and "--node is given 2 times for 1 clients" in outcome.err
    assert not (tmp_path / "loopback").exists()


def test_of_a_traceback_only_its_last_line_is_shown() -> None:
    shown: list[str] = []
    show = WithoutTracebacks(shown.append)
    log = (
        "INFO: round 1\nTraceback (most recent call last):\n  File \"a.py\", line 1, in main\n    raise it\n\n"
        "The above exception was the direct cause:\n\nTraceback (most recent call last):\n  File \"b.py\"\n"
        "normec.errors.NormecError: client 'c1' refuses.\nINFO: the end\n"
    )  # fmt: skip
    for start in range(0, len(log), 7):
        show(log[start : start + 7])
    assert "".join(shown) == (
        "INFO: round 1\nThe above exception was the direct cause:\n\nnormec.errors.NormecError: client 'c1' refuses.\nINFO: the end\n"
    )
