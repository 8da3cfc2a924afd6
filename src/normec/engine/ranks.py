"""Several processes that compute one run together, started by torchrun: each owns a share of the clients and their memories.

Every rank holds the model and the server's state, and computes the same steps on them; the sums over clients are added up
over the ranks once a round. Rank 0 alone draws cohorts and noise, evaluates and writes. One process is one rank.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, distributed

from normec.errors import TrainingFailed

T = TypeVar("T")

PATIENCE = timedelta(minutes=30)
"""How long a rank waits for the others, which may evaluate or write meanwhile. One that ends is noticed at once."""


def processes() -> int:
    """How many torchrun has started, or one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@dataclass(frozen=True)
class Ranks:
    """One process among the `size` ones of a run."""

    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls) -> Ranks:
        """The ranks that torchrun started, or one alone; to be called by all of them."""
        if processes() == 1:
            return cls()
        if not distributed.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            distributed.init_process_group(backend, timeout=PATIENCE)
        return cls(distributed.get_rank(), distributed.get_world_size())

    @property
    def first(self) -> bool:
        """Whether this one writes and draws."""
        return self.rank == 0

    def own(self, clients: np.ndarray) -> np.ndarray:
        """Those of some clients that are this rank's."""
        mine: np.ndarray = clients[clients % self.size == self.rank]
        return mine

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks, in place."""
        return self._together(tensor, lambda: distributed.all_reduce(tensor))

    def combine(self, sums: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
        """The sums (n,) added up and the largest of the others (m,) over the ranks, in one all_reduce of n + size · m numbers."""
        if self.size == 1:
            return sums, largest
        slots = torch.zeros(self.size, len(largest), dtype=sums.dtype, device=sums.device)
        slots[self.rank] = largest
        total = self.sum(torch.cat([sums, slots.reshape(-1)]))
        return total[: len(sums)], total[len(sums) :].view_as(slots).amax(0)

    def agree(self, value: T) -> T:
        """The value that rank 0 holds."""
        if self.size == 1:
            return value
        if isinstance(value, Tensor):
            return self._together(value, lambda: distributed.broadcast(value, src=0))
        box = [value]
        self._together(None, lambda: distributed.broadcast_object_list(box, src=0))
        return box[0]

    def gather(self, value: T) -> list[T]:
        """On rank 0 the values of all ranks, elsewhere nothing."""
        if self.size == 1:
            return [value]
        boxes: list[Any] | None = [None] * self.size if self.first else None
        self._together(None, lambda: distributed.gather_object(value, boxes, dst=0))
        return boxes or []

    def part(self) -> None:
        """Ends the group, after every rank has come here; its threads must not outlive the interpreter."""
        if self.size > 1:
            self.agree(None)
            distributed.destroy_process_group()

    def _together(self, value: T, exchange: Callable[[], Any]) -> T:
        if self.size == 1:
            return value
        try:
            exchange()
        except RuntimeError as error:  # what torch raises when another process has ended
            reason = " ".join(str(error).split())[:200].rstrip(".")
            raise TrainingFailed(
                f"rank {self.rank} of {self.size} lost the others: one of them has ended ({reason}). "
                "The last checkpoint is intact; go on with --resume."
            ) from error
        return value
