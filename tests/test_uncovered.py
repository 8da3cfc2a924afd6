"""What a claim does not cover is named beside it, in every file that holds it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normec
from normec.privacy.calibration import calibrate
from normec.privacy.mechanism import Mechanism
from normec.privacy.table import Query
from normec.runs.uncovered import FILES, ROW, SUMMARY, epsilon_with_counts, named_once, not_private

COUNTS = {"transmissions", "bytes_up", "bytes_down"}


def train(out: Path | None = None, **changes: Any) -> normec.Run:
    generator = np.random.default_rng(0)
    data = normec.Federation.from_arrays(
        generator.random((60, 4), dtype=np.float32), generator.integers(0, 3, 60), np.repeat(np.arange(12), 5),
        test=(generator.random((9, 4), dtype=np.float32), generator.integers(0, 3, 9)),
    )  # fmt: skip
    import torch

    given = {"privacy": normec.Privacy(trust="central", epsilon=8.0, delta=1e-5), "participation": normec.Poisson(0.5), "out": out}
    return normec.train(model=torch.nn.Linear(4, 3), data=data, algorithm=normec.FedNormEC(), local=normec.GD(steps=1), rounds=3, **given | changes)  # fmt: skip


def test_a_summary_names_what_no_noise_covers_beside_the_claim(tmp_path: Path) -> None:
    run = train(tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert list(summary)[:2] == ["claim", "not_private"]
    for name in (*COUNTS, "train_loss", "test_accuracy", "settings.data.fingerprint", "simulation_only", "clients_at_limit"):
        assert f"summary.json: {name}" in summary["not_private"]
    assert {f"metrics.jsonl: {name}" for name in (*COUNTS, "train_loss", "test_loss", "seconds")} <= set(summary["not_private"])
    assert set(FILES) <= set(summary["not_private"])
    assert not {"summary.json: epsilon", "summary.json: delta", "metrics.jsonl: round"} & set(summary["not_private"])
    assert run.summary["not_private"] == summary["not_private"]


def test_the_first_line_of_the_metrics_names_them_too(tmp_path: Path) -> None:
    train(tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert COUNTS | {"train_loss", "test_loss", "test_accuracy", "seconds", "simulation_only"} == set(rows[0]["not_private"])
    assert all("not_private" not in row for row in rows[1:])


@pytest.mark.parametrize("trust", ["central", "secagg", "local", "none"])
def test_every_field_of_a_run_is_declared(tmp_path: Path, trust: Any) -> None:
    """A new field of the metrics or of the summary has to say whether the claim covers it."""
    honest = {"min_honest": 2} if trust == "secagg" else {}
    privacy = normec.Privacy(trust=trust, **({} if trust == "none" else {"noise_multiplier": 1.0}), **honest)
    run = train(tmp_path / "run", privacy=privacy, theory=normec.Theory(check=True))
    assert set(json.loads((tmp_path / "run" / "summary.json").read_text())) <= set(SUMMARY)
    assert {name for row in run.metrics for name in row} <= set(ROW)
    assert ("not_private" in run.summary) == (trust != "none") == ("not_private" in run.metrics[0])
    if trust in ("secagg", "local"):  # where the claim supposes that participants are known
        assert not COUNTS & {name.partition(": ")[2] for name in run.summary["not_private"]}
        assert run.summary["epsilon_with_counts"] is None


def test_an_undeclared_field_is_not_passed_over() -> None:
    mechanism = Query(noise_multiplier=1.0).mechanism("central")
    with pytest.raises(KeyError, match="salary"):
        not_private(mechanism, "metrics.jsonl", {"round": 1, "salary": 2.0}, deployed=False)


def test_a_deployments_own_scores_are_of_its_server() -> None:
    mechanism = Query(noise_multiplier=1.0).mechanism("central")
    row = {"round": 0, "train_loss": None, "test_loss": 0.5, "transmissions": 3, "federation": {"answers": 3}, "evaluation": {}}
    assert named_once([], mechanism, row, deployed=True)["not_private"] == ["train_loss", "transmissions", "federation"]
    assert "test_loss" in named_once([], mechanism, row)["not_private"]


def counted(z: float, clients: int, rate: float, rounds: int) -> float | None:
    mechanism: Mechanism = Query(noise_multiplier=z, clients=clients, rate=rate, rounds=rounds, delta=1e-5).mechanism("central")
    return epsilon_with_counts(mechanism, 1e-5)


def test_what_exact_counts_cost() -> None:
    assert counted(1.286, 1000, 0.1, 300) == pytest.approx(30.2, abs=0.01)
    demo = Query(epsilon=4.0, clients=100, rate=0.5, rounds=20, delta=1e-5).mechanism("central")
    assert counted(calibrate(demo, 4.0, 1e-5), 100, 0.5, 20) == pytest.approx(5.99, abs=0.01)
    assert counted(1.0, 100, 1.0, 20) is None  # everybody takes part, and counts say nothing


def test_the_report_says_it(tmp_path: Path, command: Any) -> None:
    run = train(tmp_path / "run")
    command("report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert (
        "No noise covers summary.json (test_accuracy, test_loss, transmissions" in page
        and "; clients.json; checkpoint/" in page
        and "an end, or a best round, chosen by looking" in page
    )
    assert f"against that one ε = {np.ceil(run.summary['epsilon_with_counts'] * 1000) / 1000:.3f}" in page
