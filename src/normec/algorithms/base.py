"""The base of an algorithm: pure functions on rows, and the names of the vectors that it remembers.

A new algorithm is one short file: subclass `Algorithm`, declare its hyperparameters as typed fields, write `operator`,
`client` and `server`, and register it. One client is a row; (1, d) and (1000, d) are the same code.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from normec.algorithms.about import About
from normec.algorithms.declared import check_declaration, refuse_retired
from normec.errors import BadInput, TrainingFailed
from normec.imports import Setting, load_object, looks_like_import_path
from normec.local import ONE_GRADIENT, LocalMethod
from normec.operators import Operator, Uniform, margin, row_norms, usable
from normec.settings import Positive, Settings, Tree, choose

Slots = tuple[Tensor, ...]
"""Remembered vectors in the order of an algorithm's declared slots."""


class Context(NamedTuple):
    """What clients know in a round in addition to their own update and memory."""

    server: Slots
    """(d,) each: the server's slots, which it sends with the model."""
    uniform: Uniform
    """Makes uniform numbers in [0, 1), (G, d), keyed by (seed, round, client), for operators that draw."""


class ClientStep(NamedTuple):
    """What G clients do with their local updates."""

    message: Tensor
    """(G, d): what each would transmit, with norm at most the operator's bound."""
    memory: Slots
    """(G, d) each: the new memories, which never leave the clients."""
    residual: Tensor
    """(G, d): what the operator was applied to; its norms are reported, in simulation only."""


@dataclass(frozen=True, kw_only=True)
class LocalRule:
    """How the local steps of a client differ from plain ones: y ← y − (γ / steps) (∇f_i(y) + correction + μ (y − x)), from y = x.

    correction: (G, d), a function of memories (G, d) and the server's slots (d,) each; None for nothing. proximal: μ >= 0. unit: what
    `client` receives, the scaled local update (x − T_i(x)) / γ ("gradient") or x − T_i(x) itself ("update").

    Raises:
        BadInput: for a value that it cannot be.
    """

    correction: Callable[[Slots, Slots], Tensor] | None = None
    proximal: float = 0.0
    unit: Literal["gradient", "update"] = "gradient"

    def __post_init__(self) -> None:
        if not 0 <= self.proximal < math.inf:
            raise BadInput("LocalRule.proximal", value=self.proximal, must="be a number >= 0")
        if self.unit not in ("gradient", "update"):
            raise BadInput("LocalRule.unit", value=self.unit, must="be 'gradient' or 'update'")
        if self.correction is not None and not callable(self.correction):
            raise BadInput("LocalRule.correction", value=self.correction, must="be a function of memory and server")

    @property
    def is_plain(self) -> bool:
        """Whether the local steps are those along the gradients alone."""
        return self.correction is None and self.proximal == 0

    def scale(self, local_lr: float) -> float:
        """What turns a scaled local update into its unit. local_lr: γ."""
        return local_lr if self.unit == "update" else 1.0


class Algorithm(Settings):
    """Base of every algorithm; instances are immutable sets of hyperparameters.

    `operator`, `client` and `server` must be written; the rest has a default. `client_slots` names the vectors each client
    remembers between rounds and `server_slots` those of the server; all start at zero, unless `start` says otherwise. A server
    slot called `v_hat` is the server's estimate of the mean of the clients' slot `v`. With `everyone_computes` every client
    computes and moves its memory in every round, and participation decides only who transmits; otherwise only the cohort works.
    `local_rule` says what local steps do beside following the gradient.

    server_lr: η, the step of the server on the direction that `server` returns.
    """

    name: ClassVar[str]
    about: ClassVar[About] = About()
    """The paper, and what is proven."""
    client_slots: ClassVar[tuple[str, ...]] = ()
    server_slots: ClassVar[tuple[str, ...]] = ()
    vectors_down: ClassVar[int] = 1
    """How many vectors (d,) a client receives in a round: the model, and server slots that its step reads."""
    one_gradient: ClassVar[bool] = False
    """Whether the method takes one gradient at the model it received, so that local.steps must be 1."""
    tuned: ClassVar[dict[str, tuple[float, float]]] = {"server_lr": (0.1, 10.0)}
    """The hyperparameters that a small search moves, one or two of them, with the ends of their (logarithmic) ranges."""
    small: ClassVar[Tree] = {}
    """Settings for a model of a dozen parameters, on which the contract is checked, where the defaults are for a larger one."""
    exact: ClassVar[Tree] = {}
    """Settings with which the method finds a minimiser exactly where its operator is exact; the contract checks that."""

    server_lr: Positive = 1.0

    @property
    def operator(self) -> Operator:
        """The map that makes a message; its bound is the sensitivity that noise and accounting read."""
        raise NotImplementedError

    @property
    def everyone_computes(self) -> bool:
        return False

    @property
    def uncovered(self) -> tuple[str, ...]:
        """The settings of this algorithm that its guarantee of convergence does not cover, each in a few words."""
        return ()

    @property
    def start(self) -> Callable[[Tensor], Slots] | None:
        """What makes the first memories (G, d) from the clients' first updates (G, d); None where memories start at zero."""
        return None

    @property
    def local_rule(self) -> LocalRule:
        """How local steps differ from plain ones, and in which unit their update is."""
        return LocalRule()

    def client(self, update: Tensor, memory: Slots, context: Context) -> ClientStep:
        """Messages and new memories from local updates (G, d), all finite, and memories (G, d); its inputs stay as they are."""
        raise NotImplementedError

    def server(self, state: Slots, mean: Tensor, rate: float) -> tuple[Tensor, Slots]:
        """The direction (d,) against which the model moves, and the new server state, from the released mean (d,).

        mean: (sum of the participants' messages + noise) / (pM), the denominator being public and fixed.
        rate: p, for algorithms whose memories move only in the cohort: rate · mean is the released sum over M.
        """
        raise NotImplementedError

    def check_dimension(self, d: int) -> None:
        """Refuses hyperparameters that do not fit a model of d parameters.

        Raises:
            BadInput: naming the setting.
        """

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        refuse_retired(cls)


