"""What travels between server and clients: the instruction of a round, and its answer."""

from __future__ import annotations

import hashlib
import math
import os
import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from torch import Tensor

from normec.errors import BadInput
from normec.flower.keeper import check_hex
from normec.flower.owner import NAME
from normec.flower.terms import Terms
from normec.operators.base import LARGEST_NORM, row_norms

RECORD = "normec"
"""The name of our records in a message."""

LONGEST = 2000
"""Characters of a word in an answer."""
SHOWN = 400
"""Characters of another party's words that are shown."""

Task = Literal["greet", "train", "evaluate"]
TASKS: tuple[Task, ...] = ("greet", "train", "evaluate")


TRANSMITS: dict[str, bool | None] = {"yes": True, "no ": False, "own": None}
"""Whether a client transmits, in words of one length."""


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """What the server tells one client. All instructions of a round have the same length, whatever they say.

    experiment: its id. round: k, from 0. attempt: a fresh id of this attempt at the round. settled: the last attempt of this
    client that the server has counted. transmits: whether the client is in the cohort; None where its own coin says so.
    names, copies: of the model's `Layout`.
    """

    task: Task
    experiment: str
    round: int
    attempt: str
    settled: str
    transmits: bool | None
    names: tuple[str, ...]
    copies: tuple[tuple[str, str], ...]
    terms: Terms

    def record(self) -> ConfigRecord:
        """As a record of a message."""
        return ConfigRecord(
            {
                "task": self.task,
                "experiment": self.experiment,
                "round": self.round,
                "attempt": self.attempt,
                "settled": self.settled,
                "transmits": next(word for word, meant in TRANSMITS.items() if meant is self.transmits),
                "names": list(self.names),
                "copies": [name for pair in self.copies for name in pair],
                "terms": self.terms.text(),
            }
        )

    @classmethod
    def read(cls, record: ConfigRecord) -> Instruction:
        """The instruction in a record that a server sent.

        Raises:
            BadInput: for one that is malformed.
        """
        try:
            task, k, transmits, names = record["task"], record["round"], record["transmits"], _texts("names", record["names"])
            copies = _texts("copies", record["copies"])
            experiment, attempt, settled = (check_hex(name, record[name]) for name in ("experiment", "attempt", "settled"))
            terms = Terms.read(str(record["terms"]))
        except KeyError as error:
            raise BadInput("instruction", f": {error} is missing", remedy="Does the server run the same version of normec?") from None
        if task not in TASKS:
            raise BadInput("instruction: task", "is not known", value=task)
        if transmits not in TRANSMITS:
            raise BadInput("instruction: transmits", "is not known", value=transmits)
        if not isinstance(k, int) or not 0 <= k < terms.sizes.rounds:
            raise BadInput("instruction: round", f"is none of the experiment's {terms.sizes.rounds}", value=k)
        pairs = tuple(zip(copies[::2], copies[1::2], strict=False))
        known, asked = next(each for each in TASKS if each == task), TRANSMITS[str(transmits)]
        if known == "train" and (asked is None) != terms.own_coins:
            who = "each client draws its own coin" if terms.own_coins else "the server draws the cohorts"
            raise BadInput("instruction: transmits", f", and by the terms {who}", value=transmits)
        return cls(
            task=known,
            experiment=experiment,
            round=k,
            attempt=attempt,
            settled=settled,
            transmits=asked,
            names=names,
            copies=pairs,
            terms=terms,
        )


