"""A lean loop: one resident model on a flat buffer, gradients by autograd.grad, no optimizer object, no DataLoader."""

import time

import torch
from torch import Tensor
from torch.nn import functional
from workloads import LR, Workload, flat, serve


def rounds(work: Workload, count: int) -> tuple[list[float], Tensor]:
    """As `workloads.Rounds`."""
    model, (x, y), seconds = work.model(), work.data(), []
    parameters = list(model.parameters())
    state, sizes = flat(parameters), [p.numel() for p in parameters]
    buffer = state.clone()
    for p, part in zip(parameters, torch.split(buffer, sizes), strict=True):
        p.data = part.view_as(p)
    data = [(features.split(work.batch), targets.split(work.batch)) for features, targets in zip(x, y, strict=True)]
    for _ in range(count + 1):
        begun = time.perf_counter()
        mean = torch.zeros_like(state)
        for features, targets in data:
            buffer.copy_(state)
            for _ in range(work.passes):
                for own, labels in zip(features, targets, strict=True):
                    gradients = torch.autograd.grad(functional.cross_entropy(model(own), labels), parameters)
                    torch._foreach_add_([p.data for p in parameters], list(gradients), alpha=-LR / work.steps)
            mean.add_(buffer, alpha=1 / work.clients)
        state = mean
        seconds.append(time.perf_counter() - begun)
    return seconds[1:], state


if __name__ == "__main__":
    serve(rounds)
