"""The clients' half of a round: local updates, messages, memories, and the sum of what is transmitted."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor

from normec.algorithms import Algorithm, Context, Slots, check_bound, client_step
from normec.data import Federation
from normec.engine.loop import Backend, Task
from normec.engine.memory import Memory
from normec.engine.ranks import Ranks
from normec.engine.workers import Workers
from normec.errors import ModelFailed, TrainingFailed, plural, some_of
from normec.local import LocalMethod
from normec.models import FlatModel, LocalSteps
from normec.operators import row_norms, usable
from normec.privacy.aggregation import Aggregation
from normec.streams import Streams

SAMPLES_KEPT = 2**14
"""Clients whose views on their samples are kept: making them costs as much as a small client's step."""


class SimulationOnly(TypedDict, total=False):
    """What no server would see of a round: norms over its clients, None where none computed, and what `Theory` asks for.

    memory_error: max_i ‖g_i − v_i‖. bounded_share: of the messages, those that the bound has changed. dropped: how many clients were
    left out. objective: f(x). gradient_norm: ‖∇f(x)‖. smoothness_seen: ‖∇f(x) − ∇f(y)‖ / ‖x − y‖, y the model of the round before.
    """

    update_norm_mean: float | None
    update_norm_max: float | None
    memory_error: float | None
    bounded_share: float | None
    dropped: int
    objective: float | None
    gradient_norm: float | None
    smoothness_seen: float | None


