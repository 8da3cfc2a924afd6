"""The server's half: which algorithm, which promise, and how often the nodes evaluate. The server holds no rows."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

import normec
from federated import task
from normec.flower import ClientEvaluation, Strategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the experiment, or goes on with the one in its folder."""
    config = context.run_config
    trust, every = str(config["trust"]), int(config["evaluate-every"])
    promised = {} if trust == "none" else {"epsilon": float(config["evaluate-epsilon"])}
    strategy = Strategy(
        normec.FedNormEC(beta=float(config["beta"]), server_lr=float(config["server-lr"])),
        local_lr=float(config["local-lr"]),
        clients=int(config["clients"]),
        participation=normec.Poisson(rate=float(config["rate"])),
        privacy=normec.Privacy(trust="none") if trust == "none" else normec.Privacy(trust=trust, epsilon=float(config["epsilon"])),
        folder=str(config["folder"]),
        moved=[name.strip() for name in str(config["moved"]).split(",") if name.strip()],
        evaluation=ClientEvaluation(every=every, **promised) if every else None,
    )
    strategy.start(grid, task.make_model(), int(config["rounds"]), float(config["timeout"]))
