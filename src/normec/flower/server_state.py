"""Where an experiment stands at its server, and its folder: checkpoint, metrics, ledger and summary."""

from __future__ import annotations

import math
import platform
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normec.algorithms import Server, ServerStep, server_round
from normec.errors import BadInput
from normec.flower.evaluations import Evaluations
from normec.flower.keeper import NEVER, check_hex
from normec.flower.layout import Layout
from normec.flower.terms import Terms
from normec.flower.wire import Answer
from normec.operators.base import BYTES_OF_A_NUMBER
from normec.privacy import Mechanism, Spent, SpentSoFar, epsilon
from normec.privacy.header import Header
from normec.privacy.ledger import Ledger, read
from normec.privacy.promise import Claim, claim_table, state_claim
from normec.runs.folder import MODEL, NO_ROUND, Output, RunFolder
from normec.streams import Streams
from normec.theory.guarantees import guarantee
from normec.version import __version__, versions

COUNTS = (
    *("experiment", "clients", "nodes", "settled", "attempt", "rounds_done", "evaluated"),
    *("transmissions", "bytes_up", "bytes_down", "seconds"),
)
"""What a checkpoint holds beside the vectors."""


@dataclass
class ServerState:
    """Between two rounds. Nothing of it is a client's own: memories never leave the clients.

    nodes: by client, the node that it is bound to. settled: by client, the last attempt whose answer the server has counted.
    evaluated: how many evaluations by the clients counted at the last checkpoint.
    attempt: the id of the present one. cohort: its participants, a mask (M,). exposure: (M,) Σ 1/h_k over each client's
    rounds, where participants add the noise.
    """

    folder: RunFolder
    terms: Terms
    optimizer: ServerStep
    mechanism: Mechanism
    streams: Streams
    spent: SpentSoFar
    server: Server
    experiment: str
    ledger: Ledger | None = None
    evaluations: Evaluations | None = None
    clients: tuple[str, ...] = ()
    nodes: dict[str, str] = field(default_factory=dict)
    settled: dict[str, str] = field(default_factory=dict)
    rounds_done: int = 0
    transmissions: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    attempt: str = NEVER
    cohort: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    evaluated: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def open(cls, folder: RunFolder, terms: Terms, optimizer: ServerStep, layout: Layout, start: Tensor, seed: int) -> ServerState:
        """A new experiment from the model `start` (d,), or the one that the folder holds, where it stands.

        Raises:
            BadInput: where the folder holds another experiment, naming the difference, or is damaged.
        """
        _forget_what_never_began(folder)
        names = {"optimizer": optimizer.optimizer, **optimizer.table()}
        tied = {"tied": dict(layout.copies)} if layout.copies else {}
        trained = {"trained": list(layout.names), **tied}
        folder.check_settings({**terms.table(), "server": names, **trained, "seed": seed, "normec": __version__})
        mechanism = terms.mechanism
        state = cls(
            folder=folder,
            terms=terms,
            optimizer=optimizer,
            mechanism=mechanism,
            streams=Streams(seed, secret_cohorts=mechanism.trust.promises),
            spent=SpentSoFar(mechanism, terms.privacy.delta or 0.0),
            server=Server.start(terms.algorithm, optimizer, start),
            experiment=secrets.token_hex(16),
        )
        state._resume()
        if terms.evaluation is not None:
            state.evaluations = Evaluations(folder.path / "evaluation", terms, terms.evaluation, state.evaluated)
        return state

    def _resume(self) -> None:
        if self.mechanism.trust.promises:
            privacy, accountant = self.terms.privacy, self.spent.planned.accountant
            self.ledger = Ledger.open(self.folder.ledger, Header.of(self.mechanism, privacy, privacy.delta, accountant).table())
            self.ledger.check_covers(self.folder.visible_rounds(), output=False)
        found = self.folder.load_checkpoint()
        self.rows = self.folder.start_metrics(int(found[1]["rounds_done"]) if found else NO_ROUND)
        if found is None:
            if self.ledger and self.ledger.counted():
                raise BadInput("folder", f": {self.folder.path} has a ledger with rounds and no checkpoint. Restore it, or use another.")
            return
        tensors, counts = found
        vectors = self._tensors()
        if any(name not in tensors or tensors[name].shape != vector.shape for name, vector in vectors.items()):
            raise BadInput("folder", f": the checkpoint in {self.folder.path} is damaged. Restore it, or use another folder.")
        self.server = Server.loaded(tensors, self.terms.algorithm, self.optimizer)
        for name in COUNTS:
            setattr(self, name, counts.get(name, getattr(self, name)))
        self.clients = tuple(self.clients)
        check_hex("experiment", self.experiment)
        if self.ledger is not None:
            self.ledger.check_holds(counts.get("ledger"))

    def began(self, evaluate: Callable[[], Mapping[str, Any]]) -> None:
        """Before the first round of this process; the first time the untrained model is evaluated."""
        self._clock = time.perf_counter() - self.seconds
        if not self.rows:
            self._write({}, evaluate())
            self._checkpoint()

    def where(self) -> str:
        """How far the experiment has come, in words."""
        said = f"round {self.rounds_done} of {self.mechanism.rounds}"
        counted = self.ledger.counted() if self.ledger else self.rounds_done
        if counted >= self.mechanism.rounds > self.rounds_done:
            said += f": its ledger counts {counted} attempts, as many as were accounted, and another one would exceed the promise"
        return said

    def goes_on(self) -> bool:
        """Whether another round is planned, and the ledger, where each attempt counts, has room for it."""
        if self.ledger is not None and self.ledger.counted() >= self.mechanism.rounds:
            return False
        return self.rounds_done < self.mechanism.rounds

    def owes_evaluation(self) -> bool:
        """Whether the clients were to be asked of the model as it stands, and were not."""
        return self.evaluations is not None and self.evaluations.owed(self.rounds_done)

    def begin_attempt(self) -> None:
        """Round `rounds_done` begins, once more or for the first time: its intent, then its cohort."""
        self.attempt = _newer_than(self.attempt)
        exposure = self._exposure()
        if self.ledger is not None:
            self.ledger.intent(self.rounds_done)
        self.cohort = self.mechanism.cohort(exposure, self.rounds_done, self.streams)

    def begin_evaluation(self, evaluations: Evaluations) -> None:
        """The clients are asked what their own data say of the model after the rounds that are done."""
        self.attempt = _newer_than(self.attempt)
        evaluations.begin(self.rounds_done - 1)

    def transmits(self, client: str) -> bool:
        """Whether a client is in the cohort of this attempt."""
        return bool(self.cohort[self.clients.index(client)])

    def step(self, released: Tensor, asked: Mapping[int, str], answers: Mapping[str, Answer]) -> None:
        """The server's half of a round, from the released mean (d,) in float64; the answers that entered it count as settled."""
        if self.ledger is not None:
            output = Output(self.cohort, released).fingerprint()
            self.ledger.commit(self.rounds_done, output, **self._participants(asked))
        mean = released.to(self.server.x.dtype)
        self.server = server_round(self.terms.algorithm, self.optimizer, self.server, mean, self.mechanism.rate)
        messages = [answer.message for answer in answers.values() if answer.message is not None]
        self.settled |= dict.fromkeys(answers, self.attempt)
        self.transmissions += sum(self.transmits(client) for client in answers)
        self.bytes_up += sum(message.numel() * message.element_size() for message in messages)
        self.bytes_down += BYTES_OF_A_NUMBER * len(self.server.x) * len(asked)
        self.rounds_done += 1

    def ended(self, counts: Mapping[str, Any], evaluated: Mapping[str, Any]) -> None:
        """Makes the round durable, before anyone can see what it released."""
        self._write(counts, evaluated)
        self._checkpoint()
        if self.ledger is not None:
            self.ledger.release(self.rounds_done - 1)

    def finish(self, tensors: dict[str, Tensor]) -> dict[str, Any]:
        """Writes the model's arrays and the summary, and returns it."""
        last, privacy = self.rows[-1], self.terms.privacy
        summary = {
            **claim_table(self.mechanism, self.claim(), privacy.noise),
            "algorithm": self.terms.algorithm.name,
            **({"evaluation": self.evaluations.table(self._claimed(), privacy.delta)} if self.evaluations else {}),
            "convergence": str(guarantee(self.terms.algorithm, self.optimizer, None, self.mechanism)),
            **{name: last[name] for name in ("test_accuracy", "test_loss", "transmissions", "bytes_up", "bytes_down", "seconds")},
            "rounds": last["round"],
            "experiment": self.experiment,
            "clients": list(self.clients),
            "settings": self.terms.table(),
            "versions": {**versions(), "python": platform.python_version()},
        }
        self.folder.save_tensors(tensors, {}, MODEL)
        self.folder.save_summary(summary)
        return summary

    def claim(self) -> Claim:
        """What is promised for the planned rounds, or for those that the ledger counts where these are more or the run has ended."""
        limit, exposure = self.terms.privacy.client_limit, float(self._exposure().max()) if self.clients else 0.0
        evaluated = self.evaluations.planned() if self.evaluations else None
        return state_claim(self.mechanism, self._claimed(), self.terms.privacy.delta or 0.0, exposure, limit, evaluated)

    def _claimed(self) -> Spent:
        counted = self.ledger.counted() if self.ledger else 0
        if counted <= self.mechanism.rounds:
            return self.spent.planned
        return epsilon(replace(self.mechanism, rounds=counted), self.terms.privacy.delta or 0.0)

    def _exposure(self) -> Tensor:
        if self.ledger is None or not self.mechanism.trust.per_client:
            return torch.zeros(self.mechanism.clients, dtype=torch.float64)
        return torch.from_numpy(self.ledger.exposures(self.mechanism))

    def _participants(self, asked: Mapping[int, str]) -> dict[str, Any]:
        """Of the clients that were asked for a message, the indices: whether or not it arrived, it may have left."""
        if not self.mechanism.trust.per_client:
            return {}
        chosen = sorted(self.clients.index(client) for client in asked.values() if self.transmits(client))
        return {"participants": chosen, "exposure": self.mechanism.trust.exposure(len(chosen))}

    def _tensors(self) -> dict[str, Tensor]:
        return self.server.named(self.terms.algorithm, self.optimizer)

    def _checkpoint(self) -> None:
        self.evaluated = self.evaluations.counted if self.evaluations else 0
        head = {"ledger": self.ledger.head} if self.ledger is not None else {}
        self.folder.save_checkpoint(self._tensors(), {name: getattr(self, name) for name in COUNTS} | head)

    def _write(self, counts: Mapping[str, Any], evaluated: Mapping[str, Any]) -> None:
        """Adds a line to the metrics: evaluate_fn's `loss` and `accuracy` under the names of a simulation's."""
        self.seconds = time.perf_counter() - self._clock
        spent = self.spent.after(self.ledger.counted() if self.ledger else self.rounds_done)
        spent += self.evaluations.spent_after(self.rounds_done) if self.evaluations else 0.0
        row = {
            "round": self.rounds_done,
            "train_loss": None,
            "test_loss": _number(evaluated.get("test_loss", evaluated.get("loss"))),
            "test_accuracy": _number(evaluated.get("test_accuracy", evaluated.get("accuracy"))),
            **{name: getattr(self, name) for name in ("transmissions", "bytes_up", "bytes_down")},
            "epsilon": spent if math.isfinite(spent) else None,
            "seconds": round(self.seconds, 3),
            "simulation_only": None,
            "federation": dict(counts),
            "evaluation": {name: _number(value) for name, value in evaluated.items()},
        }
        self.rows.append(row)
        self.folder.append_metrics(row)


def _newer_than(attempt: str) -> str:
    """A fresh id of an attempt, which comes after all earlier ones in the order of ids, also those of a process that was killed."""
    return f"{max(time.time_ns(), int(attempt[:16], 16) + 1):016x}{secrets.token_hex(8)}"


def _forget_what_never_began(folder: RunFolder) -> None:
    """Clears a folder whose experiment ended before its first round, as where clients refused it: its settings may change."""
    if not folder.checkpoint.exists() and not (folder.ledger.exists() and read(folder.ledger).counted()):
        for path in (folder.settings, folder.ledger, folder.ledger.with_suffix(".head"), folder.metrics):
            path.unlink(missing_ok=True)


def _number(value: Any) -> float | None:
    """A metric as JSON holds it."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
