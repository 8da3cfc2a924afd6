"""Runs that are killed, in processes forked from this one, and go on.

`python interrupted.py FOLDER NOISE RUNS SEED` kills each run five times at random steps of its writing;
`python interrupted.py FOLDER NOISE` kills runs of 2 rounds once, at each of their steps. Prints one JSON object a run. After
each kill the ledger must count at least what could be seen.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import normec
from conftest import Point, checkpoint_of, half_square
from normec.privacy.ledger import read
from normec.runs.folder import RunFolder

ROUNDS = 25
CENTRES = np.random.default_rng(0).normal(size=(6, 40))


def train(folder: Path, noise: str, seed: int, rounds: int = ROUNDS) -> normec.Run:
    return normec.train(
        model=Point,
        data=normec.Federation.from_clients([(a[None], np.zeros(1)) for a in CENTRES]),
        algorithm=normec.FedNormEC(beta=0.2),
        local=normec.GD(steps=1),
        participation=normec.Poisson(0.5),
        privacy=normec.Privacy(trust="local", epsilon=4.0, noise=noise),  # type: ignore[arg-type]
        rounds=rounds,
        seed=seed,
        loss=half_square,
        engine=normec.Engine(checkpoint_every=4, backend="loop"),
        out=folder,
        resume=(folder / "checkpoint").exists(),
    )


def kill_at(moment: int) -> None:
    """Makes this process kill itself at its nth step of durable writing, counting before and after each one."""
    steps = itertools.count(1)

    def around(step: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            if next(steps) == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            result = step(*arguments)
            if next(steps) == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return wrapped

    os.fsync = around(os.fsync)
    Path.replace = around(Path.replace)  # type: ignore[method-assign]
    RunFolder.append_metrics = around(RunFolder.append_metrics)  # type: ignore[method-assign]


def attempt(folder: Path, noise: str, seed: int, moment: int | None, rounds: int = ROUNDS) -> bool:
    """One process; killed at a moment unless that is None. Says whether it was killed."""
    pid = os.fork()
    if pid == 0:
        try:
            if moment is not None:
                kill_at(moment)
            train(folder, noise, seed, rounds)
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, (folder, status)
    return os.WIFSIGNALED(status)


def visible(folder: Path) -> int:
    """How many rounds anyone could have seen in the metrics."""
    path = folder / "metrics.jsonl"
    return max(path.read_bytes().count(b"\n") - 1, 0) if path.exists() else 0


def check(folder: Path) -> None:
    """The chain is whole, and counts at least what could be seen."""
    if (folder / "ledger.jsonl").exists():
        ledger = read(folder / "ledger.jsonl")
        assert not ledger.lines or ledger.counted() >= visible(folder)


def outcome(folder: Path, whole: normec.Run, noise: str, seed: int, rounds: int) -> dict[str, Any]:
    """A finished run beside one that nobody interrupted; training it again releases nothing more."""
    run = train(folder, noise, seed, rounds)
    ledger, expected = read(folder / "ledger.jsonl"), checkpoint_of(whole)
    return {
        "counted": ledger.counted(),
        "committed": sum(line["kind"] == "commit" for line in ledger.lines),
        "rounds": run.summary["rounds"],
        "epsilon": run.epsilon,
        "equal": all(np.array_equal(value, expected[name]) for name, value in checkpoint_of(run).items()),
        "retried": len(ledger.retried()),
    }


def killed_often(folder: Path, noise: str, seed: int, kills: int) -> dict[str, Any]:
    """Kills a run several times at random, lets it end, and compares."""
    killed = 0
    for moment in np.random.default_rng(seed).integers(1, 31, kills).tolist():
        killed += attempt(folder / "run", noise, seed, moment)
        check(folder / "run")
    assert not attempt(folder / "run", noise, seed, None)
    whole = train(folder / "whole", noise, seed)
    return {"killed": killed, **outcome(folder / "run", whole, noise, seed, ROUNDS)}


def killed_everywhere(folder: Path, noise: str, rounds: int) -> Iterator[dict[str, Any]]:
    """Kills a run once, at its first step of writing, at its second, and so on to its last."""
    whole = train(folder / "whole", noise, 0, rounds)
    for moment in itertools.count(1):
        here = folder / str(moment)
        if not attempt(here, noise, 0, moment, rounds):
            return
        check(here)
        assert not attempt(here, noise, 0, None, rounds)
        yield {"killed": 1, **outcome(here, whole, noise, 0, rounds)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    where, noise = Path(sys.argv[1]), sys.argv[2]
    if len(sys.argv) == 3:
        results: Iterable[dict[str, Any]] = killed_everywhere(where, noise, rounds=2)
    else:
        runs, seed = int(sys.argv[3]), int(sys.argv[4])
        results = (killed_often(where / str(number), noise, seed + number, kills=5) for number in range(runs))
    for result in results:
        print(json.dumps(result), flush=True)