@dataclass
class ClientStatistics:
    """Statistics of one round's clients that only a simulation can see, as sums and maxima over the clients."""

    computed: float = 0.0
    finite: float = 0.0
    saturated: float = 0.0
    update_sum: float = 0.0
    update_max: float = 0.0
    residual_max: float = 0.0

    def add(self, block: _Block) -> None:
        """Adds the clients of a block."""
        finite = usable(block.update_norms)
        self.computed += len(finite)
        self.finite += int(finite.sum())
        self.saturated += block.saturated
        if bool(finite.any()):
            self.update_sum += float(block.update_norms[finite].sum())
            self.update_max = max(self.update_max, float(block.update_norms[finite].max()))
            self.residual_max = max(self.residual_max, float(block.residual_norms[finite].max()))

    def parts(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """The sums and the largest values, as tensors of the type and device of another."""
        sums = like.new_tensor([self.computed, self.finite, self.saturated, self.update_sum])
        return sums, like.new_tensor([self.update_max, self.residual_max])

    def summary(self, remembers: bool) -> SimulationOnly:
        """The norms. remembers: whether the clients keep memories, which could be in error."""
        if not self.computed:
            return {"update_norm_mean": None, "update_norm_max": None, "memory_error": None, "bounded_share": None, "dropped": 0}
        return {
            "update_norm_mean": self.update_sum / max(self.finite, 1.0),
            "update_norm_max": self.update_max,
            "memory_error": self.residual_max if remembers and self.finite else None,
            "bounded_share": self.saturated / self.computed,
            "dropped": int(self.computed - self.finite),
        }


@dataclass(frozen=True)
class _Block:
    total: Tensor
    buffers: Tensor
    update_norms: Tensor
    residual_norms: Tensor
    saturated: int


@dataclass
class Clients:
    """All the clients of a simulated federation: their data, their memories, and how they compute.

    strict: end the run when the model fails on a client, or its update is not finite (without privacy); otherwise such a client's
    message is zero and its memory stays (with privacy, where an error would tell on the client). backend: how local updates are
    computed. ranks: the processes that share the clients. counters: which moving buffers (bool, (m,)) are whole numbers. lattice: the
    step on which messages are transmitted, 0 for none. bound: C, past which a message ends the run; infinite where nothing rests on
    it. computed: is shown the local updates of each block of clients, with their ids.
    """

    federation: Federation
    local: LocalMethod
    algorithm: Algorithm
    memory: Memory
    workers: Workers
    streams: Streams
    backend: Backend
    ranks: Ranks
    strict: bool
    counters: Tensor
    aggregation: Aggregation = Aggregation()  # noqa: RUF009 (immutable)
    bound: float = math.inf
    computed: Callable[[Sequence[Hashable], Tensor], None] | None = None

    def round(self, x: Tensor, buffers: Tensor, server: Slots, cohort: np.ndarray, k: int) -> tuple[Tensor, Tensor, ClientStatistics]:
        """Round k at the model x (d,), its moving buffers (m,) and the server's slots.

        Returns the sum (d,), in float64, of the cohort's messages, the cohort's mean buffers (of counters the largest), and statistics.
        Clients that compute move their memories, whether or not they are in the cohort (a mask of shape (M,)).
        """
        total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        statistics, computing = ClientStatistics(), self.ranks.own(self.computing(cohort))
        self.memory.reserve(computing)

        sums, largest = torch.zeros_like(buffers), torch.full_like(buffers, -torch.inf)  # of the moving buffers

        def work(model: FlatModel, clients: np.ndarray) -> _Block:
            model.start_from(buffers)
            return self._block(model, x, server, clients, cohort, k)

        for block in self.workers.map(work, self._blocks(computing, len(x))):
            total += block.total
            sums += block.buffers.sum(0)
            largest = torch.cat([largest[None], block.buffers]).amax(0)
            statistics.add(block)
        seen, most = statistics.parts(total)
        together, top = self.ranks.combine(torch.cat([total, seen, sums]), torch.cat([most, largest]))
        total, seen, sums = torch.split(together, [len(total), len(seen), len(sums)])
        most, largest = torch.split(top, [len(most), len(largest)])
        if cohort.any():
            buffers = torch.where(self.counters, largest, sums / int(cohort.sum()))
        return total, buffers, ClientStatistics(*seen.tolist(), *most.tolist())

    def computing(self, cohort: np.ndarray) -> np.ndarray:
        """The indices of the clients that compute in a round with this cohort."""
        return np.arange(len(cohort)) if self.algorithm.everyone_computes else np.flatnonzero(cohort)

    def start(self, x: Tensor, start: Callable[[Tensor], Slots]) -> tuple[Tensor, ...]:
        """Moves every memory to the algorithm's `start` at x (d,); returns the mean of each slot (d,)."""
        everyone = self.ranks.own(np.arange(len(self.federation)))
        self.memory.reserve(everyone)

        def work(model: FlatModel, clients: np.ndarray) -> tuple[Tensor, ...]:
            memory = start(self._updates(model, x, clients, 0, None)[0])
            self.memory.write(clients, memory)
            return tuple(slot.sum(0, dtype=torch.float64) for slot in memory)

        starts = torch.zeros(len(self.algorithm.server_slots), len(x), dtype=torch.float64, device=x.device)
        for sums in self.workers.map(work, self._blocks(everyone, len(x))):
            starts += torch.stack(sums)
        return tuple((self.ranks.sum(starts) / len(self.federation)).to(x.dtype))

    def _block(self, model: FlatModel, x: Tensor, server: Slots, clients: np.ndarray, cohort: np.ndarray, k: int) -> _Block:
        memory = self.memory.read(clients)
        correct = self.algorithm.local_rule.correction
        update, buffers = self._updates(model, x, clients, k, correct and correct(memory, server))
        update_norms = row_norms(update)
        if self.strict:
            self._refuse_broken(clients, update_norms, k)
        step = client_step(self.algorithm, update, memory, Context(server, lambda: self._uniform(update, clients, k)), update_norms)
        residual_norms = update_norms if step.residual is update else row_norms(step.residual)
        messages = self.aggregation.encode(step.message)
        if not cohort[clients].all():
            transmitted = torch.from_numpy(cohort[clients]).to(x.device)
            messages, buffers = messages[transmitted], buffers[transmitted]
        self._check_bound(messages, update.dtype, k)
        total = messages.sum(0, dtype=torch.float64)
        self.memory.write(clients, step.memory)  # last: messages and residuals may be views of old rows
        return _Block(
            total=total,
            buffers=buffers,
            update_norms=update_norms,
            residual_norms=residual_norms,
            saturated=int((self.algorithm.operator.saturates(residual_norms) & usable(residual_norms)).sum()),
        )

    def _refuse_broken(self, clients: np.ndarray, update_norms: Tensor, k: int) -> None:
        """Ends a run at the first updates that are not finite, naming the clients."""
        broken = clients[~usable(update_norms).cpu().numpy()]
        if len(broken):
            whose = some_of([self.federation.ids[client] for client in broken], len(clients), "client")
            remedy = "Lower local.lr or algorithm.server_lr, or check the data of such clients"
            if k == 0:
                remedy = "Check the data of such clients, the model's first parameters and the loss, or lower local.lr"
            raise TrainingFailed(f"round {k + 1}: the update of {whose} is not finite. {remedy}.")

    def _check_bound(self, messages: Tensor, dtype: torch.dtype, k: int) -> None:
        """Ends a run whose algorithm does not keep its bound, before anything of the round is released; without naming whose message."""
        if self.bound == math.inf:
            return
        try:
            check_bound(self.algorithm, messages, self.bound, dtype)
        except TrainingFailed as error:
            raise TrainingFailed(f"round {k + 1}: {error} Nothing of this round is released.") from None

    def _uniform(self, like: Tensor, clients: np.ndarray, k: int) -> Tensor:
        """Uniform numbers in [0, 1), (G, d), from a stream of each client."""
        rows = [self.streams.generator("compressor", k, client).random(like.shape[1]) for client in clients.tolist()]
        return torch.from_numpy(np.stack(rows)).to(like.device, like.dtype)

    def _updates(self, model: FlatModel, x: Tensor, clients: np.ndarray, k: int, correction: Tensor | None) -> tuple[Tensor, Tensor]:
        """Scaled local updates (G, d) of these clients, in the unit that the algorithm bounds, and their moving buffers (G, m).

        correction: (G, d), what every gradient of a client is corrected by.
        """
        out = torch.empty(len(clients), len(x), dtype=x.dtype, device=x.device)
        rule = self.algorithm.local_rule
        steps = LocalSteps(self.local.lr, proximal=rule.proximal)
        own = [steps if correction is None else steps._replace(correction=correction[row]) for row in range(len(clients))]
        tasks = [self._task(client, k, each) for client, each in zip(clients.tolist(), own, strict=True)]
        buffers = torch.empty(len(clients), len(self.counters), dtype=torch.float64, device=x.device)
        failures = self.backend.updates(model, x, tasks, k, out, buffers)
        if self.computed:
            self.computed([task.client for task in tasks], out)
        if failures and self.strict:
            row, error = next(iter(sorted(failures.items())))
            held, reason = plural(len(tasks[row].samples[1]), "sample"), " ".join(str(error).split()).rstrip(".")
            raise ModelFailed(
                f"round {k + 1}: the model fails on the {held} of client {tasks[row].client!r} "
                f"({type(error).__name__}: {reason}). Change the model, or that client's data."
            ) from error
        scale = rule.scale(self.local.lr)
        return (out if scale == 1.0 else out.mul_(scale)), buffers

    def __post_init__(self) -> None:
        mapped = self.federation.rows is not None  # whose samples are copies, not to be kept
        self._samples = self.federation.client if mapped else lru_cache(maxsize=SAMPLES_KEPT)(self.federation.client)

    def _task(self, client: int, k: int, steps: LocalSteps) -> Task:
        samples = self._samples(client)
        held = samples[1].shape[0]
        divisor = self.local.divisor(held)
        return Task(
            client=self.federation.ids[client],
            position=client,
            samples=samples,
            schedule=self.local.schedule(held, k, client, self.streams),
            steps=steps if divisor is None else steps._replace(divisor=divisor),
            seed=lambda: self.streams.torch_seed("forward", k, client),
        )

    def _blocks(self, clients: np.ndarray, d: int) -> Iterator[np.ndarray]:
        rows = max(1, min(self.backend.most_rows, self.backend.most_numbers // d))
        return (clients[start : start + rows] for start in range(0, len(clients), rows))
