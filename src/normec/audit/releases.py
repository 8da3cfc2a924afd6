"""The releases of a run, recovered from its states as an outsider sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from normec.algorithms import Algorithm, Server, ServerAdam, ServerMomentum, ServerStep
from normec.errors import BadInput

EXACT = 1e-9
"""How far from affine, relatively, a map may be by rounding."""


class Seen(NamedTuple):
    """The state that an outsider keeps of a run between two rounds: all that the server holds, in float64.

    unit: the unit roundoff of the numbers that they were.
    """

    server: Server
    unit: float

    @classmethod
    def of(cls, server: Server) -> Seen:
        """A copy of the server's state, which later rounds do not change."""
        return cls(server.map(lambda vector: vector.double().clone()), torch.finfo(server.x.dtype).eps / 2)

    def equals(self, other: Seen) -> bool:
        """Whether every vector is the same, bit for bit."""
        return all(torch.equal(a, b) for a, b in zip(self.server.vectors, other.server.vectors, strict=True))

    def rounding(self, vector: Tensor) -> float:
        """The approximate rounding error of a vector's coordinates (standard deviation)."""
        return self.unit * float(vector.square().mean().sqrt())


class Released(NamedTuple):
    """mean: the released mean (d,) of a round. rounding: about how wrong its coordinates are (standard deviation)."""

    mean: Tensor
    rounding: float


def released(algorithm: Algorithm, optimizer: ServerStep, before: Seen, after: Seen, rate: float) -> Released:
    """The released mean of a round, from the states before and after it.

    From the first vector that is an affine function of it, coordinate by coordinate: a slot of the server; or its direction, which
    the model or the optimizer's momentum shows before anything else is done to it.

    Raises:
        BadInput: for an algorithm or a server step from whose states it cannot be recovered.
    """
    slots, x = before.server.slots, before.server.x
    for place, slot in enumerate(after.server.slots):

        def next_slot(mean: Tensor, place: int = place) -> Tensor:
            return algorithm.server(slots, mean, rate)[1][place]

        coefficients = _affine(next_slot, x)
        if coefficients:
            return _solved(coefficients, slot, after.rounding(slot))
    coefficients = _affine(lambda mean: algorithm.server(slots, mean, rate)[0], x)
    if not coefficients:
        raise BadInput(
            "algorithm.name",
            ": neither a vector of its server nor its step shows the released mean, each coordinate by itself, as c₀ + c₁ · mean",
            value=algorithm.name,
            remedy="Audit another algorithm",
        )
    return _solved(coefficients, *_direction(optimizer, algorithm.server_lr, before, after))


def _solved(affine: tuple[Tensor, Tensor], value: Tensor, rounding: float) -> Released:
    start, slope = affine
    return Released((value - start) / slope, rounding / float(slope.abs().min()))


def _affine(function: Callable[[Tensor], Tensor], like: Tensor) -> tuple[Tensor, Tensor] | None:
    """(c₀, c₁) with function(mean) = c₀ + c₁ · mean for each coordinate, and c₁ nowhere zero; None where there are none."""
    start = function(torch.zeros_like(like))
    size = 1 + float(start.abs().max())  # no smaller than what it is added to, which would hide it
    slope = (function(torch.full_like(like, size)) - start) / size
    other = size * torch.linspace(-1.5, 2.5, len(like), dtype=like.dtype, device=like.device)
    wrong = (function(other) - start - slope * other).abs()
    exact = bool((wrong <= EXACT * (start.abs() + size * slope.abs())).all())  # NaN is not
    return (start, slope) if exact and bool((slope != 0).all()) else None


def _direction(optimizer: ServerStep, lr: float, before: Seen, after: Seen) -> tuple[Tensor, float]:
    """The server's direction (d,), and its rounding (standard deviation)."""
    if isinstance(optimizer, ServerMomentum):
        kept, share = optimizer.momentum, 1.0
    elif isinstance(optimizer, ServerAdam):
        kept, share = optimizer.beta1, 1 - optimizer.beta1
    elif optimizer.slots:
        raise BadInput(
            "server.optimizer", ": the audit cannot recover releases from its states", value=optimizer.optimizer, remedy="Use sgd"
        )
    else:
        return (before.server.x - after.server.x) / lr, after.rounding(after.server.x) / lr
    momentum = after.server.optimizer[0]
    return (momentum - kept * before.server.optimizer[0]) / share, after.rounding(momentum) / share
