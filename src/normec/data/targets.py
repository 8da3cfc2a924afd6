"""From a label column to targets: classes, or numbers to be predicted."""

from __future__ import annotations

from typing import Literal

import numpy as np

from normec.data.checks import alike, class_names, encode_labels, marked_as_missing
from normec.data.numerals import DECIMAL
from normec.data.readers import Table
from normec.errors import BadInput

REGRESSION = "model.loss=torch.nn.functional:mse_loss"


def with_targets(table: Table, columns: tuple[str, ...], wanted: Literal["classes", "numbers"] | None) -> Table:
    """The table with `classes` and labels as positions among them, or floats and no classes.

    Text is labels, numbers with decimals are numbers, and whole numbers are what the loss asks for; by default labels, of several
    columns where all are 0 or 1.

    Raises:
        BadInput: for targets that do not suit the loss, and for fewer than two classes.
    """
    parts = [table.y, *(table.test[1:] if table.test else ())]
    named = columns[0] if len(columns) == 1 else list(columns)
    kinds = {part.dtype.kind for part in parts}
    marks = len(columns) == 1 or all(bool(np.isin(part, (0, 1)).all()) for part in parts if part.dtype.kind in "iub")
    if "U" not in kinds and table.classes is None and wanted != "classes" and ("f" in kinds or wanted == "numbers" or not marks):
        return _of(table, [part.astype(np.float64 if part.dtype.itemsize > 4 else np.float32) for part in parts], None)
    if "f" in kinds:
        held = next(part for part in parts if part.dtype.kind == "f").ravel()[0]
        remedy = f"Give labels, or a loss for numbers, such as {REGRESSION}"
        raise BadInput("data.label_column", f"holds numbers such as {held}, and cross-entropy predicts classes", value=named, remedy=remedy)
    if wanted == "numbers":
        held = "names classes" if table.classes else f"holds text such as {str(table.y.ravel()[0])!r}"
        raise BadInput(
            "data.label_column", f"{held}, and the loss predicts numbers", value=named, remedy="Give numbers, or a loss for classes"
        )
    names = table.classes or class_names("data.label_column", *parts)
    if names is None or len(names) < 2:
        raise BadInput(
            "data.label_column", f"holds one class only ({table.y.ravel()[0]})", value=named, remedy="Give labels of two classes or more"
        )
    return _of(table, [encode_labels("data.label_column", part, names).numpy() for part in parts], names)


def _of(table: Table, parts: list[np.ndarray], names: tuple[str, ...] | None) -> Table:
    test = (table.test[0], parts[1]) if table.test else None
    return table._replace(y=parts[0], test=test, classes=names)


def about_labels(names: tuple[str, ...], train: np.ndarray, test: np.ndarray | None) -> list[str]:
    """Warnings where names of classes are nearly one, are numbers and words, or where classes occur only in a separate test set.

    train, test: the labels, as positions among the names.
    """
    told = alike("labels", names, "classes")
    numbers = [name for name in names if DECIMAL.fullmatch(name.strip())]
    words = [name for name in names if name not in numbers and not marked_as_missing(name)]
    if numbers and words:
        problem = f"warning: some labels are numbers, such as {numbers[0]!r}, and some are words, such as {words[0]!r}"
        told.append(f"{problem}: {len(names)} classes. Write all alike if they name the same things")
    unseen = np.setdiff1d(test if test is not None else train, train)
    unseen = unseen[(unseen >= 0) & (unseen < len(names))]
    if len(unseen):
        told.append(
            f"warning: of {len(names)} classes {len(unseen)} have no training samples, but test samples (first: {names[unseen[0]]!r})"
        )
    return told
