"""Noise of a user's own: each release carries a fresh draw and the one before it."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import dp_accounting
from torch import Tensor

from normec.privacy.noise import Draw, Noise, Released


class Echo(Noise):
    """w_k + w_{k−1}. Undoing it turns a client's messages c_k into Σ_j (−1)^{k−j} c_j, of norm at most k."""

    slots: ClassVar[tuple[str, ...]] = ("previous",)

    def next(self, state: tuple[Tensor, ...], total: Tensor, draw: Draw) -> tuple[Tensor, tuple[Tensor, ...]]:
        fresh = draw.gaussian(total)
        return total + fresh + state[0], (fresh,)

    def whiten(self, state: tuple[Tensor, ...], noised: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        fresh = noised - state[0]
        return fresh, (fresh,)

    def dp_event(self, mechanism: Released) -> Any:
        reach = math.sqrt(sum(k**2 for k in range(1, mechanism.rounds + 1)))
        return dp_accounting.GaussianDpEvent(mechanism.noise_multiplier / (mechanism.distance * reach))


class Unaccounted(Echo):
    """The same, which nobody has accounted."""

    def dp_event(self, mechanism: Released) -> None:
        return None


class Forgetful(Echo):
    """Says that it carries the draw before, and does not."""

    def next(self, state: tuple[Tensor, ...], total: Tensor, draw: Draw) -> tuple[Tensor, tuple[Tensor, ...]]:
        fresh = draw.gaussian(total)
        return total + fresh, (fresh,)


class CallsItselfSecure(Echo):
    """Would have a lattice, and its slots would be lost where an output is released after a crash."""

    secure: ClassVar[bool] = True
