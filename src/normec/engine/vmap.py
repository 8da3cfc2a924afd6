"""The backend `vmap`: many clients at once, for small models without convolutions, where the loop's calls cost most.

Clients whose mini-batches have the same lengths step together. Where there are many lengths and the loss is cross-entropy,
shorter batches are filled up with samples of weight zero. The results are the loop's, up to rounding.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from normec import errors
from normec.engine.loop import Failures, Loop, Task
from normec.engine.stack import AddGradients, written_out
from normec.engine.together import Shape, batches_of, groups, held, shape_of, walk
from normec.local import Batch
from normec.models import FlatModel, LocalSteps

UNSUITED = (nn.modules.conv._ConvNd, nn.RNNBase, nn.modules.batchnorm._BatchNorm)
"""Layers that are slower, or impossible, with a copy of their weights for each client, or mix the samples of a batch."""
FAILURES = (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError, UserWarning)
"""What vmap raises for what it cannot do; it warns where it is slower than a loop."""


class Vmap:
    """Local updates of many clients at once, with a gradient function for each worker's model."""

    name = "vmap"
    most_rows = 1024
    most_numbers = 2**20

    def __init__(self) -> None:
        self._gradients: dict[int, AddGradients] = {}
        self._told = False

    def updates(self, model: FlatModel, x: Tensor, tasks: Sequence[Task], k: int, out: Tensor, buffers: Tensor) -> Failures:
        """As `Backend.updates`, for models without moving buffers.

        A model that turns out to do what vmap cannot, such as to draw random numbers from some round on, takes the loop; the first
        time with a warning. Clients on whom it fails leave the others' updates as they are.
        """
        try:
            self._together(model, x, tasks, out)
            return {}
        except errors.FAILURES as error:  # whatever a user's module or loss raises
            failures = Loop().updates(model, x, tasks, k, out, buffers)
            if not failures:
                self._warn(k, error)
        kept = [row for row in range(len(tasks)) if row not in failures]
        if failures and kept:
            others = out[kept]
            failures |= {
                kept[row]: error for row, error in self.updates(model, x, [tasks[row] for row in kept], k, others, buffers).items()
            }
            out[kept] = others
        return failures

    def _warn(self, k: int, error: BaseException) -> None:
        if not self._told:
            self._told = True
            reason = _short(error)
            warnings.warn(f"round {k + 1}: vmap cannot compute {reason!r}; the slower loop does.", RuntimeWarning, stacklevel=2)

    def _together(self, model: FlatModel, x: Tensor, tasks: Sequence[Task], out: Tensor) -> None:
        if id(model) not in self._gradients:
            self._gradients[id(model)] = _gradients(model, tasks[0].samples[0].shape[1:])
        gradients = self._gradients[id(model)]
        model.enter(x, training=True)
        for shape, positions in groups(tasks, fill=model.plain_cross_entropy).items():
            out[positions] = _together(gradients, x, [tasks[position] for position in positions], shape)


def suits(model: FlatModel, x: Tensor, samples: tuple[Tensor, Tensor]) -> str | None:
    """The reason why vmap cannot compute a model, tried on a few samples; None where it can."""
    if model.stochastic:
        return "its forward pass draws random numbers"
    if model.keeps:
        return f"its forward pass changes its attribute {model.keeps}"
    if model.moving:
        return "its forward pass moves its buffers"
    if hasattr(model.module, "penalty"):
        return "it has a penalty"
    if any(isinstance(module, UNSUITED) for module in model.module.modules()):
        return "it has convolutions or recurrent layers"
    batches: list[Batch] = [slice(0, 5), slice(1, 8)]  # which are filled up to 6 and 8
    tasks = [Task("probe", 0, samples, batches, LocalSteps(0.1), lambda: 0)] * 2
    tried, expected = (torch.empty(2, len(x), dtype=x.dtype, device=x.device) for _ in range(2))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            gradients = _gradients(model, samples[0].shape[1:])
            shape = (6, 8) if model.plain_cross_entropy else shape_of(tasks[0])
            model.enter(x, training=True)
            tried[:] = _together(gradients, x, tasks, shape)
    except FAILURES as error:
        return _short(error)
    if Loop().updates(model, x, tasks, 0, expected, torch.empty(2, 0)):  # which the run says better, of its own client
        return "it fails on its first updates"
    if not bool(expected.isfinite().all()):
        return "its first updates are not finite"
    scale = float(expected.abs().max())
    return None if torch.allclose(tried, expected, rtol=0, atol=1e-4 * scale + 1e-30) else "it computes something else under vmap"


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200].rstrip(".")


