"""Checks of samples before they enter a federation."""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normec.errors import BadInput, plural

TORCH_IGNORES = -100
"""The target that torch's losses leave out."""
MOST_CLASSES = 2**20
COLUMNS_COUNTED = 20
"""That a sentence counts one by one."""
NUMBERS_AT_ONCE = 2**24
"""That are checked together, so that an array as large as the memory can be checked."""


MARKS = frozenset({"?", "-", "--", ".", "*", "na", "n/a", "n.a.", "nan", "null", "none", "nil", "missing", "unknown", "k.a.", "k. a."})
MARKS |= {"unbekannt", "fehlend", "#n/a", "#nv", "#div/0!", "#wert!", "#value!", "#ref!", "#name?", "#null!", "<na>", "nat"}


def marked_as_missing(text: str) -> bool:
    """Whether a text marks a missing value in many tables."""
    return text.strip().lower() in MARKS


def sizes_alone(record: tuple[Any, ...]) -> str:
    """The repr of a named tuple of samples: the type and shape of each field, and nothing of what it holds."""
    fields: tuple[str, ...] = getattr(record, "_fields", ())
    shown = [f"{name}: {type(value).__name__}{getattr(value, 'shape', '')}" for name, value in zip(fields, record, strict=True)]
    return f"{type(record).__name__}({', '.join(shown)})"


def as_features(name: str, x: Any) -> Tensor:
    """Features (n, …) as a finite tensor; any array of numbers that numpy or torch can read.

    Raises:
        BadInput: where they are not numbers, have no sample axis, or are not finite.
    """
    return finite(name, _tensor(_array(name, x, kinds="fiub")))


def _tensor(array: np.ndarray) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nor is it written to
        return torch.from_numpy(array)