def plain(text: str, most: int = SHOWN) -> str:
    """Another party's words as they may be shown: on one line, without control characters, and not endless."""
    shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text[: most + 1])
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def _texts(name: str, found: object) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise BadInput(f"instruction: {name}", value=found, must="be a list of strings")
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a client tells the server: its name, which attempt it answers, and its message (d,) unless it sits the round out.

    refused: why it takes no part, in one sentence; empty otherwise. hidden: the message travels under a one-time mask whose key
    is beside it. TLS hides what a message says, and Flower does not send the same bytes twice: without a mask, one could see
    from outside which clients send zeros.
    """

    client: str
    experiment: str
    round: int
    attempt: str
    message: Tensor | None = None
    refused: str = ""
    hidden: bool = False

    @classmethod
    def to(cls, instruction: Instruction, client: str, message: Tensor | None = None, *, hidden: bool = False) -> Answer:
        """The answer of a client to an instruction."""
        experiment, k, attempt = instruction.experiment, instruction.round, instruction.attempt
        return cls(client=client, experiment=experiment, round=k, attempt=attempt, message=message, hidden=hidden)

    def reply(self, to: Message) -> Message:
        """As a reply to the server's message."""
        names = ("client", "experiment", "round", "attempt")
        key = os.urandom(32) if self.hidden else b""
        content = RecordDict(
            {RECORD: ConfigRecord({**{name: getattr(self, name) for name in names}, "refused": plain(self.refused), "mask": key})}
        )
        if self.message is not None:
            values = self.message.numpy()
            content[f"{RECORD}.message"] = ArrayRecord({"message": Array(_masked(values, key) if key else values)})
        return Message(content, reply_to=to)

    @classmethod
    def read(cls, reply: Message) -> Answer:
        """The answer in a client's reply.

        Raises:
            BadInput: for a reply that is malformed, or tells more than an answer does.
        """
        content = reply.content
        if RECORD not in content.config_records:
            raise BadInput("reply", "holds no answer of normec's ClientMod", remedy="Put it on the client's train function")
        beyond = set(content) - {RECORD, f"{RECORD}.message"}
        if beyond:
            raise BadInput("reply", f"holds {min(beyond)!r:.60} beside the message, which no noise protects")
        record = content.config_records[RECORD]
        words = [record.get(name) for name in ("client", "experiment", "attempt", "refused")]
        k, key = record.get("round"), record.get("mask")
        if not all(isinstance(word, str) and len(word) <= LONGEST for word in words) or type(k) is not int or type(key) is not bytes:
            raise BadInput("reply", "is malformed")
        client, experiment, attempt, refused = map(str, words)
        if client and not re.fullmatch(NAME, client):
            raise BadInput("reply", f"says that it is of client {plain(repr(client), 70)}, which is not a client's name")
        message = cls._message(content, key)
        return cls(client=client, experiment=experiment, round=k, attempt=attempt, message=message, refused=plain(refused))

    def check_message(self, d: int, bound: float, std: float) -> None:
        """Refuses a message that is not (d,), or of a norm that no honest client sends. bound, std: of the norm, of the client's noise.

        Raises:
            BadInput: saying why.
        """
        if self.message is None or self.message.shape != (d,):
            shape = None if self.message is None else tuple(self.message.shape)
            raise BadInput("reply", f"holds a message of shape {shape}, not ({d},)")
        norm = float(row_norms(self.message[None].double())[0])
        if not norm <= _longest(bound, std, d):
            raise BadInput("reply", f"holds a message of norm {norm:.4g}, which no honest client sends")

    @staticmethod
    def _message(content: RecordDict, key: bytes) -> Tensor | None:
        arrays = content.array_records.get(f"{RECORD}.message")
        if arrays is None:
            return None
        try:
            values = arrays["message"].numpy()
        except Exception as error:  # whatever a stranger's bytes raise in numpy
            raise BadInput("reply", f"holds a message that cannot be read ({type(error).__name__})") from None
        if list(arrays) != ["message"] or type(values) is not np.ndarray or values.dtype not in (np.float32, np.float64):
            raise BadInput("reply", "holds other arrays than one message of floating-point numbers")
        values = _masked(values, key) if key else values
        return torch.from_numpy(np.array(values, order="C"))


def _longest(bound: float, std: float, d: int) -> float:
    """What the norm of an honest message exceeds with a probability below e^-50: Gaussian norms concentrate (√d + t, e^(−t²/2))."""
    return min(bound, LARGEST_NORM) * (1 + 1e-6) + std * (math.sqrt(d) + 10.0)


def _masked(values: np.ndarray, key: bytes) -> np.ndarray:
    """Numbers whose bits are those of `values`, changed by a stream that the key makes; twice is as before."""
    stream = np.frombuffer(hashlib.shake_256(key).digest(values.nbytes), dtype=np.uint8)
    return (np.ascontiguousarray(values).view(np.uint8).ravel() ^ stream).view(values.dtype).reshape(values.shape)
