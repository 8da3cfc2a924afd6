"""Typed, frozen settings: what users write, checked once, with one clear sentence when it is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self, TypeVar, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from normec.errors import BadInput, nearest

Positive = Annotated[float, Field(ge=1e-30, le=1e30, description="a number > 0, from 1e-30 to 1e30")]
NonNegative = Annotated[float, Field(ge=0, le=1e30, description="a number >= 0, up to 1e30")]
Probability = Annotated[float, Field(ge=1e-9, le=1, description="a number in (0, 1], at least 1e-9")]
OpenUnit = Annotated[float, Field(ge=1e-100, lt=1, description="a number strictly between 0 and 1, at least 1e-100")]
Fraction = Annotated[float, Field(ge=0, lt=1, description="a number in [0, 1)")]
Count = Annotated[int, Field(ge=1, le=10**12, description="a whole number >= 1")]
Whole = Annotated[int, Field(ge=0, le=10**12, description="a whole number >= 0")]
Rounds = Annotated[int, Field(ge=1, le=10**7, description="a whole number from 1 to 10000000")]
Seed = Annotated[int, Field(ge=0, lt=2**63, description="a whole number in [0, 2^63)")]
Switch = Annotated[bool, Field(description="true or false")]
Text = Annotated[str, Field(min_length=1, description="a non-empty string")]
Texts = Annotated[
    tuple[str, ...], Field(strict=False, description='a list of strings, such as ["a", "b"]; in a shell, quote it: \'KEY=["a", "b"]\'')
]

Tree = dict[str, Any]
"""Settings as TOML reads them: a dict of dicts."""

K = TypeVar("K")


class Settings(BaseModel):
    """Base of every group of settings.

    Types are strict (no "5" for 5, no true for 1), NaN and infinity fail every check, unknown names are refused with
    the nearest valid one, and instances are immutable.

    Raises:
        BadInput: naming the setting, its value and what it must be.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _sentence(type(self), error) from None

    @model_validator(mode="before")
    @classmethod
    def _plain_numbers(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {name: v.item() if isinstance(v, np.generic) else v for name, v in values.items()}

    @classmethod
    def from_table(cls, section: str, table: Tree) -> Self:
        """The settings of one section of a configuration; errors name `section.key`."""
        try:
            return cls(**table)
        except BadInput as error:
            raise error.under(section) from None

    def changed(self, **values: Any) -> Self:
        """A copy with other values, which is checked as new settings are.

        Raises:
            BadInput: as for new settings.
        """
        return type(self)(**{name: getattr(self, name) for name in self.model_fields_set} | values)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy. Pydantic's own would not check what is updated in it."""
        return self.changed(**update) if update else super().model_copy(deep=deep)

    def table(self) -> Tree:
        """The settings as plain values, without those left unset; `from_table` reads them back."""
        return self.model_dump(exclude_none=True)


def choose(setting: str, name: object, known: dict[str, K]) -> K:
    """The entry of `known` that a setting names.

    Raises:
        BadInput: with the nearest known name.
    """
    if not isinstance(name, str) or name not in known:
        raise BadInput(setting, "is not known", value=name, remedy=nearest(str(name), known))
    return known[name]


def _description(field: FieldInfo) -> str | None:
    """What a value must be: the field's own words, or those of its type beside None."""
    notes = [note for kind in get_args(field.annotation) for note in getattr(kind, "__metadata__", ())]
    return field.description or next((note.description for note in notes if isinstance(note, FieldInfo) and note.description), None)


def _sentence(owner: type[Settings], error: ValidationError) -> BadInput:
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else owner.__name__
    if first["type"] == "extra_forbidden":
        return BadInput(name, "is not a setting here", remedy=nearest(name, owner.model_fields))
    if first["type"] == "missing":
        return BadInput(name, "is missing", remedy=f"Give {owner.__name__} a value for {name}")
    expected = _description(owner.model_fields[name]) or first["msg"].removeprefix("Input should be ")
    return BadInput(name, value=first["input"], must=f"be {expected}")


def flat(tree: Mapping[str, object], prefix: str = "") -> Tree:
    """A tree of settings as one level, `section.key` → value."""
    leaves: Tree = {}
    for key, value in tree.items():
        leaves |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return leaves


def difference(saved: Tree, now: Tree) -> str | None:
    """The first setting, with both values, in which two trees differ; None where they agree."""
    before, after = flat(saved), flat(now)
    for key in [*after, *before]:
        if before.get(key) != after.get(key):
            return f"{key}={before.get(key)!r} there, {after.get(key)!r} here"
    return None
