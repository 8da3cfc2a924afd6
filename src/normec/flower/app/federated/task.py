"""What is learned: the model, a node's data, and its training. Nothing here knows of privacy or of federations."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

Samples = tuple[torch.Tensor, torch.Tensor]


def make_model() -> nn.Module:
    """Softmax regression on 8×8 images; the same at each start."""
    model = nn.Linear(64, 10)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def samples(part: int, parts: int) -> Samples:
    """One part of the digits; a real node reads its own files here."""
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    return x[part::parts], y[part::parts]


def train(model: nn.Module, data: Samples, steps: int, lr: float) -> None:
    """Steps of gradient descent, whose stepsizes add up to lr."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr / steps)
    for _ in range(steps):
        optimizer.zero_grad()
        functional.cross_entropy(model(data[0]), data[1]).backward()
        optimizer.step()


def accuracy(model: nn.Module, data: Samples) -> float:
    """The share of right answers."""
    with torch.no_grad():
        return float((model(data[0]).argmax(1) == data[1]).float().mean())
