"""Ctrl-C ends the process at once; with quick imports alone, since it is installed before all others."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType


def end_at_once(number: int, frame: FrameType | None) -> None:
    """A signal handler that ends the process: a library that is being imported might swallow an exception."""
    shown = b"\r\x1b[K\x1b[?25h" if os.isatty(2) else b""  # a line of progress goes, and the cursor that it hid comes back
    os.write(2, shown + b"normec: interrupted\n")
    os._exit(130)


def install() -> None:
    """Takes Python's own handler away. Any other is of whoever started the process, and wants Ctrl-C ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_at_once)
