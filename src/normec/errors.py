"""The two ways a run can end badly, each with one sentence for the person who started it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that move the cursor, colour or reorder what a terminal shows; tab and new line aside."""


def printable(text: str) -> str:
    """A text from somewhere else, whose control characters are escaped, as in \\x1b."""
    return UNSEEN.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


class NormecError(Exception):
    """Base of every error that normec raises on purpose."""

    exit_code = 1


class BadInput(NormecError, ValueError):
    """A setting or a file that cannot be used; raised before any training.

    `setting` names what is wrong (`local.lr`), `problem` continues the sentence
    (`=nan must be a finite number > 0.`), so that an outer layer can say where the setting stands.
    """

    exit_code = 2

    def __init__(self, setting: str, problem: str) -> None:
        super().__init__(f"{setting}{problem}")
        self.setting, self.problem = setting, problem

    def __reduce__(self) -> tuple[type[BadInput], tuple[str, str]]:
        """So that it can be copied, and reach another process."""
        return type(self), (self.setting, self.problem)

    def under(self, section: str) -> BadInput:
        """The same error, its setting named from the root of the configuration."""
        return BadInput(f"{section}.{self.setting}", self.problem)


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
