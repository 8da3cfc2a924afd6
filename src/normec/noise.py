"""The only caller of a Gaussian generator: seeded noise for simulation, secure noise for what leaves a process.

Secure noise comes from the operating system's generator and lives, with the messages, on a lattice: both are whole
multiples of a power of two, so that their sum is exact, and the low bits of a float tell nothing about a message.
"""

from __future__ import annotations

import math
import os

import numpy as np
import torch
from torch import Tensor

from normec.streams import Streams

LATTICE_BITS = 20


def seeded_gaussian(shape: tuple[int, ...], std: float, streams: Streams, k: int, device: torch.device) -> Tensor:
    """Noise N(0, std² I) for the release of round k, float64 of the given shape, on `device`.

    std: the standard deviation of each coordinate. The stream is keyed by (seed, round): for simulation, not for
    release. On an accelerator it is drawn there, by its own counter-based generator; on the CPU by Philox, since torch's
    CPU generator keeps only 32 bits of its seed and would repeat streams in a long run.
    """
    if device.type == "cpu":
        return torch.from_numpy(streams.generator("noise", k).standard_normal(shape)).mul_(std)
    generator = torch.Generator(device).manual_seed(streams.torch_seed("noise", k))
    return torch.randn(shape, dtype=torch.float64, device=device, generator=generator).mul_(std)


def secure_gaussian(shape: tuple[int, ...], std: float, lattice: float, device: torch.device) -> Tensor:
    """Noise N(0, std² I) from the operating system's generator, rounded to whole multiples of `lattice`; float64.

    Each coordinate takes 128 random bits, one for its sign and 127 for the tail probability of its size. The probability
    keeps float64's relative precision down to 2^-128, so that every lattice point can be drawn up to 13 standard deviations:
    a gap in the tail would tell which message was there. Rounding the sum of a message on the lattice and Gaussian noise is
    post-processing, so that the Gaussian's guarantee holds.
    """
    from scipy.special import ndtri

    words, low = np.frombuffer(os.urandom(16 * math.prod(shape)), dtype=np.uint64).reshape(2, -1)
    tail = ((words >> np.uint64(1)).astype(np.float64) + (low.astype(np.float64) + 0.5) * 2.0**-64) * 2.0**-64  # in (0, 1/2]
    sign = 1.0 - 2.0 * (words & np.uint64(1)).astype(np.float64)
    steps = np.rint(sign * -ndtri(tail) * (std / lattice))
    return torch.from_numpy(steps.reshape(shape)).mul_(lattice).to(device)


def orthonormal_directions(number: int, d: int, seed: int) -> Tensor:
    """(number, d) orthonormal rows in float64, uniformly at random: the Q of a seeded Gaussian matrix."""
    rows = np.random.default_rng(seed).standard_normal((d, number))
    return torch.from_numpy(np.linalg.qr(rows)[0].T.copy())


def lattice_for(bound: float) -> float:
    """The step of the lattice for messages of norm up to `bound`: 2^-20 of the power of two below it."""
    return 2.0 ** (math.floor(math.log2(bound)) - LATTICE_BITS)


def to_lattice(messages: Tensor, lattice: float) -> Tensor:
    """Messages as float64 whole multiples of `lattice`; each norm grows by at most `lattice` √d / 2."""
    return messages.double().div_(lattice).round_().mul_(lattice)
