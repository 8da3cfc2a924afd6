"""The server's half of an attempt: it forwards offers and boxes, counts uploads, and opens the one sum."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from normec.errors import BadInput, NormecError
from normec.secagg.client import Offer, commitment, context_of, offer_text, upload_text
from normec.secagg.masks import add_mask, agreed, derived, public, signed_by, usable_key
from normec.secagg.plan import Plan
from normec.secagg.shares import SHARE, Interpolation

MOST_SUBSETS = 2000
"""Of the clients that answer, with whose shares a secret is tried before the round is given up."""


class GivenUp(NormecError):
    """An attempt whose sum does not open; nothing of it is released."""


@dataclass
class Attempt:
    """One attempt at a sum. Whatever a client says that is not its own or makes no sense is refused, and the client is left out.

    offers, boxes: by client; boxes by sender, then by receiver. uploads: masked vectors (d,) of type uint32.
    """

    plan: Plan
    offers: dict[str, Offer] = field(default_factory=dict)
    boxes: dict[str, Mapping[str, bytes]] = field(default_factory=dict)
    context: bytes = b""
    uploads: dict[str, np.ndarray] = field(default_factory=dict)
    signatures: dict[str, bytes] = field(default_factory=dict)
    shares: dict[str, Sequence[bytes]] = field(default_factory=dict)

    def receive_offer(self, name: str, offer: Offer, boxes: Mapping[str, bytes]) -> None:
        """Raises BadInput for an offer that others would refuse, or that hides nothing."""
        member = self.plan.by_name.get(name)
        if member is None:
            raise BadInput("reply", f"is an offer of client {name!r}, which is not in the cohort")
        if not signed_by(member.identity, offer.signature, offer_text(self.plan, name, offer.mask_key, offer.commitment)):
            raise BadInput("reply", f"is an offer of client {name!r} that its identity has not signed")
        if not usable_key(offer.mask_key):
            raise BadInput("reply", f": client {name!r} offers a mask key that hides nothing")
        if set(boxes) != set(self.plan.by_name):
            raise BadInput("reply", f": client {name!r} has not sealed a box for each client of the cohort")
        self.offers[name], self.boxes[name] = offer, boxes

    def begin(self, model: bytes) -> dict[str, Offer]:
        """The offers that are used, in the order of their clients' names. model: a digest of what the clients train from.

        Raises:
            GivenUp: where there are too few.
        """
        if len(self.offers) < self.plan.fewest:
            raise GivenUp(f"{len(self.offers)} of {len(self.plan.members)} clients have made an offer, and {self.plan.fewest} must.")
        self.offers = dict(sorted(self.offers.items()))
        self.context = context_of(self.plan, model, self.offers)
        return self.offers

    def receive_upload(self, name: str, masked: np.ndarray, signature: bytes, d: int) -> None:
        """Raises BadInput for an upload that cannot be added to the others'."""
        if name not in self.offers:
            raise BadInput("reply", f"is an upload of client {name!r}, whose offer is not used")
        if masked.dtype != np.uint32 or masked.shape != (d,):
            raise BadInput("reply", f"is an upload of client {name!r} of type {masked.dtype} and shape {masked.shape}")
        if not signed_by(self.plan.by_name[name].identity, signature, upload_text(self.context)):
            raise BadInput("reply", f": client {name!r} has trained from another model, or with other offers")
        self.uploads[name], self.signatures[name] = masked, signature

    def counted(self) -> dict[str, bytes]:
        """The clients whose uploads count, with their signatures.

        Raises:
            GivenUp: where too few have uploaded, or too many are missing.
        """
        missing, most = len(self.offers) - len(self.uploads), self.plan.may_be_missing(len(self.offers))
        if len(self.uploads) < self.plan.fewest or missing > most:
            raise GivenUp(f"{missing} of {len(self.offers)} uploads are missing; at most {most} may be, and {self.plan.fewest} must count.")
        return dict(sorted(self.signatures.items()))

    def boxes_to(self, name: str) -> dict[str, bytes]:
        """The boxes that are addressed to a client, by sender."""
        return {sender: self.boxes[sender][name] for sender in self.offers}

    def receive_shares(self, name: str, shares: Sequence[bytes]) -> None:
        """One share for each offer, in their order. Raises BadInput for anything else."""
        if name not in self.uploads or len(shares) != len(self.offers) or any(len(each) not in (0, SHARE) for each in shares):
            raise BadInput("reply", f": client {name!r} has not answered with one share for each offer")
        self.shares[name] = shares

    def total(self) -> tuple[np.ndarray, list[str]]:
        """The sum (d,) of the counted vectors as int64, and the clients whose shares were wrong.

        The sum is right modulo 2³²; it is returned between −2³¹ and 2³¹ − 1.

        Raises:
            GivenUp: where a mask cannot be made again.
        """
        keys = _Secrets(self.plan)
        total = np.zeros_like(next(iter(self.uploads.values())))
        for upload in self.uploads.values():
            total += upload
        for position, (name, offer) in enumerate(self.offers.items()):
            shares = {self.plan.place[who]: given[position] for who, given in self.shares.items() if given[position]}
            if name in self.uploads:
                seed = keys.find(name, shares, commitment, offer.commitment)
                add_mask(total, derived(seed, "own mask", self.plan.id), subtract=True)
            else:
                key = keys.find(name, shares, public, offer.mask_key)
                for other in self.uploads:
                    pair = agreed(key, self.offers[other].mask_key, "pair mask", self.plan.id)
                    add_mask(total, pair, subtract=other < name)
        return total.view(np.int32).astype(np.int64), keys.liars


class _Secrets:
    """Secrets from shares. Who is found to have given a wrong share once is not believed again."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.names = plan, {place: name for name, place in plan.place.items()}
        self._wrong: set[int] = set()
        self._known: dict[tuple[int, ...], Interpolation] = {}

    @property
    def liars(self) -> list[str]:
        """The clients of wrong shares, by name."""
        return sorted(self.names[place] for place in self._wrong)

    def find(self, whose: str, shares: Mapping[int, bytes], seen: Callable[[bytes], bytes], offered: bytes) -> bytes:
        """The secret of which `seen` gives what the client has offered."""
        believed = sorted(set(shares) - self._wrong)
        for attempt, places in enumerate(itertools.islice(_subsets(believed, self.plan.threshold), MOST_SUBSETS)):
            if places not in self._known:
                self._known[places] = Interpolation(places)
            line = self._known[places]
            secret = line.secret(shares)
            if secret is not None and seen(secret) == offered:
                if attempt:
                    others = (place for place in believed if place not in places)
                    self._wrong |= {place for place in others if line.value(shares, place) != int.from_bytes(shares[place], "big")}
                return secret
        raise GivenUp(f"the mask of client {whose!r} cannot be made again from {len(believed)} shares; {self.plan.threshold} are needed.")


def _subsets(places: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """The ways to choose so many places: first without each window of neighbours, so that a few wrong ones are soon left out."""
    spare = len(places) - size
    if spare < 0:
        return
    seen = set()
    for start in range(len(places)):
        left_out = {places[(start + step) % len(places)] for step in range(spare)}
        chosen = tuple(place for place in places if place not in left_out)
        if chosen not in seen:
            seen.add(chosen)
            yield chosen
    yield from (each for each in itertools.combinations(places, size) if each not in seen)
