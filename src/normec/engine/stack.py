"""Gradients of stacks of linear layers, written out: all clients at once, several times faster than autograd under vmap.

For `Linear` layers with ReLU, tanh or sigmoid between them under the cross-entropy loss: most small models of the field.
Values are laid out (G, units, n), which keeps the long dimension last: softmax over two classes is then twenty times faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from normec.models import FlatModel

AddGradients = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None], None]
"""(total (G, d), vectors (G, d), features (G, n, …), targets (G, n), weights (G, n) or None): adds to the total the gradient
of each client's loss at its vector."""


class Activation(NamedTuple):
    """y(z), and (∂f/∂y, y) → ∂f/∂z."""

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]


ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: Activation(torch.relu, lambda gradient, y: torch.ops.aten.threshold_backward(gradient, y, 0)),
    nn.Tanh: Activation(torch.tanh, torch.ops.aten.tanh_backward),
    nn.Sigmoid: Activation(torch.sigmoid, torch.ops.aten.sigmoid_backward),
}


class Layer(NamedTuple):
    """y = activation(W x + b). weight, bias: positions among the model's parameters; None for what is absent."""

    weight: int
    bias: int | None
    activation: Activation | None

    def forward(self, x: Tensor, parts: list[Tensor]) -> Tensor:
        """Outputs (G, out, n) of inputs (G, in, n), with parameters (G, …)."""
        weight = parts[self.weight]
        z = torch.bmm(weight, x) if self.bias is None else torch.baddbmm(parts[self.bias][..., None], weight, x)
        return self.activation.forward(z) if self.activation else z

    def backward(self, gradient: Tensor, x: Tensor, y: Tensor, places: list[Tensor]) -> Tensor:
        """∂f/∂z (G, out, n) from ∂f/∂y; adds the gradients of the layer's parameters to those in `places`."""
        gradient = self.activation.backward(gradient, y) if self.activation else gradient
        places[self.weight].baddbmm_(gradient, x.transpose(1, 2))
        if self.bias is not None:
            places[self.bias] += gradient.sum(dim=2)
        return gradient


def written_out(model: FlatModel, sample: torch.Size) -> AddGradients | None:
    """The gradient function of a model that is such a stack, for samples of this shape; None for any other model."""
    layers = _layers(model, sample)
    shapes, sizes = [tuple(p.shape) for p in model.parameters], [p.numel() for p in model.parameters]
    if layers is None:
        return None

    def views(vectors: Tensor) -> list[Tensor]:
        return [part.view(-1, *shape) for part, shape in zip(torch.split(vectors, sizes, dim=1), shapes, strict=True)]

    def add_gradients(total: Tensor, vectors: Tensor, features: Tensor, targets: Tensor, weights: Tensor | None) -> None:
        parts, outputs = views(vectors), [features.flatten(2).transpose(1, 2)]
        for layer in layers:
            outputs.append(layer.forward(outputs[-1], parts))
        gradient = outputs[-1].softmax(dim=1)
        gradient.scatter_add_(1, targets[:, None], gradient.new_full((1, 1, 1), -1.0).expand_as(targets[:, None]))
        gradient *= 1 / targets.shape[1] if weights is None else (weights / weights.sum(1, keepdim=True))[:, None]
        places = views(total)
        for position, layer in reversed(list(enumerate(layers))):
            gradient = layer.backward(gradient, outputs[position], outputs[position + 1], places)
            if position:
                gradient = torch.bmm(parts[layer.weight].transpose(1, 2), gradient)

    return add_gradients


def _layers(model: FlatModel, sample: torch.Size) -> list[Layer] | None:
    """The layers in order, recognised by exact types and without hooks; None where anything else might be computed."""
    module = model.module
    parts = list(module) if type(module) is nn.Sequential else [module]
    kinds = [type(part) for part in parts]
    if any(part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part) for part in module.modules()):
        return None
    if kinds[:1] == [nn.Flatten] and parts[0].start_dim == 1 and parts[0].end_dim == -1:
        parts = parts[1:]
    elif len(sample) != 1:
        return None
    if not model.plain_cross_entropy or hasattr(module, "penalty"):
        return None
    return _alternating(parts, {id(parameter): position for position, parameter in enumerate(model.parameters)})


def _alternating(parts: list[nn.Module], position: dict[int, int]) -> list[Layer] | None:
    """Linear layers, all of whose parameters are trained and their own, with at most one activation between two of them."""
    layers: list[Layer] = []
    for part in parts:
        if type(part) is nn.Linear:
            if any(id(parameter) not in position for parameter in part.parameters()):
                return None
            bias = None if part.bias is None else position.pop(id(part.bias))
            layers.append(Layer(position.pop(id(part.weight)), bias, None))
        elif type(part) in ACTIVATIONS and layers and layers[-1].activation is None:
            layers[-1] = layers[-1]._replace(activation=ACTIVATIONS[type(part)])
        else:
            return None
    return layers if layers and not position else None
