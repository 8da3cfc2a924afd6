"""The command `normec`, also as `python -m normec`."""

from __future__ import annotations

import os
import sys

from normec.runs.at_once import install


def main() -> None:
    """Builds the command, which Ctrl-C ends without a traceback, and runs it."""
    install()  # before anything that is slow to import
    os.environ.setdefault("NORMEC_CACHE", os.path.abspath("runs/cache"))  # for the processes that it starts, too
    from normec.cli import main as command

    command()


if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[0] == os.getcwd():
        del sys.path[0]  # no module of the working directory stands for a library's
    main()
