"""A client's half of an attempt: it offers keys, masks its vector, and answers once for whom which share opens.

Each step takes the state before and returns the one after, which must be durable before the answer leaves. Nothing that a server says
is believed: what is not signed by a pinned identity, or is not what this client has seen before, is refused in one sentence.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from normec.errors import BadInput
from normec.secagg.masks import add_mask, agreed, derived, public, seal, signed_by, unseal
from normec.secagg.plan import Member, Plan, digest
from normec.secagg.shares import SHARE, split

Stage = Literal["offered", "masked", "opened"]


@dataclass(frozen=True)
class Party:
    """A client with its keys. box: its private X25519 key of the experiment (32 bytes). peers: the identity keys that its owner pins."""

    name: str
    identity: Ed25519PrivateKey
    box: bytes
    peers: Mapping[str, bytes]

    def introduction(self, experiment: str) -> tuple[Member, bytes]:
        """Who it is in an experiment, with its signature on the box key."""
        member = Member(self.name, self.identity.public_key().public_bytes_raw(), public(self.box))
        return member, self.identity.sign(box_text(experiment, member))


@dataclass(frozen=True)
class Offer:
    """What a client brings to an attempt: a fresh public key of its masks, H(seed), and its signature on both."""

    mask_key: bytes
    commitment: bytes
    signature: bytes


@dataclass(frozen=True)
class View:
    """What a client knows of the others when it trains. offers: of the clients whose offers are used, itself included, by name.

    context: a digest of the attempt, the model and these offers. Only uploads whose signers saw the same are counted together.
    """

    offers: Mapping[str, Offer]
    context: bytes


@dataclass(frozen=True, kw_only=True)
class State:
    """Where a client stands in its last attempt. mask_key, seed: its secrets, as long as they are needed.

    offered, context: of the view with which it has masked.
    """

    plan: Plan
    stage: Stage
    offer: Offer
    mask_key: bytes = b""
    seed: bytes = b""
    offered: tuple[str, ...] = ()
    context: bytes = b""

    def text(self) -> str:
        """As JSON; bytes are hexadecimal."""
        return json.dumps(asdict(self), default=bytes.hex)

    @classmethod
    def read(cls, text: str) -> State:
        """The state in a text.

        Raises:
            BadInput: for one that is damaged.
        """
        try:
            found = json.loads(text)
            plan = found["plan"]
            members = tuple(Member(each["name"], *_bytes(each, "identity", "box_key")) for each in plan.pop("members"))
            del plan["threshold"]
            whole = Plan(**{**plan, "members": members, "terms": bytes.fromhex(plan["terms"])})
            offer = Offer(*_bytes(found["offer"], "mask_key", "commitment", "signature"))
            key, seed, context = _bytes(found, "mask_key", "seed", "context")
            return cls(
                plan=whole, stage=found["stage"], offer=offer, mask_key=key, seed=seed, offered=tuple(found["offered"]), context=context
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput("state", f"of the secure aggregation is damaged ({error})", remedy="Start a new experiment") from None


def _bytes(table: Mapping[str, str], *names: str) -> list[bytes]:
    return [bytes.fromhex(table[name]) for name in names]


def box_text(experiment: str, member: Member) -> bytes:
    """What a client signs to introduce its box key."""
    return digest("box key", experiment.encode(), member.name.encode(), member.box_key)


def commitment(seed: bytes) -> bytes:
    """H(seed), which tells nothing of a seed and lets everybody check it."""
    return digest("seed", seed)


def offer_text(plan: Plan, name: str, mask_key: bytes, committed: bytes) -> bytes:
    """What a client signs in its offer."""
    return digest("offer", plan.id, name.encode(), mask_key, committed)


def upload_text(context: bytes) -> bytes:
    """What a client signs in its upload."""
    return digest("upload", context)


def context_of(plan: Plan, model: bytes, offers: Mapping[str, Offer]) -> bytes:
    """A digest of an attempt, of a digest of the model, and of the offers that are used."""
    told = [part for name, offer in sorted(offers.items()) for part in (name.encode(), offer.mask_key, offer.commitment)]
    return digest("context", plan.id, model, *told)


def box_key(party: Party, plan: Plan, other: str, sender: str) -> bytes:
    """The key of the box from `sender` between this client and another one."""
    receiver = other if sender == party.name else party.name
    return agreed(party.box, plan.by_name[other].box_key, "box", plan.id, sender.encode(), receiver.encode())


def offer(party: Party, plan: Plan, box_signatures: Mapping[str, bytes], last: State | None) -> tuple[State, Offer, dict[str, bytes]]:
    """Fresh keys for an attempt, and a box for each member with the shares of both secrets.

    Raises:
        BadInput: for an attempt that is not newer than the last, or a cohort in which a key is not what it should be.
    """
    if last is not None and plan.attempt <= last.plan.attempt:
        raise BadInput("instruction", f": attempt {plan.attempt} is not newer than {last.plan.attempt}, which this client has seen")
    _check_cohort(party, plan, box_signatures)
    mask_private, seed = os.urandom(32), os.urandom(32)
    mask_public, committed = public(mask_private), commitment(seed)
    made = Offer(mask_public, committed, party.identity.sign(offer_text(plan, party.name, mask_public, committed)))
    shares = (split(secret, plan.threshold, len(plan.members)) for secret in (mask_private, seed))
    boxes = {}
    for member, of_key, of_seed in zip(plan.members, *shares, strict=True):
        boxes[member.name] = seal(box_key(party, plan, member.name, party.name), of_key + of_seed, plan.id)
    return State(plan=plan, stage="offered", offer=made, mask_key=mask_private, seed=seed), made, boxes


def _check_cohort(party: Party, plan: Plan, box_signatures: Mapping[str, bytes]) -> None:
    own, _ = party.introduction(plan.experiment)
    for member in plan.members:
        pinned = own.identity if member.name == party.name else party.peers.get(member.name)
        if pinned is None:
            raise BadInput(
                "peers", f": client {member.name!r} of the cohort is not among them", remedy="Add its identity key, or ask the server"
            )
        if member.identity != pinned:
            raise BadInput(
                "peers", f": client {member.name!r} shows another identity key than the one that is pinned", remedy="Ask its owner"
            )
        if not signed_by(pinned, box_signatures.get(member.name, b""), box_text(plan.experiment, member)):
            raise BadInput("cohort", f": the box key of client {member.name!r} is not signed by its identity")
    if plan.by_name.get(party.name) != own:
        raise BadInput("cohort", f"does not hold this client, {party.name!r}, with its own box key")


def view(party: Party, state: State | None, plan_id: bytes, model: bytes, offers: Mapping[str, Offer]) -> View:
    """What the server shows of the others, checked before anything is trained. model: a digest of what is trained from.

    Raises:
        BadInput: for another attempt, an attempt that is over, or offers that are not those of the cohort's clients.
    """
    state = _at(state, "offered", plan_id)
    plan = state.plan
    if offers.get(party.name) != state.offer:
        raise BadInput("instruction", ": the offer of this client is not the one that it has made")
    for name, each in offers.items():
        if name not in plan.by_name:
            raise BadInput("instruction", f": client {name!r} has an offer and is not in the cohort")
        if not signed_by(plan.by_name[name].identity, each.signature, offer_text(plan, name, each.mask_key, each.commitment)):
            raise BadInput("instruction", f": the offer of client {name!r} is not signed by its identity")
    if len(offers) < plan.fewest:
        raise BadInput("instruction", f": {len(offers)} offers are fewer than the {plan.fewest} that protect this client")
    return View(dict(offers), context_of(plan, model, offers))


def _at(state: State | None, stage: Stage, plan_id: bytes) -> State:
    """The state, where it stands at a stage of the attempt of this id."""
    if state is None or state.plan.id != plan_id:
        raise BadInput("instruction", ": this client has made no offer for that attempt, or it was for another cohort or other terms")
    if state.stage != stage:
        raise BadInput(
            "instruction", f": the attempt stands at {state.stage!r} here, and not at {stage!r}", remedy="It is over for this client"
        )
    return state


def mask(party: Party, state: State, seen: View, values: np.ndarray) -> tuple[State, np.ndarray, bytes]:
    """The upload: whole numbers (d,) int64 modulo 2³² under this client's masks, as uint32, and the signature on its view."""
    plan, total = state.plan, values.astype(np.int64).astype(np.uint32)
    add_mask(total, derived(state.seed, "own mask", plan.id))
    for name, other in seen.offers.items():
        if name != party.name:
            try:
                key = agreed(state.mask_key, other.mask_key, "pair mask", plan.id)
            except ValueError:
                raise BadInput("instruction", f": client {name!r} offers a mask key that hides nothing") from None
            add_mask(total, key, subtract=party.name > name)
    after = replace(state, stage="masked", mask_key=b"", seed=b"", offered=tuple(sorted(seen.offers)), context=seen.context)
    return after, total, party.identity.sign(upload_text(seen.context))


