"""What a run released, seen from outside: sums recovered from states, less what honest clients sent, along each direction."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from normec.algorithms import Algorithm, Context, ServerAdam, ServerMomentum, ServerStep, Slots, client_step
from normec.audit.canaries import CanaryBackend
from normec.errors import BadInput
from normec.local import LocalMethod
from normec.privacy import Mechanism
from normec.recorder import State
from normec.streams import Streams


class Seen(NamedTuple):
    """What an outsider keeps of a run between two rounds: the model and the server's vectors, (d,) each, in float64."""

    x: Tensor
    server: Slots
    optimizer: Slots

    @classmethod
    def of(cls, state: State) -> Seen:
        """Copies, which later rounds do not change."""
        server, optimizer = (tuple(vector.double().clone() for vector in vectors) for vectors in (state.server, state.optimizer))
        return cls(state.x.double().clone(), server, optimizer)


class Measured(NamedTuple):
    """One round. canaries, held_out: (k,) the released sum less the honest messages along each direction, over the standard
    deviation of the noise that was accounted. present: (k,) which canaries transmitted. strength: the bound over that
    standard deviation, what a canary's message adds to its own direction.
    """

    canaries: np.ndarray
    held_out: np.ndarray
    present: np.ndarray
    strength: float


@dataclass(frozen=True)
class Watching(Mechanism):
    """A mechanism that writes down who took part in each round that released something."""

    cohorts: dict[int, np.ndarray] = field(default_factory=dict)

    @classmethod
    def over(cls, mechanism: Mechanism) -> Watching:
        return cls(**{name: getattr(mechanism, name) for name in Mechanism.__dataclass_fields__})

    def cohort(self, exposure: Tensor, k: int, streams: Streams) -> np.ndarray:
        mask = super().cohort(exposure, k, streams)
        if not self.gives_up(int(mask.sum())):
            self.cohorts[k] = mask.copy()
        return mask


def released(algorithm: Algorithm, optimizer: ServerStep, before: Seen, after: Seen, rate: float) -> Tensor:
    """The released mean (d,) of a round, from the states before and after it.

    A server slot is an affine function of the mean; without slots the direction is, which the model or the optimizer's
    momentum shows before anything else is done to it.

    Raises:
        BadInput: for an algorithm or a server step from whose states it cannot be recovered.
    """
    zero, one = torch.zeros_like(before.x), torch.ones_like(before.x)
    if algorithm.server_slots:
        low, high = (algorithm.server(before.server, mean, rate)[1][0] for mean in (zero, one))
        return (after.server[0] - low) / (high - low)
    low, high = (algorithm.server((), mean, rate)[0] for mean in (zero, one))
    return (_direction(optimizer, algorithm.server_lr, before, after) - low) / (high - low)


def _direction(optimizer: ServerStep, lr: float, before: Seen, after: Seen) -> Tensor:
    if isinstance(optimizer, ServerMomentum):
        return after.optimizer[0] - optimizer.momentum * before.optimizer[0]
    if isinstance(optimizer, ServerAdam):
        return (after.optimizer[0] - optimizer.beta1 * before.optimizer[0]) / (1 - optimizer.beta1)
    if optimizer.slots:
        raise BadInput("server.optimizer", f"={optimizer.optimizer!r}: the audit cannot recover releases from its states. Use sgd.")
    return (before.x - after.x) / lr


class Witness:
    """Follows a run round by round. measured: by round, what it has found. first, last: the states at the ends."""

    def __init__(
        self,
        algorithm: Algorithm,
        optimizer: ServerStep,
        local: LocalMethod,
        mechanism: Watching,
        backend: CanaryBackend,
        names: tuple[Hashable, ...],
    ) -> None:
        self.algorithm, self.optimizer, self.mechanism, self.backend = algorithm, optimizer, mechanism, backend
        self.scale = algorithm.update_scale(local.lr)
        self.measured: dict[int, Measured] = {}
        self.first: Seen | None = None
        self.last: Seen | None = None
        self._done = 0
        self._places = {name: place for place, name in enumerate(names)}
        self._memory: Slots = ()
        self._before: Slots = ()

    def __call__(self, state: State) -> None:
        """To be called before the first round and after each one; a round that is done again replaces the first time."""
        now = Seen.of(state)
        if self.last is None or state.rounds_done == 0:
            self.first = now
            self._memory = tuple(now.x.new_zeros(len(self._places), len(now.x)) for _ in self.algorithm.client_slots)
        elif state.rounds_done == self._done + 1:
            self._round(state.rounds_done - 1, self.last, now)
        elif state.rounds_done < self._done:  # a resumed run, which stands at an earlier checkpoint
            self._memory = self._before
        self.last, self._done = now, state.rounds_done
        self.backend.updates_seen.clear()

    def _round(self, k: int, before: Seen, after: Seen) -> None:
        self._before, self._memory = self._memory, tuple(slot.clone() for slot in self._memory)
        cohort = self.mechanism.cohorts.get(k)
        honest = self._honest(before, cohort)
        participants = 0 if cohort is None else int(cohort.sum())
        std = self.mechanism.std_of_sum(participants)
        if cohort is None or std == 0:  # given up, or nobody was there to add noise
            return
        total = released(self.algorithm, self.optimizer, before, after, self.mechanism.rate) * self.mechanism.expected
        canaries = self.backend.canaries
        along, aside = (directions.to(total.device) @ (total - honest) / std for directions in (canaries.directions, canaries.held_out))
        present = cohort[[self._places[name] for name in canaries.ids]]
        self.measured[k] = Measured(along.cpu().numpy(), aside.cpu().numpy(), present, self.algorithm.operator.bound / std)

    def _honest(self, before: Seen, cohort: np.ndarray | None) -> Tensor:
        """The sum (d,) of the honest messages, recomputed in float64 from their updates by the declared algorithm."""
        names = sorted(self.backend.updates_seen, key=self._places.__getitem__)
        if not names:
            return torch.zeros_like(before.x)
        updates = torch.stack([self.backend.updates_seen[name] for name in names]).double() * self.scale
        places = torch.tensor([self._places[name] for name in names], device=updates.device)
        step = client_step(self.algorithm, updates, tuple(slot[places] for slot in self._memory), Context(before.server, _refuse_to_draw))
        for slot, rows in zip(self._memory, step.memory, strict=True):
            slot[places] = rows
        if cohort is None:
            return torch.zeros_like(before.x)
        return step.message[torch.from_numpy(cohort).to(updates.device)[places]].sum(0)


def _refuse_to_draw() -> Tensor:
    raise BadInput("algorithm.name", ": its messages are drawn at random, and the audit cannot make them again. Audit another algorithm.")
