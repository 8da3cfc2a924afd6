"""The house: each module imports only modules below it, in the reading order of docs/architecture.md."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "normec"
TEMPLATES = {SOURCE / "flower" / "app", SOURCE / "flower" / "table_app"}
"""An app that users start from, written by `normec flower-app`; no module of ours."""


def reading_order() -> list[str]:
    text = (ROOT / "docs" / "architecture.md").read_text()
    listings = re.findall(r"```text\n(.*?)```", text, flags=re.DOTALL)
    return [name for listing in listings for name in re.findall(r"^ *([\w/]+)\.py\b", listing, flags=re.MULTILINE)]


def imported(path: Path) -> set[str]:
    """Modules of normec that a file imports anywhere, its type checking aside."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("normec"):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = {name for name in names if (SOURCE.parent / (name.replace(".", "/") + ".py")).exists()}
            found |= modules or {node.module}
    return {name.removeprefix("normec.").replace(".", "/") for name in found}


def test_every_module_is_in_the_reading_order_once() -> None:
    modules = [
        str(path.relative_to(SOURCE).with_suffix(""))
        for path in SOURCE.rglob("*.py")
        if not path.name.startswith("__") and TEMPLATES.isdisjoint(path.parents)
    ]
    assert sorted(reading_order()) == sorted(modules)


def test_modules_import_only_modules_above_them_in_the_list() -> None:
    order = {name: position for position, name in enumerate(reading_order())}
    wrong = []
    for name, position in order.items():
        for other in imported(SOURCE / f"{name}.py"):
            members = [other] if other in order else [member for member in order if member.startswith(f"{other}/")]
            wrong += [f"{name} imports {member}" for member in members if order[member] >= position]
    assert not wrong


def test_a_room_is_listed_in_one_piece_so_that_rooms_never_import_in_a_circle() -> None:
    rooms = [name.rsplit("/", 1)[0] for name in reading_order() if "/" in name]
    changes = [room for before, room in zip(["", *rooms], rooms, strict=False) if room != before]
    assert len(changes) == len(set(changes))


def test_only_what_every_room_stands_on_is_outside_of_them() -> None:
    loose = {name for name in reading_order() if "/" not in name}
    ground = {"errors", "settings", "version", "genuine", "imports", "hashed", "files", "streams", "local", "machine"}
    assert loose == ground | {"config", "cli"}


def test_sources_are_small() -> None:
    long = {str(path): lines for path in SOURCE.rglob("*.py") if (lines := len(path.read_text().splitlines())) > 300}
    assert not long


def test_only_one_module_draws_gaussians() -> None:
    callers = [
        path.name for path in SOURCE.rglob("*.py") if re.search(r"standard_normal|torch\.randn|\.normal\(|normal_\(", path.read_text())
    ]
    assert callers == ["noise.py"]


def test_user_input_is_never_asserted() -> None:
    files = [path for path in SOURCE.rglob("*.py") if any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(path.read_text())))]
    assert not files
