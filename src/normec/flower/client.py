"""The client's half: a mod that turns a train function into the private message of an algorithm."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message
from torch import Tensor

from normec.algorithms import Context as AlgorithmContext
from normec.algorithms import Slots, check_bound, client_step
from normec.errors import FAILURES, BadInput, TrainingFailed
from normec.flower.index import TRAINING
from normec.flower.keeper import Keeper
from normec.flower.layout import Layout
from normec.flower.owner import EVALUATION, Owner
from normec.flower.terms import Terms
from normec.flower.wire import RECORD, Answer, Instruction, plain
from normec.privacy import Mechanism
from normec.streams import Streams

log = logging.getLogger("flwr")  # whose records Flower shows and sends to `flwr log`

Next = Callable[[Message, Context], Message]


class ClientMod:
    """A Flower mod: `app = ClientApp(mods=[ClientMod()])`, over a train function that knows nothing of it.

    The train function receives the model's arrays and returns them moved; what leaves the client is its algorithm's message:
    bounded, compensated by the memory, noised by this client under trust "local". Nothing else leaves: metrics that the
    function returns would tell of the data without noise, and are dropped; where it fails, the message is zero, with its
    noise. The memory lies in the owner's directory, and the node's config holds the owner's limits (`Owner`).

    On the app, and not on its train function alone: there it would not see what the other functions answer.
    """

    def __call__(self, message: Message, context: Context, call_next: Next) -> Message:
        """Answers one message of the server; a refusal is an answer too."""
        answer = Answer(client="", experiment="", round=0, attempt="")
        try:
            owner = Owner.of(context.node_config)
            answer = replace(answer, client=owner.client_id)
            if RECORD not in message.content.config_records:
                _check_unprotected(message, owner)
                return call_next(message, context)
            instruction = Instruction.read(message.content.config_records[RECORD])
            answer = Answer.to(instruction, owner.client_id)
            with Keeper(owner, instruction.experiment, instruction.terms) as keeper:
                keeper.check(EVALUATION if instruction.task == "evaluate" else TRAINING)
                if instruction.task == "train":
                    answer = _train(message, context, call_next, keeper, instruction)
                elif instruction.task == "evaluate":
                    answer = _evaluate(message, context, call_next, keeper, instruction)
        except BadInput as error:
            log.warning("refused: %s", plain(str(error)))
            answer = replace(answer, refused=_without_paths(str(error), context))
        except OSError as error:  # a full disk; its words would tell the server of this machine
            log.exception("this client cannot keep its state")
            answer = replace(answer, refused=f"this client cannot keep its state ({type(error).__name__}). Its log says why.")
        return answer.reply(message)


def _check_unprotected(message: Message, owner: Owner) -> None:
    """What normec's server did not send reaches the app only where the owner asks for no protection.

    Raises:
        BadInput: where the owner does.
    """
    if owner.trust != "none" or owner.limited:
        kind = message.metadata.message_type
        raise BadInput(
            "instruction",
            f": a {kind} message without one is not answered, since nothing would protect the answer",
            remedy="Use normec's Strategy",
        )
    owner.mark_unprotected()


def _without_paths(text: str, context: Context) -> str:
    directory = str(context.node_config.get("state-dir", context.node_config.get("state_dir", "")))
    return text.replace(directory, "state-dir") if directory else text


def _train(message: Message, context: Context, call_next: Next, keeper: Keeper, instruction: Instruction) -> Answer:
    """One round of a client: steps 1 to 3 of Algorithm 1, for one row.

    Where its own coin lets it sit out it answers without a message, and computes only if the algorithm moves every memory.
    """
    terms, mechanism = instruction.terms, instruction.terms.mechanism
    layout = Layout.of(_only_arrays(message), instruction.names, instruction.copies)
    if layout.d != terms.sizes.parameters:
        raise BadInput("arrays", f"hold {layout.d} trained parameters, and the experiment has {terms.sizes.parameters}")
    keeper.begin(instruction.attempt)
    memory = keeper.settle(instruction.settled)
    hidden = mechanism.trust.at_server  # who transmits: the others send zeros of the same size
    transmits = keeper.takes_part(instruction.round) if terms.own_coins else bool(instruction.transmits)
    ledger = keeper.intend(instruction.round) if hidden or (transmits and mechanism.trust.promises) else None
    if not mechanism.trust.promises:
        keeper.owner.mark_unprotected()

    sent = keeper.sent_before(instruction.attempt, instruction.round) if terms.own_coins and transmits else None
    if sent is None and (transmits or hidden or terms.algorithm.everyone_computes):
        sent = _computed(message, context, call_next, keeper, instruction, memory, transmits)
    if ledger is not None and not (terms.own_coins and ledger.committed(instruction.round)):
        ledger.commit(instruction.round, _fingerprint(sent), **({} if hidden else {"participants": [0], "exposure": 1.0}))
    return Answer.to(instruction, keeper.owner.client_id, sent, hidden=hidden)


def _computed(
    message: Message, context: Context, call_next: Next, keeper: Keeper, instruction: Instruction, memory: Slots, transmits: bool
) -> Tensor | None:
    """What leaves the client after its local steps, if anything; its memory, and a message that may be asked for again, are kept."""
    terms, received = instruction.terms, _only_arrays(message)
    layout = Layout.of(received, instruction.names, instruction.copies)
    update = _update(message, context, call_next, layout, terms)[None]
    unkeyed = AlgorithmContext((), lambda: torch.from_numpy(np.random.default_rng().random(update.shape)).float())
    step = client_step(terms.algorithm, update, tuple(slot[None] for slot in memory), unkeyed)
    bounded, moves = _bounded(step.message, terms), transmits or terms.algorithm.everyone_computes
    after = tuple(slot[0] for slot in step.memory) if moves and bounded is step.message else memory
    sent = _protected(bounded[0], terms.mechanism, transmits)
    keeper.propose(instruction.attempt, after, sent if terms.own_coins else None, instruction.round)
    return sent


def _evaluate(message: Message, context: Context, call_next: Next, keeper: Keeper, instruction: Instruction) -> Answer:
    """What this client's own data say of the model, as the vector that the terms allow."""
    terms, mechanism = instruction.terms, instruction.terms.evaluation_mechanism
    keeper.begin(instruction.attempt)
    ledger = keeper.intend(instruction.round, EVALUATION) if mechanism.trust.promises else None
    if ledger is None:
        keeper.owner.mark_unprotected()
    values = _metrics(message, context, call_next, mechanism)
    sent = _protected(terms.evaluation.message(values, mechanism), mechanism, transmits=True) if terms.evaluation else None
    if ledger is not None:
        ledger.commit(instruction.round, _fingerprint(sent))
    hidden = mechanism.trust.at_server
    return Answer.to(instruction, keeper.owner.client_id, sent, hidden=hidden)


