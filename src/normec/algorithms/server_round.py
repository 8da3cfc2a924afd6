"""The server's half of a round, after the release of the mean: the one function by which every server moves.

It is pure, and the mean is all that it learns of a round, so that whatever it returns is as private as the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from normec.algorithms.base import Algorithm, Slots
from normec.algorithms.server_steps import ServerStep


class Server(NamedTuple):
    """The vectors that a server holds between two rounds. It may show all of them.

    x: the model (d,). slots: the algorithm's server slots, (d,) each. optimizer: the slots of the server's step, (d,) each.
    """

    x: Tensor
    slots: Slots
    optimizer: Slots

    @classmethod
    def start(cls, algorithm: Algorithm, step: ServerStep, x: Tensor) -> Server:
        """The server before the first round: the algorithm's slots are zero, and the step's slots are those that it starts from."""
        return cls(x, tuple(torch.zeros_like(x) for _ in algorithm.server_slots), step.start(x))

    @property
    def vectors(self) -> Slots:
        """All vectors: the model, then the slots of the algorithm and of the step."""
        return (self.x, *self.slots, *self.optimizer)

    def named(self, algorithm: Algorithm, step: ServerStep) -> dict[str, Tensor]:
        """The vectors under the names that a checkpoint gives them."""
        named = {"x": self.x}
        named |= {f"server.{slot}": vector for slot, vector in zip(algorithm.server_slots, self.slots, strict=True)}
        return named | {f"optimizer.{slot}": vector for slot, vector in zip(step.slots, self.optimizer, strict=True)}

    @classmethod
    def loaded(cls, named: Mapping[str, Tensor], algorithm: Algorithm, step: ServerStep) -> Server:
        """The inverse of `named`."""
        slots = tuple(named[f"server.{slot}"] for slot in algorithm.server_slots)
        return cls(named["x"], slots, tuple(named[f"optimizer.{slot}"] for slot in step.slots))

    def map(self, change: Callable[[Tensor], Tensor]) -> Server:
        """The same server with `change` applied to every vector."""
        slots, optimizer = (tuple(change(vector) for vector in vectors) for vectors in (self.slots, self.optimizer))
        return Server(change(self.x), slots, optimizer)


def server_round(algorithm: Algorithm, step: ServerStep, server: Server, mean: Tensor, rate: float) -> Server:
    """The server after a round that has released `mean` (d,); the inputs stay as they are. rate: as in `Algorithm.server`."""
    direction, slots = algorithm.server(server.slots, mean, rate)
    x, optimizer = step.step(server.x, direction, algorithm.server_lr, server.optimizer)
    return Server(x, slots, optimizer)
