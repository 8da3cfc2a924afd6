"""The gradients that are written out are autograd's, for any stack of linear layers, and nothing else is taken for one."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from normec.engine.stack import written_out
from normec.models import FlatModel


def flat(module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy) -> FlatModel:
    return FlatModel(module, loss, torch.device("cpu"), torch.float64)


ACTIVATIONS = st.sampled_from([nn.ReLU, nn.Tanh, nn.Sigmoid, None])


@settings(max_examples=60, deadline=None)
@given(
    widths=st.lists(st.integers(1, 7), min_size=2, max_size=4),
    activations=st.lists(ACTIVATIONS, min_size=4, max_size=4),
    biases=st.lists(st.booleans(), min_size=4, max_size=4),
    image=st.booleans(),
    clients=st.integers(1, 4),
    samples=st.integers(1, 9),
    weighted=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_written_out_gradients_are_those_of_autograd(
    widths: list[int],
    activations: list[type[nn.Module] | None],
    biases: list[bool],
    image: bool,
    clients: int,
    samples: int,
    weighted: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    sample = torch.Size([widths[0], 2, 1] if image else [widths[0]])
    widths = [sample.numel(), *widths[1:]]
    layers: list[nn.Module] = [nn.Flatten()] if image else []
    for place, (inner, outer) in enumerate(itertools.pairwise(widths)):
        layers.append(nn.Linear(inner, outer, bias=biases[place]))
        if (activation := activations[place]) is not None:
            layers.append(activation())
    model = flat(nn.Sequential(*layers))
    add_gradients = written_out(model, sample)
    assert add_gradients is not None
    vectors = torch.randn(clients, model.d, dtype=torch.float64)
    features, targets = torch.randn(clients, samples, *sample, dtype=torch.float64), torch.randint(widths[-1], (clients, samples))
    weights = (torch.rand(clients, samples, dtype=torch.float64) < 0.7).double() if weighted else None
    if weights is not None:
        weights[:, 0] = 1.0  # at least one sample counts
    before = torch.randn_like(vectors)
    found = before.clone()
    add_gradients(found, vectors, features, targets, weights)
    for client in range(clients):
        model.enter(vectors[client], training=True)
        losses = functional.cross_entropy(model.module(features[client]), targets[client], reduction="none")
        own = losses.mean() if weights is None else (losses * weights[client]).sum() / weights[client].sum()
        expected = torch.cat([part.reshape(-1) for part in torch.autograd.grad(own, model.parameters)])
        torch.testing.assert_close(found[client], before[client] + expected, rtol=1e-9, atol=1e-12)


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def hooked() -> nn.Module:
    layer = nn.Linear(4, 3)
    layer.register_forward_hook(lambda module, inputs, outputs: 2 * outputs)
    return nn.Sequential(layer)


def replaced() -> nn.Module:
    layer = nn.Linear(4, 3)
    layer.forward = lambda x: functional.linear(x, layer.weight)  # type: ignore[method-assign]
    return layer


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3))
    module[0].weight.requires_grad_(False)
    return module


def tied() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    return module


class Reversed(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).flip(1)


@pytest.mark.parametrize(
    "module",
    [
        lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout()),
        lambda: nn.Sequential(nn.ReLU(), nn.Linear(4, 3)),
        lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Tanh()),
        lambda: nn.Sequential(nn.Flatten(2), nn.Linear(4, 3)),
        lambda: nn.Sequential(nn.Linear(4, 3), nn.Identity()),
        lambda: Doubled(4, 3),
        lambda: Reversed(nn.Linear(4, 3)),
        hooked,
        replaced,
        frozen,
        tied,
    ],
)
def test_what_computes_something_else_is_no_stack(module: Callable[[], nn.Module]) -> None:
    assert written_out(flat(module()), torch.Size([4])) is None


def test_another_loss_and_features_of_another_shape_are_no_stack() -> None:
    assert written_out(flat(nn.Linear(4, 3), nn.CrossEntropyLoss(label_smoothing=0.1)), torch.Size([4])) is None
    assert written_out(flat(nn.Linear(4, 3)), torch.Size([2, 4])) is None
    assert written_out(flat(nn.Linear(4, 3)), torch.Size([4])) is not None
