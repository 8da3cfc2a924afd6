"""The metrics, as TensorBoard reads them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Outcome

Command = Callable[..., Outcome]


def test_tensorboard_reads_the_metrics(tmp_path: Path, command: Command) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    done = command("train", "rounds=3", "--tensorboard", "--out", str(tmp_path / "run"))
    assert done.code == 0 and "round    3/3" in done.out
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    found = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    found.Reload()
    for name, key in (("test_accuracy", "test_accuracy"), ("epsilon", "epsilon"), ("transmissions", "transmissions")):
        assert [event.step for event in found.Scalars(name)] == [0, 1, 2, 3]
        assert [event.value for event in found.Scalars(name)] == pytest.approx([row[key] for row in rows], rel=1e-6)
    assert "simulation_only/update_norm_max" in found.Tags()["scalars"]
