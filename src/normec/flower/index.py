"""The index in a client's directory: what all its experiments have released, in a chain of hashes beside their ledgers.

A ledger can be deleted with its folder; the index still counts its releases, and is compared with every ledger that is there.
A line follows each intent and each coin of a ledger, before anything leaves the client: what the index does not hold has not left. So
a ledger may be one intent ahead of it, where a process was killed between the two, and never behind.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from normec.errors import BadInput, plural
from normec.privacy.ledger import Ledger, lines_noted, read

INDEX, TRAINING, MEMORY, ATTEMPT = "index.jsonl", "ledger.jsonl", "memory.safetensors", "attempt"
"""Of a client's directory, and of an experiment's folder in it: the ledger of its training, the memories, the last attempt."""
UNPROTECTED = "unprotected"
"""The file in a client's directory that says that something has left it without noise; the index says so, too."""
OUTDATED = "outdated"
"""A line of the index: the directory was restored from an older copy."""


class Account(NamedTuple):
    """The releases of one mechanism. mechanism: the ledger's first line. lines, head: of the ledger, when the last was noted."""

    mechanism: Mapping[str, Any]
    releases: int
    lines: int = 0
    head: str = ""


class Mark(NamedTuple):
    """What a file of an experiment knows of the ledger beside it, when it was written: its number of lines, and the last one's hash."""

    path: Path
    lines: int
    head: str

    @property
    def ledger(self) -> Path:
        return self.path.parent / TRAINING

    def check(self, ledger: Ledger | None) -> None:
        """Refuses a ledger that has not come as far.

        Raises:
            BadInput: saying which file says so.
        """
        if self.lines and (ledger is None or not holds(ledger, self.lines, self.head)):
            raise BadInput(
                "ledger",
                f": {self.ledger} is missing or older than {self.path.name}, which was written when it had {self.lines} lines",
                remedy="Restore it, or start a new experiment",
            )


class Index:
    """The index of one client, verified against what lies beside it. accounts: by ledger, such as "EXPERIMENT/ledger.jsonl".

    client: the name that it must bear.
    """

    def __init__(self, folder: Path, client: str | None = None) -> None:
        """Raises BadInput where it is missing or damaged, or where a ledger contradicts it."""
        self.folder, self.client, self.path = folder, client, folder / INDEX
        present = {path: lines_noted(path) for path in sorted(folder.glob("*/*.jsonl"))}  # before the index, which may grow meanwhile
        self._chain = self._read()
        self.accounts: dict[str, Account] = {}
        for line in self._chain.lines[1:] if self._chain else ():
            if line["kind"] == "release":
                self._take(line)
        self._noted = dict(self.accounts)
        for path, lines in present.items():
            self._compare(path, lines)
        for mark in marks(folder.glob("*")):
            self._compare_mark(mark, present.get(mark.ledger, 0))

    @property
    def unprotected(self) -> bool:
        """Whether anything has left the client without noise."""
        noted = self._chain is not None and any(line["kind"] == UNPROTECTED for line in self._chain.lines)
        return noted or (self.folder / UNPROTECTED).exists()

    @property
    def outdated(self) -> bool:
        """Whether a server has counted an answer of this client of which the directory, then an older copy, knew nothing."""
        return self._chain is not None and any(line["kind"] == OUTDATED for line in self._chain.lines)

    def begin(self) -> None:
        """Makes the index, in a directory that exists, before anything else is made there."""
        if self._chain is None or self._chain.torn:
            self._chain = Ledger.open(self.path, {"client": self.client})

    def note(self, path: Path, ledger: Ledger) -> None:
        """Counts the releases of an experiment's ledger; to be called after each intent or coin, before anything leaves."""
        first = {} if self.key(path) in self._noted else {"mechanism": _content(ledger.lines[0])}
        now = {"releases": ledger.counted(), "lines": len(ledger.lines), "head": ledger.head}
        self._append("release", {"ledger": self.key(path), **now, **first})
        self._take({"ledger": self.key(path), **now, **first})
        self._noted[self.key(path)] = self.accounts[self.key(path)]

    def behind(self, path: Path, ledger: Ledger) -> bool:
        """Whether a ledger holds an intent that was not noted, of a process that was killed."""
        return ledger.counted() > self._noted.get(self.key(path), Account({}, 0)).releases

    def note_outdated(self, experiment: str) -> None:
        """Writes down that the directory has forgotten releases in an experiment, and so perhaps in others."""
        self._append(OUTDATED, {"experiment": experiment})

    def note_unprotected(self) -> None:
        """Writes down that something leaves without noise."""
        self._append(UNPROTECTED, {})

    def check(self, path: Path, ledger: Ledger | None) -> None:
        """Refuses the ledger of an experiment, or its absence, where the index knows of releases that it does not hold.

        Raises:
            BadInput: saying how many.
        """
        known = self._noted.get(self.key(path))
        if known is None:
            return
        if ledger is None:
            raise BadInput(
                "ledger",
                f": {path} is missing, and {self.path.name} counts {plural(known.releases, 'release')} on it",
                remedy="Restore it, or start a new experiment, for which they count",
            )
        if not holds(ledger, known.lines, known.head):
            raise BadInput(
                "ledger",
                f": {path} is not the one that {self.path.name} knows of, with {plural(known.releases, 'release')}",
                remedy="Restore it, or start a new experiment, for which they count",
            )

    def _read(self) -> Ledger | None:
        chain = read(self.path) if self.path.exists() else None
        if chain and chain.lines:
            if self.client not in (None, chain.lines[0].get("client")):
                raise BadInput(
                    "index", f": {self.path} is of client {chain.lines[0].get('client')!r:.80}", remedy="Use a state-dir of its own"
                )
            return chain
        kept = sorted(str(path.relative_to(self.folder)) for path in self.folder.glob("*/*"))
        if self.path.with_suffix(".head").exists() or kept:
            found = kept[0] if kept else self.path.with_suffix(".head").name
            raise BadInput(
                "index",
                f": {self.path} is missing, which counts what this client has released, and {found} is there",
                remedy="Restore it, or take a new state-dir and a max-epsilon lower by what was spent",
            )
        return None

    def _take(self, line: Mapping[str, Any]) -> None:
        key = line["ledger"]
        mechanism = line["mechanism"] if "mechanism" in line else self.accounts[key].mechanism
        self.accounts[key] = Account(mechanism, line["releases"], line["lines"], line["head"])

    def _compare(self, path: Path, lines: int) -> None:
        """Refuses a ledger that has lost its end, or an index that has; takes the larger count where a process was killed."""
        key = self.key(path)
        known = self.accounts.get(key, Account({}, 0))
        if known.lines <= lines <= known.lines + 1:
            return
        ledger = read(path)
        if len(ledger.lines) < known.lines:
            raise BadInput("ledger", f": {path} ends at line {len(ledger.lines)} and had come to line {known.lines}", remedy="Restore it")
        if ledger.counted() > known.releases + 1:
            raise BadInput(
                "index",
                f": {self.path} counts {plural(known.releases, 'release')} of {ledger.counted()} on {path}, being older",
                remedy="Restore the newer one",
            )
        if ledger.counted() > known.releases:
            self.accounts[key] = known._replace(mechanism=_content(ledger.lines[0]), releases=ledger.counted())

    def _compare_mark(self, mark: Mark, lines: int) -> None:
        """Refuses an index that has come less far than a file knew that was written beside a ledger, now of so many lines."""
        known = self._noted.get(self.key(mark.ledger), Account({}, 0))
        if mark.lines > max(known.lines, lines) + 1:  # a process that was killed may leave a line that no head knows of
            raise BadInput(
                "index",
                f": {self.path} is older than {mark.path}, and counts {plural(known.releases, 'release')} there",
                remedy="Restore the newer one, or take a new state-dir and a max-epsilon lower by what was spent",
            )

    def key(self, path: Path) -> str:
        """The name of a ledger in the index."""
        return path.relative_to(self.folder).as_posix()

    def _append(self, kind: str, content: Mapping[str, object]) -> None:
        self.begin()
        if self._chain is not None:
            self._chain.note(kind, content)


