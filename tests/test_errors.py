"""How an error sentence is made, and that every one is made so."""

from __future__ import annotations

import ast
import copy
import itertools
import math
import pickle
import re
import threading
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


def test_every_part_is_escaped_in_the_sentence_and_kept_as_it_was() -> None:
    error = BadInput("a\x1b", ": cannot be read (\u202e)", remedy="Give \x07")
    assert str(error) == r"a\x1b: cannot be read (\u202e). Give \x07."
    assert (error.setting, error.problem, error.remedy) == ("a\x1b", ": cannot be read (\u202e)", "Give \x07")


@pytest.mark.parametrize("value", [lambda x: x, threading.Lock(), [1.0, math.nan], "y" * 1000, Path("/a"), math.nan])
def test_an_error_of_any_value_reaches_another_process(value: object) -> None:
    error = BadInput("loss", "cannot be called", value=value)
    once = pickle.loads(pickle.dumps(error))
    assert str(once) == str(error) == str(pickle.loads(pickle.dumps(once))) == str(copy.deepcopy(error))
    assert str(once.under("run")) == f"run.{error}"


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


def texts(call: ast.Call) -> list[ast.expr]:
    """What a call says is wrong: its second argument, and `must`."""
    return call.args[1:] + [keyword.value for keyword in call.keywords if keyword.arg in ("problem", "must")]


def pieces(text: ast.expr) -> list[ast.expr]:
    """The literals and the rendered expressions of a text, in order."""
    return text.values if isinstance(text, ast.JoinedStr) else [text]


def literal(piece: ast.expr | None) -> str:
    """The characters of a literal; none of anything else."""
    return piece.value if isinstance(piece, ast.Constant) and isinstance(piece.value, str) else ""


def flaws(call: ast.Call) -> Iterator[str]:
    """What a call does by hand that the class does."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if None not in given and not texts(call):
        yield "says neither a problem nor what the setting must do"
    setting, value = pieces(call.args[0]) if call.args else [], given.get("value")
    name = literal(setting[-1]).rpartition(".")[2] if setting else ""
    for text in texts(call):
        parts = pieces(text)
        if literal(parts[0]).startswith(("=", " ", "must ", "be ") if text is not given.get("must") else ("=", " ", "must ")):
            yield f"begins with {literal(parts[0])[:6]!r}: give value= or must=, and begin with a verb or a colon"
        for before, part in itertools.pairwise([None, *parts]):
            if not isinstance(part, ast.FormattedValue):
                continue
            if value is not None and ast.unparse(part.value) == ast.unparse(value):
                yield f"renders {ast.unparse(value)} again, which is its value="
            if value is None and name and re.search(rf"(^|\W){re.escape(name)}=$", literal(before)):
                yield f"renders {name} by hand: give value="


def test_every_error_is_made_of_parts() -> None:
    wrong = [f"{place} {flaw}" for place, call in calls() for flaw in flaws(call)]
    assert not wrong, "\n".join(wrong)
    assert sum(1 for _ in calls()) > 400


@pytest.mark.parametrize(
    "call",
    [
        'BadInput("lr")',
        'BadInput("lr", value=lr)',
        'BadInput("lr", f"={lr!r} must be > 0")',
        'BadInput("lr", " is missing")',
        'BadInput("lr", "must be > 0")',
        'BadInput("lr", value=lr, must="must be > 0")',
        'BadInput("local.lr", f": lr={lr!r} is too small")',
        'BadInput("lr", f": {lr} is too small", value=lr)',
    ],
)
def test_what_is_set_by_hand_is_found(call: str) -> None:
    made = ast.parse(call, mode="eval").body
    assert isinstance(made, ast.Call) and list(flaws(made))


@pytest.mark.parametrize(
    "call", ['BadInput("lr", value=lr, must="be > 0")', 'BadInput("lr", f": steps={n} is odd", remedy=f"Give lr={n}")']
)
def test_what_is_made_of_parts_passes(call: str) -> None:
    made = ast.parse(call, mode="eval").body
    assert isinstance(made, ast.Call) and not list(flaws(made))
