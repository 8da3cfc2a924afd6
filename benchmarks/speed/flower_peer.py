"""Flower on Ray: a ClientApp and a ServerApp with its FedAvg, one core a client. Started afresh for every turn."""

import itertools
import os
import time
from collections.abc import Iterable
from typing import Any

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor
from torch.nn import functional
from workloads import LR, WORKLOADS, Workload, flat, serve

DATA: dict[str, tuple[Tensor, Tensor]] = {}
"""Made once in each of Ray's processes."""


def rounds(work: Workload, count: int) -> tuple[list[float], Tensor]:
    """As `workloads.Rounds`."""
    name = next(name for name, known in WORKLOADS.items() if known is work)
    client, times, models = ClientApp(), [], []

    @client.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        work = WORKLOADS[name]
        if name not in DATA:
            DATA[name] = work.data()
        x, y = (part[int(context.node_config["partition-id"])] for part in DATA[name])
        model = work.model()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=LR / work.steps)
        for _ in range(work.passes):
            for features, targets in zip(x.split(work.batch), y.split(work.batch), strict=True):
                optimizer.zero_grad()
                functional.cross_entropy(model(features), targets).backward()
                optimizer.step()
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": work.samples})}
        return Message(content=RecordDict(content), reply_to=message)

    class Timed(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            result = super().aggregate_train(server_round, replies)
            times.append(time.perf_counter())
            return result

    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Timed(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=work.clients)
        result = strategy.start(grid=grid, initial_arrays=ArrayRecord(work.model().state_dict()), num_rounds=count + 1)
        models.append(result.arrays.to_torch_state_dict())

    run_simulation(server, client, work.clients, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})
    return [after - before for before, after in itertools.pairwise(times)], flat(models[0].values())


if __name__ == "__main__":
    serve(rounds)
