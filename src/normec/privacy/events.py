"""Events of dp-accounting as plain values, so that a ledger holds what its releases are accounted by."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

from normec.errors import BadInput

Event: TypeAlias = Any
"""A `dp_accounting.DpEvent`, which is imported late."""


def to_table(event: Event) -> str:
    """An event as JSON, which `of_table` turns back."""
    return json.dumps(_plain(event.to_named_tuple()), sort_keys=True)


def of_table(text: str) -> Event:
    """The event that a ledger holds.

    Raises:
        BadInput: for anything else than an event of dp-accounting.
    """
    import dp_accounting

    try:
        found = _event(json.loads(text))
        if not isinstance(found, dp_accounting.DpEvent):
            raise TypeError("it is something else")
        return found
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput("ledger", f": its event cannot be read ({type(error).__name__}: {error})") from None


def _plain(value: Any) -> Any:
    """A named tuple of dp-accounting as a dict with the name of its event."""
    if hasattr(value, "_asdict"):
        fields = {name: _plain(each) for name, each in value._asdict().items() if name not in ("module_name", "class_name")}
        return {"kind": value.class_name, **fields}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _event(value: Any) -> Any:
    import dp_accounting

    if isinstance(value, list):
        return [_event(each) for each in value]
    if not isinstance(value, dict):
        return value
    kind = getattr(dp_accounting, str(value.get("kind")), None)
    if not (isinstance(kind, type) and issubclass(kind, dp_accounting.DpEvent)):
        raise TypeError(f"{value.get('event')!r:.60} is not an event of dp-accounting")
    return kind(**{name: _event(each) for name, each in value.items() if name != "kind"})
