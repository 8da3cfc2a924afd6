"""Ctrl-C: at once while the command is built, and between rounds, not within one, so that a run ends with a consistent checkpoint."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


def end_at_once(number: int, frame: FrameType | None) -> None:
    """A signal handler that ends the process: a library that is being imported might swallow an exception."""
    os.write(2, b"normec: interrupted\n")
    os._exit(130)


def interruptible() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt again, where it has ended the process at once."""
    if signal.getsignal(signal.SIGINT) is end_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether Ctrl-C was pressed since; a second Ctrl-C interrupts at once.

    Outside the main thread, where Python allows no signal handler, it never says so.
    """
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set
        return
    before = signal.getsignal(signal.SIGINT)

    def press(number: int, frame: object) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    signal.signal(signal.SIGINT, press)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)
