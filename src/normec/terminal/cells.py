"""Numbers as they stand in tables."""

from __future__ import annotations

from normec.privacy.promise import with_every_round

HUGE = 1e9
"""From here on digits after the point only fill a table."""


def number(value: float | None, form: str) -> str:
    """A value, or a dash for none; huge ones in short."""
    return "–" if value is None else format(value, form if abs(value) < HUGE else ".2e")


def bound_or_none(epsilon: float | None, every_round: float | None = None) -> str:
    """ε with what `with_every_round` puts beside it, or that there is none."""
    return "∞: not private" if epsilon is None else with_every_round(epsilon, every_round)
