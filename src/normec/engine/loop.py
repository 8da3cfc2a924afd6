"""The backend `loop`: one client after the other, on one resident model. It runs any model."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from normec.errors import FAILURES
from normec.local import Batch
from normec.models import FlatModel, LocalSteps
from normec.streams import seed_global_generator


class Task(NamedTuple):
    """The work of one client in a round: steps from the model on its mini-batches.

    client: its id. position: its place among the federation's clients. seed: makes the seed of torch's own generator, for modules that
    draw (dropout).
    """

    client: Hashable
    position: int
    samples: tuple[Tensor, Tensor]
    schedule: Sequence[Batch]
    steps: LocalSteps
    seed: Callable[[], int]


Failures = dict[int, BaseException]
"""What a model or its loss raises on a client's samples, by the client's row."""


class Backend(Protocol):
    """A way to compute the local updates of a block of clients.

    most_rows: the most clients in a block. most_numbers: the most numbers in their rows, but for a single one. Functions of the backend
    alone, so that sums do not depend on the workers.
    """

    name: str
    most_rows: int
    most_numbers: int

    def updates(self, model: FlatModel, x: Tensor, tasks: Sequence[Task], k: int, out: Tensor, buffers: Tensor) -> Failures:
        """Writes the scaled local updates (G, d) of the tasks' clients in round k, from the model x (d,), into `out`.

        And their moving buffers (G, m) into `buffers`; models with such are computed by the loop alone. Returns on whose samples the
        model or its loss fails; their updates are NaN.
        """


class Loop:
    """Local updates, one client at a time."""

    name = "loop"
    most_rows = 32
    most_numbers = 2**17
    """Few, so that several workers share the clients of a small cohort, and enough to hide what a block costs."""

    def updates(self, model: FlatModel, x: Tensor, tasks: Sequence[Task], k: int, out: Tensor, buffers: Tensor) -> Failures:
        """As `Backend.updates`."""
        failures: Failures = {}
        for row, task in enumerate(tasks):
            seed_global_generator(task.seed(), x.device)
            try:
                model.local_update(x, task.samples, task.schedule, task.steps, out=out[row])
            except FAILURES as error:  # whatever a user's module or loss raises
                failures[row] = error
                out[row].fill_(math.nan)
            if model.moving:
                buffers[row].copy_(model.buffers)
        return failures
