"""What is learned: the columns, the model, a node's rows, and its training. Nothing here knows of privacy or of federations."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

Samples = tuple[torch.Tensor, torch.Tensor]

FEATURES = {"age": (0.0, 100.0), "pressure": (80.0, 200.0), "marker": (0.0, 10.0)}
"""Columns, each with a range that is known without looking at anybody's rows: it becomes [-1, 1]. A mean or a standard deviation of
all rows would be a release of its own."""
LABEL, CLASSES = "outcome", ("0", "1")
HELD_OUT = 5
"""Every fifth row is kept from training, for the evaluation."""


def make_model() -> nn.Module:
    """Logistic regression; the same at each start."""
    model = nn.Linear(len(FEATURES), len(CLASSES))
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def samples(path: str, held_out: bool) -> Samples:
    """A node's rows, from the CSV file that its owner's config names: those that are trained on, or those that are held out."""
    with Path(path).open(newline="", encoding="utf-8-sig") as file:
        rows = [row for number, row in enumerate(csv.DictReader(file)) if (number % HELD_OUT == 0) == held_out]
    if not rows:
        raise ValueError(f"{path} holds no rows for this.")
    if missing := {*FEATURES, LABEL} - set(rows[0]):
        raise ValueError(f"{path} has no column {min(missing)!r}.")
    low, high = np.array(list(FEATURES.values())).T
    x = np.array([[float(row[name]) for name in FEATURES] for row in rows])
    y = [CLASSES.index(row[LABEL]) for row in rows]
    return torch.tensor(2 * (x.clip(low, high) - low) / (high - low) - 1, dtype=torch.float32), torch.tensor(y)


def train(model: nn.Module, data: Samples, steps: int, lr: float) -> None:
    """Steps of gradient descent, whose stepsizes add up to lr."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr / steps)
    for _ in range(steps):
        optimizer.zero_grad()
        functional.cross_entropy(model(data[0]), data[1]).backward()
        optimizer.step()


def evaluate(model: nn.Module, data: Samples) -> dict[str, float]:
    """The mean loss and the share of right answers."""
    with torch.no_grad():
        outputs = model(data[0])
        return {
            "loss": float(functional.cross_entropy(outputs, data[1])),
            "accuracy": float((outputs.argmax(1) == data[1]).float().mean()),
        }
