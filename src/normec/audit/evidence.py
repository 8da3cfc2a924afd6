"""What a run released, seen from outside: sums recovered from states, less what honest clients sent, along each direction."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from normec.algorithms import Algorithm, Context, ServerAdam, ServerMomentum, ServerStep, Slots, client_step
from normec.audit.canaries import Canaries, CanaryBackend
from normec.errors import BadInput
from normec.local import LocalMethod
from normec.memory import Layout, Memory
from normec.privacy import Mechanism
from normec.recorder import State
from normec.streams import Streams

STEP, ROUNDING = 1e-3, 1e-5
"""What rounding explains of a state's departure: shares of its step, and of its own norm."""
BINS = 60
"""Of the histograms."""


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
    deviation of the noise that was accounted. present: (k,) which canaries transmitted. strength: (k,) what each canary's message
    adds to its own direction: the bound over that standard deviation, zero where it is not present.
    """

    canaries: np.ndarray
    held_out: np.ndarray
    present: np.ndarray
    strength: np.ndarray

    @classmethod
    def of(cls, total: Tensor, std: float, canaries: Canaries, present: np.ndarray, bound: float) -> Measured:
        """From what is left (d,) of the released sum, and the standard deviation that was accounted."""
        along, aside = ((rows.to(total.device) @ total / std).cpu().numpy() for rows in (canaries.directions, canaries.held_out))
        return cls(along, aside, present, bound / std * present)


@dataclass(frozen=True)
class Evidence:
    """All that an audit has measured, in n rounds with a release.

    canaries, held_out, present, strength: (n, k), as of each round. departure: how far a state was, at most, from what its release
    makes of it, over what rounding explains. way_along, way_aside: (k,) cosines of the model's whole way x⁰ − x^K with the
    canaries' directions and the held-out ones, zero where it has not moved.
    """

    canaries: np.ndarray
    held_out: np.ndarray
    present: np.ndarray
    strength: np.ndarray
    departure: float
    way_along: np.ndarray
    way_aside: np.ndarray

    @classmethod
    def of(cls, rounds: Sequence[Measured], departure: float, canaries: Canaries, first: Seen, last: Seen) -> Evidence:
        way = first.x - last.x
        unit = way / way.norm() if bool(way.any()) else way
        along, aside = ((rows.to(way.device) @ unit).cpu().numpy() for rows in (canaries.directions, canaries.held_out))
        projected, held_out, present, strength = (np.stack(values) for values in zip(*rounds, strict=True))
        return cls(projected, held_out, present, strength, departure, along, aside)

    def histograms(self) -> dict[str, Any]:
        """How often each measured value was met, in bins of equal width: edges (b + 1,), and counts (b,) by what was measured."""
        groups = {
            "canaries that took part": self.canaries[self.present],
            "canaries that did not": self.canaries[~self.present],
            "held-out directions": self.held_out.ravel(),
        }
        edges = np.histogram_bin_edges(np.concatenate(list(groups.values())), BINS)
        return {"edges": edges.tolist(), "counts": {name: np.histogram(group, edges)[0].tolist() for name, group in groups.items()}}


@dataclass(frozen=True)
class Watching(Mechanism):
    """A mechanism that writes down who took part in each round."""

    cohorts: dict[int, np.ndarray] = field(default_factory=dict, compare=False)

    @classmethod
    def over(cls, mechanism: Mechanism) -> Watching:
        return cls(**{name: getattr(mechanism, name) for name in Mechanism.__dataclass_fields__})

    def cohort(self, exposure: Tensor, k: int, streams: Streams) -> np.ndarray:
        mask = super().cohort(exposure, k, streams)
        self.cohorts[k] = mask.copy()
        return mask

    def must_give_up(self, participants: int) -> bool:
        """As `gives_up`, by the accounting alone."""
        return self.trust == "secagg" and participants - self.colluders < self.min_honest


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
    """Follows a run round by round. measured: by round, what it has found. first, last: the states at the ends.

    departures: by round, how far the states are from what the recovered release makes of them, over what rounding explains.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        optimizer: ServerStep,
        local: LocalMethod,
        mechanism: Watching,
        backend: CanaryBackend,
        names: tuple[Hashable, ...],
        layout: Layout,
    ) -> None:
        self.algorithm, self.optimizer, self.mechanism, self.backend = algorithm, optimizer, mechanism, backend
        self.scale = algorithm.update_scale(local.lr)
        self.measured: dict[int, Measured] = {}
        self.departures: dict[int, float] = {}
        self.first: Seen | None = None
        self.last: Seen | None = None
        self._done = 0
        self._places = {name: place for place, name in enumerate(names)}
        self._layout = layout._replace(lazy=True)
        self._memory: Memory
        self._before: tuple[np.ndarray, Slots] | None = None

    def __call__(self, state: State) -> None:
        """To be called before the first round and after each one; a round that is done again replaces the first time."""
        now = Seen.of(state)
        if self.last is None or state.rounds_done == 0:
            self.first = now
            self._memory = Memory(self.algorithm.client_slots, len(self._places), state.x, self._layout)
        elif state.rounds_done == self._done + 1:
            self._round(state.rounds_done - 1, self.last, now)
        elif state.rounds_done < self._done and self._before:  # a resumed run, which stands at an earlier checkpoint
            self._memory.write(*self._before)
        self.last, self._done = now, state.rounds_done
        self.backend.updates_seen.clear()

    def _round(self, k: int, before: Seen, after: Seen) -> None:
        cohort = self.mechanism.cohorts[k]
        honest, participants = self._honest(before, cohort), int(cohort.sum())
        if self.mechanism.must_give_up(participants):
            self.departures[k] = 0.0 if all(torch.equal(a, b) for a, b in zip(_vectors(before), _vectors(after), strict=True)) else math.inf
            return
        mean = released(self.algorithm, self.optimizer, before, after, self.mechanism.rate)
        std = self.mechanism.std_of_sum(participants)
        if std == 0:  # nobody was there to add noise, or to send anything
            mean = torch.zeros_like(mean)
        self.departures[k] = self._departure(before, after, mean)
        if std == 0:
            return
        canaries = self.backend.canaries
        present = cohort[[self._places[name] for name in canaries.ids]]
        left = mean * self.mechanism.expected - honest
        self.measured[k] = Measured.of(left, std, canaries, present, self.algorithm.operator.bound)

    def evidence(self) -> Evidence:
        """Of the rounds that released something.

        Raises:
            BadInput: where there are fewer than two.
        """
        if len(self.measured) < 2 or self.first is None or self.last is None:
            problem = f"={self.mechanism.rounds}: {len(self.measured)} released something, and an audit needs more. Raise rounds."
            raise BadInput("rounds", problem)
        measured = [self.measured[k] for k in sorted(self.measured)]
        return Evidence.of(measured, max(self.departures.values()), self.backend.canaries, self.first, self.last)

    def _departure(self, before: Seen, after: Seen, mean: Tensor) -> float:
        """The largest over the model and the server's vectors."""
        direction, server = self.algorithm.server(before.server, mean, self.mechanism.rate)
        x, optimizer = self.optimizer.step(before.x, direction, self.algorithm.server_lr, before.optimizer)
        made = _vectors(Seen(x, server, optimizer))
        found = zip(made, _vectors(before), _vectors(after), strict=True)
        return max(float((m - a).norm() / (STEP * (a - b).norm() + ROUNDING * a.norm() + 1e-30)) for m, b, a in found)

    def _honest(self, before: Seen, cohort: np.ndarray) -> Tensor:
        """The sum (d,) of the honest messages, recomputed in float64 from their updates by the declared algorithm."""
        names = sorted(self.backend.updates_seen, key=self._places.__getitem__)
        self._before = None
        if not names:
            return torch.zeros_like(before.x)
        updates = torch.stack([self.backend.updates_seen[name] for name in names]).double() * self.scale
        places = np.array([self._places[name] for name in names])
        self._memory.reserve(places)
        rows = tuple(slot.to(torch.float64, copy=True) for slot in self._memory.read(places))
        step = client_step(self.algorithm, updates, rows, Context(before.server, _refuse_to_draw))
        self._before = places, rows
        self._memory.write(places, step.memory)
        return step.message[torch.from_numpy(cohort[places]).to(updates.device)].sum(0)


def _vectors(seen: Seen) -> Slots:
    return (seen.x, *seen.server, *seen.optimizer)


def _refuse_to_draw() -> Tensor:
    raise BadInput("algorithm.name", ": its messages are drawn at random, and the audit cannot make them again. Audit another algorithm.")
