"""The server's half of evaluation by the clients: when they are asked, what their answers release, and what that spends."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from torch import Tensor

from normec.errors import BadInput
from normec.files import Appended, making, write_atomically
from normec.flower.evaluation import ClientEvaluation
from normec.flower.terms import Terms
from normec.hashed import unsealed
from normec.privacy import Spent, SpentSoFar, epsilon
from normec.privacy.account import Evaluated
from normec.privacy.header import Header
from normec.privacy.ledger import Ledger
from normec.runs.folder import line_of
from normec.runs.spending import check_covers
from normec.streams import Streams

log = logging.getLogger("flwr")


class SpentTable(TypedDict):
    """ε, None where it is infinite, and its δ."""

    epsilon: float | None
    delta: float


class EvaluationsTable(TypedDict):
    """What evaluations by the clients have spent, and beside the training; without noise their number alone."""

    number: int
    epsilon: float | None
    delta: NotRequired[float]
    noise_multiplier: NotRequired[float]
    training: NotRequired[SpentTable]
    together: SpentTable | None


class Evaluations:
    """The evaluations of an experiment, in a folder of their own: a ledger, under privacy, and a line of metrics for each."""

    def __init__(self, folder: Path, terms: Terms, evaluation: ClientEvaluation, begun: int = 0) -> None:
        """Raises BadInput where the ledger is damaged, of other terms, or counts less than the `begun` evaluations that are known."""
        self.folder, self.terms, self.evaluation, self.mechanism = folder, terms, evaluation, terms.evaluation_mechanism
        self.ledger: Ledger | None = None
        with making(folder):
            if self.mechanism.trust.promises:
                check_covers(folder, begun)
                privacy = terms.privacy.changed(client_limit=None)
                self.ledger = Ledger.open(
                    folder / "ledger.jsonl", Header.of(self.mechanism, privacy, self._delta, self.spent().accountant).table()
                )
            self._rows = Appended(folder / "metrics.jsonl")
            self._asked = _rounds_of(self._rows.path)
        self._end_what_was_interrupted()

    def _end_what_was_interrupted(self) -> None:
        """An evaluation whose server was killed in it may have been answered: it counts, and to ask again would count twice."""
        if self.ledger is None or (last := self.ledger.lines[-1])["kind"] not in ("intent", "commit"):
            return
        if (k := last["round"]) + 1 in self._asked:
            self.ledger.release(k)
            return
        log.warning("the evaluation after round %d was interrupted: it counts, and has no result", k + 1)
        self.ledger.give_up(k)

    @property
    def _delta(self) -> float:
        return self.evaluation.delta or 0.0

    def spent(self) -> Spent:
        """ε of all evaluations that are planned."""
        return epsilon(self.mechanism, self._delta)

    def spent_after(self, rounds_done: int) -> float:
        """ε of the evaluations that count, and of the one that is due after so many rounds."""
        return self._so_far.after(self.counted + self.due(rounds_done))

    @cached_property
    def _so_far(self) -> SpentSoFar:
        return SpentSoFar(self.mechanism, self._delta)

    def planned(self) -> Evaluated:
        """All evaluations that are planned, which the experiment's claim covers."""
        return Evaluated(self.mechanism.rounds, self.mechanism.noise_multiplier, self.spent(), self._delta)

    def due(self, rounds_done: int) -> bool:
        """Whether the clients are asked after so many rounds, and the ledger, where each attempt counts, has room for it."""
        room = self.counted < self.mechanism.rounds
        return room and self.evaluation.due(rounds_done, self.terms.sizes.rounds)

    def owed(self, rounds_done: int) -> bool:
        """Whether the one after so many rounds is due, and nobody has been asked, as where the server was killed just before it."""
        asked = self.ledger.begun(rounds_done - 1) if self.ledger else rounds_done in self._asked
        return not asked and self.due(rounds_done)

    @property
    def counted(self) -> int:
        """How many evaluations count, under privacy."""
        return self.ledger.counted() if self.ledger else 0

    def begin(self, k: int) -> None:
        """An evaluation of round k begins, and counts from here on."""
        if self.ledger is not None:
            self.ledger.intent(k)

    def end(self, k: int, messages: list[Tensor]) -> dict[str, float]:
        """The metrics of an evaluation from the messages that have come, written down; empty where none has."""
        if not messages:
            self._write(k, {"answered": 0})
            if self.ledger is not None:
                self.ledger.give_up(k)
            return {}
        noised = None
        if self.mechanism.trust.promises:
            aggregation = self.mechanism.aggregation
            noised = aggregation.combine(map(aggregation.encode, messages), len(messages[0]))
            if self.mechanism.trust.at_server:
                noised, _ = self.mechanism.noised(noised, len(messages), (), Streams(0), k)
        found = self.evaluation.result(messages, self.mechanism, noised)
        if self.ledger is not None:
            self.ledger.commit(k, hashlib.blake2b(json.dumps(found).encode(), digest_size=16).hexdigest())
        beside = {} if noised is None else {"noise_std": self.evaluation.noise_std(self.mechanism, len(messages))}
        self._write(k, {**found, "answered": len(messages), **beside})
        if self.ledger is not None:
            self.ledger.release(k)
        return found

    def _write(self, k: int, values: Mapping[str, object]) -> None:
        self._rows.append(line_of({"round": k + 1, **{key: _finite(value) for key, value in values.items()}}).encode())
        self._asked.add(k + 1)

    def table(self, training: Spent, delta: float | None) -> EvaluationsTable:
        """As plain values of a summary, beside the training, whose ε and δ these are. ε is null where it is infinite."""
        planned = self.planned()
        if not self.mechanism.private or delta is None:
            return {"number": planned.number, "epsilon": None, "together": None}
        return {
            "number": planned.number,
            "epsilon": planned.spent.epsilon,
            "delta": planned.delta,
            "noise_multiplier": planned.noise_multiplier,
            "training": {"epsilon": _finite(training.epsilon), "delta": delta},
            "together": {"epsilon": _finite(planned.with_training(training).epsilon), "delta": planned.with_delta(delta)},
        }


def _rounds_of(path: Path) -> set[int]:
    """After which rounds the lines of metrics were; an incomplete last line, of a process killed while writing, is cut off.

    Raises:
        BadInput: where a line was changed.
    """
    text = path.read_bytes() if path.exists() else b""
    whole = text[: text.rfind(b"\n") + 1]
    if whole != text:
        write_atomically(path, lambda: whole)
    try:
        return {int(unsealed(line)["round"]) for line in whole.decode().splitlines()}
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput("folder", f": {path} is damaged ({error})", remedy="Restore it, or use another folder") from None


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
