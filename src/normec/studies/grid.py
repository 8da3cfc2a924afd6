"""Grids of configurations: any setting takes a list, and every combination is a run with a name that tells it from the others."""

from __future__ import annotations

import hashlib
import itertools
import re
from typing import Any, NamedTuple

from normec.config import RunConfig, merge
from normec.errors import BadInput
from normec.settings import Tree, flat

LISTS = {"evaluation.metrics", "data.label_column", "data.drop_columns", "model.class_weights"}
"""Settings that are lists themselves; several of them are a list of lists."""
LONGEST_NAME = 100
Changes = Tree
"""Values of settings by `section.key`."""


class Point(NamedTuple):
    """One run of a grid: its settings, and those that it does not share with all others."""

    tree: Tree
    changes: Changes


def expand(tree: Tree) -> dict[str, Point]:
    """The runs of a tree in which settings may be lists, by name, in the order of the lists: the last one varies fastest.

    Each table of an array `[[case]]` changes settings together, as `key=value` would, and may hold lists of its own; without
    any there is one case, of no change.

    Raises:
        BadInput: for an empty list, two runs that are one, or a run that is no configuration, naming it.
    """
    tree = dict(tree)
    cases = tree.pop("case", [{}])
    if not isinstance(cases, list) or not cases or not all(isinstance(case, dict) for case in cases):
        raise BadInput("case", value=cases, must="be tables of settings", remedy="Write [[case]] above each")
    base, common = _split(tree)
    combinations = [
        fixed | dict(zip(lists, point, strict=True))
        for fixed, own in map(_split, cases)
        for lists in [{key: values for key, values in common.items() if key not in fixed} | own]
        for point in itertools.product(*lists.values())
    ]
    short = _short_names({key for changes in combinations for key in changes})
    runs: dict[str, Point] = {}
    same: dict[str, str] = {}
    for changes in combinations:
        name = _name(changes, short)
        tree = merge(_tree(base), _tree(changes))
        twin = same.setdefault(_resolved(name, tree), name)
        if name in runs or twin != name:
            raise BadInput("sweep", f"has two runs that are one: {name} and {twin}", remedy="Leave out one of two equal values")
        runs[name] = Point(tree, changes)
    return runs


def _split(tree: Tree) -> tuple[Changes, dict[str, list[Any]]]:
    """The settings that have one value, and those that are lists of values."""
    once: Changes = {}
    lists: dict[str, list[Any]] = {}
    for key, value in flat(tree).items():
        if "." in key and key in tree:
            raise BadInput(repr(key), "is one key with a dot in it", remedy="Write section.key without quotes")
        if not isinstance(value, list) or (key in LISTS and not any(isinstance(each, list) for each in value)):
            once[key] = value
        elif any(isinstance(each, dict) for each in value):
            raise BadInput(key, "is a list of sections", remedy="Write [[case]] for settings that change together")
        elif value:
            lists[key] = value
        else:
            raise BadInput(key, "holds no value to try", value=[], remedy="Give one or more, or leave it out")
    return once, lists


def _tree(leaves: Changes) -> Tree:
    tree: Tree = {}
    for name, value in leaves.items():
        section, _, key = name.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[key] = value
    return tree


def _short_names(keys: set[str]) -> dict[str, str]:
    """Of each key its last part, where no other key has the same."""
    last = [key.rpartition(".")[2] for key in keys]
    return {key: key if last.count(key.rpartition(".")[2]) > 1 else key.rpartition(".")[2] for key in keys}


def _name(changes: Changes, short: dict[str, str]) -> str:
    """Such as `beta=0.01_lr=1`, fit for a folder's name; with a hash where that would lose something."""
    said = "_".join(f"{short[key]}={value}" for key, value in changes.items()) or "run"
    kept = re.sub(r"[^\w.=+-]+", "-", said, flags=re.ASCII)[:LONGEST_NAME]
    return kept if kept == said else f"{kept}~{hashlib.blake2b(said.encode(), digest_size=4).hexdigest()}"


def _resolved(name: str, tree: Tree) -> str:
    """The configuration in full, which equal runs share.

    Raises:
        BadInput: where the tree is none, naming the run.
    """
    try:
        return RunConfig.from_tree(tree).toml()
    except BadInput as error:
        raise of_run(name, error) from None


def of_run(name: str, error: BadInput) -> BadInput:
    """The same error, naming the run of a grid that it is in."""
    return error.told(f"(in the run {name})")