def check_local(algorithm: Algorithm, local: LocalMethod) -> None:
    """Refuses a local method that is not this algorithm's.

    Raises:
        BadInput: where more than one local step is asked of a method that takes one gradient.
    """
    if algorithm.one_gradient and (local.method not in ONE_GRADIENT or local.steps != 1):
        raise BadInput(
            "local.steps",
            f"with local.method={local.method!r}: {algorithm.name} takes one gradient per round",
            value=local.steps,
            remedy="Use local.method=gd (or sgd, poisson) and local.steps=1",
        )


def client_step(algorithm: Algorithm, update: Tensor, memory: Slots, context: Context, norms: Tensor | None = None) -> ClientStep:
    """The step of each client. A client whose update is not finite sends zero, and its memory stays. norms: the updates' (G,)."""
    broken = ~usable(row_norms(update) if norms is None else norms)[:, None]
    if not bool(broken.any()):
        return algorithm.client(update, memory, context)
    step = algorithm.client(update.masked_fill(broken, 0.0), memory, context)
    return ClientStep(
        message=step.message.masked_fill(broken, 0.0),
        memory=tuple(torch.where(broken, old, new) for old, new in zip(memory, step.memory, strict=True)),
        residual=step.residual.masked_fill(broken, math.nan),
    )


def check_bound(algorithm: Algorithm, messages: Tensor, bound: float, dtype: torch.dtype) -> None:
    """Checks that no message (G, d) exceeds the bound on which privacy rests, without saying whose it is. dtype: that of the computation.

    Raises:
        TrainingFailed: for one that is, by more than rounding.
    """
    if not bool((row_norms(messages) <= bound * (1 + margin(dtype))).all()):
        raise TrainingFailed(
            f"{algorithm.name} sends a message that is longer than its bound, {bound:g}, on which all privacy rests. "
            f"Correct its `client` or `operator`; normec.contract.check({algorithm.name!r}) tries both."
        )


REGISTRY: dict[str, type[Algorithm]] = {}

A = TypeVar("A", bound=type[Algorithm])


def register(name: str) -> Callable[[A], A]:
    """Class decorator: makes an algorithm available under `name` in configurations and to the contract tests."""

    def enter(kind: A) -> A:
        known = REGISTRY.get(name, kind)
        same_script = "__main__" in (known.__module__, kind.__module__)  # run, and imported too
        if known.__qualname__ != kind.__qualname__ or not (same_script or known.__module__ == kind.__module__):
            raise BadInput("algorithm.name", "is already registered", value=name, remedy="Choose another name")
        check_declaration(kind, Algorithm)
        kind.name = name
        REGISTRY[name] = kind
        return kind

    return enter


def algorithm_kind(setting: Setting, name: object) -> type[Algorithm]:
    """The algorithm registered under a name, or the one that `package.module:Class` registers.

    Raises:
        BadInput: naming the setting.
    """
    if not isinstance(name, str) or not looks_like_import_path(name):
        return choose(setting, name, REGISTRY)
    kind = load_object(setting, name)
    if not (isinstance(kind, type) and issubclass(kind, Algorithm) and kind in REGISTRY.values()):
        raise BadInput(
            setting, "is not a registered algorithm", value=name, remedy="Decorate a subclass of normec.Algorithm with normec.register"
        )
    return kind


def algorithm_from_table(table: Tree) -> Algorithm:
    """The `[algorithm]` section: `name`, and the hyperparameters of that algorithm."""
    table = dict(table)
    return algorithm_kind("algorithm.name", table.pop("name", "fed-normec")).from_table("algorithm", table)


def algorithm_table(algorithm: Algorithm) -> Tree:
    """The `[algorithm]` section from which `algorithm_from_table` makes the algorithm again, in any process."""
    kind = type(algorithm)
    name = kind.name if kind.__module__.startswith("normec.") else f"{kind.__module__}:{kind.__qualname__}"
    return {"name": name, **algorithm.table()}
