"""A federation of real processes: SuperLink and SuperNodes with TLS and keys on loopback, killed and started again."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import normec
from normec.hashed import read_with_hash
from normec.privacy.ledger import read
from normec.runs.folder import ROWS, RUN

pytest.importorskip("flwr", reason="needs the extra normec[flower]")

from normec.flower.loopback import Link, Node, Run, federation, until

TEMPLATE = Path(normec.__file__).parent / "flower" / "app"
CLIENTS = 2
FASTER = """import sys, time
_sleep = time.sleep
time.sleep = lambda seconds: _sleep(0.3 if seconds == 3 else seconds)
if any(part.endswith("flower-supernode") for part in sys.orig_argv):
    import flwr.supercore.heartbeat, flwr.supernode.fleet_http_connection as fleet
    flwr.supercore.heartbeat.HEARTBEAT_DEFAULT_INTERVAL = fleet.HEARTBEAT_DEFAULT_INTERVAL = 10
"""
"""Of Flower's processes: its fixed polls of 3 s become 0.3 s, and a killed node is missed after 20 s, not 60 s."""

pytestmark = pytest.mark.timeout(1500)


class Federation:
    """Two nodes whose owners allow everything, and the app with a gate: a client in training waits while the file `hold` is there."""

    def __init__(self, folder: Path, link: Link, nodes: list[Node]) -> None:
        self.folder, self.link, self.nodes, self.hold = folder, link, nodes, folder / "hold"
        self.app = folder / "app"
        shutil.copytree(TEMPLATE, self.app, ignore=shutil.ignore_patterns("__pycache__"))
        task, server = self.app / "federated" / "task.py", self.app / "federated" / "server_app.py"
        gate = f"    import pathlib, time\n    while pathlib.Path({str(self.hold)!r}).exists():\n        time.sleep(0.05)\n"
        text = task.read_text()
        assert text.count("    optimizer = ") == 1
        task.write_text(text.replace("    optimizer = ", f"{gate}    optimizer = "))
        text, promise = server.read_text(), 'epsilon=float(config["epsilon"])'
        assert text.count(promise) == 1
        server.write_text(text.replace(promise, "noise_multiplier=1e-5"))  # so that lost messages stand out of the noise

    def run(self, experiment: str, **config: Any) -> Run:
        settings = {"folder": str(self.folder / experiment), "clients": CLIENTS, **config}
        return Run(self.link, self.app, {key.replace("_", "-"): value for key, value in settings.items()})

    def metrics(self, experiment: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / experiment / "metrics.jsonl").read_text().splitlines()]

    def checkpoint(self, experiment: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        tensors, metadata = read_with_hash(self.folder / experiment / "checkpoint" / "state.safetensors")
        return tensors, {key: json.loads(value) for key, value in metadata.items() if key not in (RUN, ROWS)}

    def client(self, number: int, experiment: str) -> Path:
        """A client's directory of an experiment."""
        return self.folder / f"state{number}" / f"node{number}" / str(self.checkpoint(experiment)[1]["experiment"])

    def memories(self, experiment: str) -> torch.Tensor:
        """The clients' memories v (M, d) after the attempts that the server has counted."""
        settled, found = self.checkpoint(experiment)[1]["settled"], []
        for number in range(CLIENTS):
            path = self.client(number, experiment) / "memory.safetensors"
            with safe_open(path, framework="pt") as file:
                said = file.metadata()
                assert settled[f"node{number}"] in (said["settled"], said["proposed"])
                found.append(file.get_tensor("v" if said["settled"] == settled[f"node{number}"] else "next.v"))
        return torch.stack(found)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("federation")
    (folder / "faster").mkdir()
    (folder / "faster" / "sitecustomize.py").write_text(FASTER)
    path = os.pathsep.join(filter(None, (str(folder / "faster"), os.environ.get("PYTHONPATH"))))
    owners = [f'partition-id={i} client-id="node{i}" state-dir="{folder}/state{i}" trust="none"' for i in range(CLIENTS)]
    with federation(folder, owners, {"PYTHONPATH": path}) as (link, nodes):
        yield Federation(folder, link, nodes)
    assert not any(process.pids() for process in (link, *nodes))


@pytest.fixture(autouse=True)
def nothing_held(real: Federation) -> Iterator[None]:
    """A test that fails while its gate is closed leaves no client waiting for the next one."""
    yield
    real.hold.unlink(missing_ok=True)


def task_of_the_app() -> ModuleType:
    spec = importlib.util.spec_from_file_location("task", TEMPLATE / "federated" / "task.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def plain(real: Federation) -> tuple[str, str]:
    """How a run without privacy ends, and its log."""
    with real.run("plain", rounds=3, rate=0.7) as run:
        return run.wait(600)


def test_a_run_without_privacy_gives_the_simulators_model(real: Federation, plain: tuple[str, str]) -> None:
    state, text = plain
    assert state == "finished:completed", text
    assert "Not private: nobody adds noise" in text
    task = task_of_the_app()
    parts = [task.samples(part, CLIENTS + 1) for part in range(CLIENTS)]
    simulated = normec.train(
        model=task.make_model,
        data=normec.Federation.from_clients([(x.numpy(), y.numpy()) for x, y in parts]),
        algorithm=normec.FedNormEC(beta=0.3, server_lr=3.0),
        local=normec.GD(steps=5, lr=0.5),
        participation=normec.Poisson(rate=0.7),
        privacy=normec.Privacy(trust="none"),
        rounds=3,
    )
    found = load_file(real.folder / "plain" / "model.safetensors")
    for name, value in simulated.model.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)
    assert [row["federation"].get("answered") for row in real.metrics("plain")] == [None, CLIENTS, CLIENTS, CLIENTS]


@pytest.mark.usefixtures("plain")  # another experiment, whose memory is put in the place of this one's
def test_nothing_is_lost_when_a_node_dies_in_a_round_and_the_server_between_rounds(real: Federation) -> None:
    with real.run("faults", rounds=5, trust="local", timeout=45.0) as run:
        run.until("round 1: accuracy", 600)
        real.hold.touch()
        run.until("round 2 of 5", 30)
        ledger = real.client(0, "faults") / "ledger.jsonl"
        until(lambda: read(ledger).counted() == 2, 60, "node0 in its second round")
        real.nodes[0].kill()  # its release is on its ledger, its memory has not moved
        real.hold.unlink()
        real.nodes[0].start(600)
        run.until("round 3: accuracy", 600)
        real.link.kill()
        real.link.start()
    rounds_done = int(real.checkpoint("faults")[1]["rounds_done"])
    assert rounds_done >= 3
    memory = real.client(1, "faults") / "memory.safetensors"
    kept, foreign = memory.read_bytes(), (real.client(1, "plain") / "memory.safetensors").read_bytes()
    memory.write_bytes(foreign)
    with real.run("faults", rounds=5, trust="local", timeout=45.0) as run:
        state, text = run.wait(600)
    memory.write_bytes(kept)
    assert state == "finished:completed", text
    assert "node1" in text and "is of another experiment or other terms (experiment=" in text

    rows = real.metrics("faults")
    assert [row["round"] for row in rows] == list(range(len(rows))) and rows[2]["federation"] | {"absent": 1} == rows[2]["federation"]
    state_, counts = real.checkpoint("faults")
    torch.testing.assert_close(state_["server.v_hat"], real.memories("faults").mean(0), rtol=0, atol=1e-4)
    assert float((state_["server.v_hat"] - real.memories("plain").mean(0)).abs().max()) > 1e-2  # another experiment's would not do
    server = read(real.folder / "faults" / "ledger.jsonl")
    assert server.counted() >= counts["rounds_done"]
    own = [read(real.client(number, "faults") / "ledger.jsonl").counted() for number in range(CLIENTS)]
    assert counts["transmissions"] + 1 <= sum(own)  # the message of the killed node counts, too
    assert max(own) <= server.counted()


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_random_kills_lose_nothing(real: Federation) -> None:
    """Nodes and the SuperLink die at any moment of eight rounds; what must hold afterwards holds whenever it was."""
    chance, done = random.Random(5), 0
    for _ in range(40):
        with real.run("chaos", rounds=14, trust="local", timeout=30.0) as run:  # p = 1: below, v_hat is the mean in expectation alone
            ended = False
            while not ended and done < 8:
                time.sleep(chance.uniform(3, 15))
                victim = chance.choice([*real.nodes, real.link])
                victim.kill()
                victim.start(180)
                done += 1
                ended = victim is real.link or not run.alive()
            if not ended:
                run.wait(600)
        if done >= 8 and (real.folder / "chaos" / "summary.json").exists():
            break
    state, counts = real.checkpoint("chaos")
    torch.testing.assert_close(state["server.v_hat"], real.memories("chaos").mean(0), rtol=0, atol=1e-4)
    server = read(real.folder / "chaos" / "ledger.jsonl")
    own = [read(real.client(number, "chaos") / "ledger.jsonl").counted() for number in range(CLIENTS)]
    assert counts["transmissions"] <= sum(own) <= CLIENTS * server.counted()
    assert server.counted() <= 14


def test_a_stricter_owner_refuses_and_the_run_says_so(real: Federation) -> None:
    node = real.nodes[1]
    node.stop()
    stricter = Node(real.link, 1, f'partition-id=1 client-id="node1" state-dir="{real.folder}/state1" min-noise-multiplier=0.5')
    with stricter:
        stricter.start(600)
        with real.run("strict", rounds=2, trust="local") as run:
            state, text = run.wait(600)
    assert state == "finished:failed"
    assert "privacy.noise_multiplier=1e-05 is below the 0.5 that this client's owner asks for" in text
