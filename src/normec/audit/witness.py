"""The witness follows a run round by round, and measures what it releases."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from normec.algorithms import Algorithm, Context, Server, ServerStep, Slots, client_step, server_round
from normec.audit.canaries import Canaries
from normec.audit.evidence import LONGER, Evidence, Measured, Messages
from normec.audit.releases import Seen, released
from normec.engine.loop import Loop
from normec.engine.memory import Layout, Memory
from normec.errors import BadInput, NormecError
from normec.operators import margin, row_norms
from normec.privacy import Local, Mechanism, SecAgg
from normec.privacy.noise import Noise
from normec.runs.observers import Observer
from normec.runs.written import Summary

STEP, NORM = 300, 4
"""What rounding explains of a state's departure, in unit roundoffs: of its step, and of its own norm."""
FAR_OUT = 10.0
"""Standard deviations by which the norm of Gaussian noise never exceeds its mean."""
UNSEEN = 0.1
"""The share of what chance does to the noise's mean square that rounding may do."""


class Whitening:
    """Undoes what noise takes from earlier rounds, alike for all that is measured: what is left of the noise is its own draws."""

    def __init__(self, noise: Noise) -> None:
        self._noise = noise
        self._states: dict[str, Slots] = {}
        self._before: dict[str, Slots] = {}

    def __call__(self, name: str, vector: Tensor) -> Tensor:
        """A vector of the present round, of a sequence of this name."""
        state = self._states[name] if name in self._states else self._noise.start(vector)
        self._before[name] = state
        white, self._states[name] = self._noise.whiten(state, vector)
        return white

    def back(self) -> None:
        """To where it was before the last round."""
        self._states = dict(self._before)


