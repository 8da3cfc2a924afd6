"""Several processes that compute one run together, started by torchrun: each owns a share of the clients and their memories.

Every rank holds the model and the server's state, and computes the same steps on them; the sums over clients are added up
over the ranks once a round. Rank 0 alone draws cohorts and noise, evaluates and writes. One process is one rank.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, distributed
from torch.distributed.rendezvous import rendezvous

from normec.errors import TrainingFailed

T = TypeVar("T")

PATIENCE = timedelta(minutes=30)
"""How long a rank waits for the others, which may evaluate or write meanwhile. One that ends is noticed at once."""


def processes() -> int:
    """The number of processes that torchrun has started, or one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@dataclass(frozen=True)
class Ranks:
    """One process among the `size` processes of a run. held: the group in which they meet; empty for torch's default group.

    Gloo ends a group with its last reference, and only then are the others told. Nobody else may hold it: an error's traceback would.
    """

    rank: int = 0
    size: int = 1
    held: list[distributed.ProcessGroup] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    @contextlib.contextmanager
    def joined(cls) -> Iterator[Ranks]:
        """The ranks that torchrun started, or one alone. All of them must enter it, once per run.

        They meet in a group of this run alone, which ends with it; one that the caller has made stays as it is.
        """
        if processes() == 1:
            yield cls()
            return
        held = _new_group()  # which ends on errors too: the other ranks are told at once, and another run can begin
        try:
            ranks = cls(distributed.get_rank(), distributed.get_world_size(), held)
            yield ranks
            ranks.agree(None)  # nobody leaves before all have come here
        finally:
            distributed.destroy_process_group(*held)  # its threads must not outlive the interpreter
            held.clear()

    @property
    def group(self) -> distributed.ProcessGroup | None:
        """The group in which the ranks meet; None for torch's own."""
        return self.held[0] if self.held else None

    @property
    def first(self) -> bool:
        """Whether this rank writes and draws."""
        return self.rank == 0

    def own(self, clients: np.ndarray) -> np.ndarray:
        """The clients among these that belong to this rank."""
        mine: np.ndarray = clients[clients % self.size == self.rank]
        return mine

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks, in place."""
        return self._together(tensor, lambda: distributed.all_reduce(tensor, group=self.group))

    def combine(self, sums: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
        """The sums (n,) added over the ranks, and the maxima (m,) over the ranks, in one all_reduce of n + size · m numbers."""
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
            return self._together(value, lambda: distributed.broadcast(value, src=0, group=self.group))
        box = [value]
        self._together(None, lambda: distributed.broadcast_object_list(box, src=0, group=self.group))
        return box[0]

    def gather(self, value: T) -> list[T]:
        """The values of all ranks on rank 0, and nothing elsewhere."""
        if self.size == 1:
            return [value]
        boxes: list[Any] | None = [None] * self.size if self.first else None
        self._together(None, lambda: distributed.gather_object(value, boxes, dst=0, group=self.group))
        return boxes or []

    def _together(self, value: T, exchange: Callable[[], Any]) -> T:
        if self.size == 1:
            return value
        try:
            exchange()
        except RuntimeError as error:  # what torch raises when another process has ended
            reason = " ".join(str(error).split())[:200].rstrip(".")
            raise TrainingFailed(
                f"rank {self.rank} of {self.size} lost the others: one of them has ended, and says why ({reason}). "
                "A checkpoint, where there is one, is intact; resume with --resume."
            ) from error
        return value


_JOINED = itertools.count()
"""The groups that this process has begun; the same on every rank."""


def _new_group() -> list[distributed.ProcessGroup]:
    """A group of all processes: beside the caller's default one, or else the default one itself (none) while the run lasts."""
    backend, name = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", f"normec-{next(_JOINED)}"
    if distributed.is_initialized():
        return [distributed.new_group(backend=backend, timeout=PATIENCE)]
    store, rank, size = _meeting()
    own = distributed.PrefixStore(name, store)  # type: ignore[attr-defined]  # where nothing is left of an earlier group
    distributed.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=PATIENCE)
    return []


@cache
def _meeting() -> tuple[Any, int, int]:
    """The store in which the processes of torchrun find each other, this one's rank, and how many there are."""
    store, rank, size = next(iter(rendezvous("env://", timeout=PATIENCE)))
    return store, rank, size
