"""Files and folders, written so that a killed process leaves them usable."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from normec.errors import BadInput, TrainingFailed

LOCKED = ".lock"
"""The file by which a folder is locked. A file system that forwards its locks, such as NFS, locks files but no folders."""


@contextlib.contextmanager
def making(path: Path) -> Iterator[None]:
    """Makes a folder where there is none, for what is looked at or made in it first.

    Raises:
        BadInput: where that cannot be done.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise BadInput("out", f": {path} cannot be made ({error.strerror})", remedy="Choose another folder") from None


def new_folder(path: Path) -> Path:
    """Makes a folder that holds nothing yet.

    Raises:
        BadInput: where it cannot be made, or holds something.
    """
    with making(path):
        occupied = any(path.iterdir())
    if occupied:
        raise BadInput("out", f": {path} is not an empty folder", remedy="Choose another folder")
    return path


class Lock:
    """Keeps other processes out of a folder until it is released, or this process ends; the file LOCKED stays behind in it."""

    def __init__(self, folder: Path, busy: BadInput, patience: float = 0.0) -> None:
        """Waits at most `patience` seconds for another process to leave the folder.

        Raises:
            BadInput: `busy`, where another process is still in it; of the same setting, where the folder cannot be locked at all.
        """
        from filelock import FileLock, Timeout

        self._lock = FileLock(folder / LOCKED, timeout=patience, thread_local=False, fallback_to_soft=False)
        try:
            self._lock.acquire()
        except Timeout:
            raise busy from None
        except OSError as error:
            problem = f": {folder} cannot be locked ({error.strerror}), and two processes in it would destroy each other's files"
            remedy = "Keep it where you may write and where files can be locked, such as on a local disk"
            raise BadInput(busy.setting, problem, remedy=remedy) from None

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def release(self) -> None:
        """Lets others in."""
        self._lock.release()


class Appended:
    """A file to which this process alone appends. What others do to it meanwhile ends the process, rather than be missed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._left: tuple[int, int, int] | None = None

    def append(self, text: bytes) -> None:
        """Adds to the end, durably.

        Raises:
            TrainingFailed: as `check`.
        """
        self.check()
        with self.path.open("ab") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            self._left = _identity(os.fstat(file.fileno()))

    def check(self) -> None:
        """That it still is the file that was left.

        Raises:
            TrainingFailed: where it was removed, replaced or changed.
        """
        if self._left is None:
            return
        try:
            found = _identity(self.path.stat())
        except FileNotFoundError:
            found = None
        if found != self._left:
            what = "was removed, or its folder was moved" if found is None else "was replaced or changed"
            raise TrainingFailed(f"{self.path} {what} while it was being written. Nothing more is written; start again in another folder.")

    def replaced(self) -> None:
        """Says that this process itself has put another file in its place."""
        self._left = _identity(self.path.stat())


def _identity(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_dev, found.st_ino, found.st_size


def write_atomically(path: Path, content: Callable[[], bytes]) -> None:
    """Writes a file beside `path`, makes it durable and moves it over `path`; a failure leaves `path` as it was.

    Raises:
        OSError: where it cannot be written, or `path` is a folder, a device or the like, which no file may replace.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EEXIST, "it is not a file that could be replaced", str(path))
    beside = path.with_name(f".{path.name}.part")
    try:
        with beside.open("wb") as file:
            file.write(content())
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        _sync_folder(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def _sync_folder(path: Path) -> None:
    """Makes a file's new name durable, where the system can."""
    with contextlib.suppress(OSError):
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
