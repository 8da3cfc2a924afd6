"""normec's local update beside the lean loop, one client of each in turn within one process, by the CPU time of the thread.

Rounds of several processes that are timed after each other differ by tens of percent on a shared machine; this ratio does not.

    python benchmarks/speed/turns.py small-cnn [--clients 60]
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn import functional
from workloads import LR, WORKLOADS, Workload, flat

from normec.models import FlatModel, LocalSteps


def lean(work: Workload) -> Callable[[int], None]:
    """The local steps of a client as in lean.py."""
    model, (x, y) = work.model(), work.data()
    parameters = list(model.parameters())
    state = flat(parameters)
    buffer = state.clone()
    for p, part in zip(parameters, torch.split(buffer, [p.numel() for p in parameters]), strict=True):
        p.data = part.view_as(p)

    def step(client: int) -> None:
        buffer.copy_(state)
        for _ in range(work.passes):
            for own, labels in zip(torch.split(x[client], work.batch), torch.split(y[client], work.batch), strict=True):
                gradients = torch.autograd.grad(functional.cross_entropy(model(own), labels), parameters)
                torch._foreach_add_([p.data for p in parameters], list(gradients), alpha=-LR / work.steps)

    return step


def ours(work: Workload) -> Callable[[int], None]:
    """The same steps by normec."""
    model, (x, y) = FlatModel(work.model(), functional.cross_entropy, torch.device("cpu"), torch.float32), work.data()
    start, out = model.vector.clone(), torch.empty_like(model.vector)
    schedule = [slice(place, place + work.batch) for place in range(0, work.samples, work.batch)] * work.passes
    return lambda client: model.local_update(start, (x[client], y[client]), schedule, LocalSteps(LR), out=out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("workload", choices=list(WORKLOADS))
    parser.add_argument("--clients", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    work = WORKLOADS[options.workload]
    steps = lean(work), ours(work)
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(options.clients + 1):
        for which in (0, 1) if turn % 2 else (1, 0):
            begun = time.thread_time()
            steps[which](turn % work.clients)
            if turn:  # the first one warms up
                taken[which].append(time.thread_time() - begun)
    loop, own = (1000 * statistics.median(each) for each in taken)
    print(f"{options.workload}: lean loop {loop:.2f} ms, normec {own:.2f} ms of CPU a client, {own / loop:.3f} times")


if __name__ == "__main__":
    main()
