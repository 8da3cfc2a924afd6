"""A run's folder: metrics, checkpoint, model and summary, written so that a killed process leaves them usable."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from normec.errors import BadInput


class RunFolder:
    """The files of one run in `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self.checkpoint = path / "checkpoint" / "state.safetensors"
        self._lock_file: int | None = None

    @classmethod
    def open(cls, path: Path, resume: bool) -> RunFolder:
        """A new folder, or with `resume` one that holds a run; locked against other runs until the context ends.

        Raises:
            BadInput: where the folder holds something and `resume` is off, holds no run and it is on, or cannot be made.
        """
        folder = cls(path)
        holds_run = folder.metrics.exists() or (path / "run.toml").exists()
        if resume and not holds_run:
            raise BadInput("--resume", f": {path} holds no run. Leave --resume out to start one.")
        if not resume and path.exists() and (not path.is_dir() or any(path.iterdir())):
            what = "holds a run" if holds_run else "is not an empty folder"
            raise BadInput("--out", f": {path} {what}. Choose another folder" + (", or continue it with --resume." if holds_run else "."))
        try:
            folder.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput("--out", f": {path} cannot be made ({error.strerror}). Choose another folder.") from None
        folder._lock()
        return folder

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *error: object) -> None:
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def _lock(self) -> None:
        """Keeps other runs out until this one ends, however it ends (where the system has flock)."""
        with contextlib.suppress(ImportError):
            import fcntl

            self._lock_file = os.open(self.checkpoint.parent, os.O_RDONLY)
            try:
                fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                self.__exit__()
                raise BadInput("--out", f": another run is going on in {self.path}. Wait for it, or choose another folder.") from None

    def start_metrics(self, rounds_done: int) -> list[dict[str, Any]]:
        """Cuts metrics.jsonl back to the rounds that a checkpoint holds, and returns those."""
        kept = []
        if self.metrics.exists():
            for line in self.metrics.read_text().splitlines():
                with contextlib.suppress(json.JSONDecodeError):  # a torn last line of a killed process
                    row = json.loads(line)
                    kept += [row] if row["round"] <= rounds_done else []
        write_atomically(self.metrics, lambda: "".join(_line(row) for row in kept).encode())
        return kept

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Adds one round; each line is complete on disk before the next round starts."""
        with self.metrics.open("a") as lines:
            lines.write(_line(row))

    def save_checkpoint(self, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
        """Replaces the checkpoint in one step: a reader finds the old one or the new one, whole."""
        plain = {name: tensor.contiguous() for name, tensor in tensors.items()}
        metadata = {"normec": json.dumps(description, allow_nan=False)}
        write_atomically(self.checkpoint, lambda: save(plain, metadata=metadata))

    def load_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The tensors and the description of the checkpoint, or None where there is none yet."""
        if not self.checkpoint.exists():
            return None
        try:
            with safe_open(self.checkpoint, framework="pt") as file:
                description = json.loads(file.metadata()["normec"])
                return {name: file.get_tensor(name) for name in file.keys()}, description  # noqa: SIM118
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise BadInput("--resume", f": {self.checkpoint} is damaged ({error}). Start again in another folder.") from None

    def save_model(self, module: nn.Module) -> None:
        """Writes the parameters and buffers to model.safetensors."""
        state = {name: value.detach().clone().contiguous() for name, value in module.state_dict().items()}
        write_atomically(self.path / "model.safetensors", lambda: save(state))

    def save_config(self, text: str) -> None:
        """Writes run.toml, from which the run can be repeated."""
        write_atomically(self.path / "run.toml", text.encode)

    def save_summary(self, summary: dict[str, Any]) -> None:
        write_atomically(self.path / "summary.json", lambda: json.dumps(summary, indent=2, allow_nan=False).encode())


def write_atomically(path: Path, content: Callable[[], bytes]) -> None:
    """Writes a file beside `path`, makes it durable and moves it over `path`; a failure leaves `path` as it was."""
    beside = path.with_name(f".{path.name}.part")
    try:
        with beside.open("wb") as file:
            file.write(content())
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def differing_setting(saved: dict[str, Any], now: dict[str, Any]) -> str | None:
    """The first setting, with both values, in which two descriptions of a run differ; None where they agree."""
    before, after = _flat(json.loads(json.dumps(saved))), _flat(json.loads(json.dumps(now)))
    for key in sorted({*before, *after}):
        if before.get(key) != after.get(key):
            return f"{key}={before.get(key)!r} there, {after.get(key)!r} here"
    return None


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, allow_nan=False) + "\n"
