"""Noise, and the only caller of a Gaussian generator: seeded noise for simulation, secure noise for what leaves a process.

Secure noise comes from the operating system's generator and lives, with the messages, on a lattice: both are whole
multiples of a power of two, so that their sum is exact, and the low bits of a float tell nothing about a message.

Noise of one's own is a class with three methods: how a release is noised, how that is undone for an audit, and the event that
it is accounted by. One that names no event gets no claim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from normec.algorithms import Slots
from normec.genuine import unchanged
from normec.privacy.discrete_gaussian import discrete_gaussian
from normec.privacy.events import Event, of_table
from normec.streams import Streams

LATTICE_GAP = 1e-8
"""κ, up to which noise on the lattice may differ from the Gaussian that is accounted; every ε of secure noise holds it."""
TAIL_DEVIATIONS = 13
"""Beyond them a number's noise is left out of κ: 1e-38 of its mass."""
ROUNDING_STD = 12**-0.5
"""The standard deviation of a uniform number between −1/2 and 1/2, of what rounding takes away."""


class Released(Protocol):
    """What a noise is told of the mechanism that it belongs to; see `Mechanism`."""

    @property
    def noise_multiplier(self) -> float: ...

    @property
    def distance(self) -> float: ...

    @property
    def rounds(self) -> int: ...


class Draw(NamedTuple):
    """What the noise of round k is drawn with. std: of each coordinate of one independent draw. lattice: 0 for none."""

    std: float
    lattice: float
    streams: Streams
    k: int

    def gaussian(self, like: Tensor) -> Tensor:
        """Independent seeded noise N(0, std² I) of the shape of `like`, in float64; the same each time it is called."""
        return seeded_gaussian(tuple(like.shape), self.std, self.streams, self.k, like.device)


@dataclass(frozen=True)
class Noise:
    """Base: what is added to the sum of each round.

    slots: the names of vectors (d,) that the noise keeps from round to round. They are zero before the first round, part of a run's
    state and of its checkpoints.
    """

    secure: ClassVar[bool] = False
    slots: ClassVar[tuple[str, ...]] = ()

    def start(self, total: Tensor) -> Slots:
        """The slots before the first round, for a sum like this one."""
        return tuple(torch.zeros_like(total, dtype=torch.float64) for _ in self.slots)

    def next(self, state: Slots, total: Tensor, draw: Draw) -> tuple[Tensor, Slots]:
        """The noised sum (d,) of a round from the sum `total` (d,), in float64, and the slots after it.

        What is added must be linear in this draw and those before, with this one's factor 1.
        """
        raise NotImplementedError

    def whiten(self, state: Slots, noised: Tensor) -> tuple[Tensor, Slots]:
        """Undoes `next`: the draw (d,) that `noised` is made of, and the slots after it. Audits look at the draws."""
        raise NotImplementedError

    def dp_event(self, mechanism: Released) -> Event | None:
        """The event of dp-accounting that all rounds of a mechanism are, without amplification; None for no claim.

        Noise multipliers in it are over `mechanism.distance`: `mechanism.noise_multiplier / mechanism.distance` for one
        independent draw. Clients may participate in every round.
        """
        return None


@dataclass(frozen=True)
class Independent(Noise):
    """A fresh draw in each round, of which nothing is kept."""

    def whiten(self, state: Slots, noised: Tensor) -> tuple[Tensor, Slots]:
        return noised, ()

    def dp_event(self, mechanism: Released) -> Event | None:
        import dp_accounting

        one = dp_accounting.GaussianDpEvent(mechanism.noise_multiplier / mechanism.distance)
        return dp_accounting.SelfComposedDpEvent(one, mechanism.rounds)


@dataclass(frozen=True)
class Seeded(Independent):
    """From the run's seed, for simulation: whoever knows the seed can subtract it."""

    def next(self, state: Slots, total: Tensor, draw: Draw) -> tuple[Tensor, Slots]:
        return total + draw.gaussian(total), ()


@dataclass(frozen=True)
class Secure(Independent):
    """From the operating system's generator, on the lattice of the messages."""

    secure: ClassVar[bool] = True

    def next(self, state: Slots, total: Tensor, draw: Draw) -> tuple[Tensor, Slots]:
        return with_secure_gaussian(total, draw.std, draw.lattice), ()


@dataclass(frozen=True)
class Accounted(Noise):
    """Noise of another's making, of which a ledger's first line tells the event. It cannot be drawn.

    of: its import path. table: the event as `events.to_table` writes it, None for none.
    """

    of: str
    table: str | None

    def dp_event(self, mechanism: Released) -> Event | None:
        return None if self.table is None else of_table(self.table)


NOISES: dict[str, Noise] = {"seeded": Seeded(), "secure": Secure()}


def is_independent(noise: Noise) -> bool:
    """Whether it is one of this library's own, of which amplification by sampling is proved; a subclass may draw otherwise.

    So may an object of which a function was replaced.
    """
    return type(noise) in (Seeded, Secure) and unchanged(noise)


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
