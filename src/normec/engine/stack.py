"""Gradients of stacks of linear layers, written out: all clients at once, several times faster than autograd under vmap.

For `Linear` layers with ReLU, tanh or sigmoid between them under the cross-entropy loss: most small models of the field.
Values are laid out (G, units, n), which keeps the long dimension last: softmax over two classes is then twenty times faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

    def backward(self, gradient: Tensor, y: Tensor) -> Tensor:
        """∂f/∂z (G, out, n) from ∂f/∂y."""
        return self.activation.backward(gradient, y) if self.activation else gradient

    def add(self, gradient: Tensor, x: Tensor, places: list[Tensor]) -> None:
        """Adds the gradients of the layer's parameters, given ∂f/∂z, to those in `places`."""
        places[self.weight].baddbmm_(gradient, x.transpose(1, 2))
        if self.bias is not None:
            places[self.bias] += gradient.sum(dim=2)


class Stack(NamedTuple):
    """A model of linear layers under the cross-entropy loss. shapes: of the model's parameters."""

    layers: list[Layer]
    shapes: list[tuple[int, ...]]
    sizes: list[int]

    def parts(self, vectors: Tensor) -> list[Tensor]:
        """The parameters (G, …) in vectors (G, d), as views."""
        return [part.view(-1, *shape) for part, shape in zip(vectors.split_with_sizes(self.sizes, 1), self.shapes, strict=True)]

    def forward(self, parts: list[Tensor], features: Tensor) -> list[Tensor]:
        """The input of each layer, (G, units, n), and the last one's output, for features (G, n, …)."""
        values = [features.flatten(2).transpose(1, 2)]
        for layer in self.layers:
            values.append(layer.forward(values[-1], parts))
        return values

    def backward(self, parts: list[Tensor], values: list[Tensor], gradient: Tensor) -> Iterator[tuple[Layer, Tensor, Tensor]]:
        """Each layer from the last to the first, with its input and ∂f/∂z (G, out, n), from ∂f/∂outputs."""
        for position, layer in reversed(list(enumerate(self.layers))):
            gradient = layer.backward(gradient, values[position + 1])
            yield layer, values[position], gradient
            if position:
                gradient = torch.bmm(parts[layer.weight].transpose(1, 2), gradient)


def of_samples(outputs: Tensor, targets: Tensor) -> Tensor:
    """∂/∂outputs (G, classes, n) of the cross-entropy of each sample, with targets (G, n): softmax − the target's indicator."""
    gradient = outputs.softmax(dim=1)
    return gradient.scatter_add_(1, targets[:, None], gradient.new_full((1, 1, 1), -1.0).expand_as(targets[:, None]))


def written_out(model: FlatModel, sample: torch.Size) -> AddGradients | None:
    """The gradient function of a model that is such a stack, for samples of this shape; None for any other model."""
    held = stack_of(model, sample)
    if held is None or hasattr(model.module, "penalty"):
        return None
    stack = held  # whose type an inner function keeps

    def add_gradients(total: Tensor, vectors: Tensor, features: Tensor, targets: Tensor, weights: Tensor | None) -> None:
        parts, places = stack.parts(vectors), stack.parts(total)
        values = stack.forward(parts, features)
        gradient = of_samples(values[-1], targets)
        gradient *= 1 / targets.shape[1] if weights is None else (weights / weights.sum(1, keepdim=True))[:, None]
        for layer, x, below in stack.backward(parts, values, gradient):
            layer.add(below, x, places)

    return add_gradients


def stack_of(model: FlatModel, sample: torch.Size) -> Stack | None:
    """A model's layers in order, recognised by exact types and without hooks; None where anything else might be computed.

    A penalty is left to the caller.
    """
    module = model.module
    parts = list(module) if type(module) is nn.Sequential else [module]
    kinds = [type(part) for part in parts]
    if any(part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part) for part in module.modules()):
        return None
    if kinds[:1] == [nn.Flatten] and parts[0].start_dim == 1 and parts[0].end_dim == -1:
        parts = parts[1:]
    elif len(sample) != 1:
        return None
    if not model.plain_cross_entropy:
        return None
    layers = _alternating(parts, {id(parameter): position for position, parameter in enumerate(model.parameters)})
    if layers is None:
        return None
    return Stack(layers, [tuple(p.shape) for p in model.parameters], [p.numel() for p in model.parameters])


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
