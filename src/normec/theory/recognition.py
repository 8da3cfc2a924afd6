"""Recognition of what a model and its loss compute, as far as it can be known: linear models by their exact parts."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from normec.data import Federation
from normec.models import FlatModel
from normec.theory.problems import RegularisedLogistic, half_squares

AGREES = 1e-4
"""Relative: how far rounding in float32 may take a loss or a gradient from its formula."""


class Problem(NamedTuple):
    """Losses f_i of A x + b. squares: the weight w of (w/2n) ‖Ax − b‖²_F; None for cross-entropy. penalty: λ of `RegularisedLogistic`."""

    layer: nn.Linear
    squares: float | None
    penalty: float

    def values(self, x: np.ndarray, features: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
        """f_i and its gradient (d,) at x (d,) in float64, from features (n, a), a one for the bias being the last, and targets (n, …)."""
        n, outputs = len(features), self.layer.out_features
        weights = self._matrix(x)
        z = features @ weights
        if self.squares is not None:
            slope = self.squares * (z - targets.reshape(n, -1)) / n
            loss = 0.5 * self.squares * float(np.square(z - targets.reshape(n, -1)).sum()) / n
        else:
            logs = z - np.logaddexp.reduce(z, axis=1, keepdims=True)
            right = np.eye(outputs)[targets.astype(int)]
            slope, loss = (np.exp(logs) - right) / n, -float((logs * right).sum()) / n
        moved = features.T @ slope
        own = np.concatenate([moved[: self.layer.in_features].T.reshape(-1), moved[self.layer.in_features :].reshape(-1)])
        squared = np.square(x)
        return loss + self.penalty * float((squared / (1 + squared)).sum()), own + 2 * self.penalty * x / np.square(1 + squared)

    def _matrix(self, x: np.ndarray) -> np.ndarray:
        """(a, outputs): the parameters as they multiply the features."""
        size = self.layer.in_features * self.layer.out_features
        weights = x[:size].reshape(self.layer.out_features, self.layer.in_features).T
        return weights if self.layer.bias is None else np.concatenate([weights, x[size:][None]])


def recognised(model: FlatModel, federation: Federation) -> Problem | None:
    """The problem of a model that is nothing but A x + b under a loss that is known; None for any other.

    By exact types and identity, without hooks and without functions of an instance's own.
    """
    layer = _linear_layer(model.module, federation)
    regularised = type(model.module) is RegularisedLogistic
    if layer is None or (hasattr(model.module, "penalty") and not regularised):
        return None
    strength = model.module.strength if isinstance(model.module, RegularisedLogistic) else 0.0
    if type(strength) not in (float, int) or not 0 <= strength < float("inf"):
        return None
    kind = _kind(model.loss)
    two = federation.x[:1].to(model.vector.dtype).repeat(2, *[1] * (federation.x.ndim - 1))
    outputs, target = model.outputs(model.vector.clone(), two).shape, federation.y.shape[1:]
    if kind == "cross-entropy":
        known = not federation.y.is_floating_point() and not len(target) and tuple(outputs) == (2, layer.out_features)
        return Problem(layer, None, strength) if known else None
    if kind is None or regularised or tuple(outputs) != (2, *target):
        return None
    return Problem(layer, (1.0 if kind == "half squares" else 2.0) / layer.out_features, 0.0)


def agrees(problem: Problem, model: FlatModel, samples: tuple[Tensor, Tensor], features: np.ndarray, x: np.ndarray) -> bool:
    """Whether the loss and the gradient that torch computes on a client's samples at x (d,) are those of the formula.

    features: as `Problem.values` takes them. This finds a loss, a layer or a gradient that was patched or hooked.
    """
    point = torch.from_numpy(x).to(model.vector)
    samples = (samples[0].to(point), samples[1].to(point) if samples[1].is_floating_point() else samples[1])
    gradient = torch.empty_like(point)
    model.gradient(point, samples, out=gradient)
    with torch.no_grad():
        loss = float(model.objective(model.outputs(point, samples[0]), samples[1]))
    targets = samples[1].double().cpu().numpy()
    right, slope = problem.values(point.double().cpu().numpy(), features, targets)
    size = float(np.sqrt(np.square(features).sum() / len(features)))
    z, wide = size * float(np.linalg.norm(x)), problem.penalty * (1 + float(np.linalg.norm(x)))
    if problem.squares is not None:
        residual = z + float(np.sqrt(np.square(targets).sum() / len(targets)))
        scales = problem.squares * residual**2, problem.squares * residual * size
    else:
        scales = 1 + z, (1 + z) * size
    far = float(np.linalg.norm(gradient.double().cpu().numpy() - slope))
    return abs(loss - right) <= AGREES * (scales[0] + wide) and far <= AGREES * (scales[1] + wide)


def untouched(part: nn.Module) -> bool:
    """Whether a module has no hooks, including on its weights, and no functions beside those of its class."""
    held = vars(part)
    hooks = any(bool(value) for name, value in held.items() if "_hooks" in name and not name.endswith(("_with_kwargs", "_always_called")))
    own = any(callable(value) for value in held.values())
    weights = [*part.parameters(recurse=False), *part.buffers(recurse=False)]
    return not (hooks or own or any(each._backward_hooks for each in weights))


def _kind(loss: object) -> Literal["cross-entropy", "squares", "half squares"] | None:
    """Which of the known losses this is, each a mean over all elements; None for any other, and any other options."""
    if loss is half_squares:
        return "half squares"
    if loss is functional.mse_loss or (type(loss) is nn.MSELoss and untouched(loss) and loss.reduction == "mean"):
        return "squares"
    if loss is functional.cross_entropy:
        return "cross-entropy"
    if type(loss) is nn.CrossEntropyLoss and untouched(loss):
        plain = loss.reduction == "mean" and loss.weight is None and loss.label_smoothing == 0 and loss.ignore_index < 0
        return "cross-entropy" if plain else None
    return None


def _linear_layer(module: nn.Module, federation: Federation) -> nn.Linear | None:
    """The linear layer of a model that is nothing but A x + b on flattened samples, or None."""
    if not all(untouched(part) for part in module.modules()) or _hooks_for_all():
        return None
    parts = [module.layer] if type(module) is RegularisedLogistic else list(module) if type(module) is nn.Sequential else [module]
    kinds = [type(part) for part in parts]
    if kinds.count(nn.Linear) != 1 or any(kind not in (nn.Linear, nn.Flatten) for kind in kinds):
        return None
    position = kinds.index(nn.Linear)
    layer = parts[position]
    if not isinstance(layer, nn.Linear) or not all(_flattens(part) for part in parts[:position]):
        return None
    own = {id(parameter) for parameter in layer.parameters() if parameter.requires_grad}
    whole = own == {id(parameter) for parameter in module.parameters()} and len(own) == 1 + (layer.bias is not None)
    flat = federation.x.ndim == 2 or position > 0 or type(module) is RegularisedLogistic
    return layer if whole and flat and layer.in_features == federation.x[0].numel() else None


def _flattens(part: nn.Module) -> bool:
    return isinstance(part, nn.Flatten) and part.start_dim == 1 and part.end_dim == -1


def _hooks_for_all() -> bool:
    """Whether there are hooks on every module of the process."""
    held = vars(torch.nn.modules.module)
    return any(bool(value) for name, value in held.items() if name.startswith("_global_") and name.endswith("_hooks"))
