"""What the documents say is what was measured, and what runs."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import normec
from normec.config import resolve

ROOT = Path(__file__).parent.parent


def benchmark(name: str) -> Any:
    """A module of benchmarks/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_shows_the_measured_table() -> None:
    module = benchmark("demo_comparison")
    assert module.table(json.loads(module.RESULTS.read_text())) in (ROOT / "README.md").read_text()


def test_the_comparison_page_shows_the_measured_tables() -> None:
    module = benchmark("family_comparison")
    page = (ROOT / "docs" / "comparison.md").read_text()
    assert module.page(page, json.loads(module.RESULTS.read_text())) == page


def test_the_performance_page_shows_the_measured_table() -> None:
    module = benchmark("engine_speed")
    page = (ROOT / "docs" / "performance.md").read_text()
    assert module.page(page, json.loads(module.RESULTS.read_text())) == page
    scale = benchmark("scale")
    found = json.loads(scale.RESULTS.read_text())
    assert scale.page(page, found) == page and found["runs"]["1000000"]["seconds"] < 120


def test_the_results_page_shows_the_comparison_at_equal_epsilon() -> None:
    module = benchmark("equal_epsilon")
    page = (ROOT / "docs" / "results.md").read_text()
    assert module.page(page, json.loads(module.RESULTS.read_text())) == page


def test_the_results_page_shows_the_measured_figures() -> None:
    page = (ROOT / "docs" / "results.md").read_text()
    assert benchmark("paper_figures").page(page) == page


def test_the_theory_picture_shows_runs_within_the_theorems() -> None:
    rows = json.loads((ROOT / "benchmarks" / "results" / "theory_curves.json").read_text())
    assert {row["corollary"] for row in rows} == {1, 2, 3, 4, 5, 6}
    for row in rows:
        assert row["measured"] <= row["sharper"] <= row["paper"] and row["verdicts"] == ["conditions met"]


def test_the_measured_demo_is_the_default() -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / "demo_comparison.json").read_text())
    assert results["rows"][0]["name"] == "Fed-α-NormEC"
    assert resolve(None, results["rows"][0]["settings"]) == resolve(None, [])


def test_the_documented_configuration_is_the_default() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    block = re.search(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    assert block is not None
    tree = tomllib.loads(block.group(1))
    documented = {f"{section}.{key}": value for section, table in tree.items() if isinstance(table, dict) for key, value in table.items()}
    resolved = tomllib.loads(resolve(None, []).toml())
    actual = {f"{section}.{key}": value for section, table in resolved.items() if isinstance(table, dict) for key, value in table.items()}
    assert documented == actual
    assert (tree["rounds"], tree["seed"]) == (resolved["rounds"], resolved["seed"])


def test_the_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    block = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), flags=re.DOTALL)
    assert block is not None
    exec(compile(block.group(1), "python.md", "exec"), {})
    assert "Client-level (ε = 8.000, δ = 1e-05)" in capsys.readouterr().out


def test_every_public_name_exists() -> None:
    for name in normec.__all__:
        assert getattr(normec, name) is not None
