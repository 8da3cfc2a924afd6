"""A trial of an algorithm's functions on a few rows before a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from normec.algorithms.base import Algorithm, ClientStep, Context, LocalRule, Slots
from normec.algorithms.declared import wrong
from normec.errors import BadInput
from normec.operators import Operator

ROWS = 2
"""Clients of the trial."""

R = TypeVar("R")


def check_functions(algorithm: Algorithm, d: int, dtype: torch.dtype) -> None:
    """Checks that an algorithm's functions take zero rows (2, d) and return what they should.

    Raises:
        BadInput: naming the function and what it returned, or how it failed.
    """
    kind, rows, vector = type(algorithm), torch.zeros(ROWS, d, dtype=dtype), torch.zeros(d, dtype=dtype)
    operator = _called(kind, "operator", lambda: algorithm.operator)
    bound = getattr(operator, "bound", None)
    if not isinstance(operator, Operator) or not isinstance(bound, int | float) or not bound > 0:
        shown = f"{type(operator).__name__} with bound {bound!r}" if isinstance(operator, Operator) else type(operator).__name__
        raise wrong(kind, "operator", f"is {shown}", remedy="Return a normec.operators.Operator whose bound is a number > 0")
    memory = tuple(rows.clone() for _ in algorithm.client_slots)
    state = tuple(vector.clone() for _ in algorithm.server_slots)
    context = Context(state, lambda: torch.full((ROWS, d), 0.5, dtype=dtype))
    _check_rule(algorithm, memory, state, rows)
    start = _called(kind, "start", lambda: algorithm.start)
    if start is not None:
        _check_slots(kind, "start", _called(kind, "start", lambda: start(rows)), algorithm.client_slots, rows)
    step = _called(kind, "client", lambda: algorithm.client(rows, memory, context))
    if not isinstance(step, ClientStep):
        raise wrong(kind, "client", f"returned {type(step).__name__}", remedy="Return normec.ClientStep(message, memory, residual)")
    _check_vectors(kind, "client", {"message": step.message, "residual": step.residual}, rows)
    _check_slots(kind, "client", step.memory, algorithm.client_slots, rows)
    pair = _called(kind, "server", lambda: algorithm.server(state, vector, 1.0))
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise wrong(kind, "server", f"returned {type(pair).__name__}", remedy="Return a pair: the direction, and the new state as a tuple")
    _check_vectors(kind, "server", {"direction": pair[0]}, vector)
    _check_slots(kind, "server", pair[1], algorithm.server_slots, vector)


def _check_rule(algorithm: Algorithm, memory: Slots, server: Slots, rows: Tensor) -> None:
    kind, rule = type(algorithm), _called(type(algorithm), "local_rule", lambda: algorithm.local_rule)
    if not isinstance(rule, LocalRule):
        raise wrong(kind, "local_rule", f"is a {type(rule).__name__}", remedy="Return a normec.LocalRule")
    if rule.correction is not None:
        correct = rule.correction
        _check_vectors(kind, "local_rule", {"correction": _called(kind, "local_rule", lambda: correct(memory, server))}, rows)


def _called(kind: type, name: str, call: Callable[[], R]) -> R:
    try:
        return call()
    except BadInput:
        raise
    except Exception as error:  # whatever a user's function raises
        reason = " ".join(str(error).split()).rstrip(".")
        raise wrong(kind, name, f"failed on zero rows ({type(error).__name__}: {reason})", remedy="Correct it") from error


def _check_slots(kind: type, name: str, held: object, slots: tuple[str, ...], like: Tensor) -> None:
    if not isinstance(held, tuple) or len(held) != len(slots):
        returned = f"a tuple of {len(held)}" if isinstance(held, tuple) else type(held).__name__
        wanted = f"a tuple of {len(slots)}: {', '.join(slots)}" if slots else "(), since no slots are declared"
        raise wrong(kind, name, f"returned {returned} for its slots", remedy=f"Return {wanted}")
    _check_vectors(kind, name, dict(zip(slots, held, strict=True)), like)


def _check_vectors(kind: type, name: str, vectors: Mapping[str, object], like: Tensor) -> None:
    for key, value in vectors.items():
        if not isinstance(value, Tensor) or value.shape != like.shape or value.dtype != like.dtype:
            held = f"shape {tuple(value.shape)} and {value.dtype}" if isinstance(value, Tensor) else f"type {type(value).__name__}"
            raise wrong(kind, name, f"returned {key} of {held}", remedy=f"Return a tensor of shape {tuple(like.shape)} and {like.dtype}")
