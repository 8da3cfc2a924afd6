"""A run's folder: metrics, checkpoint, model and summary, written so that a killed process leaves them usable."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from normec.errors import BadInput
from normec.files import Appended, Lock, making, write_atomically
from normec.hashed import hash_of, plain, read_with_hash, sealed, unsealed, with_hash, with_last_line
from normec.settings import Tree, difference

if TYPE_CHECKING:
    from normec.runs.written import MetricsRow

MODEL, BEST = "model.safetensors", "best.safetensors"
"""The last model of a run, and its best one where one is kept."""
RUN = "run"
"""In the metadata of a checkpoint and of an output, the hash of the settings of their run."""
ROWS = "metrics"
"""In those of a checkpoint, the hash of the rows of metrics up to it."""
NO_ROUND = -1
"""Rounds done where there is no checkpoint: not even the line of round 0 is kept."""


class Checkpoint(NamedTuple):
    """What a checkpoint holds. counts: numbers and names, as JSON; its reader says which."""

    tensors: dict[str, Tensor]
    counts: dict[str, Any]


class Output(NamedTuple):
    """What one round released: the cohort (M,), a mask, and the released mean (d,), in float64."""

    cohort: np.ndarray
    released: Tensor

    def fingerprint(self) -> str:
        """A hash of the released mean."""
        return hashlib.blake2b(self.released.cpu().numpy().tobytes(), digest_size=16).hexdigest()


def new_run_folder(name: str) -> Path:
    """Where a run lies that was given no folder: under runs/, by the time and a name."""
    return Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S-%f}-{name}"


class RunFolder:
    """The files of one run in `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "run.toml"
        self.metrics = path / "metrics.jsonl"
        self.settings = path / "checkpoint" / "settings.json"
        self.ledger = path / "ledger.jsonl"
        self.evaluations = path / "evaluation" / "ledger.jsonl"
        self.summary = path / "summary.json"
        self.audit = path / "audit.json"
        self._output = path / "checkpoint" / "output.safetensors"
        self.checkpoint = path / "checkpoint" / "state.safetensors"
        self.clients = path / "clients.json"
        self.configuration: str | None = None
        """What the run is started with, of one from the command line."""
        self.rows = Appended(self.metrics)
        self._lock: Lock | None = None
        self._run = ""
        self._rows_hash, self._rows_hash_held = hashlib.blake2b(digest_size=16), ""

    @property
    def holds_run(self) -> bool:
        """Whether a run has started in it."""
        return self.config.exists() or self.checkpoint.parent.exists()

    def check(self, resume: bool) -> None:
        """Refuses a folder that holds something when `resume` is off, or no run when it is on.

        Raises:
            BadInput: saying which.
        """
        try:
            self._check(resume)
        except OSError as error:
            raise BadInput("out", f": {self.path!s:.200} cannot be used ({error.strerror})", remedy="Choose another folder") from None

    def _check(self, resume: bool) -> None:
        path, holds_run = self.path, self.holds_run
        if self.audit.exists():
            raise BadInput("out", f": {path} holds an audit, which cannot be resumed", remedy="Choose another folder")
        if resume and not holds_run:
            raise BadInput("resume", f": {path} holds no run", remedy="Leave it out to start one")
        if not resume and path.exists() and (not path.is_dir() or any(path.iterdir())):
            what = "holds a run. Continue it with resume (--resume), or choose" if holds_run else "is not an empty folder. Choose"
            raise BadInput("out", f": {path} {what} another folder")

    def open(self, resume: bool) -> RunFolder:
        """Makes the folder, or with `resume` opens one that holds a run, and keeps other runs out until the context ends.

        Raises:
            BadInput: as `check`; where the folder cannot be made, or another run is going on in it.
        """
        self.check(resume)
        with making(self.path):
            self.checkpoint.parent.mkdir(exist_ok=True)
        busy = BadInput("out", f": another run is going on in {self.path}", remedy="Wait for it, or choose another folder")
        self._lock = Lock(self.checkpoint.parent, busy)
        return self

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *error: object) -> None:
        if self._lock is not None:
            self._lock.release()

    def check_settings(self, now: Tree) -> None:
        """Writes down the settings of a new run; refuses to resume one that has others. run.toml says what is resumed.

        Raises:
            BadInput: naming the first setting that differs, with both values.
        """
        if not self.settings.exists():
            write_atomically(self.settings, lambda: json.dumps(sealed(now), indent=1, ensure_ascii=False).encode())
        with self._reading(self.settings):
            saved = unsealed(self.settings.read_text(encoding="utf-8"))
            found = difference(saved, json.loads(json.dumps(now)))
        if found:
            raise BadInput("resume", f": {self.path} holds another run ({found})", remedy="Use the same settings, or a new folder")
        self._run = hash_of(plain(saved))
        if self.configuration is not None:
            self.save_config(self.configuration)

    def start_metrics(self, rounds_done: int) -> list[MetricsRow]:
        """Cuts metrics.jsonl back to the rounds that a checkpoint holds, and returns those."""
        kept: list[MetricsRow] = []
        self._rows_hash = hashlib.blake2b(digest_size=16)
        with self._reading(self.metrics):
            lines = self.metrics.read_text(encoding="utf-8").splitlines() if self.metrics.exists() else []
            for number, line in enumerate(lines[: rounds_done + 1]):
                kept.append(cast("MetricsRow", unsealed(line)))
                if kept[-1]["round"] != number:
                    raise ValueError(f"line {number + 1} holds round {kept[-1]['round']}")
                self._take_in(kept[-1])
            if len(kept) != rounds_done + 1:
                raise ValueError(f"{len(kept)} lines for {rounds_done} rounds")
            if kept and self._rows_hash.hexdigest() != self._rows_hash_held:
                raise ValueError("its lines are not those of the checkpoint's run")
        self.replace_metrics(kept)
        return kept

    def replace_metrics(self, rows: list[MetricsRow]) -> None:
        """Writes all rounds anew, in one step."""
        write_atomically(self.metrics, lambda: "".join(line_of(row) for row in rows).encode())
        self.rows.replaced()

    def visible_rounds(self) -> int:
        """How many rounds the metrics show, round 0 aside."""
        return max(self.metrics.read_bytes().count(b"\n") - 1, 0) if self.metrics.exists() else 0

    def holds_output(self) -> bool:
        """Whether the output of a round is stored, to be released if its run was interrupted."""
        return self._output.exists()

    def append_metrics(self, row: MetricsRow) -> None:
        """Adds one round; each line is complete on disk before the next round starts."""
        self.rows.append(line_of(row).encode())
        self._take_in(row)

    def _take_in(self, row: MetricsRow) -> None:
        """Adds a row to the hash of all rows. Its ε stays out, which a resumed run counts anew, and which the ledger vouches for."""
        content = {key: value for key, value in row.items() if key != "epsilon"}
        self._rows_hash.update(plain(content).encode(errors="surrogatepass"))

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Replaces the checkpoint in one step: a reader finds the old one or the new one, whole."""
        whole = {name: tensor.contiguous() for name, tensor in checkpoint.tensors.items()}
        metadata = {name: json.dumps(value) for name, value in checkpoint.counts.items()}
        metadata |= {RUN: self._run, ROWS: self._rows_hash.hexdigest()}
        write_atomically(self.checkpoint, lambda: with_hash(whole, metadata))

    def load_checkpoint(self) -> Checkpoint | None:
        """The tensors and the counts of the checkpoint, or None where there is none yet."""
        if not self.checkpoint.exists():
            return None
        with self._reading(self.checkpoint):
            tensors, metadata = self._own(self.checkpoint)
            self._rows_hash_held = metadata.pop(ROWS, "")
            return Checkpoint(tensors, {name: json.loads(value) for name, value in metadata.items()})

    def _own(self, path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
        """A file of tensors that this run has written, not one of other settings."""
        tensors, metadata = read_with_hash(path)
        if metadata.pop(RUN, None) != self._run:
            raise ValueError("it is of another run")
        return tensors, metadata

    @contextlib.contextmanager
    def _reading(self, path: Path) -> Iterator[None]:
        """Turns what a damaged file makes readers raise into one sentence."""
        try:
            yield
        except (SafetensorError, OSError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise BadInput("resume", f": {path} is damaged ({error})", remedy="Start again in another folder") from None

    def save_output(self, output: Output) -> None:
        """Stores what a round is about to release.

        Its hash in the ledger leaves the cohort out, which it would confirm to anyone who guesses it: the file's own covers both.
        """
        tensors = {"cohort": torch.from_numpy(output.cohort), "released": output.released}
        write_atomically(self._output, lambda: with_hash(tensors, {RUN: self._run}))

    def load_output(self, fingerprint: str) -> Output:
        """The stored output, which must have this fingerprint."""
        with self._reading(self._output):
            tensors, _ = self._own(self._output)
            output = Output(tensors["cohort"].numpy(), tensors["released"])
            if output.fingerprint() != fingerprint:
                raise ValueError("it is not the output that the ledger names")
            return output

    def save_model(self, module: nn.Module, made_by: Mapping[str, object], name: str = MODEL) -> None:
        """Writes the parameters and buffers to a file, with what makes the module."""
        entries = module.state_dict().items()
        state = {name: value.detach().clone().contiguous() for name, value in entries if isinstance(value, Tensor)}
        self.save_tensors(state, {"model": json.dumps(made_by)}, name)

    def save_tensors(self, tensors: dict[str, Tensor], metadata: dict[str, str], name: str) -> None:
        """Writes a model's arrays to a file."""
        write_atomically(self.path / name, lambda: with_hash(tensors, metadata))

    def save_config(self, text: str) -> None:
        """Writes run.toml, from which the run can be repeated."""
        write_atomically(self.config, with_last_line(text).encode)

    def save_clients(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Writes how each client fares, which only a simulation can know."""
        encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode  # once, for a million rows
        text = f'{{"simulation_only": [{", ".join(map(encode, rows))}]}}'
        write_atomically(self.clients, lambda: f'{text[:-1]}, "hash": "{hash_of(text)}"}}'.encode())

    def save_audit(self, content: Mapping[str, object]) -> None:
        """Writes what an audit has found, or at its start how many canaries there are."""
        write_atomically(self.audit, lambda: _for_people(content))

    def save_summary(self, summary: Mapping[str, object]) -> None:
        """Writes the summary, last of all: it names the run's other files, each with its hash."""
        files = {path.name: hash_of(path.read_bytes()) for path in self._results() if path.is_file()}
        write_atomically(self.summary, lambda: _for_people({**summary, "files": files}))

    def check_results(self, summary: Tree, *paths: Path) -> None:
        """Refuses files of a finished run that are not those of which its summary speaks.

        Raises:
            BadInput: naming the first.
        """
        for path in paths:
            held = hash_of(path.read_bytes()) if path.is_file() else None
            if held != summary["files"].get(path.name):
                raise BadInput(
                    str(path), f"is not the one of which {self.summary.name} speaks", remedy="Restore it, or run it again in another folder"
                )

    def _results(self) -> tuple[Path, ...]:
        return self.config, self.metrics, self.clients, self.path / MODEL, self.path / BEST


def _for_people(content: Mapping[str, object]) -> bytes:
    return json.dumps(sealed(content), indent=2, allow_nan=False, ensure_ascii=False).encode()


def line_of(row: Mapping[str, object]) -> str:
    """A line of metrics, with its hash."""
    return json.dumps(sealed(row), allow_nan=False) + "\n"
