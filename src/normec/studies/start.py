"""A configuration starts a run in its folder."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path

from normec.config import RunConfig
from normec.imports import TRUST, named_code
from normec.runs.experiment import Plan, prepare
from normec.runs.folder import RunFolder


def start(config: RunConfig, path: Path, resume: bool) -> tuple[Plan, RunFolder]:
    """A configuration, prepared, and its folder, which other runs are kept out of.

    Raises:
        BadInput: as `RunFolder.open` and `prepare`.
    """
    folder = RunFolder(path)
    folder.check(resume)
    plan = prepare(config.experiment())
    folder.open(resume)
    folder.configuration = config.toml(plan.delta)
    if not folder.config.exists():
        folder.save_config(folder.configuration)
    return plan, folder


def resume_command(path: Path, config: RunConfig) -> str:
    """The command that resumes a run in its folder: a run.toml may name code, which only runs for those who trust it."""
    trust = [TRUST] if named_code(tomllib.loads(config.toml())) else []
    return shlex.join(["normec", "train", "--out", str(path), "--resume", *trust])
