"""Whether what a run descends is one smooth function of the parameters: tried on the samples of every client."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from normec.data import Federation
from normec.errors import FAILURES
from normec.local import Batch, LocalMethod
from normec.models import FlatModel
from normec.streams import Streams
from normec.theory.recognition import untouched
from normec.theory.smooth import not_known_smooth

AGREES = 1e-4
"""Relative: how far rounding in float32 may take one loss from another."""
NEARBY = 0.05
"""How far from its start each parameter moves at most, so that nothing is hidden by weights of zero."""


def irregular(model: FlatModel, federation: Federation, local: LocalMethod, start: Tensor) -> list[str]:
    """Why the theorems do not take what a run descends, judged near x⁰ (d,) on every mini-batch of every client; else empty."""
    if not all(untouched(part) for part in (model.module, *model.module.modules())):
        return ["hooks on the model, or functions of its own instance"]
    moved = np.random.default_rng(0).uniform(-NEARBY, NEARBY, len(start))
    x = start + torch.from_numpy(moved).to(start)
    for client in np.flatnonzero(federation.sizes).tolist():
        samples = federation.client(client)
        batches = local.schedule(len(samples[1]), 0, client, Streams(0)) if local.method == "ig" else ()
        try:
            reasons = _reasons(model, x, samples, batches)
        except FAILURES as error:  # whatever a user's module raises
            reasons = [f"a model or loss that fails near its start ({type(error).__name__})"]
        if reasons:
            return reasons
    return []


def _reasons(model: FlatModel, x: Tensor, samples: tuple[Tensor, Tensor], batches: Sequence[Batch]) -> list[str]:
    drawn = _generators(x)
    whole, jumps = not_known_smooth(model, x, samples)
    parts = [not_known_smooth(model, x, (samples[0][batch], samples[1][batch])) for batch in batches]
    jumps = sorted({*jumps, *(name for _, unknown in parts for name in unknown)})
    if jumps:
        return [f"a model or loss that is not known to be smooth ({', '.join(jumps)})"]
    if any(not torch.equal(before, now) for before, now in zip(drawn, _generators(x), strict=True)):
        return ["a model or loss that draws random numbers"]
    if not np.isfinite(whole):
        return ["a loss that is not finite near its start"]
    if parts and _differ(float(np.mean([loss for loss, _ in parts])), whole):
        return ["a client's loss that is not the mean of its mini-batches' losses"]
    with torch.no_grad():
        evaluated = float(model.objective(model.outputs(x, samples[0]), samples[1]))
    return ["a model that computes something else in evaluation than in training"] if _differ(evaluated, whole) else []


def _differ(a: float, b: float) -> bool:
    """Written so that NaN does."""
    return not abs(a - b) <= AGREES * (abs(a) + abs(b))


def _generators(x: Tensor) -> list[Tensor]:
    """The states of torch's generators from which a model may draw."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(x.device)] if x.device.type == "cuda" else states
