"""How an error sentence is made, and that every one is made so."""

from __future__ import annotations

import ast
import copy
import math
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from normec.algorithms.declared import wrong
from normec.errors import ABSENT, BadInput, shown_value

SOURCES = sorted((Path(__file__).parents[1] / "src" / "normec").rglob("*.py"))


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (BadInput("local.lr", value=math.nan, must="be a finite number > 0"), "local.lr=nan must be a finite number > 0."),
        (BadInput("data.path", ": the folder is empty", remedy="Give another"), "data.path: the folder is empty. Give another."),
        (BadInput("x", "has no rows"), "x has no rows."),
        (BadInput("name", "is not known", value="fed", remedy="Did you mean fedavg?"), "name='fed' is not known. Did you mean fedavg?"),
        (BadInput("epsilon", ", delta=1: give one", value=8.0), "epsilon=8, delta=1: give one."),
        (BadInput("data.path", "is not a file", value=Path("/a b")), "data.path='/a b' is not a file."),
        (BadInput("", "No such option", remedy="See --help"), "No such option. See --help."),
        (BadInput("x", "holds more, …"), "x holds more, …"),
    ],
)
def test_a_sentence_is_made_of_its_parts(error: BadInput, sentence: str) -> None:
    assert str(error) == sentence


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "None"),
        (True, "True"),
        (3, "3"),
        (8.0, "8"),
        (0.1, "0.1"),
        (1e-5, "1e-05"),
        (0.1234567891, "0.1234567891"),
        (math.inf, "inf"),
        ("a\x1b[31m", r"'a\x1b[31m'"),
        ("a\nb", r"'a\nb'"),
        ([1, 2], "[1, 2]"),
    ],
)
def test_values_are_shown_on_one_line_without_control_characters(value: object, shown: str) -> None:
    assert shown_value(value) == shown


def test_long_values_are_shortened_and_paths_are_not() -> None:
    assert len(shown_value("x" * 10_000)) < 250 and shown_value("x" * 10_000).endswith("…")
    assert shown_value(Path("x" * 1000)) == repr("x" * 1000)


def test_an_error_keeps_its_parts() -> None:
    error = BadInput("lr", value=-1.0, must="be positive", remedy="Raise it")
    for same in (error, copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert (same.setting, same.value, same.must, same.remedy, str(same)) == ("lr", -1.0, "be positive", "Raise it", str(error))
    assert pickle.loads(pickle.dumps(BadInput("x", "is wrong"))).value is ABSENT
    assert str(error.under("local")) == "local.lr=-1 must be positive. Raise it."
    assert str(error.of("γ")) == "γ=-1 must be positive. Raise it."
    assert str(error.told("(in the run a)")) == "lr=-1 must be positive. Raise it (in the run a)."
    assert str(BadInput("x", "is wrong").told("(in b)")) == "x is wrong (in b)."


def test_a_class_that_declares_too_little_is_named_as_a_setting_is() -> None:
    said = str(wrong(int, "client_slots", "holds a name twice", value=("v", "v"), remedy="Give different names"))
    assert said == "algorithm int.client_slots=('v', 'v') holds a name twice. Give different names."
    assert str(wrong(int, "about", value=3, must="be a normec.About")) == "algorithm int.about=3 must be a normec.About."
    assert str(wrong(int, "server", "is missing", remedy="Define it")) == "algorithm int.server is missing. Define it."


def calls() -> Iterator[tuple[str, ast.Call]]:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "BadInput":
                yield f"{path.name}:{node.lineno}", node


def opening(node: ast.expr) -> str:
    """The first literal characters of a text; none where it begins with something else."""
    first = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else node
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


def test_every_error_is_made_of_parts() -> None:
    wrong = []
    for place, call in calls():
        given = {keyword.arg for keyword in call.keywords}
        said = opening(call.args[1]) if len(call.args) > 1 else ""
        if None not in given and not (len(call.args) == 2 or "must" in given):
            wrong.append(f"{place} says neither a problem nor what the setting must do")
        if said.startswith(("=", " ", "must ")):
            wrong.append(f"{place} begins with {said[:6]!r}: give value= or must=, and begin with a verb or a colon")
    assert not wrong, "\n".join(wrong)
    assert sum(1 for _ in calls()) > 400
