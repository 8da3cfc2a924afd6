"""Parties of a secure aggregation in one process, for tests."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from normec.secagg.client import Offer, Party, State, mask, offer, open_sum, view
from normec.secagg.plan import Member, Plan
from normec.secagg.server import Attempt

MODEL = b"a digest of the model"


@dataclass
class Cohort:
    """n clients with pinned keys, and the plan of their first attempt."""

    number: int
    min_honest: int = 1
    colluders: int = 0
    parties: dict[str, Party] = field(init=False)
    signatures: dict[str, bytes] = field(init=False)
    members: tuple[Member, ...] = field(init=False)
    states: dict[str, State] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = sorted(f"client-{i}" for i in range(self.number))
        identities = {name: Ed25519PrivateKey.generate() for name in names}
        pinned = {name: key.public_key().public_bytes_raw() for name, key in identities.items()}
        self.parties = {name: Party(name, identities[name], bytes([i + 1]) * 32, pinned) for i, name in enumerate(names)}
        known = {name: party.introduction("experiment") for name, party in self.parties.items()}
        self.members = tuple(member for member, _ in known.values())
        self.signatures = {name: signature for name, (_, signature) in known.items()}

    def plan(self, attempt: str = "1") -> Plan:
        return Plan(
            experiment="experiment", attempt=attempt, members=self.members, terms=b"terms",
            min_honest=self.min_honest, colluders=self.colluders,
        )  # fmt: skip

    def offers(self, attempt: Attempt, absent: frozenset[str] = frozenset()) -> None:
        for name, party in self.parties.items():
            if name not in absent:
                self.states[name], made, boxes = offer(party, attempt.plan, self.signatures, self.states.get(name))
                attempt.receive_offer(name, made, boxes)

    def upload(self, name: str, plan: Plan, offers: dict[str, Offer], values: np.ndarray, model: bytes = MODEL) -> tuple[np.ndarray, bytes]:
        party = self.parties[name]
        seen = view(party, self.states[name], plan.id, model, offers)
        self.states[name], masked, signature = mask(party, self.states[name], seen, values)
        return masked, signature

    def opens(self, name: str, attempt: Attempt, counted: dict[str, bytes] | None = None) -> list[bytes]:
        asked = attempt.counted() if counted is None else counted
        self.states[name], shares = open_sum(self.parties[name], self.states[name], attempt.plan.id, asked, attempt.boxes_to(name))
        return [shares[each] for each in attempt.offers]

    def sum(
        self, values: dict[str, np.ndarray], *, no_offer: int = 0, no_upload: int = 0, no_shares: int = 0, attempt: str = "1"
    ) -> tuple[np.ndarray, list[str], set[str]]:
        """The sum that opens, who gave wrong shares, and who was counted; the last clients drop out, of each phase so many."""
        names, whole = list(self.parties), Attempt(self.plan(attempt))
        self.offers(whole, frozenset(names[len(names) - no_offer :]))
        used = whole.begin(MODEL)
        for name in list(used)[: len(used) - no_upload]:
            masked, signature = self.upload(name, whole.plan, used, values[name])
            whole.receive_upload(name, masked, signature, len(masked))
        answering = list(whole.counted())
        for name in answering[: len(answering) - no_shares]:
            whole.receive_shares(name, self.opens(name, whole))
        total, liars = whole.total()
        return total, liars, set(whole.uploads)
