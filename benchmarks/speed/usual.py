"""The usual per-client loop of research code: a deep copy, an optimizer object and a DataLoader for each client."""

import copy
import time

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from workloads import LR, Workload, flat, serve


def rounds(work: Workload, count: int) -> tuple[list[float], Tensor]:
    """As `workloads.Rounds`."""
    model, (x, y), seconds = work.model(), work.data(), []
    loaders = [DataLoader(TensorDataset(features, targets), batch_size=work.batch) for features, targets in zip(x, y, strict=True)]
    for _ in range(count + 1):
        begun = time.perf_counter()
        mean = [torch.zeros_like(p) for p in model.parameters()]
        for loader in loaders:
            own = copy.deepcopy(model)
            optimizer = torch.optim.SGD(own.parameters(), lr=LR / work.steps)
            for _ in range(work.passes):
                for features, targets in loader:
                    optimizer.zero_grad()
                    torch.autograd.backward(functional.cross_entropy(own(features), targets))
                    optimizer.step()
            with torch.no_grad():
                for total, p in zip(mean, own.parameters(), strict=True):
                    total += p / work.clients
        with torch.no_grad():
            for p, total in zip(model.parameters(), mean, strict=True):
                p.copy_(total)
        seconds.append(time.perf_counter() - begun)
    return seconds[1:], flat(model.parameters())


if __name__ == "__main__":
    serve(rounds)