def _gradients(model: FlatModel, sample: torch.Size) -> AddGradients:
    """Written out where the model is a stack of linear layers, by autograd under vmap otherwise."""
    return written_out(model, sample) or _by_autograd(model)


def _by_autograd(model: FlatModel) -> AddGradients:
    """The gradient function of any model that vmap can compute."""
    outputs_of = outputs_as_function(model)
    shapes, sizes = [p.shape for p in model.parameters], [p.numel() for p in model.parameters]

    def outputs(vector: Tensor, features: Tensor) -> Tensor:
        return outputs_of([part.view(shape) for part, shape in zip(torch.split(vector, sizes), shapes, strict=True)], features)

    def loss(vector: Tensor, features: Tensor, targets: Tensor) -> Tensor:
        return model.loss(outputs(vector, features), targets)

    def weighted(vector: Tensor, features: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        losses = functional.cross_entropy(outputs(vector, features), targets, reduction="none")
        return (losses.reshape(len(weights), -1).mean(1) * weights).sum() / weights.sum()

    exact: Callable[..., Tensor] = vmap(grad(loss))
    filled: Callable[..., Tensor] = vmap(grad(weighted))

    def add_gradients(total: Tensor, vectors: Tensor, features: Tensor, targets: Tensor, weights: Tensor | None) -> None:
        total += exact(vectors, features, targets) if weights is None else filled(vectors, features, targets, weights)

    return add_gradients


def outputs_as_function(model: FlatModel) -> Callable[[Sequence[Tensor], Tensor], Tensor]:
    """The model's outputs as a function of its trainable parameters, in their order, and the features (n, …)."""
    places = _places(model)

    def outputs(parts: Sequence[Tensor], features: Tensor) -> Tensor:
        values = {name: part for names, part in zip(places, parts, strict=True) for name in names}
        named: Tensor = functional_call(model.module, values, (features,), tie_weights=False)
        return named

    return outputs


def _places(model: FlatModel) -> list[list[str]]:
    """The names of each parameter: one for each module that holds it, however many names that module has itself."""
    names: dict[int, list[str]] = {id(parameter): [] for parameter in model.parameters}
    for prefix, module in model.module.named_modules():  # each module once
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if id(parameter) in names:
                names[id(parameter)].append(f"{prefix}.{name}" if prefix else name)
    return list(names.values())


def _together(add_gradients: AddGradients, x: Tensor, tasks: list[Task], shape: Shape) -> Tensor:
    """The updates (G, d) of clients whose mini-batches are filled up to one shape."""
    batches: tuple[Tensor, Tensor, Tensor | None]

    def add(total: Tensor, vectors: Tensor, step: int) -> None:
        nonlocal batches
        length = shape[step]
        if length and (not step or any(task.schedule[step] is not task.schedule[step - 1] for task in tasks)):
            batches = batches_of(tasks, step, length)
        if tasks[0].steps.divisor is None:
            add_gradients(total, vectors, *batches)
        elif length:
            total += _shared(add_gradients, vectors, batches, [task.steps.share(held(task, step)) for task in tasks])

    return walk(x, tasks, len(shape), add)


def _shared(add_gradients: AddGradients, vectors: Tensor, batches: tuple[Tensor, Tensor, Tensor | None], shares: list[float]) -> Tensor:
    """Mean gradients (G, d), multiplied by each client's share; zero where that is zero, whatever the sample that fills the batch up."""
    gradients = torch.zeros_like(vectors)
    add_gradients(gradients, vectors, *batches)
    share = gradients.new_tensor(shares)[:, None]
    return gradients.mul_(share) if all(shares) else gradients.mul_(share).masked_fill_(share == 0, 0.0)
