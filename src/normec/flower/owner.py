"""What the owner of a client's data allows, and what all experiments together have spent of it."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from pydantic import Field

from normec.errors import BadInput, nearest, plural
from normec.files import Lock, making, write_atomically
from normec.flower.index import TRAINING, UNPROTECTED, Account, Index
from normec.flower.terms import Terms
from normec.privacy import Trust, epsilon, gaussian
from normec.privacy.header import Header
from normec.privacy.ledger import read
from normec.privacy.mechanism import SMALLEST_NOISE, Adjacency, Epsilon, NoiseMultiplier
from normec.settings import OpenUnit, Settings, Switch, Text

NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
Name = Annotated[str, Field(pattern=f"^{NAME}$", description="up to 64 letters, digits, dots, dashes")]
PATIENCE = 60.0
"""Seconds to wait for an earlier round, or for another experiment of the same client to write down a release."""
EVALUATION = "evaluation.jsonl"
"""The ledger of an experiment's evaluations, beside that of its training."""
TRUST: tuple[Literal["none", "central", "local"], ...] = ("none", "central", "local")
"""From the trust that asks for most to that which asks for least."""


class Owner(Settings):
    """A node's config, in which its owner says where memories lie and what may leave them (`--node-config 'client-id="a" …'`).

    state_dir: a directory that outlives the node, for its eyes alone. client_id: the client's name in every experiment.
    trust: the weakest protection that is accepted: "local" (the client adds the noise itself), "central" (the server is
    trusted to add it), "none". min_noise_multiplier: σ/C, the least noise that is accepted, in the unit of the experiment's
    trust model. max_epsilon: ε at `delta` that all experiments together may spend of this client. One of the two must be
    given, unless trust is "none". adjacency: "replace-one" accepts only experiments that account for that. own_coins: accepts, where
    the client adds the noise, no experiment whose server draws who takes part.
    """

    state_dir: Text
    client_id: Name
    trust: Literal["none", "central", "local"] = "local"
    min_noise_multiplier: NoiseMultiplier | None = None
    max_epsilon: Epsilon | None = None
    delta: OpenUnit = 1e-5
    adjacency: Adjacency = "zero-out"
    own_coins: Switch = False

    def __init__(self, /, **values: object) -> None:
        super().__init__(**values)
        if self.trust != "none" and not self.limited:
            raise BadInput(
                "max_epsilon",
                f"is missing: with trust={self.trust!r} say what ε all experiments together may spend, or give min-noise-multiplier",
            )

    @classmethod
    def of(cls, node_config: Mapping[str, Any]) -> Owner:
        """The settings of a node's config, by `-` or `_`; keys that are not ours are the app's.

        Raises:
            BadInput: naming the key of the node's config; also for one that looks like a limit and is none.
        """
        known, given = cls.model_fields, {}
        for key, value in node_config.items():
            name = key.replace("-", "_")
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            if name in known:
                given[name] = value
            elif near or name.startswith(("max_", "min_", "trust")):
                meant = f"Did you mean {near[0]}?" if near else nearest(name, known)
                raise BadInput(f"node-config: {key}", "is not known", remedy=meant.replace("_", "-"))
        if isinstance(given.get("client_id"), int):
            given["client_id"] = str(given["client_id"])
        try:
            return cls(**given)
        except BadInput as error:
            raise error.of(f"node-config: {error.setting.replace('_', '-')}") from None

    @property
    def limited(self) -> bool:
        """Whether the owner has set a limit."""
        return self.max_epsilon is not None or (self.min_noise_multiplier or 0.0) >= SMALLEST_NOISE

    @property
    def folder(self) -> Path:
        """Of this client's experiments."""
        return Path(self.state_dir) / self.client_id

    def check(self, terms: Terms) -> None:
        """Refuses terms that protect less than the owner asks for.

        Raises:
            BadInput: naming the limit.
        """
        trust, noise = terms.privacy.trust, terms.privacy.noise_multiplier or 0.0
        if TRUST.index(trust) < TRUST.index(self.trust):
            raise BadInput("privacy.trust", f"is less than this client's owner accepts (trust={self.trust!r})", value=trust)
        if self.adjacency == "replace-one" != terms.privacy.adjacency:
            raise BadInput(
                "privacy.adjacency",
                "protects less than this client's owner asks for (adjacency='replace-one')",
                value=terms.privacy.adjacency,
            )
        if self.own_coins and terms.mechanism.trusts_the_draw:
            raise BadInput(
                "own-coins",
                "of this client's owner accepts no experiment whose server draws who takes part",
                remedy="Let each client draw its own coin",
            )
        noises = {"privacy": noise}
        if terms.evaluation is not None:
            noises["evaluation"] = terms.evaluation.noise_multiplier or 0.0
        section, noise = min(noises.items(), key=lambda each: each[1])
        if self.min_noise_multiplier is not None and not noise >= self.min_noise_multiplier:
            raise BadInput(
                f"{section}.noise_multiplier",
                f"is below the {self.min_noise_multiplier:g} that this client's owner asks for (min-noise-multiplier)",
                value=noise,
            )
        if (self.limited or self.trust != "none") and not terms.mechanism.private:
            raise BadInput("privacy", "spends ε = ∞, and this client's owner has set limits")

    def index(self) -> Index:
        """What this client has released in all experiments, verified.

        Raises:
            BadInput: where it is missing, damaged or contradicted by a ledger.
        """
        return Index(self.folder, self.client_id)

    def writing(self) -> Lock:
        """Keeps the other processes of this client from writing down a release meanwhile; its directory must exist."""
        busy = BadInput(
            "state-dir", f": another experiment of client {self.client_id!r} is still writing in {self.folder}", remedy="Wait for it"
        )
        return Lock(self.folder, busy, PATIENCE)

    def mark_unprotected(self) -> None:
        """Writes down, before it happens, that something leaves without protection, after which no limit of ε can hold."""
        marker = self.folder / UNPROTECTED
        if marker.exists():
            return
        with making(self.folder), self.writing():
            self.index().note_unprotected()
            write_atomically(marker, lambda: b"Messages of this client have left it without noise: with them epsilon is infinite.\n")

    def mark_outdated(self, experiment: str) -> None:
        """Writes down that this directory has forgotten releases."""
        with making(self.folder), self.writing():
            self.index().note_outdated(experiment)

    def check_budget(self, index: Index, planned: Mapping[str, Account]) -> None:
        """Refuses releases with which all experiments would spend more than the owner allows.

        planned: by ledger, as in the index, its releases with those that are asked for.

        Raises:
            BadInput: naming the limit.
        """
        if self.max_epsilon is None:
            return
        if index.unprotected:
            raise BadInput(
                "max-epsilon",
                (
                    f"of this client's owner cannot hold any more: messages have left without protection before ({UNPROTECTED} in "
                    "its directory)"
                ),
                value=self.max_epsilon,
            )
        if index.outdated:
            raise BadInput(
                "max-epsilon",
                "of this client's owner cannot hold: its state-dir is an older copy, which has forgotten releases",
                value=self.max_epsilon,
                remedy="Restore the newer one, or take a new one and a max-epsilon lower by what was spent",
            )
        accounts = {**index.accounts, **planned}
        total = spent(accounts.values(), self.delta)
        if not total <= self.max_epsilon:
            experiments = plural(len({key.partition("/")[0] for key in accounts}), "experiment")
            problem = f"of this client's owner does not allow another release: with it ε = {total:.4g} at δ = {self.delta:g}"
            raise BadInput("max-epsilon", f"{problem}, over {experiments}", value=self.max_epsilon)


