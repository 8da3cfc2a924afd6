"""A run in a process of its own that ends with the process that started it: `python -m normec.studies.attended FOLDER`.

The first line of its input is a configuration as JSON. When the input ends, because whoever started it has died, so does the
run, as by a kill; its folder resumes.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

from normec.config import RunConfig
from normec.errors import NormecError, printable
from normec.runs.folder import RunFolder
from normec.runs.loop import execute
from normec.studies.start import start


def main() -> None:
    """Trains; a known error is one sentence on stderr and its exit code."""
    tree = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_the_input, daemon=True).start()
    path = Path(sys.argv[1])
    try:
        execute(*start(RunConfig.from_tree(tree), path, resume=RunFolder(path).holds_run))
    except NormecError as error:
        print(printable(" ".join(str(error).splitlines())), file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(1)


def _end_with_the_input() -> None:
    while os.read(0, 1):  # not by sys.stdin, whose lock an ending interpreter would wait for
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
