"""What a client keeps of an experiment in its owner's directory: memories in two phases, and its own ledger."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from normec.algorithms import Slots
from normec.errors import BadInput
from normec.files import Lock, making, write_atomically
from normec.flower.coin import coin_of, heads, note_coin
from normec.flower.index import ATTEMPT, MEMORY, TRAINING, Account, Index, Mark, mark_of, read_attempt, read_memory_mark
from normec.flower.owner import EVALUATION, PATIENCE, Owner
from normec.flower.terms import Terms
from normec.privacy import Mechanism
from normec.privacy.header import Header
from normec.privacy.ledger import Ledger, read
from normec.settings import difference

SENT = "sent message"
"""Its name in the memory file, which is none of a slot."""
NEVER = "0" * 32
"""In place of an attempt, where there was none yet."""


def check_hex(name: str, text: object) -> str:
    """An id of 32 hexadecimal digits, which can name a folder.

    Raises:
        BadInput: for anything else.
    """
    if not isinstance(text, str) or not re.fullmatch(r"[0-9a-f]{32}", text):
        raise BadInput(name, value=text, must="be 32 hexadecimal digits")
    return text


@dataclass
class Kept:
    """The memory file. settled: the last attempt that the server has counted, and the memory (d,) per slot after it.

    proposed: an attempt whose message left, and the memory after it, until the server says whether it counts. sent, round: where
    clients draw their own coins, the last message (d,) that was to leave, and its round: if it is asked for again, the same is sent.
    """

    settled: str
    memory: Slots
    proposed: str
    next: Slots
    sent: Tensor | None = None
    round: int = -1


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
        problem = f": client {self.owner.client_id!r} is still busy with a round of experiment {self.experiment}"
        with making(self.folder):
            self._lock = Lock(self.folder, BadInput("state-dir", problem, remedy="Wait for it"), PATIENCE)
        try:
            self._kept = self._read() if self.path.exists() else None
            ledger = self._ledger(TRAINING)
            self._mark.check(ledger)
            if self._kept is None and ledger and ledger.lines:
                raise BadInput("memory", f": {self.path} is lost, and its ledger knows of rounds", remedy="Start a new experiment")
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
            kept = replace(kept, settled=attempt, memory=kept.next, proposed=NEVER, next=self._zeros())
        elif attempt != kept.settled:
            if attempt > self._before:  # ids of attempts are in their order
                self.owner.mark_outdated(self.experiment)
            raise BadInput(
                "memory",
                f": the server has counted attempt {attempt} and {self.path} does not hold it, having been lost or restored",
                remedy=f"This client cannot continue in experiment {self.experiment}; start a new one",
            )
        self._kept = kept
        return kept.memory

    def propose(self, attempt: str, memory: Slots, sent: Tensor | None = None, k: int = -1) -> None:
        """Makes the memory after an attempt durable, beside the one before it. To be called after `settle`.

        sent, k: the message, and its round, where it is to be kept in case that it is asked for again.
        """
        if self._kept is not None:
            self._kept = Kept(self._kept.settled, self._kept.memory, attempt, memory, sent, k)
            self._write(self._kept)

    def takes_part(self, k: int) -> bool:
        """Whether this client's own coin, drawn once for a round, lets it transmit. To be called after `settle`.

        A client that has come to the experiment's client_limit sits out all further rounds.
        """
        ledger, path = self._ledger(TRAINING), self.folder / TRAINING
        coin = coin_of(ledger, k)
        if coin is None:
            with self.owner.writing():
                index = self.owner.index()
                index.check(path, ledger)
                coin, ledger = self._draw(k), Ledger.open(path, self._header(TRAINING))
                note_coin(ledger, k, coin)
                index.note(path, ledger)
        return coin and ledger is not None and (ledger.begun(k) or not self._silent(ledger))

    def _draw(self, k: int) -> bool:
        return heads(self.terms.mechanism.rate)

    def _silent(self, ledger: Ledger) -> bool:
        """Whether the experiment's client_limit allows no further release."""
        mechanism = self.terms.own_account()
        return mechanism.trust.per_client and bool(mechanism.silent(torch.tensor(float(ledger.counted()))))

    def sent_before(self, attempt: str, k: int) -> Tensor | None:
        """The message of round k where it was made before, proposed once more; its memory too. None where nothing of it has left.

        Raises:
            BadInput: where it has left, and is not kept any more.
        """
        kept, ledger = self._kept, self._ledger(TRAINING)
        if kept is not None and kept.sent is not None and kept.round == k:
            self.propose(attempt, kept.memory if kept.proposed == NEVER else kept.next, kept.sent, k)
            return kept.sent
        if ledger and ledger.committed(k):
            raise BadInput("instruction", f": round {k} is over for this client, and its message has left", remedy="Ask for a later one")
        return None

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
                raise BadInput("instruction", f": attempt {attempt} is not newer than {self._before}, which this client has seen")
        write_atomically(path, lambda: " ".join((attempt, *map(str, mark_of(ledger)))).encode())

    def intend(self, k: int, of: str = TRAINING) -> Ledger:
        """Writes down that round k will release something of this client, before any noise is drawn.

        Once for each round where clients draw their own coins: what was made for it is sent again, or has never left.
        of: which ledger of the experiment counts it.

        Raises:
            BadInput: where the owner's budget, or the experiment's, does not allow it.
        """
        path = self.folder / of
        with self.owner.writing():
            index = self._checked_index(of)
            ledger = Ledger.open(path, self._header(of))
            again = of == TRAINING and self.terms.own_coins and ledger.begun(k)
            if not again:
                self._check_room(ledger, of)
            if index.behind(path, ledger):  # an intent of a process that was killed, which counts
                index.note(path, ledger)
            if not again:
                ledger.intent(k)
                index.note(path, ledger)
        return ledger

    def _check_room(self, ledger: Ledger, of: str) -> None:
        """Refuses a release beyond those that the experiment has accounted for."""
        rounds = self._mechanism(of).rounds
        if ledger.counted() >= rounds:
            raise BadInput("rounds", ": this client's ledger counts as many releases already", value=rounds)
        if of == TRAINING and self._silent(ledger):
            raise BadInput("privacy.client_limit", "of the experiment allows no further release", value=self.terms.privacy.client_limit)

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

    def _header(self, of: str) -> dict[str, object]:
        privacy, evaluation = self.terms.privacy, self.terms.evaluation
        if of == EVALUATION and evaluation is not None:
            privacy = privacy.changed(client_limit=None, delta=evaluation.delta)
        header = Header.of(self._mechanism(of), privacy, privacy.delta, "of the client")
        return replace(header, own_coins=of == TRAINING and self.terms.own_coins).table()

    def _zeros(self) -> Slots:
        return tuple(torch.zeros(self.terms.sizes.parameters) for _ in self.terms.algorithm.client_slots)

    def _write(self, kept: Kept) -> None:
        slots = self.terms.algorithm.client_slots
        tensors = {name: vector.clone() for name, vector in zip(slots, kept.memory, strict=True)}
        tensors |= {f"next.{name}": vector.clone() for name, vector in zip(slots, kept.next, strict=True)}
        tensors |= {} if kept.sent is None else {SENT: kept.sent}
        lines, head = mark_of(self._ledger(TRAINING))
        metadata = {**self._origin(), "settled": kept.settled, "proposed": kept.proposed, "lines": str(lines), "head": head}
        metadata["round"] = str(kept.round)
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
            raise BadInput("memory", f": {self.path} is of another experiment or other terms ({found}), and is not loaded")

    def _read(self) -> Kept:
        slots, d = self.terms.algorithm.client_slots, self.terms.sizes.parameters
        try:
            with safe_open(self.path, framework="pt") as file:
                said = file.metadata() or {}
                tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        except (SafetensorError, OSError, ValueError) as error:
            raise BadInput("memory", f": {self.path} is damaged ({error})", remedy="Restore it, or start a new experiment") from None
        self._check_origin(said)
        self._mark = read_memory_mark(self.path, said)
        wanted = [*slots, *(f"next.{name}" for name in slots), *({SENT} & tensors.keys())]
        if sorted(tensors) != sorted(wanted) or any(vector.shape != (d,) for vector in tensors.values()):
            raise BadInput("memory", f": {self.path} is damaged (it holds {json.dumps(sorted(tensors))})", remedy="Start a new experiment")
        memory, after = (tuple(tensors[f"{prefix}{name}"] for name in slots) for prefix in ("", "next."))
        settled, proposed = check_hex("settled", said.get("settled")), check_hex("proposed", said.get("proposed"))
        k = said.get("round", "")
        return Kept(settled, memory, proposed, after, tensors.get(SENT), int(k) if k.isdecimal() else -1)
