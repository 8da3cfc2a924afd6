"""Checks, when a class is registered, that it declares what an algorithm needs."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Mapping
from typing import Any

from normec.algorithms.about import About
from normec.errors import ABSENT, BadInput

PROPERTIES = ("operator", "everyone_computes", "uncovered", "start", "local_rule")

RETIRED = {
    **{name: f"Write about = normec.About({name}=…)" for name in ("paper", "year", "guarantee", "coverage")},
    "correction": "Return normec.LocalRule(correction=…), with a function of memory and server, from a property local_rule",
    "proximal": "Return normec.LocalRule(proximal=…) from a property local_rule",
    "update_scale": 'Return normec.LocalRule(unit="update") from a property local_rule, for updates x − T(x)',
    "starts_from_updates": "Return the function that makes the first memories, or None, from a property start",
    "check_local": "Write one_gradient = True for a method that takes one gradient a round",
}
"""Members that nothing reads any more, and what to write instead."""


def refuse_retired(kind: type[Any]) -> None:
    """That a class has no member that was once read and would now be passed over in silence.

    Raises:
        BadInput: naming the class and the attribute.
    """
    for name, instead in RETIRED.items():
        if hasattr(kind, name) or name in kind.model_fields:
            raise wrong(kind, name, "is no longer read", remedy=instead)


def check_declaration(kind: type[Any], base: type[Any]) -> None:
    """Checks that a subclass of Algorithm (`base`) declares what it needs, each attribute of the right kind.

    Raises:
        BadInput: naming the class and the attribute.
    """
    for name in PROPERTIES:
        held = inspect.getattr_static(kind, name)
        if name in kind.model_fields or (inspect.isroutine(held) and not isinstance(held, functools.cached_property)):
            raise wrong(kind, name, "is not a property", remedy="Write @property above it")
    for name in ("operator", "client", "server"):
        if inspect.getattr_static(kind, name) is inspect.getattr_static(base, name):
            raise wrong(kind, name, "is missing", remedy="Define it, as in the docstring of normec.Algorithm")
    for name in ("client", "server", "check_dimension"):
        if not callable(getattr(kind, name)):
            raise wrong(kind, name, "is not a function", remedy="Define it with def")
    for name in ("client_slots", "server_slots"):
        slots = getattr(kind, name)
        if not isinstance(slots, tuple) or not all(isinstance(slot, str) and slot.isidentifier() for slot in slots):
            remedy = 'Write such as ("v",), with the comma, or () for none'
            raise wrong(kind, name, "is no tuple of names", value=slots, remedy=remedy)
        if len(set(slots)) != len(slots):
            raise wrong(kind, name, "holds a name twice", value=slots, remedy="Give different names")
    _check_facts(kind)


def _check_facts(kind: type[Any]) -> None:
    """What tables and searches read."""
    for name, types, wanted in (
        ("vectors_down", (int,), "a whole number >= 1"),
        ("one_gradient", (bool,), "True or False"),
        ("about", (About,), "a normec.About"),
        ("small", (dict,), "a dict of settings and values"),
        ("exact", (dict,), "a dict of settings and values"),
        ("tuned", (dict,), "a dict of settings and (low, high), 0 < low <= high"),
    ):
        value = getattr(kind, name)
        below = (name == "vectors_down" and type(value) is int and value < 1) or (
            name == "tuned" and isinstance(value, dict) and not _are_ranges(value)
        )
        if type(value) not in types or below:
            raise wrong(kind, name, value=value, must=f"be {wanted}")
    for about in ("tuned", "small", "exact"):
        for name in getattr(kind, about):
            if name not in kind.model_fields:
                raise wrong(kind, about, f"names {name!r}, which is none of its settings ({', '.join(kind.model_fields)})")


def _are_ranges(tuned: Mapping[str, object]) -> bool:
    return all(map(_is_range, tuned.values()))


def _is_range(ends: Any) -> bool:
    numbers = isinstance(ends, tuple | list) and len(ends) == 2 and all(isinstance(end, int | float) for end in ends)
    return numbers and 0 < ends[0] <= ends[1] < math.inf


def wrong(kind: type, name: str, problem: str = "", *, value: object = ABSENT, must: str = "", remedy: str = "") -> BadInput:
    """The error for an attribute of a class that is not as it must be."""
    return BadInput(f"algorithm {kind.__name__}.{name}", problem, value=value, must=must, remedy=remedy)
