"""The two ways a run can end badly, each with one sentence for the person who started it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that move the cursor, colour or reorder what a terminal shows; tab and new line aside."""


LONGEST_VALUE = 200
"""Characters of a wrong value that a sentence shows."""


def printable(text: str) -> str:
    """A text from somewhere else, whose control characters are escaped, as in \\x1b."""
    return UNSEEN.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


class NormecError(Exception):
    """Base of every error that normec raises on purpose."""

    exit_code = 1


class _Absent:
    """In place of a value, where it is not the value that is wrong."""

    def __reduce__(self) -> str:
        return "ABSENT"


ABSENT = _Absent()


class _Shown:
    """A value of which only what a sentence shows has travelled."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


PLAIN = (type(None), bool, int, float, str, Path, _Absent, _Shown)
"""Values that any process can read."""


class BadInput(NormecError, ValueError):
    """A setting or a file that cannot be used; raised before any training, with one sentence and the remedy.

    `BadInput("local.lr", value=lr, must="be a finite number > 0")` says "local.lr=nan must be a finite number > 0."
    `BadInput("data.path", ": the folder is empty", remedy="Give another")` says "data.path: the folder is empty. Give another."

    setting: its name, from the root of the configuration, or the name of an argument or a file. problem: how the sentence continues,
    from a verb or a colon on. value: what was given, where that is wrong; it is shortened. must: what it must do, in place of a
    problem. remedy: what to do. Control characters are escaped in the sentence, and stay in its parts.
    """

    exit_code = 2

    def __init__(self, setting: str, problem: str = "", *, value: object = ABSENT, must: str = "", remedy: str = "") -> None:
        self.setting, self.problem, self.value, self.must, self.remedy = setting, problem, value, must, remedy
        given = "" if value is ABSENT else f"={shown_value(value)}"
        said = f"must {must}" if must else problem
        sentence = f"{setting}{given}{'' if said[:1] in ':,;' else ' '}{said}"
        super().__init__(printable(" ".join(_ended(each) for each in (sentence.strip(), remedy) if each)))

    def __reduce__(self) -> tuple[Callable[..., BadInput], tuple[dict[str, Any]]]:
        """So that it can be copied, and reach another process: a value that is no plain one as what the sentence shows of it."""
        plain = isinstance(self.value, PLAIN)
        return _again, ({**self._parts(), "value": self.value if plain else _Shown(shown_value(self.value))},)

    def _parts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("setting", "problem", "value", "must", "remedy")}

    def under(self, section: str) -> BadInput:
        """The same error, its setting named from the root of the configuration."""
        return self.of(f"{section}.{self.setting}")

    def of(self, setting: str) -> BadInput:
        """The same error of a setting by another name."""
        return _again({**self._parts(), "setting": setting})

    def told(self, more: str) -> BadInput:
        """The same error, with more words at the end of its last sentence."""
        last = "remedy" if self.remedy else "must" if self.must else "problem"
        return _again({**self._parts(), last: f"{getattr(self, last).rstrip('.')} {more}"})


def _again(parts: dict[str, Any]) -> BadInput:
    return BadInput(**parts)


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "?", "!", "…")) else f"{sentence}."


def shown_value(value: object) -> str:
    """A value as error sentences show it: on one line, shortened, without control characters."""
    if isinstance(value, float):
        short = f"{value:g}"
        text = short if float(short) == value or value != value else repr(value)
    else:
        text = repr(str(value)) if isinstance(value, Path) else repr(value)
    text = printable(" ".join(text.split()))
    if isinstance(value, Path):
        return text
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


class TrainingFailed(NormecError, RuntimeError):
    """A run that started and could not go on; what it had saved is intact."""


class Interrupted(NormecError):
    """Ctrl-C, with what is to be done next."""

    exit_code = 130


class ModelFailed(TrainingFailed):
    """A model, or its loss, that fails on some samples."""


FAILURES = (Exception, SystemExit)
"""What a user's model, loss or train function may raise of a client's samples: an exit too, but not Ctrl-C."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error sentence: the closest known name, or all of them."""
    names = sorted(known)
    close = [each for each in names if each.lower() == name.lower()] or difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]}?"
    return f"Known: {', '.join(names)}." if names else "There are none."


def plural(number: int, noun: str) -> str:
    """A number and its noun: 1 row, 2 rows."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def some_of(names: Sequence[object], total: int, noun: str) -> str:
    """One, or some of several, by name: client 'a'; 5 of 40 clients ('a', 'b', 'c', …)."""
    if len(names) == 1:
        return f"{noun} {names[0]!r}"
    shown = ", ".join(repr(name) for name in names[:3]) + (", …" if len(names) > 3 else "")
    return f"{len(names):,} of {plural(total, noun)} ({shown})"
