"""Objects named by an import path, `package.module:object`: code, which a file that names it does not run by itself."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any, Literal, get_args

from normec.errors import BadInput, nearest
from normec.settings import Tree, flat

Setting = Literal["data.source", "model.name", "model.loss", "algorithm.name", "algorithms", "evaluation.metrics", "privacy.noise"]
"""The settings that may name code."""
LIBRARIES = ("torch.nn", "torch.nn.functional", "torchmetrics.classification", "torchmetrics.regression")
"""Modules whose objects only compute: anyone's file may name them, and they are never looked for in the working directory."""
TRUST = "--trust-code"


def looks_like_import_path(text: str) -> bool:
    """Whether a setting names an object (`package.module:object`) and not a built-in or a file."""
    module, colon, name = text.partition(":")
    return bool(colon) and name.isidentifier() and all(part.isidentifier() for part in module.split("."))


def named_code(tree: Tree) -> dict[str, Setting]:
    """The import paths in a tree of settings, whose values may be lists, and in its [[case]] tables; those of `LIBRARIES` aside."""
    found: dict[str, Setting] = {}
    leaves = flat(tree)
    for setting in get_args(Setting):
        for name in _names(leaves.get(setting)):
            code = looks_like_import_path(name) or setting == "evaluation.metrics"
            if code and name.partition(":")[0] not in LIBRARIES:
                found.setdefault(name, setting)
    for case in tree["case"] if isinstance(tree.get("case"), list) else []:
        found = (named_code(case) if isinstance(case, dict) else {}) | found
    return found


def check_trust(file: object, tree: Tree, typed: Tree) -> None:
    """Refuses settings that come from a file and name code, which nobody has typed or trusted. typed: those of the command line.

    Raises:
        BadInput: naming the file, the setting and the import path.
    """
    given = named_code(typed)
    for name, setting in named_code(tree).items():
        if name not in given:
            raise BadInput(
                setting, f"in {file} is code, which would be imported and run", value=name, remedy=f"Add {TRUST} if you trust it"
            )


def load_object(setting: Setting, path: str) -> Any:
    """The callable, or the metric that is already an object, at an import path.

    Modules of the working directory are found too, except for the `LIBRARIES`.

    Raises:
        BadInput: where the module, or the name in it, does not exist, fails to import or cannot be called.
    """
    module_name, _, name = path.partition(":")
    try:
        with contextlib.nullcontext() if module_name in LIBRARIES else _working_directory_first():
            module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever a user's module raises while it is imported
        raise BadInput(setting, f": importing {module_name} failed ({type(error).__name__}: {error})", value=path) from error
    found = getattr(module, name, None)
    object_of_metric = setting == "evaluation.metrics" and callable(getattr(found, "update", None))
    if not callable(found) and not object_of_metric:
        known = [key for key, value in vars(module).items() if callable(value)]
        raise BadInput(setting, f": {module_name} has no callable {name}", value=path, remedy=nearest(name, known))
    return found


def _names(value: object) -> Iterator[str]:
    """The names in a setting: it may be one, a list of them, or of {name, arguments}."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _names(value.get("name"))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _names(each)


@contextlib.contextmanager
def _working_directory_first() -> Iterator[None]:
    """Modules are found in the working directory, for as long as one is imported."""
    here = os.getcwd()
    if here in sys.path:
        yield
        return
    sys.path.insert(0, here)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the module has removed it
            sys.path.remove(here)
