"""What is learned: the model, a node's data, and its training. Nothing here knows of privacy or of federations."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
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
    package = Path(find_spec("sklearn").origin).parent  # whose import takes a second, in each of a node's processes
    table = torch.from_numpy(np.loadtxt(package / "datasets" / "data" / "digits.csv.gz", delimiter=","))[part::parts]
    return (table[:, :-1] / 16).float(), table[:, -1].long()


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
