"""Whether an object is exactly what this library defines: claims and theorems are about its own code, not about what replaced it."""

from __future__ import annotations

import inspect
import os
import sys
from functools import cached_property
from types import FunctionType


def genuine(thing: object) -> bool:
    """Whether an object is of a class of this library itself, and nothing of the class was replaced, there or in the object.

    A subclass, a class that only names a module of this library as its own, and an object with a function of its own are not.
    """
    return _defined_here(type(thing)) and unchanged(thing)


def unchanged(thing: object) -> bool:
    """Whether an object has no function of its own in place of one of its class."""
    kind = type(thing)
    holds = getattr(kind, "model_fields", None) or getattr(kind, "__dataclass_fields__", {})
    return not any(_replaces(kind, name) for name in vars(thing) if name not in holds)


def _replaces(kind: type, name: str) -> bool:
    """Whether an object's own attribute hides one of its class."""
    absent = object()
    known = inspect.getattr_static(kind, name, absent)
    return known is not absent and not isinstance(known, cached_property)


def _defined_here(kind: type) -> bool:
    ours = [each for each in kind.__mro__ if each.__module__.partition(".")[0] == "normec"]
    found = getattr(sys.modules.get(kind.__module__), kind.__name__, None)
    return kind in ours and found is kind and all(map(_written_here, ours))


def _written_here(kind: type) -> bool:
    """Whether the functions of a class come from this library's files, but for `__hash__` and the like, which other libraries make."""
    here = os.path.dirname(genuine.__code__.co_filename) + os.sep
    for name, value in vars(kind).items():
        held = value.fget if isinstance(value, property) else value.func if isinstance(value, cached_property) else value
        function = getattr(held, "__func__", held)
        ours = not isinstance(function, FunctionType) or inspect.unwrap(function).__code__.co_filename.startswith(here)
        if not (ours or name.startswith("__")):
            return False
    return True