def open_sum(
    party: Party, state: State | None, plan_id: bytes, counted: Mapping[str, bytes], boxes: Mapping[str, bytes]
) -> tuple[State, dict[str, bytes]]:
    """One share for each client whose offer was used: of its seed where its upload counts, of its mask key where it does not.

    counted: the clients whose uploads count, with the signatures on their views. boxes: those addressed to this client, by sender.
    A share is empty where the box does not open.

    Raises:
        BadInput: for anything with which more than one sum, or a sum of too few, could open.
    """
    state = _at(state, "masked", plan_id)
    plan = state.plan
    check_counted(plan, party.name, state.offered, counted)
    for name, signature in counted.items():
        if not signed_by(plan.by_name[name].identity, signature, upload_text(state.context)):
            raise BadInput("instruction", f": client {name!r} has not signed the model and the offers that this client has seen")
    shares = {name: _share(party, plan, name, boxes.get(name, b""), seed=name in counted) for name in state.offered}
    return replace(state, stage="opened"), shares


def check_counted(plan: Plan, name: str, offered: Collection[str], counted: Collection[str]) -> None:
    """What a client asks of the survivors that it is shown, beside their signatures.

    Raises:
        BadInput: for survivors with which more than one sum, or a sum of too few, could open.
    """
    strangers, missing, most = sorted(set(counted) - set(offered)), len(offered) - len(counted), plan.may_be_missing(len(offered))
    if strangers:
        raise BadInput("instruction", f": client {strangers[0]!r} is counted, and this client has seen no offer of it")
    if name not in counted:
        raise BadInput("instruction", ": this client has sent its upload, and is not counted")
    if len(counted) < plan.fewest:
        raise BadInput("instruction", f": a sum of {len(counted)} uploads is of fewer than the {plan.fewest} that protect this client")
    if missing > most:
        raise BadInput("instruction", f": {missing} uploads are missing of {len(offered)} offers, and at most {most} may be")


def _share(party: Party, plan: Plan, sender: str, box: bytes, *, seed: bool) -> bytes:
    try:
        held = unseal(box_key(party, plan, sender, sender), box, plan.id)
    except ValueError:
        return b""
    if held is None or len(held) != 2 * SHARE:
        return b""
    return held[SHARE:] if seed else held[:SHARE]
