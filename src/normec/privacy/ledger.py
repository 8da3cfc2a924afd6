"""The privacy ledger: every release of a run, written down before it can be seen, in a chain of hashes.

A line is a JSON object with the hash of the line before (`previous`) and its own (`hash`); each is on disk before the run
goes on, and so is, in a file beside it, how many lines there are. The first line is the header: the mechanism that was
accounted. For each round `intent` is written before any coin or noise is drawn, `commit` with the hash of the output
before the output is visible, and `release` after.

What counts: with seeded noise a retried round replays the same streams, is the same release, and counts once. With
secure noise a retry draws anew, and every intent counts, unless the committed output itself is released.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from normec.errors import BadInput
from normec.files import Appended
from normec.privacy.mechanism import Mechanism

Line = dict[str, Any]


class Ledger:
    """An open ledger. lines: the parsed lines, header first. torn: whether an incomplete last line was dropped."""

    def __init__(self, path: Path, lines: list[Line] | None = None, torn: bool = False) -> None:
        self.path, self.lines, self.torn = path, lines or [], torn
        self._file = Appended(path)
        begun = [line["round"] for line in self.lines if line["kind"] == "intent"]
        self._begun: Counter[int] = Counter(begun)
        self._outputs: dict[int, str] = {line["round"]: line["output"] for line in self.lines if line["kind"] == "commit"}

    @classmethod
    def open(cls, path: Path, header: Mapping[str, object]) -> Ledger:
        """The ledger at `path`, begun with `header` where there is none.

        Raises:
            BadInput: where a line is missing or was changed, naming it, or the header is of another mechanism.
        """
        if not path.exists() and _head_path(path).exists():
            raise BadInput("ledger", f": {path} is missing, and {_head_path(path).name} says that it had lines", remedy="Restore it")
        ledger = read(path) if path.exists() else cls(path)
        if ledger.torn:
            warnings.warn(f"{path}: an incomplete last line, of a process that was killed while writing, is dropped", stacklevel=2)
            ledger._drop_torn_line()
        if not ledger.lines:
            ledger._append("header", header)
        held = {key: value for key, value in ledger.lines[0].items() if key not in ("kind", "previous", "hash")}
        for key, value in json.loads(json.dumps(header)).items():
            if held.get(key) != value:
                raise BadInput("ledger", f": {path} is of another mechanism ({key}={held.get(key)!r} there, {value!r} here)")
        return ledger

    @property
    def seeded(self) -> bool:
        return bool(self.lines[0]["noise"] != "secure")

    @property
    def head(self) -> str:
        """The hash of the last line."""
        return str(self.lines[-1]["hash"])

    def counted(self) -> int:
        """How many releases must be accounted: attempts whose output may have been seen, each retry by its own rule."""
        return len(self._begun) if self.seeded else self._begun.total()

    def begun(self, k: int) -> bool:
        """Whether round k has begun."""
        return self._begun[k] > 0

    def committed(self, k: int) -> bool:
        """Whether an output of round k was written down."""
        return k in self._outputs

    def retried(self) -> list[int]:
        """The rounds that were begun more than once."""
        return sorted(k for k, times in self._begun.items() if times > 1)

    def pending(self) -> tuple[int, str] | None:
        """The round whose output was committed and not yet released, with the hash of that output."""
        last = self.lines[-1]
        return (last["round"], last["output"]) if last["kind"] == "commit" else None

    def intent(self, k: int) -> None:
        """Round k begins: from here on it counts."""
        self._append("intent", {"round": k})
        self._begun[k] += 1

    def exposures(self, mechanism: Mechanism, pending: bool = True) -> np.ndarray:
        """Σ 1/h_k (M,) over each client's own rounds that count, where participants add the noise.

        An attempt of which nobody knows the participants counts for all that were not silent, with the fewest honest ones.
        pending: with the output that is committed and not yet released.
        """
        ends: dict[int, Line | None] = {}
        attempt = 0
        for line in self.lines[1:]:
            if line["kind"] == "intent":
                attempt = line["round"] if self.seeded else attempt + 1
                ends.setdefault(attempt, None)
            elif line["kind"] in ("commit", "given up"):
                ends[attempt] = line
        exposure = np.zeros(mechanism.clients)
        for end in ends.values():
            if end is None:
                exposure[~mechanism.silent(torch.from_numpy(exposure)).numpy()] += 1 / mechanism.honest
            elif "participants" in end and (pending or end is not self.lines[-1]):
                exposure[end["participants"]] += end["exposure"]
        return exposure

    def commit(self, k: int, output: str, **cohort: Any) -> None:
        """The output of round k exists, and is stored where a resumed run finds it.

        cohort: `participants`, the indices of the clients, and their `exposure`, where the adversary knows both anyway.

        Raises:
            BadInput: where a seeded retry gives another output than before: it would be a second release.
        """
        if self.seeded and self._outputs.get(k, output) != output:
            raise BadInput(
                "ledger", f": round {k} gives another output than before, which would be a second release", remedy="Do not resume"
            )
        self._append("commit", {"round": k, "output": output, **cohort})
        self._outputs[k] = output

    def release(self, k: int) -> None:
        """The output of round k is visible."""
        self._append("release", {"round": k})

    def give_up(self, k: int) -> None:
        """Round k ends without an output."""
        self._append("given up", {"round": k})

    def note(self, kind: str, content: Mapping[str, object]) -> None:
        """A line of another kind, in the same chain: of a file that counts something else than rounds."""
        self._append(kind, content)

    def check_in_place(self) -> None:
        """Raises TrainingFailed where the file is not the one that was written."""
        self._file.check()

    def check_covers(self, visible: int, output: bool) -> None:
        """Refuses a ledger on which fewer rounds began than were seen, or none though an output is stored.

        Raises:
            BadInput: saying which.
        """
        if output and not self._begun:
            raise BadInput("ledger", f": {self.path} knows of no round and the output of one is stored", remedy="Lines are missing")
        if len(self._begun) < visible:
            raise BadInput(
                "ledger", f": {self.path} knows of {len(self._begun)} rounds and {visible} were seen", remedy="Lines are missing"
            )

    def check_holds(self, head: object) -> None:
        """Refuses a checkpoint that was not written beside this ledger. head: the hash of the ledger's last line at that time.

        Raises:
            BadInput: where no line has this hash.
        """
        if all(line["hash"] != head for line in self.lines):
            raise BadInput(
                "resume",
                f": the checkpoint is of another run than {self.path}",
                remedy="Restore this run's own checkpoint and ledger, or start again in another folder",
            )

    def _append(self, kind: str, content: Mapping[str, object]) -> None:
        line: Line = {"kind": kind, **content, "previous": self.head if self.lines else ""}
        line["hash"] = _hash(line)
        self._file.append(json.dumps(line, allow_nan=False).encode() + b"\n")
        self.lines.append(line)
        beside = _head_path(self.path).with_suffix(".part")
        with beside.open("w") as file:
            json.dump([len(self.lines), line["hash"]], file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(_head_path(self.path))

    def _drop_torn_line(self) -> None:
        with self.path.open("rb+") as file:
            file.truncate(file.read().rfind(b"\n") + 1)
            os.fsync(file.fileno())


def read(path: Path) -> Ledger:
    """A ledger with its chain verified; an incomplete last line, of a process killed while writing, is left out.

    Raises:
        BadInput: naming the first line that was changed or follows a missing one.
    """
    head = _read_head(path)  # before the lines: another process may add some meanwhile
    try:
        *whole, rest = path.read_bytes().split(b"\n")
    except OSError as error:
        raise BadInput("ledger", f": {path} cannot be read ({error.strerror})") from None
    if rest and _lines_by_head(head) > len(whole):
        raise BadInput("ledger", f": line {len(whole) + 1} of {path} was changed")  # it was whole when the head was written
    lines: list[Line] = []
    for number, text in enumerate(whole, start=1):
        line = _parse(text)
        if line is None or line.get("hash") != _hash(line) or json.dumps(line).encode() != text:
            raise BadInput("ledger", f": line {number} of {path} was changed")
        if line.get("previous") != (lines[-1]["hash"] if lines else ""):
            raise BadInput("ledger", f": a line before line {number} of {path} is missing")
        lines.append(line)
    _check_head(path, head, lines)
    return Ledger(path, lines, torn=bool(rest))


def _check_head(path: Path, content: str | OSError, lines: list[Line]) -> None:
    """The file beside a ledger holds the number of its lines and the hash of the last, so that a lost end is missed."""
    try:
        if isinstance(content, OSError):
            raise content
        number, head = json.loads(content)
        if not (isinstance(number, int) and number >= 1):
            raise ValueError(number)
        found = lines[number - 1]["hash"] if number <= len(lines) else None
    except FileNotFoundError:
        if len(lines) <= 1:  # killed before the first head was written
            return
        raise BadInput("ledger", f": {_head_path(path)} is missing, which holds the number of lines of {path}") from None
    except (OSError, ValueError, TypeError, IndexError):
        raise BadInput("ledger", f": {_head_path(path)}, which holds the number of lines of {path}, is damaged") from None
    if found is None:
        raise BadInput("ledger", f": {path} ends at line {len(lines)} and had come to line {number}", remedy="Lines are missing")
    if found != head:
        raise BadInput("ledger", f": line {number} of {path} is not the one that was written")


def _read_head(path: Path) -> str | OSError:
    """The content of the file beside a ledger, or why it cannot be read."""
    try:
        return _head_path(path).read_text(errors="replace")
    except OSError as error:
        return error


def lines_noted(path: Path) -> int:
    """How many lines the file beside a ledger says there were, without reading the ledger; 0 where it cannot be read."""
    return _lines_by_head(_read_head(path))


def _lines_by_head(content: str | OSError) -> int:
    """How many lines the file beside a ledger says there were; 0 where it cannot be read."""
    try:
        return 0 if isinstance(content, OSError) else int(json.loads(content)[0])
    except (ValueError, TypeError, IndexError):
        return 0


def _head_path(path: Path) -> Path:
    return path.with_suffix(".head")


def _parse(text: bytes) -> Line | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) else None


def _hash(line: Line) -> str:
    content = {key: value for key, value in line.items() if key != "hash"}
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()
