"""A node's half: Flower's usual train and evaluate functions, and the mod that turns what they return into private messages."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from federated import task
from normec.flower import ClientMod

app = ClientApp(mods=[ClientMod()])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Trains the received model on this node's rows."""
    model = received(message)
    data = task.samples(str(context.node_config["data"]), held_out=False)
    task.train(model, data, int(context.run_config["local-steps"]), float(context.run_config["local-lr"]))
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict())}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """What this node's held-out rows say of the received model."""
    data = task.samples(str(context.node_config["data"]), held_out=True)
    metrics = MetricRecord({**task.evaluate(received(message), data), "num-examples": len(data[1])})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def received(message: Message) -> nn.Module:
    """The model of a message."""
    model = task.make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model
