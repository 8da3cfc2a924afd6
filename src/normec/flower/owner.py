"""What the owner of a client's data allows, and what all experiments together have spent of it."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from normec.errors import BadInput, nearest
from normec.files import making, write_atomically
from normec.flower.terms import Terms
from normec.participation import Fixed, Full, Participation, Poisson
from normec.privacy import Mechanism, epsilon, gaussian
from normec.privacy.ledger import Ledger, read
from normec.privacy.mechanism import SMALLEST_NOISE, Adjacency, Epsilon, NoiseMultiplier
from normec.settings import OpenUnit, Settings, Text

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="up to 64 letters, digits, dots, dashes")]
UNPROTECTED = "unprotected"
"""The file in a client's directory that says that something has left it without noise."""
TRUST: tuple[Literal["none", "central", "local"], ...] = ("none", "central", "local")
"""From the trust that asks for most to that which asks for least."""


class Owner(Settings):
    """A node's config, in which its owner says where memories lie and what may leave them (`--node-config 'client-id="a" …'`).

    state_dir: a directory that outlives the node, for its eyes alone. client_id: the client's name in every experiment.
    trust: the weakest protection that is accepted: "local" (the client adds the noise itself), "central" (the server is
    trusted to add it), "none". min_noise_multiplier: σ/C, the least noise that is accepted, in the unit of the experiment's
    trust model. max_epsilon: ε at `delta` that all experiments together may spend of this client. One of the two must be
    given, unless trust is "none". adjacency: "replace-one" accepts only experiments that account for that.
    """

    state_dir: Text
    client_id: Name
    trust: Literal["none", "central", "local"] = "local"
    min_noise_multiplier: NoiseMultiplier | None = None
    max_epsilon: Epsilon | None = None
    delta: OpenUnit = 1e-5
    adjacency: Adjacency = "zero-out"

    def __init__(self, /, **values: object) -> None:
        super().__init__(**values)
        if self.trust != "none" and not self.limited:
            problem = f" is missing: with trust={self.trust!r} say what ε all experiments together may spend,"
            raise BadInput("max_epsilon", f"{problem} or give min-noise-multiplier.")

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
                raise BadInput(f"node-config: {key}", f" is not known. {meant.replace('_', '-')}")
        if isinstance(given.get("client_id"), int):
            given["client_id"] = str(given["client_id"])
        try:
            return cls(**given)
        except BadInput as error:
            raise BadInput(f"node-config: {error.setting.replace('_', '-')}", error.problem) from None

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
            raise BadInput("privacy.trust", f"={trust!r} is less than this client's owner accepts (trust={self.trust!r}).")
        if self.adjacency == "replace-one" != terms.privacy.adjacency:
            problem = f"={terms.privacy.adjacency!r} protects less than this client's owner asks for (adjacency='replace-one')."
            raise BadInput("privacy.adjacency", problem)
        if self.min_noise_multiplier is not None and not noise >= self.min_noise_multiplier:
            problem = f"={noise:g} is below the {self.min_noise_multiplier:g} that this client's owner asks for (min-noise-multiplier)."
            raise BadInput("privacy.noise_multiplier", problem)
        if (self.limited or self.trust != "none") and not terms.mechanism.private:
            raise BadInput("privacy", " spends ε = ∞, and this client's owner has set limits.")

    @property
    def _marker(self) -> Path:
        return self.folder / UNPROTECTED

    def mark_unprotected(self) -> None:
        """Writes down, before it happens, that something leaves without protection, after which no limit of ε can hold."""
        if not self._marker.exists():
            with making(self.folder):
                write_atomically(
                    self._marker, lambda: b"Messages of this client have left it without noise: with them epsilon is infinite.\n"
                )

    def check_budget(self, ledger: Ledger) -> None:
        """Refuses one more release on this ledger, where with it all experiments would spend more than the owner allows.

        Raises:
            BadInput: naming the limit.
        """
        if self.max_epsilon is None:
            return
        if self._marker.exists():
            problem = f"={self.max_epsilon:g} of this client's owner cannot hold any more: messages have left without protection before"
            raise BadInput("max-epsilon", f"{problem} ({self._marker.name} in its directory).")
        others = [read(path) for path in sorted(self.folder.glob("*/ledger.jsonl")) if path != ledger.path]
        total = spent([*((each, each.counted()) for each in others), (ledger, ledger.counted() + 1)], self.delta)
        if not total <= self.max_epsilon:
            problem = f"={self.max_epsilon:g} of this client's owner does not allow another release: with it ε = {total:.4g}"
            raise BadInput("max-epsilon", f"{problem} at δ = {self.delta:g}, over {len(others) + 1} experiments.")


def account(folder: Path, delta: float) -> dict[str, Any]:
    """What a client's directory says that it has released, by experiment and in all; ε is null where it is infinite.

    Raises:
        BadInput: for a ledger that is damaged.
    """
    ledgers = [read(path) for path in sorted(folder.glob("*/ledger.jsonl"))]
    begun = [each for each in ledgers if each.lines]
    unprotected = (folder / UNPROTECTED).exists()
    total = math.inf if unprotected else spent([(ledger, ledger.counted()) for ledger in begun], delta)
    return {
        "experiments": [
            {
                "experiment": ledger.path.parent.name,
                "releases": ledger.counted(),
                **{name: ledger.lines[0][name] for name in ("trust", "noise_multiplier")},
            }
            for ledger in begun
        ],
        "unprotected": unprotected,
        "epsilon": total if math.isfinite(total) else None,
        "delta": delta,
    }


def spent(accounts: list[tuple[Ledger, int]], delta: float) -> float:
    """ε at δ of one client over the ledgers of its experiments, each with its number of releases.

    Releases that it noised itself compose as Gaussians. An experiment whose server adds the noise counts with all its
    rounds, which were accounted for with their sampling; these add up, each at an equal share of δ.
    """
    squared, claims = 0.0, []
    for ledger, releases in accounts:
        header = ledger.lines[0] if ledger.lines else {}
        if releases and header["trust"] == "local":
            squared += releases * _squared(header["sensitivity"], header["noise_std"])
        elif releases:
            claims.append(_of_header(header, max(releases, header["rounds"])))
    share = delta / (len(claims) + (squared > 0)) if claims or squared else delta
    return math.fsum([*(epsilon(claim, share).epsilon for claim in claims), gaussian(math.sqrt(squared), share)])


def _squared(sensitivity: float, std: float) -> float:
    """μ² of one release; infinite for a noise that is none."""
    return (sensitivity / std) ** 2 if std > SMALLEST_NOISE * sensitivity else math.inf


def _of_header(header: dict[str, Any], rounds: int) -> Mechanism:
    """The mechanism that a ledger's first line names."""
    kinds: dict[str, Participation] = {"full": Full()}
    if header["scheme"] != "full":
        kinds = {"poisson": Poisson(rate=header["rate"]), "fixed": Fixed(rate=header["rate"])}
    names = ("trust", "adjacency", "noise_multiplier", "clients", "min_honest", "colluders")
    return Mechanism(**{name: header[name] for name in names}, bound=1.0, participation=kinds[header["scheme"]], rounds=rounds)
