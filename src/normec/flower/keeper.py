"""What a client keeps of an experiment in its owner's directory: memories in two phases, and its own ledger."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from normec.algorithms import Slots
from normec.errors import BadInput
from normec.files import Lock, making, write_atomically
from normec.flower.index import ATTEMPT, MEMORY, TRAINING, Account, Index, Mark, mark_of, read_attempt, read_memory_mark
from normec.flower.owner import EVALUATION, PATIENCE, Owner
from normec.flower.terms import Terms
from normec.privacy import Mechanism
from normec.privacy.header import Header
from normec.privacy.ledger import Ledger, read
from normec.settings import difference

NEVER = "0" * 32
"""In place of an attempt, where there was none yet."""


def check_hex(name: str, text: object) -> str:
    """An id of 32 hexadecimal digits, which can name a folder.

    Raises:
        BadInput: for anything else.
    """
    if not isinstance(text, str) or not re.fullmatch(r"[0-9a-f]{32}", text):
        raise BadInput(name, f"={text!r:.60} must be 32 hexadecimal digits.")
    return text


@dataclass
class Kept:
    """The memory file. settled: the last attempt that the server has counted, and the memory (d,) per slot after it.

    proposed: an attempt whose message left, and the memory after it, until the server says whether it counts.
    """

    settled: str
    memory: Slots
    proposed: str
    next: Slots


class Keeper:
    """One client's part of one experiment; while it is open no other process may work on it.

    A reply can get lost, and then the server's state does not hold the message by which the memory has moved. So a round
    proposes a new memory beside the old one, and the server's next instruction says which attempt it has counted.
    """

    def __init__(self, owner: Owner, experiment: str, terms: Terms) -> None:
        """Makes nothing. Raises BadInput where the folder is in use, damaged, or of another experiment or other terms."""
        self.owner, self.terms, self.experiment = owner, terms, check_hex("experiment", experiment)
        self.folder = owner.folder / experiment
        self.path = self.folder / MEMORY
        self._lock: Lock | None = None
        self._kept: Kept | None = None
        self._mark = Mark(self.path, 0, "")
        self._before = NEVER
        if self.folder.exists():
            self._open()

    def _open(self) -> None:
        problem = f": client {self.owner.client_id!r} is still busy with a round of experiment {self.experiment}. Wait for it."
        with making(self.folder):
            self._lock = Lock(self.folder, BadInput("state-dir", problem), PATIENCE)
        try:
            self._kept = self._read() if self.path.exists() else None
            ledger = self._ledger(TRAINING)
            self._mark.check(ledger)
            if self._kept is None and ledger and ledger.counted():
                raise BadInput("memory", f": {self.path} is lost, and its ledger knows of rounds. Start a new experiment.")
        except BadInput:
            self._lock.release()
            raise

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, *error: object) -> None:
        if self._lock is not None:
            self._lock.release()

    def settle(self, attempt: str) -> Slots:
        """The memory (d,) per slot after the attempt that the server has counted last; what was proposed beyond it is dropped.

        Raises:
            BadInput: where the server has counted an attempt that this memory does not hold.
        """
        if self._kept is None:  # durable before anything is released, so that a ledger without a memory is a loss
            self._kept = Kept(NEVER, self._zeros(), NEVER, self._zeros())
            self._write(self._kept)
        kept = self._kept
        if attempt == kept.proposed != NEVER:
            kept = Kept(attempt, kept.next, NEVER, self._zeros())
        elif attempt != kept.settled:
            if attempt > self._before:  # ids of attempts are in their order
                self.owner.mark_outdated(self.experiment)
            problem = f": the server has counted attempt {attempt} and {self.path} does not hold it, having been lost or restored."
            raise BadInput("memory", f"{problem} This client cannot continue in experiment {self.experiment}; start a new one.")
        self._kept = kept
        return kept.memory

    def propose(self, attempt: str, memory: Slots) -> None:
        """Makes the memory after an attempt durable, beside the one before it. To be called after `settle`."""
        if self._kept is not None:
            self._kept = Kept(self._kept.settled, self._kept.memory, attempt, memory)
            self._write(self._kept)

    def begin(self, attempt: str) -> None:
        """Notes an attempt before anything else happens in it; attempts are ordered as their ids are.

        Raises:
            BadInput: where the attempt, or a later one, was begun before; or where the note of the last one is damaged.
        """
        if self._lock is None:
            with making(self.owner.folder), self.owner.writing():
                self.owner.index().begin()
            self._open()
        path, ledger = self.folder / ATTEMPT, self._ledger(TRAINING)
        if path.exists():
            self._before, mark = read_attempt(path)
            mark.check(ledger)
            if attempt <= self._before:
                raise BadInput("instruction", f": attempt {attempt} is not newer than {self._before}, which this client has seen.")
        write_atomically(path, lambda: " ".join((attempt, *map(str, mark_of(ledger)))).encode())

    def intend(self, k: int, of: str = TRAINING) -> Ledger:
        """Writes down that round k will release something of this client, before any noise is drawn.

        of: which ledger of the experiment counts it.

        Raises:
            BadInput: where the owner's budget, or the experiment's, does not allow it.
        """
        path, mechanism = self.folder / of, self._mechanism(of)
        with self.owner.writing():
            index = self._checked_index(of)
            ledger = Ledger.open(path, self._header(of))
            if ledger.counted() >= mechanism.rounds:
                raise BadInput("rounds", f"={mechanism.rounds}: this client's ledger counts as many releases already.")
            if mechanism.trust.per_client and bool(mechanism.silent(torch.tensor(float(ledger.counted())))):
                raise BadInput("privacy.client_limit", f"={self.terms.privacy.client_limit:g} of the experiment allows no further release.")
            if index.behind(path, ledger):  # an intent of a process that was killed, which counts
                index.note(path, ledger)
            ledger.intent(k)
            index.note(path, ledger)
        return ledger

    def check(self, of: str = TRAINING) -> None:
        """Refuses terms that leave the owner's limits no room for a single release, and a directory that has lost some.

        Raises:
            BadInput: naming the limit, or what is lost.
        """
        self.owner.check(self.terms)
        if self.terms.privacy.trust != "none":
            self._checked_index(of)

    def _checked_index(self, of: str) -> Index:
        """The owner's index, where it agrees with this experiment's ledger and the budget has room for one more release on it."""
        index, ledger, path = self.owner.index(), self._ledger(of), self.folder / of
        index.check(path, ledger)
        releases = (ledger.counted() if ledger else 0) + 1
        self.owner.check_budget(index, {index.key(path): Account(self._header(of), releases)})
        return index

    def _ledger(self, of: str) -> Ledger | None:
        """A ledger of this experiment as it stands; none where it was not begun."""
        path = self.folder / of
        return read(path) if path.exists() else None

    def _mechanism(self, of: str) -> Mechanism:
        return self.terms.evaluation_mechanism if of == EVALUATION else self.terms.own_account()

    def _header(self, of: str) -> dict[str, Any]:
        privacy, evaluation = self.terms.privacy, self.terms.evaluation
        if of == EVALUATION and evaluation is not None:
            privacy = privacy.changed(client_limit=None, delta=evaluation.delta)
        return Header.of(self._mechanism(of), privacy, privacy.delta, "of the client").table()

    def _zeros(self) -> Slots:
        return tuple(torch.zeros(self.terms.sizes.parameters) for _ in self.terms.algorithm.client_slots)

    def _write(self, kept: Kept) -> None:
        slots = self.terms.algorithm.client_slots
        tensors = {name: vector.clone() for name, vector in zip(slots, kept.memory, strict=True)}
        tensors |= {f"next.{name}": vector.clone() for name, vector in zip(slots, kept.next, strict=True)}
        lines, head = mark_of(self._ledger(TRAINING))
        metadata = {**self._origin(), "settled": kept.settled, "proposed": kept.proposed, "lines": str(lines), "head": head}
        write_atomically(self.path, lambda: save(tensors, metadata=metadata))

    def _origin(self) -> dict[str, str]:
        return {"experiment": self.experiment, "client": self.owner.client_id, "terms": self.terms.text()}

    def _check_origin(self, said: dict[str, str]) -> None:
        """Refuses a memory that was made elsewhere, or under other terms."""
        found = difference({name: said.get(name) for name in ("experiment", "client")}, {**self._origin(), "terms": None})
        try:
            found = found or difference(json.loads(said.get("terms", "")), self.terms.table())
        except ValueError:
            found = "its terms cannot be read"
        if found:
            raise BadInput("memory", f": {self.path} is of another experiment or other terms ({found}), and is not loaded.")

    def _read(self) -> Kept:
        slots, d = self.terms.algorithm.client_slots, self.terms.sizes.parameters
        try:
            with safe_open(self.path, framework="pt") as file:
                said = file.metadata() or {}
                tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        except (SafetensorError, OSError, ValueError) as error:
            raise BadInput("memory", f": {self.path} is damaged ({error}). Restore it, or start a new experiment.") from None
        self._check_origin(said)
        self._mark = read_memory_mark(self.path, said)
        wanted = [*slots, *(f"next.{name}" for name in slots)]
        if sorted(tensors) != sorted(wanted) or any(vector.shape != (d,) for vector in tensors.values()):
            raise BadInput("memory", f": {self.path} is damaged (it holds {json.dumps(sorted(tensors))}). Start a new experiment.")
        memory, after = (tuple(tensors[f"{prefix}{name}"] for name in slots) for prefix in ("", "next."))
        return Kept(check_hex("settled", said.get("settled")), memory, check_hex("proposed", said.get("proposed")), after)
