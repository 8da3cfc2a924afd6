"""Which runs a page shows: found in folders of folders, read, and what is left out, counted."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from normec.errors import BadInput, plural
from normec.runs.folder import RunFolder
from normec.runs.record import Record
from normec.studies.compare import MARKER


@dataclass
class Shown:
    """Runs by the names of their folders, without what these have in common.

    problems: why others cannot be shown. left_out: what is not shown by choice, in words. unseen: how many runs that is.
    """

    runs: dict[str, Record] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    unseen: int = 0

    @classmethod
    def read(cls, paths: Sequence[Path]) -> Shown:
        """The runs of folders: of runs, of sweeps, of comparisons, or of folders that hold any of these."""
        found, seen = cls(), set[Path]()
        for path in paths:
            for folder in _runs_in(path, found):
                if folder.resolve() in seen:
                    continue
                seen.add(folder.resolve())
                try:
                    found.runs[str(folder)] = Record.read(folder)
                except BadInput as error:
                    found.problems.append(str(error))
        found.name()
        return found

    def name(self) -> None:
        """Leaves out of the names what all have in common."""
        shared = _common([Path(name).parts for name in self.runs])
        self.runs = {str(Path(*Path(name).parts[shared:])) or name: run for name, run in self.runs.items()}

    @property
    def found(self) -> int:
        """How many runs there are, shown or not."""
        return len(self.runs) + len(self.problems) + self.unseen


def _runs_in(path: Path, found: Shown) -> list[Path]:
    """The runs at or below a folder, or the folder itself where there are none."""
    if (path / "metrics.jsonl").exists() or not path.is_dir():
        return [path]
    return list(_below(path, found, set())) or [path]


def _below(folder: Path, found: Shown, entered: set[Path]) -> Iterator[Path]:
    """Runs, and folders that should be runs: of a sweep all that hold none. entered: against links in circles."""
    if folder.resolve() in entered:
        return
    entered.add(folder.resolve())
    sweep, comparison = (folder / "sweep.toml").exists(), (folder / MARKER).exists()
    for each in _folders(folder):
        if (each / "metrics.jsonl").exists():
            yield each
        elif comparison and each.name == "tuning":
            tries = sum(1 for _ in _below(each, found, entered))
            found.unseen += tries
            found.left_out.append(f"{plural(tries, 'tuning run')} in {each}; normec report {each} shows them")
        else:
            inside = list(_below(each, found, entered))
            yield from inside or ([each] if sweep or RunFolder(each).holds_run else [])


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(Path(each) for each in os.scandir(folder) if each.is_dir() and not each.name.startswith("."))
    except OSError:  # it may not be read: it shows no run
        return []


def _common(parts: list[tuple[str, ...]]) -> int:
    """How many leading parts all have in common, leaving one at least."""
    shared = 0
    while all(len(each) > shared + 1 for each in parts) and len({each[shared] for each in parts}) == 1:
        shared += 1
    return shared
