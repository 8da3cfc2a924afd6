"""The mean loss of each client, computed for many clients at once."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from normec.data import Federation
from normec.errors import FAILURES, ModelFailed, plural
from normec.models import FlatModel

SAMPLES_AT_ONCE = 1024
FEW_SAMPLES = 17
"""Below which torch's cross-entropy adds up the samples of a batch one after the other, the first one last."""


@torch.no_grad()
def client_losses(model: FlatModel, x: Tensor, federation: Federation, tolerant: bool = False) -> Tensor:
    """The mean loss of each client with samples, in float64. With `tolerant` it is NaN where the model fails on a client's samples.

    Raises:
        ModelFailed: where it fails on a client's samples, naming it; not with `tolerant`.
    """
    losses = [_losses(model, x, federation, first, last, tolerant) for first, last in spans(federation.sizes, alone=model.mixes_samples)]
    return torch.cat(losses).double()


def _losses(model: FlatModel, x: Tensor, federation: Federation, first: int, last: int, tolerant: bool) -> Tensor:
    """The mean loss of each client with samples among first … last − 1; where the model fails on all at once, each one alone."""
    holders = first + np.flatnonzero(federation.sizes[first:last])
    features, targets = federation.clients(first, last)
    try:
        return mean_losses(model, model.outputs(x, features), targets, federation.sizes[holders])
    except ModelFailed as error:
        if len(holders) > 1:
            return torch.cat([_losses(model, x, federation, holder, holder + 1, tolerant) for holder in holders.tolist()])
        if tolerant:
            return x.new_full((1,), math.nan)
        raise ModelFailed(f"client {federation.ids[holders[0]]!r}: {error}") from error


def mean_losses(model: FlatModel, outputs: Tensor, targets: Tensor, sizes: np.ndarray) -> Tensor:
    """The mean losses of clients that hold these numbers of the samples (no zeros), in their order.

    Those of few samples under the plain cross-entropy are taken at once, in the very steps of the loss itself.
    """
    means = outputs.new_empty(len(sizes))
    at_once = sizes < FEW_SAMPLES if _plain_cross_entropy(model, outputs, targets) else np.zeros(len(sizes), dtype=bool)
    starts = np.cumsum(sizes) - sizes
    each = functional.cross_entropy(outputs, targets, reduction="none") if at_once.any() else outputs
    for size in np.unique(sizes[at_once]).tolist():
        chosen = at_once & (sizes == size)
        total = torch.zeros(int(chosen.sum()), dtype=each.dtype, device=each.device)
        for place in (*range(1, size), 0):
            total += each[torch.from_numpy(starts[chosen] + place).to(each.device)]
        means[torch.from_numpy(chosen).to(each.device)] = total / size
    for client in np.flatnonzero(~at_once).tolist():
        own = slice(int(starts[client]), int(starts[client] + sizes[client]))
        means[client] = _objective(model, outputs[own], targets[own])
    return means


def _objective(model: FlatModel, outputs: Tensor, targets: Tensor) -> Tensor:
    try:
        return model.objective(outputs, targets)
    except FAILURES as error:  # whatever a user's loss raises
        reason = " ".join(str(error).split()).rstrip(".")
        problem = f"the loss fails on {plural(len(targets), 'sample')} ({type(error).__name__}: {reason})"
        raise ModelFailed(f"{problem}. Change the loss, or the data.") from error


def _plain_cross_entropy(model: FlatModel, outputs: Tensor, targets: Tensor) -> bool:
    """Whether the objective is the mean cross-entropy of the samples and nothing else."""
    plain = model.plain_cross_entropy and not hasattr(model.module, "penalty")
    return plain and outputs.ndim == 2 and targets.ndim == 1 and not targets.is_floating_point()


def spans(sizes: np.ndarray, alone: bool = False) -> Iterator[tuple[int, int]]:
    """Clients first … last − 1 that follow each other and hold about SAMPLES_AT_ONCE of such numbers of samples, or one that holds more.

    alone: one client at a time, for models whose outputs of a sample depend on those beside it.
    """
    ends, holders, place = np.cumsum(sizes), np.flatnonzero(sizes), 0
    held = ends[holders]
    while place < len(holders):
        before = held[place] - sizes[holders[place]]
        after = max(place + 1, int(np.searchsorted(held, before + (0 if alone else SAMPLES_AT_ONCE), side="right")))
        yield int(holders[place]), int(holders[after - 1]) + 1
        place = after
