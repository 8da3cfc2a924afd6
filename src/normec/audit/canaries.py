"""Canary clients: their messages are known, so that the part of them that a run releases can be measured.

Reference: Andrew et al. 2023, One-shot empirical privacy estimation for federated learning.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from normec.data import Federation
from normec.engine import Backend
from normec.engine.loop import Failures, Task
from normec.models import FlatModel
from normec.privacy.noise import orthonormal_directions
from normec.privacy.participation import Participation
from normec.streams import Streams

LENGTH = 1e6
"""Of a canary's update, over the bound: so much longer than memories that the bounded message has its direction."""
LEAST_RATE = 0.5
"""Of the canaries, so that each direction is seen with and without its canary."""


@dataclass(frozen=True)
class Canaries:
    """Clients that send one direction each, and held-out directions that nobody sends.

    ids: of the canary clients. directions: (k, d), orthonormal, one a canary. held_out: (k, d), orthonormal to them.
    """

    ids: tuple[Hashable, ...]
    directions: Tensor
    held_out: Tensor

    @classmethod
    def draw(cls, number: int, d: int, seed: int, taken: Iterable[Hashable] = ()) -> Canaries:
        """Directions in float64, uniformly at random. taken: ids that are others'."""
        basis, kind = orthonormal_directions(2 * number, d, seed), "canary"
        while any(str(name).startswith(kind) for name in taken):
            kind = f"another-{kind}"
        return cls(tuple(f"{kind}-{i:02d}" for i in range(number)), basis[:number], basis[number:])

    def project(self, vector: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """The projections of a vector (d,) on the canaries' directions (k,) and on the held-out ones (k,)."""
        along, aside = ((rows.to(vector.device) @ vector).cpu().numpy() for rows in (self.directions, self.held_out))
        return along, aside

    def join(self, federation: Federation) -> Federation:
        """The federation with the canaries as its last clients, without samples."""
        offsets = np.concatenate([federation.offsets, np.full(len(self.ids), federation.offsets[-1])])
        return replace(federation, ids=(*federation.ids, *self.ids), offsets=offsets)


class WithCanaries(Participation):
    """The participation of an audited run: honest clients take part as under `own`, and canaries, the last clients, at rate max(p, ½)."""

    own: Any
    canaries: int

    @property
    def scheme(self) -> str:  # type: ignore[override]  # as its own
        return str(self.own.scheme)

    def expected(self, clients: int) -> float:
        return float(self.own.expected(clients))

    def cohort(self, clients: int, k: int, streams: Streams) -> np.ndarray:
        honest = self.own.cohort(clients - self.canaries, k, streams)
        rate = max(self.own.expected(clients) / clients, LEAST_RATE)
        return np.concatenate([honest, streams.generator("canaries", k).random(self.canaries) < rate])


class CanaryBackend:
    """A backend whose canaries' updates are their directions, however they would compute. length: of a canary's update (norm)."""

    def __init__(self, own: Backend, canaries: Canaries, length: float = LENGTH) -> None:
        self.name, self.most_rows, self.most_numbers = own.name, own.most_rows, own.most_numbers
        self._own, self._length = own, length
        self._directions = dict(zip(canaries.ids, canaries.directions, strict=True))

    def updates(self, model: FlatModel, x: Tensor, tasks: Sequence[Task], k: int, out: Tensor, buffers: Tensor) -> Failures:
        """As `Backend.updates`."""
        failures = self._own.updates(model, x, tasks, k, out, buffers)
        for row, task in enumerate(tasks):
            if task.client in self._directions:
                out[row] = self._length * self._directions[task.client].to(out)
        return failures
