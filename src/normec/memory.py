"""Client memories: what the simulator keeps on behalf of the clients, one row a client.

In a deployment these vectors never leave their owners; the simulator holds them only because it plays the clients.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from normec.algorithms import Slots
from normec.errors import BadInput


class DenseMemory:
    """One (clients, d) tensor for each slot, zero at the start; `like`: a vector (d,) of the run."""

    def __init__(self, slots: tuple[str, ...], clients: int, like: Tensor) -> None:
        self.names = slots
        self.rows: Slots = tuple(torch.zeros(clients, len(like), dtype=like.dtype, device=like.device) for _ in slots)

    def read(self, clients: np.ndarray) -> Slots:
        """The rows (G, d) of these clients, as copies."""
        index = torch.from_numpy(clients).to(self.rows[0].device) if self.rows else None
        return tuple(slot[index] for slot in self.rows)

    def write(self, clients: np.ndarray, memory: Slots) -> None:
        """Replaces the rows of these clients."""
        for slot, rows in zip(self.rows, memory, strict=True):
            slot[torch.from_numpy(clients).to(slot.device)] = rows


def memory_bytes(slots: tuple[str, ...], clients: int, d: int, itemsize: int) -> int:
    """The size of dense memories in bytes."""
    return len(slots) * clients * d * itemsize


def check_fits(needed: int, limit: int | None) -> None:
    """Refuses memories larger than the limit, or than the machine's free memory where no limit is set.

    Raises:
        BadInput: naming both numbers.
    """
    allowed = limit if limit is not None else _available()
    if needed > allowed:
        raise BadInput(
            "engine.memory_limit",
            f": the client memories need {needed:,} bytes and {allowed:,} are allowed. "
            "Use fewer clients, a smaller model, or raise engine.memory_limit.",
        )


def _available() -> int:
    """Free physical memory in bytes, as far as the system tells (Linux), else no limit."""
    try:
        with open("/proc/meminfo") as lines:
            fields = dict(line.split(":") for line in lines)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 2**63
