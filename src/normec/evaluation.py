"""Losses and accuracy of a model on a federation; pure reads that no random stream notices."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from normec.data import Federation
from normec.models import FlatModel

SAMPLES_AT_ONCE = 1024


class Scores(NamedTuple):
    """train_loss: mean over the clients with samples of each one's mean loss. test_*: pooled, None without a test set.

    test_accuracy: the share of right classes, None for a model that does not classify.
    """

    train_loss: float | None
    test_loss: float | None
    test_accuracy: float | None


@torch.no_grad()
def evaluate(model: FlatModel, x: Tensor, federation: Federation, drop_broken: bool = False) -> Scores:
    """Scores of the parameters x (d,).

    drop_broken: leave clients whose loss is not finite out of the mean, as their messages are under privacy.
    """
    test_loss, test_accuracy = _test(model, x, federation)
    losses = _client_losses(model, x, federation)
    counted = losses[losses.isfinite()] if drop_broken else losses
    return Scores(float(counted.mean()) if len(counted) else None, test_loss, test_accuracy)


def gradient(model: FlatModel, x: Tensor, federation: Federation) -> Tensor:
    """∇f(x), (d,) in float64: the mean over all clients of the gradients of their whole data."""
    total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    own = torch.empty_like(x)
    for client in range(len(federation)):
        model.gradient(x, federation.client(client), out=own)
        total += own
    return total / len(federation)


def _client_losses(model: FlatModel, x: Tensor, federation: Federation) -> Tensor:
    """The mean loss of each client with samples, in float64."""
    losses = []
    for clients in _groups(federation):
        samples = [federation.client(client) for client in clients]
        outputs = model.outputs(x, torch.cat([features for features, _ in samples]))
        parts = torch.split(outputs, [len(targets) for _, targets in samples])
        losses += [model.objective(part, targets) for part, (_, targets) in zip(parts, samples, strict=True)]
    return torch.stack(losses).double()


def _groups(federation: Federation) -> list[list[int]]:
    """Clients with samples, in groups of about SAMPLES_AT_ONCE samples."""
    groups: list[list[int]] = [[]]
    held = 0
    for client, size in enumerate(federation.sizes.tolist()):
        if held and held + size > SAMPLES_AT_ONCE:
            groups.append([])
            held = 0
        if size:
            groups[-1].append(client)
            held += size
    return groups


def _test(model: FlatModel, x: Tensor, federation: Federation) -> tuple[float | None, float | None]:
    if federation.test is None:
        return None, None
    features, targets = federation.test
    loss, right, classifies = 0.0, 0, not targets.is_floating_point()
    for start in range(0, len(targets), SAMPLES_AT_ONCE):
        chosen = slice(start, start + SAMPLES_AT_ONCE)
        outputs = model.outputs(x, features[chosen])
        loss += float(model.objective(outputs, targets[chosen])) * len(targets[chosen])
        classifies = classifies and outputs.ndim == 2
        if classifies:
            right += int((outputs.argmax(1) == targets[chosen]).sum())
    return loss / len(targets), right / len(targets) if classifies else None
