"""The built-in demo learns within its ε."""

from __future__ import annotations

import pytest

from normec.config import resolve
from normec.runs.experiment import prepare
from normec.runs.loop import execute


@pytest.mark.parametrize("seed", range(5))
def test_the_demo_is_right_on_more_than_85_percent(seed: int) -> None:
    run = execute(prepare(resolve(None, [f"seed={seed}", "engine.eval_every=60"]).experiment()))
    assert run.summary["test_accuracy"] > 0.85
    assert 7.999 <= run.epsilon <= 8 and run.summary["delta"] == 1e-5
    assert run.summary["algorithm"] == "fed-normec" and len(run.metrics) == 61
    assert run.metrics[0]["test_accuracy"] < 0.3
    assert run.summary["convergence"] == "outside the theorems (the plain server step, not algorithm.server_normalize=true)"
