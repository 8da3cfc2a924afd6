"""One run of several processes: `torchrun … ranked.py FOLDER ALGORITHM NOISE [STOP | resume]`.

STOP: the round after which rank 1 kills itself.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
from torch import distributed

import normec
from conftest import Point, half_square
from normec.algorithms import REGISTRY
from normec.engine import Clients

CENTRES = np.random.default_rng(0).uniform(-2, 2, (11, 3, 6))


def train(folder: Path, name: str, noise: Any, resume: bool) -> normec.Run:
    algorithm = REGISTRY[name](**({"init": "local", "init_offset": 0.1} if noise == "none" and name == "fed-normec" else {}))
    privacy = normec.Privacy(trust="none") if noise == "none" else normec.Privacy(trust="local", epsilon=4.0, noise=noise)
    return normec.train(
        model=Point, data=normec.Federation.from_clients([(a, np.zeros(3)) for a in CENTRES]), algorithm=algorithm,
        local=normec.IG(steps=1, lr=0.4, batch_size=2), participation=normec.Poisson(0.6), privacy=privacy, rounds=12, loss=half_square,
        engine=normec.Engine(dtype="float64", checkpoint_every=2, eval_every=3), out=folder, resume=resume,
    )  # fmt: skip


def kill_after(rounds: int) -> None:
    """Makes rank 1 kill itself in the round after so many."""
    step = Clients.round

    def watched(self: Clients, *given: Any) -> Any:
        if given[-1] == rounds and self.ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, *given)

    Clients.round = watched  # type: ignore[method-assign]


def counted(exchange: Any, calls: list[int]) -> Any:
    """The same exchange between processes, which counts its calls."""

    def exchanged(*given: Any, **named: Any) -> Any:
        calls.append(1)
        return exchange(*given, **named)

    return exchanged


if __name__ == "__main__":
    calls: list[int] = []
    distributed.all_reduce = counted(distributed.all_reduce, calls)
    where, chosen, noise = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    last = sys.argv[4] if len(sys.argv) > 4 else ""
    if last.isdigit():
        kill_after(int(last))
    try:
        train(where, chosen, noise, resume=last == "resume")
    except normec.NormecError as error:
        print(f"normec: {error}", file=sys.stderr, flush=True)
        os._exit(error.exit_code)
    (where.parent / f"{where.name}.all_reduces").write_text(str(len(calls)))
    os._exit(0)  # everything is written, and torch may abort a process of a parted group while it ends
