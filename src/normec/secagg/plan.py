"""An attempt at a sum, as each party computes it alone: its id, its threshold, and how many uploads may be missing."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

from normec.errors import BadInput


def digest(purpose: str, *parts: bytes) -> bytes:
    """SHA-256 of a purpose and of parts, each with its length before it, so that no two lists of parts run together."""
    whole = hashlib.sha256()
    for part in (f"normec secagg {purpose}".encode(), *parts):
        whole.update(len(part).to_bytes(8, "big"))
        whole.update(part)
    return whole.digest()


@dataclass(frozen=True)
class Member:
    """A client of a cohort. identity: its Ed25519 public key (32 bytes). box_key: its X25519 public key of the experiment (32 bytes)."""

    name: str
    identity: bytes
    box_key: bytes


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One attempt. members: the cohort, in the order of their names. terms: a digest of what the experiment's parties agree on.

    min_honest: participants that do not collude, at least, in any sum that opens. colluders: clients that may side with the server.

    A key opens where t − c honest clients call it missing, and each of the n − c honest clients answers once and calls at most e(u)
    of the u offers missing. So at most ⌊e (n − c) / (t − c)⌋ ≤ u − L keys open, and every sum that opens holds at least L =
    min_honest + c uploads. As 2t > n + c, seed and key of one client never open both, nor do two views of one attempt.
    """

    experiment: str
    attempt: str
    members: tuple[Member, ...]
    terms: bytes
    min_honest: int
    colluders: int
    threshold: int = field(init=False)

    def __post_init__(self) -> None:
        n, names = len(self.members), [member.name for member in self.members]
        if names != sorted(set(names)):
            raise BadInput("cohort", ": the clients must be named in order, each once")
        if n < self.floor:
            raise BadInput(
                "cohort",
                f"of {n} clients is less than min_honest + colluders = {self.floor}",
                remedy="Raise the participation, or lower one of them",
            )
        candidates = range((n + self.colluders) // 2 + 1, n + 1)
        if not candidates:
            raise BadInput("colluders", f"of a cohort of {n} leaves no threshold that protects", value=self.colluders, remedy="Lower it")
        best = max(candidates, key=lambda t: (min(n - t, self._missing(n, t)), -t))
        object.__setattr__(self, "threshold", best)

    @property
    def floor(self) -> int:
        """L: the fewest uploads in a sum that opens."""
        return self.min_honest + self.colluders

    @property
    def fewest(self) -> int:
        """The fewest offers or uploads with which the attempt continues."""
        return max(self.threshold, self.floor)

    def may_be_missing(self, offered: int) -> int:
        """e(u): how many of u offers may have no upload."""
        return self._missing(offered, self.threshold)

    def _missing(self, offered: int, threshold: int) -> int:
        honest, needed = len(self.members) - self.colluders, threshold - self.colluders
        return max(0, ((offered - self.floor + 1) * needed - 1) // honest)

    @cached_property
    def id(self) -> bytes:
        """What every signature and every key of the attempt is bound to."""
        told = [part for member in self.members for part in (member.name.encode(), member.identity, member.box_key)]
        numbers = f"{self.min_honest} {self.colluders}".encode()
        return digest("attempt", self.experiment.encode(), self.attempt.encode(), self.terms, numbers, *told)

    @cached_property
    def by_name(self) -> dict[str, Member]:
        """The members by their names."""
        return {member.name: member for member in self.members}

    @cached_property
    def place(self) -> dict[str, int]:
        """Where each member's share lies: 1 for the first."""
        return {member.name: position + 1 for position, member in enumerate(self.members)}
