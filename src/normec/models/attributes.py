"""The attributes of a module beside its parameters and buffers, so that a module that stores something of its samples is noticed."""

from __future__ import annotations

import hashlib
import pickle
from typing import Any

from torch import nn

KNOWN = {"_parameters", "_buffers", "_modules", "training"}
"""What is watched elsewhere, or set by the engine."""


def held(module: nn.Module) -> dict[str, object]:
    """A hash of each plain attribute of a module and its submodules; the identity of an attribute that cannot be hashed."""
    return {
        f"{prefix}.{name}" if prefix else name: _hash(value)
        for prefix, part in module.named_modules()
        for name, value in vars(part).items()
        if name not in KNOWN
    }


def changed(before: dict[str, object], after: dict[str, object]) -> str | None:
    """The first attribute that is new, removed or changed."""
    return next((name for name in [*before, *after] if before.get(name) != after.get(name)), None)


def _hash(value: Any) -> object:
    try:
        return hashlib.blake2b(pickle.dumps(value), digest_size=16).hexdigest()
    except Exception:  # whatever an object raises that cannot be pickled
        return id(value)
