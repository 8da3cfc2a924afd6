"""Limits of a reader: it takes regular files, and no more memory than `data.size_limit` allows."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Literal

from normec.errors import BadInput
from normec.machine import available, installed

OTHERS = {
    b"PK\x03\x04": ("a zip archive, as .xlsx, .ods and .zip are", "Save the sheet as .csv, or unpack the archive"),
    b"\xd0\xcf\x11\xe0": ("a workbook of Excel", "Save the sheet as .csv"),
    b"PAR1": ("a parquet file", "Let its name end in .parquet"),
    b"%PDF": ("a PDF", "Give the table itself, as .csv"),
    b"\x1f\x8b\x08\x00": ("compressed by gzip", "Unpack it"),
}
"""How files of other kinds begin, what they are, and what to do."""


def allowed(size_limit: int | Literal["auto"]) -> int:
    """The bytes of memory that a source may take: the setting, or half of what the machine has free."""
    return available() // 2 if size_limit == "auto" else size_limit


def check_size(path: Path, needed: int, limit: int) -> None:
    """Checks, before a file is read, that its content fits. needed: bytes of memory, worked out from the file's headers.

    Raises:
        BadInput: where it does not, with both numbers; also where the limit is above what the machine has at all.
    """
    if (most := installed()) < needed <= limit:
        raise BadInput(
            "data.size_limit",
            f": {str(path)!r} takes {needed:,} bytes of memory, and this machine has {most:,}",
            value=limit,
            remedy="Give less data, or use a machine with more memory",
        )
    if needed > limit:
        raise BadInput(
            "data.size_limit",
            f": {str(path)!r} takes {needed:,} bytes of memory, and {limit:,} are allowed",
            remedy=f"Set data.size_limit={needed} if this machine has the room, or give less data",
        )


def outgrown(path: Path, limit: int) -> BadInput:
    """The error for a file that reaches the limit while it is read, so that its full size is unknown."""
    return BadInput(
        "data.size_limit",
        f": {str(path)!r} takes more than the {limit:,} bytes of memory that are allowed",
        remedy="Raise data.size_limit if this machine has the room, or give less data",
    )


def regular_file(path: Path, setting: str, kinds: str) -> Path:
    """The path of a regular file. kinds: what to give in place of another path.

    A FIFO, a socket or a device might never end, and a link may lead to one.

    Raises:
        BadInput: for a path that is missing, cannot be looked up, or is anything else, such as a folder.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise BadInput(setting, "is not a file: it does not exist", value=path, remedy=f"Give {kinds}") from None
    except (OSError, ValueError) as error:  # links in a circle, a name that is too long or holds a null character
        reason = getattr(error, "strerror", None) or error
        raise BadInput(setting, f"cannot be looked up ({reason})", value=path, remedy=f"Give {kinds}") from None
    if not stat.S_ISREG(mode):
        kind = next((name for test, name in KINDS if test(mode)), "something else")
        said = "is not a file, but a folder" if stat.S_ISDIR(mode) else f"is {kind}, not a regular file"
        raise BadInput(setting, said, value=path, remedy=f"Give {kinds}")
    return path


def refuse_other_kind(path: Path, begin: bytes, but: bytes = b"") -> None:
    """Refuses a file whose first four bytes show that it is of another kind than its name says. but: how it may begin.

    Raises:
        BadInput: naming what it is.
    """
    if begin in OTHERS and begin != but:
        kind, remedy = OTHERS[begin]
        raise BadInput("data.source", f"cannot be read: it is {kind}", value=path, remedy=remedy)


KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
