"""A Flower federation in this process: a grid that hands each message to the app of its node and returns the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import recorddict_to_proto
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.task_identity import TaskIdentity
from torch import nn
from torch.nn import functional

from normec.flower import ClientMod

LR = 0.5


def gradient_descent(module: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int) -> None:
    """What `normec.GD(steps=steps, lr=0.5)` does, written as a user of torch would."""
    optimizer = torch.optim.SGD(module.parameters(), lr=LR / steps)
    for _ in range(steps):
        optimizer.zero_grad()
        functional.cross_entropy(module(x), y).backward()
        optimizer.step()


def client_app(module: Callable[[], nn.Module], samples: dict[str, tuple[torch.Tensor, torch.Tensor]], steps: int = 5) -> ClientApp:
    """An app as Flower's own examples write it, and one line more."""
    app = ClientApp(mods=[ClientMod()])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = module()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = samples[str(context.node_config["client-id"])]
        gradient_descent(model, x, y, steps)
        metrics = MetricRecord({"train_loss": 1.0, "num-examples": len(y)})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"accuracy": 0.75})}), reply_to=message)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"ages": [71, 34]})}), reply_to=message)

    return app


def size(content: RecordDict) -> int:
    """Bytes on the wire."""
    return len(recorddict_to_proto(content).SerializeToString())


@dataclass
class Node:
    """A node of a federation: its app and its owner's config.

    spoil: changes its answer to an instruction (a dict) on the way, or loses it (None). key: its public key, which goes with it
    where it is listed under another number; where it has none, the number is all that tells it from others.
    """

    app: ClientApp
    config: dict[str, Any]
    spoil: Callable[[dict[str, Any], Message], Message | None] = lambda instruction, reply: reply
    key: bytes = b""


@dataclass
class Grid:
    """What `Strategy` needs of a Flower grid. run_config: what the apps read. heard: every reply that reached the server."""

    nodes: dict[int, Node]
    run_config: dict[str, Any] = field(default_factory=dict)
    heard: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # which a SuperLink sets

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=number, public_key=node.key) for number, node in self.nodes.items()]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = []
        for number, message in enumerate(messages):
            node_id = message.metadata.dst_node_id
            message.metadata._message_id = f"{number}"
            node, instruction = self.nodes[node_id], dict(message.content.config_records.get("normec", {}))
            context = Context(run_id=1, node_id=node_id, node_config=node.config, state=RecordDict(), run_config=self.run_config)
            try:
                reply = node.app(message, context)
            except Exception as error:
                reply = Message(Error(code=1, reason=str(error)), reply_to=message)
            spoiled = node.spoil(instruction, reply)
            if spoiled is not None:
                replies.append(spoiled)
        self.heard += replies
        return replies


def owner(directory: Path, client: str, trust: str = "local", **limits: Any) -> dict[str, Any]:
    """A node's config, with a generous limit where it needs one and none is given."""
    limits = limits or ({} if trust == "none" else {"max_epsilon": 100.0})
    given = {"trust": trust, **{key.replace("_", "-"): value for key, value in limits.items()}}
    return {"state-dir": str(directory / client), "client-id": client, **given}


def arrays_of(vector: np.ndarray) -> ArrayRecord:
    return ArrayRecord({"x": Array(vector)})