class ExperimentAccount(TypedDict):
    """What a client has released in an experiment.

    epsilon_every_round: of a training, what it spends where the server asks in every round; None where the client's own coins decide,
    or where it is infinite.
    """

    experiment: str
    of: Literal["training", "evaluation"]
    releases: int
    trust: Trust
    noise_multiplier: float
    epsilon_every_round: float | None


class ClientAccount(TypedDict):
    """What a client has released in all its experiments. epsilon: None where it is infinite."""

    experiments: list[ExperimentAccount]
    unprotected: bool
    outdated: bool
    epsilon: float | None
    delta: float


def account(folder: Path, delta: float) -> ClientAccount:
    """What a client's directory says that it has released, by ledger and in all.

    Raises:
        BadInput: for an index or a ledger that is damaged.
    """
    for path in sorted(folder.glob("*/*.jsonl")):
        read(path)
    index = Index(folder)
    total = math.inf if index.unprotected or index.outdated else spent(index.accounts.values(), delta)
    return {
        "experiments": [
            {
                "experiment": key.partition("/")[0],
                "of": "evaluation" if key.endswith(EVALUATION) else "training",
                "releases": found.releases,
                "trust": found.mechanism["trust"],
                "noise_multiplier": found.mechanism["noise_multiplier"],
                "epsilon_every_round": _in_every_round(found, delta) if key.endswith(TRAINING) else None,
            }
            for key, found in sorted(index.accounts.items())
        ],
        "unprotected": index.unprotected,
        "outdated": index.outdated,
        "epsilon": total if math.isfinite(total) else None,
        "delta": delta,
    }


