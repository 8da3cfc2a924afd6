"""The command `normec`, also as `python -m normec`."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Builds the command, which Ctrl-C ends without a traceback, and runs it."""
    quietly = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # otherwise whoever started it wants it ignored
    if quietly:
        signal.signal(signal.SIGINT, _end)
    from normec.cli import main as command

    if quietly:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command()


def _end(number: int, frame: FrameType | None) -> None:
    """At once: a library that is being imported might swallow an exception."""
    os.write(2, b"normec: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[0] == os.getcwd():
        del sys.path[0]  # no module of the working directory stands for a library's
    main()