class Witness(Observer):
    """An observer of one run. It takes the claims from the accounting's numbers, and not from the code that acts on them.

    mechanism: as it was accounted. scale: of updates, to the unit that the algorithm bounds. names: the ids of all clients, whose last
    are the canaries. start: where the run has to begin. resumable: keep what a resume from the last round's checkpoint needs.
    most_numbers: of the rows whose messages are computed at once.
    """

    def __init__(
        self,
        *,
        algorithm: Algorithm,
        optimizer: ServerStep,
        scale: float,
        mechanism: Mechanism,
        canaries: Canaries,
        names: tuple[Hashable, ...],
        layout: Layout,
        start: Seen,
        resumable: bool = False,
        most_numbers: int = Loop.most_numbers,
    ) -> None:
        self.algorithm, self.optimizer, self.scale = algorithm, optimizer, scale
        self.mechanism, self.canaries, self.resumable, self._most_numbers = mechanism, canaries, resumable, most_numbers
        self.cohorts: dict[int, np.ndarray] = {}
        self.measured: dict[int, Measured] = {}
        self.departures: dict[int, float] = {}
        self.published = 0.0
        """Infinite where a state was seen that no round explains."""
        self.longest = 0.0
        self.rounding = 0.0
        self.start = start
        self.first: Seen | None = None
        self.last: Seen | None = None
        self._done = 0
        self._places = {name: place for place, name in enumerate(names)}
        self._honest = len(names) - len(canaries.ids)
        self._layout = layout._replace(lazy=True)
        self._like: Tensor
        self._memory: Memory
        self._before: tuple[np.ndarray, Slots] | None = None
        self._updates: dict[Hashable, Tensor] = {}
        self._lock = threading.Lock()
        self._white = Whitening(mechanism.noise)

    def computed(self, clients: Sequence[Hashable], updates: Tensor) -> None:
        """Keeps the updates (d,) of the current round."""
        with self._lock:
            self._updates.update(zip(clients, updates.clone(), strict=True))

    def released(self, rounds_done: int, server: Server, cohort: np.ndarray | None, mean: Tensor | None) -> None:
        """Compares the state with the one that the round before explains; a round that is done again replaces the first time.

        The released mean is recovered from what the server holds, and not taken from the run's own word.
        """
        now, like, done = Seen.of(server), server.x, rounds_done
        if cohort is not None:
            self.cohorts[done - 1] = cohort.copy()
        if self.last is None or done == 0:
            self.first, self._like = now, like
            self._memory = Memory(self.algorithm.client_slots, len(self._places), like, self._layout)
            self._expect(now, self.start)
        elif done == self._done:  # nothing may have happened since
            self._expect(now, self.last)
        elif done == self._done + 1:
            self._round(done - 1, self.last, now)
        elif done < self._done and self._before:  # a resumed run, which stands at an earlier checkpoint
            self._memory.write(*self._before)
            self._white.back()
        self.last, self._done = now, done
        self._updates.clear()

    def finished(self, model: nn.Module, summary: Summary) -> None:
        """Checks that the final model is the last one that was seen."""
        given = parameters_to_vector(parameter for parameter in model.parameters() if parameter.requires_grad)
        if self.last is not None and not torch.equal(given.to(self.last.server.x), self.last.server.x):
            self.published = math.inf

    def _expect(self, seen: Seen, right: Seen) -> None:
        if not seen.equals(right):
            self.published = math.inf

    def evidence(self) -> Evidence:
        """The evidence of the rounds that measured something.

        Raises:
            NormecError: where it would show nothing.
        """
        rounds, measured = self.mechanism.rounds, [self.measured[k] for k in sorted(self.measured)]
        if len(measured) < 2 or self.first is None or self.last is None:
            trust = self.mechanism.trust
            cause = f" (privacy.min_honest={trust.min_honest})" if isinstance(trust, SecAgg) else ""
            raise NormecError(f"the audit shows nothing: {len(measured)} of {rounds} rounds measured something{cause}, and two are needed")
        if not any(one.present.any() for one in measured):
            raise NormecError(f"the audit shows nothing: no canary took part in {len(measured)} rounds. Raise rounds, or --canaries")
        d = len(self.last.server.x)
        if self.longest <= LONGER and self.rounding**2 > UNSEEN * math.sqrt(2 / (len(measured) * d)):
            share = f"rounding is about {self.rounding:.2g} of the noise that was accounted"
            remedy = "Add noise" if self._like.dtype == torch.float64 else "Use engine.dtype=float64"
            raise NormecError(f"the audit shows nothing: {share}, which hides what it looks for. {remedy}")
        cohorts = np.stack([self.cohorts[k][: self._honest] for k in sorted(self.departures)])
        ends, departure = (self.first, self.last), _largest(self.published, *self.departures.values())
        return Evidence.of(measured, cohorts, departure=departure, longest=self.longest, canaries=self.canaries, ends=ends)

    def _round(self, k: int, before: Seen, after: Seen) -> None:
        mechanism, cohort = self.mechanism, self.cohorts[k]
        messages, participants = self._messages(before, cohort), int(cohort.sum())
        trust = mechanism.trust
        if isinstance(trust, SecAgg) and participants - trust.colluders < trust.min_honest:  # to be given up
            self.departures[k] = 0.0 if after.equals(before) else math.inf
            return
        mean, rounding = released(self.algorithm, self.optimizer, before, after, mechanism.rate)
        std = self._accounted_std(participants)
        if std == 0:  # nobody was there to add noise, or to send anything
            self.departures[k] = self._departure(before, after, torch.zeros_like(mean))
            return
        self.departures[k] = self._departure(before, after, mean)
        bound = self.algorithm.operator.bound
        summing = (after.unit * bound / math.sqrt(len(mean)) + mechanism.lattice) * math.sqrt(participants)
        self.rounding = _largest(self.rounding, math.hypot(rounding * mechanism.expected, summing) / std)
        white, sent = self._white, messages
        messages = sent._replace(honest=white("honest", sent.honest), canaries=white("canaries", sent.canaries))
        total = white("released", mean * mechanism.expected)
        alone = total + (sent.honest - messages.honest) + (sent.canaries - messages.canaries)  # with its own draw of noise alone
        most = participants * bound + std * (math.sqrt(len(mean)) + FAR_OUT)
        self.longest = _largest(self.longest, float(alone.norm()) / most)
        present = cohort[self._honest :]
        strength = white("strength", torch.from_numpy(present * bound)).numpy() / std
        self.measured[k] = Measured.of(
            total, std, canaries=self.canaries, strength=strength, messages=messages, cohort=cohort, rounds=mechanism.rounds
        )

    def _accounted_std(self, participants: int) -> float:
        """The standard deviation of the noise on the sum, by the accounted noise multiplier and the declared bound."""
        draws = participants if isinstance(self.mechanism.trust, SecAgg | Local) else 1
        return self.mechanism.noise_multiplier * self.algorithm.operator.bound * math.sqrt(draws)

    def _departure(self, before: Seen, after: Seen, mean: Tensor) -> float:
        """The largest over the model and the server's vectors."""
        made = server_round(self.algorithm, self.optimizer, before.server, mean, self.mechanism.rate)
        vectors = zip(made.vectors, before.server.vectors, after.server.vectors, strict=True)
        return _largest(*(float((m - a).norm() / (after.unit * (STEP * (a - b).norm() + NORM * a.norm()) + 1e-30)) for m, b, a in vectors))

    def _messages(self, before: Seen, cohort: np.ndarray) -> Messages:
        """Recomputed in float64 from the clients' updates by the declared algorithm; moves their memories."""
        seen = self._updates
        names = sorted(seen, key=self._places.__getitem__)
        places = np.array([self._places[name] for name in names], dtype=int)
        rows = self._like.new_empty(len(names), len(self._like))
        sums = {kind: torch.zeros_like(before.server.x) for kind in ("honest", "canaries", "absent")}
        self._memory.reserve(places)
        self._before = (places, tuple(slot.clone() for slot in self._memory.read(places))) if self.resumable else None
        bound, inside = self.algorithm.operator.bound, 1 - margin(rows.dtype)  # the run's own, and not float64's
        at_once = max(1, self._most_numbers // rows.shape[1])
        for start in range(0, len(names), at_once):
            block = slice(start, start + at_once)
            updates = torch.stack([seen.pop(name) for name in names[block]]).double() * self.scale
            memory = tuple(slot.double() for slot in self._memory.read(places[block]))
            step = client_step(self.algorithm, updates, memory, Context(before.server.slots, refuse_to_draw(self.algorithm)))
            self._memory.write(places[block], step.memory)
            norms = row_norms(step.message)
            self.longest = _largest(self.longest, float(norms.max()) / bound)
            messages = step.message * (inside * bound / norms).clamp(max=1)[:, None].nan_to_num(1.0)
            rows[block] = messages.to(rows.dtype)
            sent, honest = cohort[places[block]], places[block] < self._honest
            for kind, chosen in (("honest", sent & honest), ("canaries", sent & ~honest), ("absent", ~sent)):
                sums[kind] += messages[torch.from_numpy(chosen).to(messages.device)].sum(0)
        return Messages(places, rows, **sums)


def _largest(*values: float) -> float:
    """NaN where one of them is."""
    return float(np.max(values))


def refuse_to_draw(algorithm: Algorithm) -> Callable[[], Tensor]:
    """In place of the randomness of operators that draw."""

    def refuse() -> Tensor:
        raise BadInput(
            "algorithm.name",
            "draws its messages at random, and the audit cannot make them again",
            value=algorithm.name,
            remedy="Audit another algorithm",
        )

    return refuse
