"""Where an experiment stands at its server: attempts, nodes and evaluations, beside the journal that any run keeps."""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from normec.algorithms import Server, ServerStep, server_round
from normec.errors import BadInput
from normec.evaluation.evaluate import ScoresRow
from normec.flower.evaluations import Evaluations, EvaluationsTable
from normec.flower.keeper import NEVER, check_hex
from normec.flower.layout import Layout
from normec.flower.terms import Terms
from normec.flower.wire import Answer
from normec.hashed import unsealed
from normec.operators.base import BYTES_OF_A_NUMBER
from normec.privacy import Mechanism, SpentSoFar
from normec.privacy.ledger import read
from normec.privacy.promise import Claim
from normec.runs.folder import MODEL, Checkpoint, Output, RunFolder
from normec.runs.journal import Promise, RunJournal, Standing
from normec.runs.uncovered import beside_the_claim, named_once
from normec.runs.written import MetricsRow, SharedSummary
from normec.settings import Tree
from normec.streams import Streams
from normec.theory.guarantees import guarantee
from normec.version import __version__

COUNTS = (
    *("experiment", "clients", "nodes", "settled", "attempt", "rounds_done", "evaluated"),
    *("transmissions", "bytes_up", "bytes_down", "seconds"),
)
"""What a checkpoint holds beside the vectors."""
NUMBERS = ("rounds_done", "transmissions", "bytes_up", "bytes_down", "seconds")
"""Those of them that are numbers."""


class DeploymentRow(MetricsRow):
    """A line of a deployment's metrics. federation: what became of a round's nodes. evaluation: numbers of the server's evaluation."""

    federation: dict[str, int]
    evaluation: dict[str, float | None]


class ByClients(TypedDict, total=False):
    """What evaluations by the clients have spent, where there are any."""

    evaluation: EvaluationsTable


class DeploymentSummary(SharedSummary, ByClients):
    """The summary of a deployment. settings: its terms."""

    algorithm: str
    convergence: str
    experiment: str
    clients: list[str]
    settings: Tree