def mark_of(ledger: Ledger | None) -> tuple[int, str]:
    """How far a ledger has come: its number of lines, and the last one's hash."""
    return (len(ledger.lines), ledger.head) if ledger and ledger.lines else (0, "")


def read_attempt(path: Path) -> tuple[str, Mark]:
    """The attempt that a client has begun last, and what was known of the ledger by then.

    Raises:
        BadInput: where the file is damaged.
    """
    found = re.fullmatch(r"([0-9a-f]{32}) (\d{1,15}) ([0-9a-f]*)", path.read_text(errors="replace"))
    if not found:
        raise BadInput("attempt", f": {path} is damaged", remedy="Restore it, or start a new experiment")
    return found[1], Mark(path, int(found[2]), found[3])


def read_memory_mark(path: Path, said: Mapping[str, str]) -> Mark:
    """What the metadata of a memory file say of the ledger; of one that says nothing, more than any ledger holds."""
    lines = said.get("lines", "")
    return Mark(path, int(lines) if lines.isdecimal() else sys.maxsize, said.get("head", ""))


def marks(folders: Iterable[Path]) -> Iterator[Mark]:
    """What the files of experiments know of their ledgers; those that cannot be read know nothing."""
    for folder in folders:
        with contextlib.suppress(BadInput, OSError):
            yield read_attempt(folder / ATTEMPT)[1]
        with contextlib.suppress(SafetensorError, OSError), safe_open(folder / MEMORY, framework="numpy") as file:
            yield read_memory_mark(folder / MEMORY, file.metadata() or {})


def holds(ledger: Ledger, lines: int, head: str) -> bool:
    """Whether a ledger's line of that number is the one with that hash; of no lines, it is."""
    return lines == 0 or (lines <= len(ledger.lines) and ledger.lines[lines - 1]["hash"] == head)


def _content(line: Mapping[str, Any]) -> dict[str, object]:
    return {key: value for key, value in line.items() if key not in ("kind", "previous", "hash")}
