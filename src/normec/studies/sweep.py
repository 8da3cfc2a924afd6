"""A sweep, which `normec sweep` runs: a grid of runs in separate processes, which a kill at any moment leaves resumable."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import tomli_w

from normec.config import RunConfig, merged, parse_assignments, read_toml
from normec.errors import BadInput
from normec.files import LOCKED, Lock, making, write_atomically
from normec.hashed import unsealed
from normec.models import factory, loss_function
from normec.runs.folder import RunFolder
from normec.settings import Fraction, Settings, Tree, difference
from normec.studies.grid import Point, expand, of_run
from normec.studies.rows import SweepRow, sweep_row

LOOK_AGAIN = 0.2
"""Seconds between looks at the processes."""
Told = Callable[[int, list[str], list[str]], None]
"""Told how many rounds of all are done, and the names of the runs that have ended and of those that are going on."""


class Target(Settings):
    """The `[sweep]` section. target: a test accuracy; the table says how many rounds and transmissions each run took to it."""

    target: Fraction | None = None


@dataclass(frozen=True)
class Sweep:
    """runs: by name. source: the tree that says so. table: the name of the files with the table, without their suffix."""

    source: Tree
    runs: dict[str, Point]
    target: float | None = None
    table: str = "results"

    @classmethod
    def of(cls, tree: Tree) -> Sweep:
        """The sweep of a tree of settings that may be lists, with [[case]] tables and a [sweep] section.

        Raises:
            BadInput: as `grid.expand`, before anything runs.
        """
        own = tree.get("sweep", {})
        if not isinstance(own, dict):
            raise BadInput("sweep", value=own, must="be a section", remedy="Write [sweep] in the file")
        target = Target.from_table("sweep", own).target
        return cls(tree, expand({key: value for key, value in tree.items() if key != "sweep"}), target)

    @classmethod
    def read(cls, file: Path, assignments: list[str], trust_code: bool = False) -> Sweep:
        """The sweep of a TOML file changed by `key=value`, whose values may be lists too. trust_code: code that the file names may run."""
        return cls.of(merged(file, parse_assignments(assignments), trust_code))

    @property
    def rounds(self) -> int:
        """The planned rounds of all runs together."""
        return sum(RunConfig.from_tree(point.tree).schedule.rounds for point in self.runs.values())

    def run(self, folder: Path, workers: int, told: Told) -> list[SweepRow]:
        """Trains the runs that are not finished yet, `workers` at a time; returns the rows of the table.

        Data, models and losses are looked at before anything runs. results.json and results.csv are replaced after each run.

        Raises:
            BadInput: for a folder that is no sweep's, that another sweep is using, that holds the table of another one, or a run of
                this name and other settings or data; for data, a model or a loss that cannot be had.
            KeyboardInterrupt: when Ctrl-C was pressed, once the runs have written their checkpoints.
        """
        open_folder(folder, "sweep.toml", "a sweep")
        lock = Lock(folder, BadInput("out", f": another sweep is going on in {folder}", remedy="Wait for it, or choose another folder"))
        try:
            self._keep_other_tables(folder)
            waiting = self._waiting(folder)
            write_atomically(folder / "sweep.toml", tomli_w.dumps(self.source).encode)
            failed = self._train(folder, waiting, workers, told)
            return self._save(folder, failed)
        finally:
            lock.release()

    def _keep_other_tables(self, folder: Path) -> None:
        """Refuses a folder whose table shows none of these runs."""
        try:
            shown = {row["run"] for row in json.loads((folder / f"{self.table}.json").read_text(encoding="utf-8"))}
        except (OSError, ValueError, TypeError, KeyError):  # there is none that could be lost
            return
        if shown and not shown & self.runs.keys():
            raise BadInput("out", f": {folder} holds another sweep, of {sorted(shown)[0]}", remedy="Choose another folder")

    def _waiting(self, folder: Path) -> list[str]:
        """The names of the runs that are not finished, each checked as far as it can be without training."""
        fingerprints: dict[str, str] = {}
        waiting = []
        for name, point in self.runs.items():
            config = RunConfig.from_tree(point.tree)
            source = repr((config.data, config.schedule.seed, config.model.loss))
            try:
                factory(config.model)
                loss_function(config.model)
                if source not in fingerprints:
                    fingerprints[source] = config.federation().fingerprint()
            except BadInput as error:
                raise of_run(name, error) from None
            if not _finished(folder / name, config, fingerprints[source]):
                waiting.append(name)
        return waiting

    def _train(self, folder: Path, waiting: list[str], workers: int, told: Told) -> dict[str, str]:
        """Why runs failed, by name."""
        going: dict[str, _Process] = {}
        failed: dict[str, str] = {}
        ended = [name for name in self.runs if name not in waiting]
        done = sum(RunFolder(folder / name).visible_rounds() for name in ended)
        try:
            while waiting or going:
                while waiting and len(going) < workers:
                    name = waiting.pop(0)
                    going[name] = _Process(self.runs[name].tree, folder / name)
                for name in [name for name, process in going.items() if process.ended]:
                    problem = going.pop(name).finish()
                    failed |= {name: problem} if problem else {}
                    ended.append(name)
                    done += RunFolder(folder / name).visible_rounds()
                    self._save(folder, failed)
                told(done + sum(RunFolder(folder / name).visible_rounds() for name in going), ended, list(going))
                time.sleep(LOOK_AGAIN)
        finally:
            for process in going.values():  # only where this loop was interrupted
                process.interrupt()
            for process in going.values():
                process.finish()
        return failed

    def _save(self, folder: Path, failed: dict[str, str]) -> list[SweepRow]:
        """Writes the table of what there is."""
        rows = [sweep_row(folder, name, point.changes, failed.get(name), self.target) for name, point in self.runs.items()]
        flat = [
            row["settings"] | {key: value for key, value in row.items() if key not in ("settings", "metrics")} | row.get("metrics", {})
            for row in rows
        ]
        text = io.StringIO()
        table = csv.DictWriter(text, list(dict.fromkeys(key for row in flat for key in row)))
        table.writeheader()
        table.writerows(flat)
        write_atomically(folder / f"{self.table}.csv", text.getvalue().encode)
        write_atomically(folder / f"{self.table}.json", json.dumps(rows, indent=1, ensure_ascii=False).encode)
        return rows


class _Process:
    """A run in a process of its own, which ends with this one, and which Ctrl-C reaches through this one alone."""

    def __init__(self, tree: Tree, path: Path) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by finish)
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", "-m", "normec.studies.attended", str(path)],  # -P: no module of the working directory for a library's
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._errors, start_new_session=True,
        )  # fmt: skip
        with contextlib.suppress(BrokenPipeError):  # it has died already
            self._input.write(json.dumps(tree).encode() + b"\n")
            self._input.flush()

    @property
    def _input(self) -> IO[bytes]:
        return cast(IO[bytes], self._process.stdin)

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def finish(self) -> str | None:
        """Waits for its end; why it failed, or None."""
        code = self._process.wait()
        self._input.close()
        with self._errors:
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip().splitlines()
        if code == 0:
            return None
        return f"killed by signal {-code}" if code < 0 else said[-1] if said else f"exit code {code}"

    def interrupt(self) -> None:
        """Asks it to end with a checkpoint."""
        self._process.send_signal(signal.SIGINT)


def open_folder(folder: Path, marker: str, what: str) -> None:
    """Makes the folder of a sweep or the like, which a file called `marker` tells from others.

    Raises:
        BadInput: where it cannot be made, or holds something else than `what`.
    """
    with making(folder):
        # what is left where it was refused, or killed while it wrote the first file, does not count
        held = [path for path in folder.iterdir() if path.name != LOCKED and path.suffix != ".part"]
        foreign = bool(held) and not (folder / marker).is_file()
    if foreign:
        raise BadInput("out", f": {folder} holds something else than {what}", remedy="Choose another folder")


def _finished(path: Path, config: RunConfig, fingerprint: str) -> bool:
    """Whether the run of these settings, on data of this fingerprint, is finished.

    Raises:
        BadInput: where there is a run of other settings or data, naming the first that differs.
    """
    folder = RunFolder(path)
    if not folder.config.is_file():
        return False
    there, here = read_toml(folder.config), tomllib.loads(config.toml())
    if "delta" not in here["privacy"]:
        there["privacy"].pop("delta", None)
    unlike = difference(there, here) or (folder.settings.is_file() and difference(_held(folder), {"data.fingerprint": fingerprint}))
    if unlike:
        raise BadInput(
            "out", f": {path} holds a run of other settings or data ({unlike})", remedy="Choose another folder, or remove that one"
        )
    return folder.summary.is_file()


def _held(folder: RunFolder) -> dict[str, str]:
    """The fingerprint of the data that a run began with."""
    try:
        return {"data.fingerprint": unsealed(folder.settings.read_text(encoding="utf-8"))["data"]["fingerprint"]}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BadInput(
            "out", f": {folder.settings} is damaged ({error})", remedy=f"Remove {folder.path}, or choose another folder"
        ) from None