def finite(name: str, values: Tensor) -> Tensor:
    """The values (n, …), refused with a count and the first row where any is NaN or infinite."""
    parts = torch.split(values, max(NUMBERS_AT_ONCE // max(values[:1].numel(), 1), 1))
    if values.is_floating_point() and not all(bool(part.isfinite().all()) for part in parts):
        bad = (~values.isfinite()).reshape(len(values), -1).any(dim=1).nonzero()[:, 0]
        where = f"(first: row {int(bad[0])}, counting from 0)"
        raise BadInput(
            name,
            f"has {plural(len(bad), 'row')} with NaN or infinite values {where}{_by_column(values)}",
            remedy="Fill them, or remove those rows",
        )
    return values


def _by_column(values: Tensor) -> str:
    """Of a table of several columns: how many values of each are not finite."""
    if values.ndim != 2 or values.shape[1] < 2:
        return ""
    counts = (~values.isfinite()).sum(dim=0)
    bad = counts.nonzero()[:, 0].tolist()
    more = f" and {len(bad) - COLUMNS_COUNTED} more" if len(bad) > COLUMNS_COUNTED else ""
    return f"; by column, counting from 0: {', '.join(f'{i}: {int(counts[i]):,}' for i in bad[:COLUMNS_COUNTED])}{more}"


def alike(what: str, names: Iterable[Hashable], meaning: str) -> list[str]:
    """Warnings where names differ only in case, blanks, Unicode's forms of one character, invisible ones and leading zeros, and
    where one stands for a missing value in many tables; meaning: of different names.
    """
    groups: dict[str, list[str]] = {}
    missing = []
    for name in names:
        if isinstance(name, str):
            groups.setdefault(_bare(name), []).append(name)
            missing += [name] if marked_as_missing(name) or not _bare(name) else []
    several = [group for group in groups.values() if len(group) > 1]
    told = []
    if several:
        shown = " and ".join(map(repr, several[0]))
        more = f", and {len(several) - 1:,} more such" if len(several) > 1 else ""
        problem = f"{what} that differ by case, blanks, leading zeros or forms of one character alone are {meaning}: {shown}{more}"
        told.append(f"warning: {problem}. Write them alike if they are one")
    if missing:
        shown = ", ".join(map(repr, missing))
        told.append(f"warning: {what} that stand for a missing value in many tables are names here: {shown}. Remove their rows if they do")
    return told


def _bare(name: str) -> str:
    """A name without what the eye does not see or a spreadsheet removes."""
    visible = "".join(character for character in unicodedata.normalize("NFKC", name) if unicodedata.category(character) != "Cf")
    plain = " ".join(visible.casefold().split())
    return plain.lstrip("0") or "0" if plain.isdecimal() else plain


def class_names(name: str, *labels: Any, ignored: int | None = None) -> tuple[str, ...] | None:
    """The classes of all the given labels: sorted strings, "0" … for integers, None for floats (regression).

    Where a sample has several labels, integers are classes up to the largest one. ignored: a label that is not a class.

    Raises:
        BadInput: where they mix kinds.
    """
    parts = [_array(name, part, kinds="fiubU") for part in labels]
    kinds = {"i" if part.dtype.kind in "iub" else part.dtype.kind for part in parts}
    if len(kinds) > 1:
        raise BadInput(name, "holds targets of one kind for training and of another for the test", remedy="Give the same kind")
    if kinds == {"f"}:
        return None
    distinct = np.unique(np.concatenate([part.ravel() for part in parts]))
    if kinds == {"U"}:
        return tuple(str(label) for label in distinct)
    several = any(part[:1].size > 1 for part in parts)
    distinct = distinct[~_no_class(distinct, several, ignored)]
    held = int(distinct[-1]) + 1 if several and len(distinct) else len(distinct)
    if held > MOST_CLASSES:
        raise BadInput(
            name, f"holds the label {held - 1}", remedy=f"Number the classes from 0, at most {MOST_CLASSES:,} of them, or give floats"
        )
    return tuple(map(str, range(held)))


def encode_labels(name: str, y: Any, classes: tuple[str, ...] | None, ignored: int | None = None) -> Tensor:
    """Targets (n, …) as a tensor: class labels as int64 positions in `classes`, floats (classes is None) as they are.

    ignored: a label that is not a class, and stays as it is; of samples with several labels −100 is one too, as torch's losses have it.

    Raises:
        BadInput: with the number of bad labels and the first of them.
    """
    values = _array(name, y, kinds="f" if classes is None else "iubU")
    if classes is None:
        return finite(name, _tensor(values))
    if values.dtype.kind == "U":
        positions = {label: position for position, label in enumerate(classes)}
        codes = np.array([positions.get(str(label), -1) for label in values.ravel()], dtype=np.int64).reshape(values.shape)
        passed = np.zeros(values.shape, dtype=bool)
    else:
        codes = values.astype(np.int64)
        passed = _no_class(codes, values[:1].size > 1, ignored)
    bad = np.argwhere(((codes < 0) | (codes >= len(classes))) & ~passed)
    if len(bad):
        label = values[tuple(bad[0])]
        raise BadInput(
            name,
            (
                f"has {plural(len(bad), 'label')} outside 0 … {len(classes) - 1} for {len(classes)} classes (first: row "
                f"{bad[0][0]}, counting from 0, label {label})"
            ),
            remedy="Number the classes from 0, or use words; numbers to be predicted are floats",
        )
    return torch.from_numpy(codes)


def _no_class(labels: np.ndarray, several: bool, ignored: int | None) -> np.ndarray:
    """Which labels are said to be no class."""
    passed = labels == TORCH_IGNORES if several else np.zeros(labels.shape, dtype=bool)
    return passed if ignored is None else passed | (labels == ignored)


def _array(name: str, values: Any, kinds: str) -> np.ndarray:
    """Values with a sample axis as a plain native array of one of numpy's `kinds`."""
    try:
        if isinstance(values, Tensor):
            values = values.detach().cpu()
            values = values.float() if values.dtype in (torch.bfloat16, torch.float16) else values
        array = np.asarray(values)
        if array.dtype.kind == "O" and all(isinstance(value, str) for value in array.ravel()):
            array = array.astype(str)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(name, f"cannot be read as an array ({' '.join(str(error).split())})", remedy="Give a plain array") from None
    if array.ndim == 0 or (array.dtype.kind not in kinds and array.size):
        raise BadInput(name, f"is of type {array.dtype} and shape {array.shape}", remedy=f"Give {KINDS[kinds]}, one a sample")
    if array.dtype.kind == "f":
        array = array.astype(np.float32 if array.dtype.itemsize <= 4 else np.float64, copy=False)
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False))


KINDS = {
    "fiub": "numbers",
    "fiubU": "whole numbers or strings as labels, or floats as targets",
    "f": "floats as targets",
    "iubU": "whole numbers or strings as labels",
}
"""In words, what the kinds of numpy mean here."""
