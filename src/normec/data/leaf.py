"""LEAF's JSON: users, num_samples and user_data, in one file or in folders train and test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from normec.data.alphabet import CLASSES, encode
from normec.data.checks import sizes_alone
from normec.data.limits import check_size, regular_file
from normec.data.readers import Table
from normec.errors import BadInput, plural

BYTES_FOR_ONE = 6
"""Bytes of memory for each byte of JSON: a number in Python takes 32, and five characters or more in the file."""
KEYS = ("users", "num_samples", "user_data")


class Held(NamedTuple):
    """The samples of files, and the user of each sample."""

    x: np.ndarray
    y: np.ndarray
    user: np.ndarray

    def __repr__(self) -> str:
        return sizes_alone(self)


def is_leaf(path: Path) -> bool:
    """Whether a path is a .json file, or a folder that holds such files, itself or in train/."""
    return path.suffix.lower() == ".json" or (path.is_dir() and any(any(folder.glob("*.json")) for folder in (path, path / "train")))


def leaf_below(folder: Path) -> BadInput | None:
    """The error for a folder that holds .json files in folders below it, with the one to give instead; None without such files."""
    file = next(iter(sorted(folder.rglob("*.json"))), None)
    if file is None:
        return None
    home = file.parent.parent if file.parent.name in ("train", "test") else file.parent
    return BadInput(
        "data.source",
        f"holds .json files in folders below it alone, such as {file.relative_to(folder)}",
        value=folder,
        remedy=f"Give the folder {home} if it holds all of them",
    )


def read_leaf(path: Path, limit: int) -> Table:
    """A file as LEAF writes it (Caldas et al. 2018), a folder of such files, or a folder with such files in train/ and test/.

    x of numbers becomes (n, …); strings of one length whose y are single characters become codes of `models.text`, (n, length).
    The client of a sample is its user.

    Raises:
        BadInput: for files of another form, or samples of several shapes.
    """
    folders = [path / "train", path / "test"] if path.is_dir() and any((path / "train").glob("*.json")) else [path]
    parts = [sorted(folder.glob("*.json")) if folder.is_dir() else [folder] for folder in folders]
    files = [regular_file(file, "data.source", "a .json file as LEAF writes it") for part in parts for file in part]
    check_size(path, BYTES_FOR_ONE * sum(file.stat().st_size for file in files), limit)
    notes: list[str] = []
    train, *others = [_held(part, notes) for part in parts if part]
    text = train.x.dtype.kind == "U"
    if text:
        train, *others = [_codes(path, held) for held in (train, *others)]
    test = others[0] if others else None
    users = f"{plural(len(np.unique(train.user)), 'user')}"
    return Table(
        train.x if train.x.ndim > 1 else train.x[:, None],
        train.y,
        train.user,
        (users, *dict.fromkeys(notes)),
        test=None if test is None else (test.x if test.x.ndim > 1 else test.x[:, None], test.y),
        classes=CLASSES if text else None,
        test_client=None if test is None else test.user,
        codes=text,
        unit="user",
    )


def _held(files: list[Path], notes: list[str]) -> Held:
    """The samples of several files, one after the other."""
    x: list[Any] = []
    y: list[Any] = []
    owners: list[str] = []
    for file in files:
        for user, data in _users(file, notes):
            x += data["x"]
            y += data["y"]
            owners += [user] * len(data["x"])
    if not x:
        raise BadInput("data.source", f": {files[0]} holds no samples", remedy="Give a file with some")
    try:
        held = Held(np.array(x), np.array(y), np.array(owners, dtype=str))
    except ValueError:
        raise BadInput("data.source", f": {files[0].parent} holds samples of several shapes", remedy="Give samples of one shape") from None
    for name, array in (("x", held.x), ("y", held.y)):
        if array.dtype.kind not in "iufbU":
            raise BadInput("data.source", f": {files[0]} holds {name} that are neither numbers nor strings", remedy="Give such")
    return held


def _users(file: Path, notes: list[str]) -> list[tuple[str, dict[str, list[Any]]]]:
    """Each user of a file with its lists x and y.

    Raises:
        BadInput: where the file is not as LEAF writes it, naming the first user that is not.
    """
    remedy = "Give an object with users, num_samples and user_data, where user_data has lists x and y for each user"
    try:
        held = json.loads(file.read_bytes())
        users, sizes, data = (held[key] for key in KEYS)
        if not (isinstance(users, list) and isinstance(sizes, list) and isinstance(data, dict)) or len(users) != len(sizes):
            raise TypeError("users and num_samples are not lists of one length, or user_data is not an object")
        for user, size in zip(users, sizes, strict=True):
            x, y = data[user]["x"], data[user]["y"]
            if not (isinstance(user, str) and isinstance(x, list) and isinstance(y, list) and len(x) == len(y) == size):
                raise TypeError(f"user {user!r} has not {size} samples in lists x and y")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise BadInput("data.source", f"is not as LEAF writes it ({reason})", value=file, remedy=remedy) from None
    others = [key for key in held if key not in KEYS]
    others += [f"{key} of a user" for key in dict.fromkeys(key for user in users for key in data[user]) if key not in ("x", "y")]
    notes += [f"left out: {', '.join(others)}"] if others else []
    unlisted = set(data) - set(users)
    notes += [f"left out: {plural(len(unlisted), 'user')} that `users` does not list"] if unlisted else []
    return [(user, data[user]) for user in users]


def _codes(path: Path, held: Held) -> Held:
    """Windows of characters as codes, each with the code of its next character."""
    if held.x.ndim != 1 or held.y.dtype.kind != "U" or held.y.ndim != 1:
        raise BadInput(
            "data.source", f": {path} holds x of text that are not windows of characters", remedy="Give numbers, or strings of one length"
        )
    lengths = np.char.str_len(held.x)
    if len(set(lengths.tolist())) > 1 or (np.char.str_len(held.y) != 1).any():
        shortest, longest = lengths.min(), lengths.max()
        raise BadInput(
            "data.source",
            f": {path} holds strings of {shortest} to {longest} characters, or y that are not one character each",
            remedy="Give strings of one length, and the next character as y",
        )
    x = encode("".join(held.x.tolist())).reshape(len(held.x), -1)
    return Held(x, encode("".join(held.y.tolist())), held.user)
