"""A node's half: Flower's usual train function, and the mod that turns what it returns into a private message."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from federated import task
from normec.flower import ClientMod

app = ClientApp(mods=[ClientMod()])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Trains the received model on this node's data."""
    model = task.make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data = task.samples(int(context.node_config["partition-id"]), int(context.run_config["clients"]) + 1)
    task.train(model, data, int(context.run_config["local-steps"]), float(context.run_config["local-lr"]))
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict())}), reply_to=message)
