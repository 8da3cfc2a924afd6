"""The registered algorithms and their costs: the rows that `normec algorithms` prints."""

from __future__ import annotations

import contextlib
import math
from typing import TypedDict

from normec.algorithms.base import REGISTRY
from normec.errors import BadInput
from normec.settings import Tree


class AlgorithmRow(TypedDict):
    """An algorithm and its costs; `rows` says what each is. settings: its default ones. None: it has a setting without a default."""

    name: str
    paper: str
    year: int | None
    guarantee: str
    covers: str | None
    memory: int
    up: int
    down: int
    compressed: bool | None
    private: bool | None
    one_gradient: bool
    settings: Tree | None


def rows() -> list[AlgorithmRow]:
    """One row per algorithm, by name, for its default settings.

    memory: vectors (d,) that each client remembers. up, down: vectors that a client sends and receives in a round; a
    compressed vector counts as one. private: whether its messages are bounded, so that noise can protect them. guarantee: what is
    proven for the method, under which assumptions; covers: for which runs, None for none. The summary of a run says whether it is one.
    """
    return [_row(name) for name in sorted(REGISTRY)]


def _row(name: str) -> AlgorithmRow:
    kind = REGISTRY[name]
    private: bool | None = None
    compressed: bool | None = None
    settings: Tree | None = None
    with contextlib.suppress(BadInput):  # a setting without a default
        algorithm = kind()
        private, settings = math.isfinite(algorithm.operator.bound), algorithm.table()
        compressed = algorithm.operator.message_bytes(10**6) < 4 * 10**6
    return {
        "name": name,
        "paper": kind.about.paper,
        "year": kind.about.year,
        "guarantee": kind.about.guarantee,
        "covers": None if kind.about.coverage is None else str(kind.about.coverage),
        "memory": len(kind.client_slots),
        "up": 1,
        "down": kind.vectors_down,
        "compressed": compressed,
        "private": private,
        "one_gradient": kind.one_gradient,
        "settings": settings,
    }
