"""normec, with the number of worker threads and the algorithm's name as arguments."""

import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor
from workloads import LR, Clock, Workload, flat, serve

import normec

WORKERS, ALGORITHM = int(sys.argv[1]), sys.argv[2]


class Watch(Clock, normec.Observer):
    """A clock as an observer."""


def rounds(work: Workload, count: int) -> tuple[list[float], Tensor]:
    """As `workloads.Rounds`. Two more rounds are run: the first and the last one evaluate."""
    x, y = work.data()
    data = normec.Federation.from_arrays(
        x.flatten(0, 1), y.flatten(), np.repeat(np.arange(work.clients), work.samples), classes=[str(each) for each in range(work.classes)]
    )
    whole = work.batch == work.samples
    clock, kept = Watch(), []

    class Kept(normec.FedAvg):
        """FedAvg that remembers its last direction but one, for x before the round that is not timed."""

        def server(self, state: Any, mean: Tensor, rate: float) -> Any:
            """As FedAvg."""
            direction, state = super().server(state, mean, rate)
            kept.append(direction)
            return direction, state

    run = normec.train(
        model=work.model, data=data, algorithm=Kept(server_lr=1.0) if ALGORITHM == "fedavg" else normec.FedNormEC(),
        local=normec.GD(steps=work.steps, lr=LR) if whole else normec.IG(steps=work.passes, batch_size=work.batch, lr=LR),
        participation=normec.Full(), privacy=normec.Privacy(trust="none"), rounds=count + 2, observer=clock,
        engine=normec.Engine(workers=WORKERS, eval_every=10**6),
    )  # fmt: skip
    end = flat(run.model.parameters())
    return clock.seconds(), end + kept[-1] if kept else end


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(rounds)
