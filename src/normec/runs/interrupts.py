"""Ctrl-C: at once while the command is built, and between rounds, not within one, so that a run ends with a consistent checkpoint."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from normec.runs.at_once import end_at_once

IMPORTING = "<frozen importlib._bootstrap>"
"""Where Python says that the code of its imports stands."""


def interruptible() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt again outside of imports, where it has ended the process at once."""
    if signal.getsignal(signal.SIGINT) is end_at_once:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raises KeyboardInterrupt, but within an import ends the process: nothing is half done, and the module may swallow it."""
    within = frame
    while within is not None:
        if within.f_code.co_filename == IMPORTING:
            end_at_once(number, frame)
        within = within.f_back
    raise KeyboardInterrupt


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether Ctrl-C was pressed since; a second Ctrl-C interrupts at once.

    Outside the main thread, where Python allows no signal handler, it never says so. Nor does it where Ctrl-C is handled by something
    that is not Python, which could not be put back.
    """
    pressed, before = threading.Event(), signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield pressed.is_set
        return

    def press(number: int, frame: object) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    signal.signal(signal.SIGINT, press)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)
