"""One contestant of `record_speed.py`: it computes the sum of 64 records' clipped gradients, in one of four ways, and answers in turns.

python benchmarks/speed/one_step.py WAY MODEL
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional

from normec.engine.records import BoundedSum, choose_way
from normec.models import CNN, FlatModel, ResNet20, logistic, mlp
from normec.operators import Clipping

BATCH = 64
BOUND = 0.5
"""C, which clips most of the records."""
MODELS: dict[str, tuple[Callable[[tuple[int, ...], int], nn.Module], tuple[int, ...], int]] = {
    "logistic": (logistic, (123,), 2),
    "mlp": (mlp, (28, 28), 10),
    "cnn": (CNN, (3, 32, 32), 10),
    "resnet20": (ResNet20, (3, 32, 32), 10),
}
Step = Callable[[], Tensor]
"""One step; returns its gradient (d,)."""


def plain(module: nn.Module, x: Tensor, y: Tensor) -> Step:
    """The gradient of the sum of the losses, without privacy."""
    parameters = list(module.parameters())

    def step() -> Tensor:
        loss = functional.cross_entropy(module(x), y, reduction="sum")
        return flat(torch.autograd.grad(loss, parameters))

    return step


def ours(module: nn.Module, x: Tensor, y: Tensor) -> Step:
    """The bounded sum of normec, in the way that it chooses."""
    model, operator = FlatModel(module, functional.cross_entropy, x.device, x.dtype), Clipping(BOUND)
    sums = BoundedSum(model, operator, choose_way(model, (x[:4], y[:4]), operator))
    vector, weights = model.vector.clone(), torch.ones(1, BATCH)
    return lambda: sums(vector[None], x[None], y[None], weights)[0]


def opacus_hooks(module: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Opacus: every record's gradient by hooks, then the optimizer's clipped sum."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    wrapped = GradSampleModule(module, loss_reduction="sum")
    plain_optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    optimizer = DPOptimizer(plain_optimizer, noise_multiplier=0.0, max_grad_norm=BOUND, expected_batch_size=BATCH, loss_reduction="sum")

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(wrapped(x), y, reduction="sum").backward()  # type: ignore[no-untyped-call]
        optimizer.clip_and_accumulate()
        return flat([p.summed_grad for p in wrapped.parameters()])

    return step


def opacus_ghost(module: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Opacus: norms without gradients where it can, and a second backward pass."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(module, max_grad_norm=BOUND, use_ghost_clipping=True, loss_reduction="sum")
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(wrapped.parameters(), lr=0.1),
        noise_multiplier=0.0,
        max_grad_norm=BOUND,
        expected_batch_size=BATCH,
        loss_reduction="sum",
    )

    def step() -> Tensor:
        wrapped.enable_hooks()
        optimizer.zero_grad(set_to_none=True)
        losses = functional.cross_entropy(wrapped(x), y, reduction="none")
        DPTensorFastGradientClipping(wrapped, optimizer, losses, loss_reduction="sum").backward()
        return flat([p.grad for p in wrapped.parameters()])

    return step


WAYS: dict[str, Callable[[nn.Module, Tensor, Tensor], Step]] = {
    "without privacy": plain,
    "normec": ours,
    "Opacus hooks": opacus_hooks,
    "Opacus ghost": opacus_ghost,
}


def flat(parts: object) -> Tensor:
    """Tensors as one vector."""
    return torch.cat([part.detach().reshape(-1) for part in parts])  # type: ignore[attr-defined]


def resident() -> tuple[int, int]:
    """Bytes of memory that are held now, and the most since `forget_the_peak`."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return psutil.Process().memory_info().rss, 1024 * int(lines["VmHWM"].split()[0])


def forget_the_peak() -> None:
    """From now on the peak is counted anew (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    way, name = sys.argv[1:]
    torch.set_num_threads(1)
    make, shape, classes = MODELS[name]
    torch.manual_seed(0)
    module, x, y = make(shape, classes), torch.randn(BATCH, *shape), torch.randint(classes, (BATCH,))
    if way.startswith("Opacus"):
        import opacus.utils.fast_gradient_clipping_utils  # noqa: F401 (code is not counted)
    before, _ = resident()
    forget_the_peak()
    torch.empty(31 * 2**20, dtype=torch.uint8)  # glibc then keeps freed memory, as it does in a run that evaluates between rounds
    step = WAYS[way](module, x, y)
    step()
    for line in sys.stdin:
        count, path = json.loads(line)
        begun = time.process_time()
        for _ in range(count):
            gradient = step()
        seconds = (time.process_time() - begun) / count
        torch.save(gradient.double(), path)
        print(json.dumps([seconds, resident()[1] - before]), flush=True)


if __name__ == "__main__":
    main()
