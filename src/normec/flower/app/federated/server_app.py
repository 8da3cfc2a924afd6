"""The server's half: which algorithm, which promise, and what the server's own data say of the model."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

import normec
from federated import task
from normec.flower import Strategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the experiment, or goes on with the one in its folder."""
    config = context.run_config
    clients, trust = int(config["clients"]), str(config["trust"])
    held_out = task.samples(clients, clients + 1)

    def evaluate(current: int, arrays: ArrayRecord) -> MetricRecord:
        model = task.make_model()
        model.load_state_dict(arrays.to_torch_state_dict())
        score = task.accuracy(model, held_out)
        print(f"round {current}: accuracy {score:.1%}", flush=True)
        return MetricRecord({"accuracy": score})

    strategy = Strategy(
        normec.FedNormEC(beta=float(config["beta"]), server_lr=float(config["server-lr"])),
        local_lr=float(config["local-lr"]),
        clients=clients,
        participation=normec.Poisson(rate=float(config["rate"])),
        privacy=normec.Privacy(trust="none") if trust == "none" else normec.Privacy(trust=trust, epsilon=float(config["epsilon"])),
        folder=str(config["folder"]),
        moved=[name.strip() for name in str(config["moved"]).split(",") if name.strip()],
    )
    strategy.start(grid, task.make_model(), int(config["rounds"]), float(config["timeout"]), evaluate_fn=evaluate)