@dataclass(kw_only=True)
class ServerState(Standing):
    """Between two rounds. Nothing of it is a client's own: memories never leave the clients.

    nodes: by client, the node that it is bound to. settled: by client, the last attempt whose answer the server has counted.
    evaluated: how many evaluations by the clients counted at the last checkpoint.
    attempt: the id of the present one. cohort: its participants, a mask (M,); where clients draw their own coins, until they have
    answered, whoever may be.
    """

    journal: RunJournal
    terms: Terms
    optimizer: ServerStep
    streams: Streams
    experiment: str
    evaluations: Evaluations | None = None
    clients: tuple[str, ...] = ()
    nodes: dict[str, str] = field(default_factory=dict)
    settled: dict[str, str] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    attempt: str = NEVER
    cohort: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    evaluated: int = 0

    @classmethod
    def open(cls, folder: RunFolder, terms: Terms, optimizer: ServerStep, layout: Layout, start: Tensor, seed: int) -> ServerState:
        """A new experiment from the model `start` (d,), or the one that the folder holds, where it stands.

        Raises:
            BadInput: where the folder holds another experiment, naming the difference, or is damaged.
        """
        _forget_what_never_began(folder)
        mechanism, privacy = terms.mechanism, terms.privacy
        promise = Promise(mechanism, privacy, privacy.delta, SpentSoFar(mechanism, privacy.delta or 0.0))
        state = cls(
            server=Server.start(terms.algorithm, optimizer, start),
            journal=RunJournal(folder, promise, replays=False),
            terms=terms,
            optimizer=optimizer,
            streams=Streams(seed, secret_cohorts=mechanism.trust.promises),
            experiment=secrets.token_hex(16),
        )
        names = {"optimizer": optimizer.optimizer, **optimizer.table()}
        tied = {"tied": dict(layout.copies)} if layout.copies else {}
        trained = {"trained": list(layout.names), **tied}
        state._resume(folder, {**terms.table(), "server": names, **trained, "seed": seed, "normec": __version__})
        if terms.evaluation is not None:
            state.evaluations = Evaluations(folder.path / "evaluation", terms, terms.evaluation, state.evaluated)
        return state

    def _resume(self, folder: RunFolder, settings: Tree) -> None:
        checkpoint = self.journal.open(settings, self._tensors(), NUMBERS)
        if checkpoint is None:
            if self.journal.counted(0):
                raise BadInput("folder", f": {folder.path} has a ledger with rounds and no checkpoint", remedy="Restore it, or use another")
            return
        tensors, counts = checkpoint
        self.server = Server.loaded(tensors, self.terms.algorithm, self.optimizer)
        for name in COUNTS:
            setattr(self, name, counts.get(name, getattr(self, name)))
        self.clients = tuple(self.clients)
        check_hex("experiment", self.experiment)

    @property
    def mechanism(self) -> Mechanism:
        """The one of the training."""
        return self.journal.mechanism

    def began(self, evaluate: Callable[[], Mapping[str, Any]]) -> None:
        """Before the first round of this process; the first time the untrained model is evaluated."""
        self.journal.start_clock(self.seconds)
        if not self.journal.rows:
            self._write({}, evaluate())
            self._checkpoint()

    def where(self) -> str:
        """How far the experiment has come, in words."""
        said = f"round {self.rounds_done} of {self.mechanism.rounds}"
        if self.journal.full and self.rounds_done < self.mechanism.rounds:
            counted = self.journal.counted(self.rounds_done)
            said += f": its ledger counts {counted} attempts, as many as were accounted, and another one would exceed the promise"
        return said

    def goes_on(self) -> bool:
        """Whether another round is planned, and the ledger, where each attempt counts, has room for it."""
        return self.rounds_done < self.mechanism.rounds and not self.journal.full

    def owes_evaluation(self) -> bool:
        """Whether the clients were to be asked of the model as it stands, and were not."""
        return self.evaluations is not None and self.evaluations.owed(self.rounds_done)

    def begin_attempt(self) -> None:
        """Round `rounds_done` begins, once more or for the first time: its intent, then its cohort."""
        self.attempt = _newer_than(self.attempt)
        exposure = self._exposure()
        self.journal.begin(self.rounds_done)
        own = self.mechanism.own_coins
        self.cohort = np.ones(len(self.clients), bool) if own else self.mechanism.cohort(exposure, self.rounds_done, self.streams)

    def begin_evaluation(self, evaluations: Evaluations) -> None:
        """The clients are asked what their own data say of the model after the rounds that are done."""
        self.attempt = _newer_than(self.attempt)
        evaluations.begin(self.rounds_done - 1)

    def transmits(self, client: str) -> bool:
        """Whether a client is in the cohort of this attempt."""
        return bool(self.cohort[self.clients.index(client)])

    def step(self, released: Tensor, asked: Mapping[int, str], answers: Mapping[str, Answer], declined: Iterable[str] = ()) -> None:
        """The server's half of a round, from the released mean (d,) in float64; the answers that entered it count as settled.

        declined: the clients that have refused.
        """
        if self.mechanism.own_coins:  # of all but these a message may have left
            silent = [*declined, *(client for client, answer in answers.items() if answer.message is None)]
            self.cohort[[self.clients.index(client) for client in silent]] = False
        reached = np.isin(np.arange(len(self.clients)), [self.clients.index(client) for client in asked.values()])
        may_have_left = self.cohort & reached  # whether or not they arrived
        self.journal.commit(self.rounds_done, Output(may_have_left, released))
        mean = released.to(self.server.x.dtype)
        self.server = server_round(self.terms.algorithm, self.optimizer, self.server, mean, self.mechanism.rate)
        messages = [answer.message for answer in answers.values() if answer.message is not None]
        moved = (client for client in answers if self.terms.algorithm.everyone_computes or answers[client].message is not None)
        self.settled |= dict.fromkeys(moved, self.attempt)
        self.transmissions += sum(self.transmits(client) for client in answers)
        self.bytes_up += sum(message.numel() * message.element_size() for message in messages)
        self.bytes_down += BYTES_OF_A_NUMBER * len(self.server.x) * len(asked)
        self.rounds_done += 1

    def ended(self, counts: Mapping[str, Any], evaluated: Mapping[str, Any]) -> None:
        """Makes the round durable, before anyone can see what it released."""
        self._write(counts, evaluated)
        self._checkpoint()
        self.journal.end(self.rounds_done - 1)

    def finish(self, folder: RunFolder, tensors: dict[str, Tensor]) -> DeploymentSummary:
        """Writes the model's arrays and the summary, and returns it."""
        evaluated, delta = ByClients(), self.terms.privacy.delta
        if self.evaluations:
            evaluated["evaluation"] = self.evaluations.table(self.journal.spent(), delta)
        summary: DeploymentSummary = {
            **self.journal.summary(self.claim()),
            "algorithm": self.terms.algorithm.name,
            **evaluated,
            "convergence": str(guarantee(self.terms.algorithm, self.optimizer, None, self.mechanism)),
            "experiment": self.experiment,
            "clients": list(self.clients),
            "settings": self.terms.table(),
        }
        summary = beside_the_claim(self.mechanism, delta, summary, self.journal.rows[-1], deployed=True)
        folder.save_tensors(tensors, {}, MODEL)
        folder.save_summary(summary)
        return summary

    def claim(self) -> Claim:
        """What is promised for the planned rounds, or for those that the ledger counts where these are more or the run has ended."""
        exposure = float(self._exposure().max()) if self.clients else 0.0
        return self.journal.claim(exposure, self.evaluations.planned() if self.evaluations else None)

    def _exposure(self) -> Tensor:
        return self.journal.exposure(torch.zeros(self.mechanism.clients, dtype=torch.float64))

    def _tensors(self) -> dict[str, Tensor]:
        return self.server.named(self.terms.algorithm, self.optimizer)

    def _checkpoint(self) -> None:
        self.evaluated = self.evaluations.counted if self.evaluations else 0
        self.journal.save(Checkpoint(self._tensors(), {name: getattr(self, name) for name in COUNTS}))

    def _write(self, counts: Mapping[str, Any], evaluated: Mapping[str, Any]) -> None:
        """Adds a line to the metrics: evaluate_fn's `loss` and `accuracy` under the names of a simulation's."""
        self.seconds = self.journal.seconds
        scores: ScoresRow = {
            "train_loss": None,
            "test_loss": _number(evaluated.get("test_loss", evaluated.get("loss"))),
            "test_accuracy": _number(evaluated.get("test_accuracy", evaluated.get("accuracy"))),
        }
        also = self.evaluations.spent_after(self.rounds_done) if self.evaluations else 0.0
        row = self.journal.row(self, scores, self.bytes_up, self.bytes_down, also)
        numbers = {name: _number(value) for name, value in evaluated.items()}
        line: DeploymentRow = {**row, "simulation_only": None, "federation": dict(counts), "evaluation": numbers}
        self.journal.write(named_once(self.journal.rows, self.mechanism, line, deployed=True))


def _newer_than(attempt: str) -> str:
    """A fresh id of an attempt, which comes after all earlier ones in the order of ids, also those of a process that was killed."""
    return f"{max(time.time_ns(), int(attempt[:16], 16) + 1):016x}{secrets.token_hex(8)}"


def begun_with(folder: RunFolder) -> Tree | None:
    """The settings of the experiment that has begun in a folder; None where none has, or they cannot be read."""
    if not folder.checkpoint.exists():
        return None
    with contextlib.suppress(OSError, ValueError):
        return dict(unsealed(folder.settings.read_text(encoding="utf-8")))
    return None


def _forget_what_never_began(folder: RunFolder) -> None:
    """Clears a folder whose experiment ended before its first round, as where clients refused it: its settings may change."""
    if not folder.checkpoint.exists() and not (folder.ledger.exists() and read(folder.ledger).counted()):
        for path in (folder.settings, folder.ledger, folder.ledger.with_suffix(".head"), folder.metrics):
            path.unlink(missing_ok=True)


def _number(value: Any) -> float | None:
    """A metric as JSON holds it."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
