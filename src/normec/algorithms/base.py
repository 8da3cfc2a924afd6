"""What an algorithm is: pure functions on rows, and the names of the vectors it remembers.

A new algorithm is one short file: subclass `Algorithm`, declare its hyperparameters as typed fields, write `operator`,
`client` and `server`, and register it. One client is a row; (1, d) and (1000, d) are the same code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeVar

from torch import Tensor

from normec.errors import BadInput
from normec.operators import Operator
from normec.settings import Settings, choose

Slots = tuple[Tensor, ...]
"""Remembered vectors in the order of an algorithm's declared slots."""


class ClientStep(NamedTuple):
    """What G clients do with their local updates."""

    message: Tensor
    """(G, d): what each would transmit, with norm at most the operator's bound."""
    memory: Slots
    """(G, d) each: the new memories, which never leave the clients."""
    residual: Tensor
    """(G, d): what the operator was applied to; its norms are reported, in simulation only."""


class Algorithm(Settings):
    """Base of every algorithm; instances are immutable sets of hyperparameters.

    `client_slots` names the vectors each client remembers between rounds and `server_slots` those of the server; all
    start at zero. With `everyone_computes` every client computes and moves its memory in every round, and participation
    decides only who transmits; otherwise only the cohort works.
    """

    name: ClassVar[str]
    client_slots: ClassVar[tuple[str, ...]] = ()
    server_slots: ClassVar[tuple[str, ...]] = ()

    @property
    def operator(self) -> Operator:
        """The map that bounds a message; its bound is the sensitivity that noise and accounting read."""
        raise NotImplementedError

    @property
    def everyone_computes(self) -> bool:
        return False

    @property
    def convergence(self) -> str:
        """Which guarantee of convergence covers these settings, or that none does; shown with every result."""
        return "no guarantee is stated"

    @property
    def starts_from_updates(self) -> bool:
        """Whether memories start from the clients' first updates (`start`) and not from zero."""
        return False

    def start(self, update: Tensor) -> Slots:
        """Initial memories (G, d) from the first updates (G, d), for algorithms that `starts_from_updates`."""
        raise NotImplementedError

    def update_scale(self, local_lr: float) -> float:
        """What multiplies the scaled local update g_i = (x − T_i(x)) / γ before it enters `client`."""
        return 1.0

    def client(self, update: Tensor, memory: Slots) -> ClientStep:
        """Messages and new memories from local updates (G, d) and memories (G, d); its inputs stay as they are."""
        raise NotImplementedError

    def server(self, x: Tensor, state: Slots, mean: Tensor, rate: float) -> tuple[Tensor, Slots]:
        """The new model (d,) and server state from the released mean (d,).

        mean: (sum of the participants' messages + noise) / (pM), the denominator being public and fixed.
        rate: p, for algorithms whose memories move only in the cohort: rate · mean is the released sum over M.
        """
        raise NotImplementedError


REGISTRY: dict[str, type[Algorithm]] = {}

A = TypeVar("A", bound=type[Algorithm])


def register(name: str) -> Callable[[A], A]:
    """Class decorator: makes an algorithm available under `name` in configurations and to the contract tests."""

    def enter(kind: A) -> A:
        if REGISTRY.get(name, kind).__qualname__ != kind.__qualname__:
            raise BadInput("algorithm.name", f"={name!r} is already registered. Choose another name.")
        kind.name = name
        REGISTRY[name] = kind
        return kind

    return enter


def algorithm_from_table(table: dict[str, Any]) -> Algorithm:
    """The `[algorithm]` section: `name`, and the hyperparameters of that algorithm."""
    table = dict(table)
    return choose("algorithm.name", table.pop("name", "fed-normec"), REGISTRY).from_table("algorithm", table)
