"""Numbers as they stand in tables."""

from __future__ import annotations

from normec.privacy.promise import shown_epsilon

HUGE = 1e9
"""From here on digits after the point only fill a table."""


def number(value: float | None, form: str) -> str:
    """A value, or a dash for none; huge ones in short."""
    return "–" if value is None else format(value, form if abs(value) < HUGE else ".2e")


def bound_or_none(epsilon: float | None) -> str:
    """ε, or that there is none."""
    return "∞: not private" if epsilon is None else shown_epsilon(epsilon)