def _in_every_round(account: Account, delta: float) -> float | None:
    """ε of an experiment that asks this client in every round; None where its own coins decide, or the server adds the noise."""
    header = Header.read(account.mechanism)
    if header.own_coins or header.trust != "local":
        return None
    planned = epsilon(header.mechanism(), delta).epsilon
    return planned if math.isfinite(planned) else None


def spent(accounts: Iterable[Account], delta: float) -> float:
    """ε at δ of one client over the mechanisms that it took part in, in the order in which they began, each with its number of releases.

    Releases that it noised itself compose as Gaussians, of which μ² adds up, and are one mechanism, which began with the first of
    them. A mechanism whose server adds the noise counts with all its rounds, which were accounted for with their sampling. Each has a
    share of δ that later ones do not change (`share_of`), and the ε add up.

    Guarantee: where a client stops before this sum exceeds a limit, all it has released is (limit, δ)-private, however many
    mechanisms there are and however each of them, and each release that it noised itself, is chosen after what was released before.
    The shares sum to at most δ for any number (Rogers, Roth, Ullman and Vadhan 2016, *Privacy odometers and filters*, of basic
    composition; Smith and Thakurta 2022, *Fully adaptive composition for Gaussian differential privacy*, within the first kind).
    """
    squared, pooled, claims, begun = 0.0, 0.0, [], 0
    for account in accounts:
        header, own = Header.read(account.mechanism), account.mechanism.get("trust") == "local"
        if not own or not pooled:
            begun += 1
        share = share_of(delta, begun)
        if own:
            squared += account.releases * _squared(header.sensitivity, header.noise_std) if account.releases else 0.0
            pooled = pooled or share
        elif account.releases:
            claims.append(epsilon(header.mechanism(max(account.releases, header.rounds)), share).epsilon)
    return math.fsum([*claims, gaussian(math.sqrt(squared), pooled or delta)])


def share_of(delta: float, begun: int) -> float:
    """The share of δ of the mechanism that began as the j-th: nine tenths of it for the first, δ / (10 j (j − 1)) for the others."""
    return 0.9 * delta if begun == 1 else 0.1 * delta / (begun * (begun - 1))


def _squared(sensitivity: float, std: float) -> float:
    """μ² of one release; infinite for a noise that is none."""
    return (sensitivity / std) ** 2 if std > SMALLEST_NOISE * sensitivity else math.inf
