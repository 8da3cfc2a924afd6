"""The server's half of evaluation by the clients: when they are asked, what their answers release, and what that spends."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from normec.errors import count
from normec.files import making
from normec.flower.evaluation import ClientEvaluation
from normec.flower.terms import Terms
from normec.folder import line_of
from normec.noise import to_lattice
from normec.privacy import Spent, epsilon
from normec.privacy.ledger import Ledger
from normec.promise import ledger_header, upper
from normec.streams import Streams


class Evaluations:
    """The evaluations of an experiment, in a folder of their own: a ledger, under privacy, and a line of metrics for each."""

    def __init__(self, folder: Path, terms: Terms, evaluation: ClientEvaluation) -> None:
        """Raises BadInput where the ledger is damaged, or of other terms."""
        self.folder, self.terms, self.evaluation, self.mechanism = folder, terms, evaluation, terms.evaluation_mechanism
        self.ledger: Ledger | None = None
        with making(folder):
            if self.mechanism.trust != "none":
                privacy = terms.privacy.model_copy(update={"client_limit": None})
                self.ledger = Ledger.open(
                    folder / "ledger.jsonl", ledger_header(self.mechanism, privacy, self._delta, self.spent().accountant)
                )

    @property
    def _delta(self) -> float:
        return self.evaluation.delta or 0.0

    def spent(self) -> Spent:
        """ε of all evaluations that are planned."""
        return epsilon(self.mechanism, self._delta)

    def due(self, rounds_done: int) -> bool:
        """Whether the clients are asked after so many rounds, and the ledger, where each attempt counts, has room for it."""
        room = self.ledger is None or self.ledger.counted() < self.mechanism.rounds
        return room and self.evaluation.due(rounds_done, self.terms.sizes.rounds)

    def begin(self, k: int) -> None:
        """An evaluation of round k begins, and counts from here on."""
        if self.ledger is not None:
            self.ledger.intent(k)

    def end(self, k: int, messages: list[Tensor]) -> dict[str, float]:
        """The metrics of an evaluation from the messages that have come, written down; empty where none has."""
        if not messages:
            return {}
        noised = None
        if self.mechanism.trust != "none":
            total = torch.stack([to_lattice(message, self.mechanism.lattice).double() for message in messages]).sum(0)
            central = self.mechanism.trust == "central"
            noised = self.mechanism.noised(total, len(messages), Streams(0), k) if central else total
        found = self.evaluation.result(messages, self.mechanism, noised)
        if self.ledger is not None:
            self.ledger.commit(k, hashlib.blake2b(json.dumps(found).encode(), digest_size=16).hexdigest())
        row: dict[str, Any] = {"round": k + 1, **found, "answered": len(messages)}
        if noised is not None:
            row["noise_std"] = self.evaluation.noise_std(self.mechanism, len(messages))
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(line_of({key: _finite(value) for key, value in row.items()}))
        if self.ledger is not None:
            self.ledger.release(k)
        return found

    def claim(self, training: Spent, delta: float | None) -> tuple[str, Mapping[str, Any]]:
        """What evaluation adds to the claim of the training, as a sentence and as plain values.

        Both are bounds on what the same clients' data change, at their own δ: together they add up, ε with ε and δ with δ.
        """
        own, number = self.spent(), self.mechanism.rounds
        said = f" The clients evaluate the model {count(number, 'time')}"
        if not self.mechanism.private or delta is None:
            return f"{said}, without noise.", {"number": number, "epsilon": None, "together": None}
        total, total_delta = training.epsilon + own.epsilon, float(Decimal(repr(delta)) + Decimal(repr(self._delta)))
        sentence = (
            f"{said} on their own data: (ε = {upper(own.epsilon)}, δ = {self._delta!r}), noise multiplier "
            f"{self.mechanism.noise_multiplier:.4g}. Training and evaluation together: (ε = {upper(total)}, δ = {total_delta!r})."
        )
        together = {"epsilon": _finite(total), "delta": total_delta}
        values = {"epsilon": own.epsilon, "delta": self._delta, "noise_multiplier": self.mechanism.noise_multiplier, "together": together}
        return sentence, {"number": number, **values}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
