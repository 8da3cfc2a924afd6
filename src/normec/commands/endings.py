"""How a command ends where something is wrong: one sentence on stderr, and an exit code."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import typer

from normec.errors import NormecError, printable

PATH_PROBLEMS = {
    errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP,
    errno.EINVAL, errno.ENXIO,
}  # fmt: skip
"""What is wrong with a path, as against a disk that is full or broken."""
LONGEST = 200


@contextlib.contextmanager
def in_one_sentence(words: Sequence[str]) -> Iterator[None]:
    """Known errors and those of the system end the process. words: the command line, whose setting a wrong path is of."""
    try:
        yield
    except NormecError as error:
        end(str(error), error.exit_code)
    except BrokenPipeError:  # `normec … | head`: as other commands end there
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (for what Python writes when it ends)
        sys.exit(1)
    except OSError as error:
        path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else None
        if path is None or error.errno not in PATH_PROBLEMS:
            end(f"{error}.", 1)
        shown = path if len(path) <= LONGEST else f"{path[:LONGEST]}…"
        end(f"{_setting(path, words)}={shown!r} cannot be used ({error.strerror}). Give another path.", 2)


def end(sentence: str, code: int) -> NoReturn:
    """Says why, in one line without control characters, and ends the process."""
    typer.echo(f"normec: {printable(' '.join(sentence.splitlines()))}", err=True)
    sys.exit(code)


def _setting(path: str, words: Sequence[str]) -> str:
    """The option or the key whose value holds a path or a folder above it."""
    wrong = Path(os.path.abspath(path))
    for before, word in zip(["", *words], words, strict=False):
        key, equals, value = word.partition("=")
        given = Path(os.path.abspath(value if equals else word))
        if given == wrong or (given in wrong.parents and given != Path.cwd()):
            return key if equals else before if before.startswith("--") else "path"
    return "path"
