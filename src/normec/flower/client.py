"""The client's half: a mod that turns a train function into the private message of an algorithm."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message
from torch import Tensor

from normec.algorithms import Context as AlgorithmContext
from normec.algorithms import client_step
from normec.errors import BadInput
from normec.flower.keeper import Keeper
from normec.flower.owner import Owner
from normec.flower.wire import RECORD, Answer, Instruction, Layout
from normec.noise import to_lattice
from normec.privacy import Mechanism
from normec.streams import Streams

log = logging.getLogger("flwr")  # whose records Flower shows and sends to `flwr log`

Next = Callable[[Message, Context], Message]


class ClientMod:
    """A Flower mod: `app = ClientApp(mods=[ClientMod()])`, over a train function that knows nothing of it.

    The train function receives the model's arrays and returns them moved; what leaves the client is its algorithm's message:
    bounded, compensated by the memory, noised by this client under trust "local". Nothing else leaves: metrics that the
    function returns would tell of the data without noise, and are dropped. The memory lies in the owner's directory
    (`Owner`); what this node's config says goes before what the app gives here, in the names of `Owner`.
    """

    def __init__(self, **otherwise: Any) -> None:
        self.otherwise = otherwise

    def __call__(self, message: Message, context: Context, call_next: Next) -> Message:
        """Answers one message of the server; a refusal is an answer too."""
        owner = Owner.of(dict(context.node_config), self.otherwise)
        if RECORD not in message.content.config_records:
            return self._pass(message, context, call_next, owner)
        try:
            instruction = Instruction.read(message.content.config_records[RECORD])
        except BadInput as error:
            log.warning("refused: %s", error)
            return Answer(owner.client_id, "", 0, "", refused=str(error)).reply(message)
        answer = Answer(owner.client_id, instruction.experiment, instruction.round, instruction.attempt)
        try:
            with Keeper(owner, instruction.experiment, instruction.terms) as keeper:
                keeper.check()
                if instruction.task == "train":
                    answer = _train(message, context, call_next, keeper, instruction)
        except BadInput as error:
            log.warning("refused: %s", error)
            answer = replace(answer, refused=str(error).replace(str(owner.folder), "state-dir"))
        return answer.reply(message)

    def _pass(self, message: Message, context: Context, call_next: Next, owner: Owner) -> Message:
        """What normec's server did not send reaches the app only where the owner asks for no protection."""
        if owner.trust == "none":
            return call_next(message, context)
        problem = f"a {message.metadata.message_type} message without normec's instruction is not answered where trust={owner.trust!r}"
        log.warning("refused: %s", problem)
        return Answer(owner.client_id, "", 0, "", refused=f"{problem}: nothing would protect the answer.").reply(message)


def _train(message: Message, context: Context, call_next: Next, keeper: Keeper, instruction: Instruction) -> Answer:
    """One round of a client: steps 1 to 3 of Algorithm 1, for one row."""
    terms, mechanism = instruction.terms, instruction.terms.mechanism()
    memory = keeper.settle(instruction.settled)
    hidden = mechanism.trust == "central"  # who transmits: the others send zeros of the same size
    ledger = keeper.intend(instruction.round) if hidden or (instruction.transmits and mechanism.trust != "none") else None

    received = _only_arrays(message)
    layout = Layout.of(received, instruction.names)
    if layout.d != terms.sizes.parameters:
        raise BadInput("arrays", f" hold {layout.d} trained parameters, and the experiment has {terms.sizes.parameters}.")
    x = layout.flat(received)
    del message.content[RECORD]
    y = layout.flat(_only_arrays(call_next(message, context)))
    scale = terms.algorithm.update_scale(terms.sizes.local_lr) / terms.sizes.local_lr
    update = (x - y).mul_(scale)[None]

    everyone = AlgorithmContext((), lambda: torch.from_numpy(np.random.default_rng().random(update.shape)).float())
    step = client_step(terms.algorithm, update, tuple(slot[None] for slot in memory), everyone)
    moves = instruction.transmits or terms.algorithm.everyone_computes
    keeper.propose(instruction.attempt, tuple(slot[0] for slot in step.memory) if moves else memory)
    sent = _protected(step.message[0], mechanism, instruction.transmits)
    if ledger is not None:
        ledger.commit(instruction.round, _fingerprint(sent), **({} if hidden else {"participants": [0], "exposure": 1.0}))
    return Answer(keeper.owner.client_id, instruction.experiment, instruction.round, instruction.attempt, sent)


def _protected(message: Tensor, mechanism: Mechanism, transmits: bool) -> Tensor | None:
    """What leaves the client for its message (d,).

    With a lattice, whole multiples of it: float32 holds those of a bounded message, float64 those of a noised one.
    """
    if mechanism.trust == "central":
        return to_lattice(message, mechanism.lattice).float() if transmits else torch.zeros_like(message)
    if not transmits:
        return None
    if mechanism.trust == "none":
        return message
    return mechanism.noised(to_lattice(message, mechanism.lattice), 1, Streams(0), 0)


def _fingerprint(sent: Tensor | None) -> str:
    return hashlib.blake2b(sent.numpy().tobytes() if sent is not None else b"", digest_size=16).hexdigest()


def _only_arrays(message: Message) -> ArrayRecord:
    """The one array record of a message."""
    if message.has_error():
        raise RuntimeError(f"the train function answered with an error: {message.error.reason}")
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise BadInput("arrays", f": the message holds {len(records)} array records. Receive and return one, the model's.")
    return records[0]
