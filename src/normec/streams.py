"""Keyed random streams: every random choice is a function of (seed, purpose, round, client) and of nothing else.

So results do not depend on the order of clients, on an extra evaluation or on the number of workers, and a resumed run
needs no generator state.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Streams:
    """All the random streams of one run.

    These are simulation streams: reproducible from the seed, hence not secret. Noise that is to protect a real release
    must come from the operating system instead, as with `secret_cohorts` the choice of who takes part does.
    """

    seed: int
    secret_cohorts: bool = False

    def key(self, purpose: str, round: int = 0, client: int = 0) -> int:
        """A 128-bit key for (seed, purpose, round, client); a fresh secret one for secret cohorts."""
        if self.secret_cohorts and purpose == "participation":
            return secrets.randbits(128)
        name = f"{self.seed}/{purpose}/{round}/{client}".encode()
        return int.from_bytes(hashlib.blake2b(name, digest_size=16).digest(), "little")

    def generator(self, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
        """A counter-based generator (Philox, 128-bit key) at the start of its stream."""
        return np.random.Generator(np.random.Philox(key=self.key(purpose, round, client)))

    def torch_seed(self, purpose: str, round: int = 0, client: int = 0) -> int:
        """A 63-bit seed for code that draws from torch's own global generator (weight initialisation, dropout)."""
        return self.key(purpose, round, client) >> 65


def seed_global_generator(seed: int, device: torch.device) -> None:
    """Puts torch's own generator for a device at the start of a stream, for modules that draw from it (dropout)."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


@contextlib.contextmanager
def global_generators_kept(device: torch.device) -> Iterator[None]:
    """Puts torch's own generators, of the CPU and of a device, back at the end to where the caller had them."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


@contextlib.contextmanager
def global_generators_seeded(seed: int) -> Iterator[None]:
    """Puts all of torch's own generators at the start of a stream, for a model's initialisation, and back at the end."""
    begun = bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
    gpus = range(torch.cuda.device_count()) if begun else ()  # otherwise they would be seeded later, for good
    with torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(seed)
        if gpus:
            torch.cuda.manual_seed_all(seed)
        yield
