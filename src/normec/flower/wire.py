"""What travels between server and clients: the instruction of a round, its answer, and models as flat vectors."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from torch import Tensor

from normec.errors import BadInput
from normec.flower.keeper import check_hex
from normec.flower.terms import Terms

RECORD = "normec"
"""The name of our records in a message."""

LONGEST = 2000
"""Characters of a word in an answer."""

Task = Literal["greet", "train"]


class Layout(NamedTuple):
    """Which arrays of a model are trained, in what order they make one vector (d,), and their shapes."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, arrays: ArrayRecord, trained: Sequence[str] | None) -> Layout:
        """The layout of a model's arrays; by default all of them are trained.

        Raises:
            BadInput: for an array that is not there, or holds no floating-point numbers.
        """
        names = tuple(arrays if trained is None else (name for name in arrays if name in set(trained)))
        if absent := set(trained or ()) - set(arrays):
            raise BadInput("trained", f" names {min(absent)!r}, and the model's arrays are {', '.join(arrays)}.")
        for name in names:
            if not np.issubdtype(np.dtype(arrays[name].dtype), np.floating):
                problem = f" {name!r} holds {arrays[name].dtype}, which no noise can protect and no step can move."
                raise BadInput("initial_arrays:", f"{problem} Leave it out of the record, or name the trained arrays with trained=[…].")
        if not names:
            raise BadInput("initial_arrays", " hold nothing to train. Give the model's arrays.")
        return cls(names, tuple(tuple(arrays[name].shape) for name in names))

    @property
    def d(self) -> int:
        """The number of trained parameters."""
        return sum(int(np.prod(shape)) for shape in self.shapes)

    def flat(self, arrays: ArrayRecord) -> Tensor:
        """The trained arrays as one vector (d,), float32.

        Raises:
            BadInput: for arrays of another model.
        """
        parts = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            if name not in arrays or tuple(arrays[name].shape) != shape:
                raise BadInput("arrays", f" hold no {name!r} of shape {shape}. Return the arrays that were received, with their names.")
            parts.append(arrays[name].numpy().astype(np.float32, casting="same_kind").ravel())
        return torch.from_numpy(np.concatenate(parts))

    @staticmethod
    def tensors(arrays: ArrayRecord) -> dict[str, Tensor]:
        """Arrays by name, as tensors."""
        return {name: torch.from_numpy(np.array(array.numpy(), order="C")) for name, array in arrays.items()}

    def arrays(self, x: Tensor, like: ArrayRecord) -> ArrayRecord:
        """The model's arrays with the trained ones taken from x (d,); the others, and all types, as in `like`."""
        parts = dict(zip(self.names, torch.split(x, [int(np.prod(shape)) for shape in self.shapes]), strict=True))
        made = {}
        for name, array in like.items():
            part = parts.get(name)
            made[name] = array if part is None else Array(part.numpy().astype(array.dtype).reshape(array.shape))
        return ArrayRecord(made)


@dataclass(frozen=True)
class Instruction:
    """What the server tells one client. All instructions of a round have the same length, whatever they say.

    experiment: its id. round: k, from 0. attempt: a fresh id of this attempt at the round. settled: the last attempt of this
    client that the server has counted. transmits: whether the client is in the cohort.
    """

    task: Task
    experiment: str
    round: int
    attempt: str
    settled: str
    transmits: bool
    names: tuple[str, ...]
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
                "transmits": "yes" if self.transmits else "no ",
                "names": list(self.names),
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
            task, k, transmits, names = record["task"], record["round"], record["transmits"], record["names"]
            experiment, attempt, settled = (check_hex(name, record[name]) for name in ("experiment", "attempt", "settled"))
            terms = Terms.read(str(record["terms"]))
        except KeyError as error:
            raise BadInput("instruction", f": {error} is missing. Does the server run the same version of normec?") from None
        if task not in ("greet", "train") or transmits not in ("yes", "no "):
            raise BadInput("instruction", f": task={task!r:.40}, transmits={transmits!r:.40} are not known.")
        if not isinstance(k, int) or not 0 <= k < terms.sizes.rounds:
            raise BadInput("instruction", f": round={k!r:.40} is none of the experiment's {terms.sizes.rounds}.")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise BadInput("instruction", f": names={names!r:.40} must be a list of strings.")
        return cls(
            "train" if task == "train" else "greet", experiment, k, attempt, settled, transmits == "yes", tuple(map(str, names)), terms
        )


@dataclass(frozen=True)
class Answer:
    """What a client tells the server: its name, which attempt it answers, and its message (d,) if it transmits.

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

    def reply(self, to: Message) -> Message:
        """As a reply to the server's message."""
        names = ("client", "experiment", "round", "attempt")
        key = os.urandom(32) if self.hidden else b""
        content = RecordDict(
            {RECORD: ConfigRecord({**{name: getattr(self, name) for name in names}, "refused": self.refused[:LONGEST], "mask": key})}
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
            raise BadInput("reply", " holds no answer of normec's ClientMod. Put it on the client's train function.")
        beyond = set(content) - {RECORD, f"{RECORD}.message"}
        if beyond:
            raise BadInput("reply", f" holds {min(beyond)!r} beside the message, which no noise protects.")
        record = content.config_records[RECORD]
        words = [record.get(name) for name in ("client", "experiment", "attempt", "refused")]
        k, key = record.get("round"), record.get("mask")
        if not all(isinstance(word, str) and len(word) <= LONGEST for word in words) or type(k) is not int or type(key) is not bytes:
            raise BadInput("reply", " is malformed.")
        client, experiment, attempt, refused = map(str, words)
        return cls(client, experiment, k, attempt, cls._message(content, key), refused)

    @staticmethod
    def _message(content: RecordDict, key: bytes) -> Tensor | None:
        arrays = content.array_records.get(f"{RECORD}.message")
        if arrays is None:
            return None
        try:
            values = arrays["message"].numpy()
        except Exception as error:  # whatever a stranger's bytes raise in numpy
            raise BadInput("reply", f" holds a message that cannot be read ({type(error).__name__}).") from None
        if list(arrays) != ["message"] or type(values) is not np.ndarray or values.dtype not in (np.float32, np.float64):
            raise BadInput("reply", " holds other arrays than one message of floating-point numbers.")
        values = _masked(values, key) if key else values
        return torch.from_numpy(np.array(values, order="C"))


def _masked(values: np.ndarray, key: bytes) -> np.ndarray:
    """Numbers whose bits are those of `values`, changed by a stream that the key makes; twice is as before."""
    stream = np.frombuffer(hashlib.shake_256(key).digest(values.nbytes), dtype=np.uint8)
    return (np.ascontiguousarray(values).view(np.uint8).ravel() ^ stream).view(values.dtype).reshape(values.shape)
