"""Local methods: what a client does with the model it received.

Every method is a schedule of mini-batches; the client steps with γ / len(schedule) on each, so that
g_i(x) = (x − T_i(x)) / γ is the mean of the gradients met on the way. A method also says what divides the sum of a
mini-batch's gradients: its size, or under Poisson sampling the expected size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from normec.settings import Count, Positive, Probability, Settings, Tree, choose
from normec.streams import Streams

Batch = slice | np.ndarray
"""Which of a client's samples enter one local step."""


class LocalMethod(Settings):
    """Base of the local methods.

    steps: T, the number of steps (gd, sgd, poisson) or of passes (ig, rr, so). lr: γ, of the whole local update.
    batch_size: samples in a mini-batch (gd takes them all, poisson draws how many); the last short one of a pass is kept.
    """

    method: ClassVar[str]
    steps: Count = 5
    lr: Positive = 0.5
    batch_size: Count = 32

    def schedule(self, samples: int, k: int, client: int, streams: Streams) -> Sequence[Batch]:
        """The mini-batches of one client in round k; none for a client without samples."""
        if samples == 0:
            return ()
        return self._batches(samples, k, client, streams)

    def divisor(self, samples: int) -> float | None:
        """What divides the sum of a mini-batch's gradients, for a client with that many samples; None for the size of each mini-batch."""
        return None

    def smallest_batch(self, sizes: np.ndarray) -> int:
        """The fewest samples that any mini-batch of clients with these sizes holds; at least 1."""
        filled = sizes[sizes > 0]
        return int(self._last_batch(filled).min()) if len(filled) else 1

    def _last_batch(self, sizes: np.ndarray) -> np.ndarray:
        """Of clients with these sizes, the samples in the last mini-batch of a pass."""
        last: np.ndarray = (sizes - 1) % self.batch_size + 1
        return last

    def _batches(self, samples: int, k: int, client: int, streams: Streams) -> Sequence[Batch]:
        raise NotImplementedError

    def _cut(self, order: np.ndarray) -> list[Batch]:
        return [order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size)]


class GD(LocalMethod):
    """Local gradient descent: x_{j+1} = x_j − (γ / T) ∇f_i(x_j), j < T (Algorithm 1 with T steps)."""

    method: ClassVar[str] = "gd"

    def _last_batch(self, sizes: np.ndarray) -> np.ndarray:
        return sizes

    def _batches(self, samples: int, k: int, client: int, streams: Streams) -> Sequence[Batch]:
        return [slice(None)] * self.steps


class IG(LocalMethod):
    """Cyclic incremental gradient: x_{j+1} = x_j − (γ / N) ∇f_ij(x_j) over the N mini-batches in their fixed order."""

    method: ClassVar[str] = "ig"

    def _batches(self, samples: int, k: int, client: int, streams: Streams) -> Sequence[Batch]:
        cuts = range(0, samples, self.batch_size)
        return [slice(start, start + self.batch_size) for start in cuts] * self.steps


class RR(LocalMethod):
    """Random reshuffling: as IG, in a new random order of the samples for each pass and round."""

    method: ClassVar[str] = "rr"

    def _batches(self, samples: int, k: int, client: int, streams: Streams) -> Sequence[Batch]:
        generator = streams.generator("local", k, client)
        return [batch for _ in range(self.steps) for batch in self._cut(generator.permutation(samples))]


class SO(LocalMethod):
    """Shuffle-once: as IG, in one random order of each client's samples, the same in every round."""

    method: ClassVar[str] = "so"

    def _batches(self, samples: int, k: int, client: int, streams: Streams) -> Sequence[Batch]:
        return self._cut(streams.generator("shuffle-once", 0, client).permutation(samples)) * self.steps


class SGD(LocalMethod):
    """Stochastic gradient: T mini-batches, each drawn without replacement from all of the client's samples."""

    method: ClassVar[str] = "sgd"

    def _last_batch(self, sizes: np.ndarray) -> np.ndarray:
        drawn: np.ndarray = np.minimum(sizes, self.batch_size)
        return drawn

    def _batches(self, samples: int, k: int, client: int, streams: Streams) -> Sequence[Batch]:
        generator = streams.generator("local", k, client)
        size = min(self.batch_size, samples)
        return [generator.choice(samples, size, replace=False) for _ in range(self.steps)]


class PoissonBatches(LocalMethod):
    """Poisson sampling: each of T mini-batches holds each sample with probability q, independently. It may be empty.

    A step divides the sum of the gradients by q n_i, the expected size, so that it is unbiased and one sample moves it by the
    same amount whatever the others do. An empty mini-batch is a step of gradient zero. rate: q.
    """

    method: ClassVar[str] = "poisson"
    rate: Probability = 0.1

    def divisor(self, samples: int) -> float | None:
        """The expected size, q n_i."""
        return self.rate * samples

    def _last_batch(self, sizes: np.ndarray) -> np.ndarray:
        return sizes if self.rate == 1 else np.ones_like(sizes)

    def _batches(self, samples: int, k: int, client: int, streams: Streams) -> Sequence[Batch]:
        generator = streams.generator("local", k, client)
        return [np.flatnonzero(generator.random(samples) < self.rate) for _ in range(self.steps)]


METHODS: dict[str, type[LocalMethod]] = {kind.method: kind for kind in (GD, IG, RR, SO, SGD, PoissonBatches)}
ONE_GRADIENT = (GD.method, SGD.method, PoissonBatches.method)
"""The methods of which one step takes one gradient; the others count passes."""


def local_from_table(table: Tree) -> LocalMethod:
    """The `[local]` section: `method`, and its settings."""
    table = dict(table)
    return choose("local.method", table.pop("method", "gd"), METHODS).from_table("local", table)
