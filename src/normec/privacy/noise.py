"""The only caller of a Gaussian generator: seeded noise for simulation, secure noise for what leaves a process.

Secure noise comes from the operating system's generator and lives, with the messages, on a lattice: both are whole
multiples of a power of two, so that their sum is exact, and the low bits of a float tell nothing about a message.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from normec.privacy.discrete_gaussian import discrete_gaussian
from normec.streams import Streams

LATTICE_BITS = 20
LATTICE_GAP = 1e-8
"""κ, up to which noise on the lattice may differ from the Gaussian that is accounted; every ε of secure noise holds it."""
TAIL_DEVIATIONS = 13
"""Beyond them a number's noise is left out of κ: 1e-38 of its mass."""
ROUNDING_STD = 12**-0.5
"""The standard deviation of a uniform number between −1/2 and 1/2, of what rounding takes away."""


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


def with_secure_gaussian(total: Tensor, std: float, lattice: float) -> Tensor:
    """A sum (d,) of messages on the lattice plus noise of standard deviation `std` on it, from the operating system's generator.

    In units of the lattice the noise is the discrete Gaussian of scale √(s² + 1/12), s = std / lattice. That is Gaussian
    noise rounded to the lattice, up to a factor of exp(±t⁴/(2880 s⁴)) at t standard deviations (`lattice_gap`), so that what
    is proved of the Gaussian mechanism holds; and it is drawn exactly, so that no weakness of floating point enters.
    Message and noise are added as whole numbers: the float64 that is returned is a function of the exact sum alone.
    """
    scale = math.nextafter(math.hypot(std / lattice, ROUNDING_STD), math.inf)
    noise = torch.from_numpy(discrete_gaussian(total.numel(), scale).reshape(total.shape)).to(total.device)
    return (total.div(lattice).long() + noise).double().mul_(lattice)


def lattice_gap(steps: float, shift: float, numbers: float) -> float:
    """κ: over all numbers that are drawn, the logarithm of how far noise on the lattice is from rounded Gaussian noise.

    At t standard deviations the probabilities of the discrete Gaussian of scale √(s² + 1/12) and of the rounded N(0, s²) differ
    by a factor of at most exp((t⁴ + 3) / (2880 s⁴)), by an expansion in 1/s that is within 3% from s = 4 on.

    steps: s, the noise's standard deviation over the lattice. shift: how far one client moves the sum, in standard deviations.
    numbers: how many are drawn in all rounds.
    """
    return numbers * ((TAIL_DEVIATIONS + shift) ** 4 + 3) / (2880 * steps**4)


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