def _metrics(message: Message, context: Context, call_next: Next, mechanism: Mechanism) -> dict[str, object] | None:
    """What the evaluate function has returned; None where it failed, under privacy: an error would tell of the data."""
    del message.content[RECORD]
    try:
        reply = call_next(message, context)
        if reply.has_error():
            raise RuntimeError(f"the evaluate function answered with an error: {reply.error.reason}")
        return {name: value for record in reply.content.metric_records.values() for name, value in record.items()}
    except FAILURES:
        if not mechanism.trust.promises:
            raise
        log.exception("the evaluate function failed; this client's metrics count as zero")
        return None


def _update(message: Message, context: Context, call_next: Next, layout: Layout, terms: Terms) -> Tensor:
    """The scaled local update (d,), in the unit that the algorithm bounds.

    Not a number where the train function fails, under privacy: an error, or the sight of one, would tell of the data.
    """
    x = layout.flat(_only_arrays(message))
    del message.content[RECORD]
    try:
        moved = _only_arrays(call_next(message, context))
        y = layout.flat(moved)
    except FAILURES:
        if terms.privacy.trust == "none":
            raise
        log.exception("the train function failed; this client's message is zero in this round")
        return torch.full_like(x, torch.nan)
    layout.check_copies(moved)  # says nothing of the data, but of the model
    return (x - y).mul_(terms.algorithm.local_rule.scale(terms.sizes.local_lr) / terms.sizes.local_lr)


def _bounded(messages: Tensor, terms: Terms) -> Tensor:
    """The message (1, d) of this client; zero in place of one past its bound, which no noise would hide, nor a refusal."""
    if terms.privacy.trust == "none":
        return messages
    try:
        check_bound(terms.algorithm, messages, terms.algorithm.operator.bound, messages.dtype)
    except TrainingFailed as error:
        log.error("%s This client's message is zero in this round.", error)
        return torch.zeros_like(messages)
    return messages


def _protected(message: Tensor, mechanism: Mechanism, transmits: bool) -> Tensor | None:
    """What leaves the client for its message (d,).

    With a lattice, whole multiples of it: float32 holds those of a bounded message, float64 those of a noised one.
    """
    encoded = mechanism.aggregation.encode(message)
    if mechanism.trust.at_server:
        return encoded.float() if transmits else torch.zeros_like(message)
    if not transmits:
        return None
    return mechanism.noised(encoded, 1, (), Streams(0), 0)[0] if mechanism.trust.promises else message


def _fingerprint(sent: Tensor | None) -> str:
    return hashlib.blake2b(sent.numpy().tobytes() if sent is not None else b"", digest_size=16).hexdigest()


def _only_arrays(message: Message) -> ArrayRecord:
    """The one array record of a message."""
    if message.has_error():
        raise RuntimeError(f"the train function answered with an error: {message.error.reason}")
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise BadInput("arrays", f": the message holds {len(records)} array records", remedy="Receive and return one, the model's")
    return records[0]
