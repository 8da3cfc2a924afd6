"""Trust models: who adds the noise, and what the adversary sees of a round. Each has its own fields and its own rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from normec.errors import BadInput

Trust = Literal["central", "secagg", "local", "none"]
"""Their names in configurations."""
Dropouts = Literal["adversarial", "none"]


@dataclass(frozen=True)
class TrustModel:
    """Base. promises: whether anybody adds noise. per_client: whether each participant adds noise of its own, and the adversary knows
    who participates.
    """

    name: ClassVar[Trust]
    promises: ClassVar[bool] = True
    per_client: ClassVar[bool] = True

    @property
    def at_server(self) -> bool:
        """Whether the server adds the noise, once on the sum, and keeps to itself who participates."""
        return self.promises and not self.per_client

    @property
    def honest(self) -> int:
        """h: how many participants' noises protect a client in a release of which the adversary knows the participants."""
        return 1

    def draws(self, participants: int) -> int:
        """How many draws of noise lie on the sum of a round."""
        return participants if self.per_client else 1

    def exposure(self, participants: int) -> float:
        """1 / h_k: what a participant of this round adds to (μ_i z / distance)², where participants add the noise."""
        return 1.0

    def gives_up(self, participants: int) -> bool:
        """Whether a round with so many survivors ends before its sum is opened."""
        return False

    @property
    def said(self) -> str:
        """Who adds the noise, in words."""
        raise NotImplementedError


@dataclass(frozen=True)
class Central(TrustModel):
    """A trusted server adds the noise, once on the sum, and draws the cohorts in secret."""

    name: ClassVar[Trust] = "central"
    per_client: ClassVar[bool] = False

    @property
    def said(self) -> str:
        return "a trusted server adds the noise, once on the sum"


@dataclass(frozen=True)
class SecAgg(TrustModel):
    """Each participant adds noise, and a secure sum hides all but the total.

    A round is given up before its sum is opened where survivors − colluders < min_honest. dropouts: whether an adversary may make
    clients drop out, so that a round of a client holds no more honest ones than min_honest, or nobody does.
    """

    name: ClassVar[Trust] = "secagg"
    min_honest: int = 1
    colluders: int = 0
    dropouts: Dropouts = "adversarial"

    @property
    def honest(self) -> int:
        return self.min_honest

    def exposure(self, participants: int) -> float:
        return 1.0 / (participants - self.colluders)

    def gives_up(self, participants: int) -> bool:
        return participants - self.colluders < self.min_honest

    @property
    def said(self) -> str:
        honest = f"of at least {self.min_honest} honest participants besides {self.colluders} colluders"
        drawn = ", and nobody makes clients drop out" if self.dropouts == "none" else ""
        return f"each participant adds noise, and a secure sum hides all but the total, {honest}{drawn}"


@dataclass(frozen=True)
class Local(TrustModel):
    """Each participant adds noise, and every message is seen."""

    name: ClassVar[Trust] = "local"

    @property
    def said(self) -> str:
        return "each participant adds noise; the server sees every message"


@dataclass(frozen=True)
class Nobody(TrustModel):
    """Nobody adds noise: ε = ∞."""

    name: ClassVar[Trust] = "none"
    promises: ClassVar[bool] = False
    per_client: ClassVar[bool] = False

    @property
    def said(self) -> str:
        return "nobody adds noise"


TRUSTS: dict[Trust, type[TrustModel]] = {kind.name: kind for kind in (Central, SecAgg, Local, Nobody)}


def trust_model(name: Trust, min_honest: int | None = None, colluders: int = 0, dropouts: Dropouts = "adversarial") -> TrustModel:
    """The trust model of this name; min_honest, colluders, dropouts: of "secagg", and without an effect on the others."""
    return SecAgg(min_honest or 1, colluders, dropouts) if name == "secagg" else TRUSTS[name]()


def check_honest(trust: Trust, min_honest: int | None, colluders: int, dropouts: Dropouts = "adversarial") -> None:
    """Refuses numbers of honest clients that are missing, or that no trust model of this name has.

    Raises:
        BadInput: naming the setting.
    """
    if trust == "secagg" and min_honest is None:
        raise BadInput("min_honest", "is missing: with trust='secagg' a client hides among the honest", remedy="Say how many at least")
    given = {"min_honest": min_honest, "colluders": colluders or None, "dropouts": None if dropouts == "adversarial" else dropouts}
    if trust != "secagg" and (moot := {key: value for key, value in given.items() if value is not None}):
        key, value = next(iter(moot.items()))
        raise BadInput(key, "acts only with trust='secagg'", value=value, remedy="Remove it, or change trust")


def check_rounds_are_opened(setting: str, trust: TrustModel, clients: int) -> None:
    """Refuses a trust model that gives up every round, even one of all clients.

    Raises:
        BadInput: naming the setting.
    """
    if trust.gives_up(clients) and isinstance(trust, SecAgg):
        raise BadInput(
            setting,
            f"with {trust.colluders} colluders gives up every round of {clients} clients",
            value=trust.min_honest,
            remedy="Lower it",
        )
