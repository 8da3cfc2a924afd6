"""Runs of several processes in which a client's model fails: `torchrun … failing_ranks.py FOLDER`.

Alone without a group, then beside one of the caller, and each time a run that ends badly before the next.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, distributed, nn

import normec


class Fails(nn.Module):
    """Raises on a sample that holds 7."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2)
        nn.init.zeros_(self.layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        if bool((x == 7).any()):
            raise ZeroDivisionError("seven")
        found: Tensor = self.layer(x)
        return found


def train(broken: int, trust: Any, out: Path | None = None) -> normec.Run:
    """Eight clients, of whom one is broken."""
    features = np.linspace(-1, 1, 24, dtype=np.float32)[:, None]
    features[3 * broken + 1] = 7
    noise = {"noise_multiplier": 1.0} if trust != "none" else {}
    return normec.train(
        model=Fails, data=normec.Federation.from_arrays(features, [0, 1, 1] * 8, np.repeat(np.arange(8), 3)), algorithm=normec.Clip21(),
        local=normec.GD(steps=2, lr=0.5), participation=normec.Full(), privacy=normec.Privacy(trust=trust, **noise), rounds=3,
        engine=normec.Engine(eval_every=100), out=out,
    )  # fmt: skip


def failure(broken: int) -> BaseException | None:
    """How a run ends without privacy. The error is kept, and all that it holds of the run."""
    try:
        train(broken, "none")
    except normec.TrainingFailed as error:
        return error
    return None


if __name__ == "__main__":
    folder, first, kept = Path(sys.argv[1]), os.environ["RANK"] == "0", []
    for group in ("none", "own"):
        if group == "own":
            distributed.init_process_group("gloo")
        for broken in (4, 5):  # of the first rank, and of the second
            kept.append(failure(broken))
            expected = f"client {broken}: " if first else "lost the others"  # the first one alone evaluates
            if expected not in str(kept[-1]):
                raise SystemExit(f"{group}, {broken}: {kept[-1]}")
            train(broken, "central", folder / f"{group}-{broken}")
    os._exit(0)  # everything is written, and torch may abort a process of a parted group while it ends
