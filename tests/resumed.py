"""Many runs of several processes, one after the other: `torchrun … resumed.py FOLDER` checks every one of them.

Every algorithm with memories is run whole and, from a copy of its folder as a kill in each round would leave it, to the end
again: the checkpoints must hold the same numbers, bit by bit. Half of the runs make their own process group, half find the
caller's.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import distributed

import normec
from conftest import Point, half_square
from normec.algorithms import REGISTRY
from normec.engine.memory import dense_rows
from normec.streams import Streams

CENTRES = np.random.default_rng(0).uniform(-2, 2, (13, 3, 6))
ROUNDS = 6


class CopiesAt:
    """An observer that copies a run's folder when the metrics of a round are written, and its checkpoint is that of the round before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def started(self, plan: Any) -> None: ...

    def round(self, row: dict[str, Any]) -> None:
        if row["round"] > 1:
            shutil.copytree(self.folder, stopped(self.folder, row["round"] - 1))


def stopped(folder: Path, rounds: int) -> Path:
    return folder.with_name(f"{folder.name}-{rounds}")


def cases() -> dict[str, dict[str, Any]]:
    """Every algorithm with memories, with seeded noise where it is private; some with the other ways to keep memories and to draw."""
    found: dict[str, dict[str, Any]] = {}
    for name, kind in REGISTRY.items():
        if kind.client_slots:
            algorithm = kind(**{field: value for field, value in {"k": 3, "lazy": True}.items() if field in kind.model_fields})
            found[name] = {"algorithm": algorithm}
    lazy = normec.FedNormEC(lazy=True)
    found["dense"] = {"algorithm": normec.FedNormEC()}
    found["mapped"] = {"algorithm": lazy, "memory_limit": 1}
    found["mapped-dense"] = {"algorithm": normec.FedNormEC(), "memory_limit": 1}
    found["secure"] = {"algorithm": lazy, "noise": "secure"}
    found["local-start"] = {"algorithm": normec.FedNormEC(init="local"), "noise": "none"}
    found["workers"] = {"algorithm": lazy, "workers": 2}
    return found


def train(folder: Path, resume: bool, algorithm: normec.Algorithm, noise: str = "seeded", workers: int = 1, **engine: Any) -> normec.Run:
    private = noise != "none" and np.isfinite(algorithm.operator.bound)
    privacy = normec.Privacy(trust="central", noise_multiplier=1.0, noise=noise) if private else normec.Privacy(trust="none")
    steps = 1 if algorithm.one_gradient else 2
    return normec.train(
        model=Point, data=normec.Federation.from_clients([(a, np.zeros(3)) for a in CENTRES]), algorithm=algorithm,
        local=normec.GD(steps=steps, lr=0.4), participation=normec.Poisson(0.3), privacy=privacy, rounds=ROUNDS, loss=half_square,
        engine=normec.Engine(dtype="float64", checkpoint_every=1, workers=1 + resume if workers > 1 else 1, **engine),
        out=folder, resume=resume, observer=None if resume else CopiesAt(folder),
    )  # fmt: skip


def without_chance(patch: pytest.MonkeyPatch) -> None:
    """Makes secure noise zero and secret cohorts the seeded ones, so that a resumed run can be told from the whole one."""
    patch.setattr("normec.privacy.noise.with_secure_gaussian", lambda total, std, lattice: total)
    patch.setattr("normec.runs.experiment.Streams", lambda seed, secret_cohorts: Streams(seed))


def differences(folder: Path) -> list[str]:
    """Which vectors of the checkpoints of resumed runs are not bit by bit those of the whole one."""
    whole, found = vectors(folder), []
    for rounds in range(1, ROUNDS):
        resumed = vectors(stopped(folder, rounds))
        if whole.keys() != resumed.keys():
            found.append(f"{folder.name} after {rounds}: {sorted(whole.keys() ^ resumed.keys())}")
        found += [f"{folder.name} after {rounds}: {name}" for name in whole if not torch.equal(whole[name], resumed[name])]
    return found


def vectors(folder: Path) -> dict[str, torch.Tensor]:
    return dense_rows(load_file(folder / "checkpoint" / "state.safetensors"))


def run_and_resume(folder: Path, first: bool = True) -> list[str]:
    """Runs a case whole and from every round on, as all ranks must; the first rank says what differs."""
    case = cases()[folder.name]
    train(folder, resume=False, **case)
    for rounds in range(1, ROUNDS):
        train(stopped(folder, rounds), resume=True, **case)
    return differences(folder) if first else []


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        without_chance(patch)
        names, rank, wrong = list(cases()), int(os.environ["RANK"]), []
        for place, name in enumerate(names):
            if place == len(names) // 2:  # from here on the caller has a group of its own, which stays
                if distributed.is_initialized():
                    wrong.append("a run leaves its group behind")
                distributed.init_process_group("gloo")
            wrong += run_and_resume(Path(sys.argv[1]) / name, first=rank == 0)
    sums = torch.ones(1)
    distributed.all_reduce(sums)
    if sums.item() != distributed.get_world_size():
        wrong.append("the caller's group is gone")
    print(*wrong, sep="\n", file=sys.stderr, flush=True)
    os._exit(1 if wrong else 0)  # everything is written, and torch may abort a process of a parted group while it ends
