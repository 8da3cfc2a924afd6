"""What a client keeps of an experiment in its owner's directory: memories in two phases, and its own ledger."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from normec.algorithms import Slots
from normec.errors import BadInput
from normec.files import Lock, making, write_atomically
from normec.flower.owner import Owner
from normec.flower.terms import Terms
from normec.privacy.ledger import Ledger
from normec.promise import ledger_header
from normec.settings import difference

NEVER = "0" * 32
"""In place of an attempt, where there was none yet."""
PATIENCE = 60.0
"""Seconds to wait for an earlier round, or for another experiment of the same client to write down a release."""


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
        """Raises BadInput where the folder is in use, damaged, or of another experiment or other terms."""
        self.owner, self.terms, self.experiment = owner, terms, check_hex("experiment", experiment)
        self.folder = owner.folder / experiment
        self.path = self.folder / "memory.safetensors"
        with making(self.folder):
            self._lock = Lock(self.folder, f"client {owner.client_id!r} is still busy with a round of experiment {experiment}", PATIENCE)
        try:
            self._kept = self._read() if self.path.exists() else None
            if self._kept is None and (self.folder / "ledger.jsonl").exists() and self._ledger().counted():
                raise BadInput("memory", f": {self.path} is lost, and its ledger knows of rounds. Start a new experiment.")
        except BadInput:
            self._lock.release()
            raise

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, *error: object) -> None:
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
            problem = f": the server has counted attempt {attempt} and {self.path} does not hold it, having been lost or restored."
            raise BadInput("memory", f"{problem} This client cannot go on in experiment {self.experiment}; start a new one.")
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
            BadInput: where the attempt, or a later one, was begun before.
        """
        path = self.folder / "attempt"
        try:
            before = path.read_text() if path.exists() else NEVER
        except (OSError, ValueError):
            before = "f" * 32
        if attempt <= before:
            raise BadInput("instruction", f": attempt {attempt} is not newer than {before}, which this client has seen. Send a new one.")
        write_atomically(path, attempt.encode)

    def intend(self, k: int) -> Ledger:
        """Writes down that round k will release something of this client, before any noise is drawn.

        Raises:
            BadInput: where the owner's budget, or the experiment's, does not allow it.
        """
        with Lock(self.owner.folder, f"another experiment of client {self.owner.client_id!r} is writing", PATIENCE):
            ledger = self._ledger()
            if ledger.counted() >= self.terms.sizes.rounds:
                raise BadInput("rounds", f"={self.terms.sizes.rounds}: this client's ledger counts as many releases already.")
            mechanism, exposure = self.terms.own_account(), torch.tensor(float(ledger.counted()))
            if mechanism.trust == "local" and bool(mechanism.silent(exposure)):
                raise BadInput("privacy.client_limit", f"={self.terms.privacy.client_limit:g} of the experiment allows no further release.")
            self.owner.check_budget(ledger)
            ledger.intent(k)
        return ledger

    def check(self) -> None:
        """Refuses terms that leave the owner's limits no room for a single release.

        Raises:
            BadInput: naming the limit.
        """
        self.owner.check(self.terms)
        if self.terms.privacy.trust != "none":
            self.owner.check_budget(self._ledger())

    def _ledger(self) -> Ledger:
        mechanism, privacy = self.terms.own_account(), self.terms.privacy
        return Ledger.open(self.folder / "ledger.jsonl", ledger_header(mechanism, privacy, privacy.delta, "of the client"))

    def _zeros(self) -> Slots:
        return tuple(torch.zeros(self.terms.sizes.parameters) for _ in self.terms.algorithm.client_slots)

    def _write(self, kept: Kept) -> None:
        slots = self.terms.algorithm.client_slots
        tensors = {name: vector.clone() for name, vector in zip(slots, kept.memory, strict=True)}
        tensors |= {f"next.{name}": vector.clone() for name, vector in zip(slots, kept.next, strict=True)}
        metadata = {**self._origin(), "settled": kept.settled, "proposed": kept.proposed}
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
        wanted = [*slots, *(f"next.{name}" for name in slots)]
        if sorted(tensors) != sorted(wanted) or any(vector.shape != (d,) for vector in tensors.values()):
            raise BadInput("memory", f": {self.path} is damaged (it holds {json.dumps(sorted(tensors))}). Start a new experiment.")
        memory, after = (tuple(tensors[f"{prefix}{name}"] for name in slots) for prefix in ("", "next."))
        return Kept(check_hex("settled", said.get("settled")), memory, check_hex("proposed", said.get("proposed")), after)
