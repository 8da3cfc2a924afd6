"""What samples must be before they enter a federation."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from normec.errors import BadInput


def finite(name: str, values: Tensor) -> Tensor:
    """The values (n, …), refused with a count and the first row where any is NaN or infinite."""
    if values.is_floating_point() and not bool(values.isfinite().all()):
        bad = (~values.isfinite()).reshape(len(values), -1).any(dim=1).nonzero()[:, 0]
        raise BadInput(name, f" has {len(bad)} rows with NaN or infinite values (first: row {int(bad[0])}). Clean the data.")
    return values


def class_names(*labels: Any) -> tuple[str, ...] | None:
    """The classes of all the given labels: sorted strings, "0" … for integers, None for floats (regression)."""
    values = np.concatenate([np.asarray(part).ravel() for part in labels])
    if values.dtype.kind == "U":
        return tuple(str(label) for label in np.unique(values))
    if values.dtype.kind in "iub":
        return tuple(str(position) for position in range(len(np.unique(values))))
    return None


def encode_labels(name: str, y: Any, classes: tuple[str, ...] | None) -> Tensor:
    """Targets as a tensor: class labels as int64 positions in `classes`, floats (classes is None) as they are.

    Raises:
        BadInput: with the number of bad labels and the first of them.
    """
    values = np.asarray(y)
    if classes is None:
        if values.dtype.kind != "f":
            raise BadInput(name, f" holds {values.dtype} targets. Use whole numbers or strings as labels, or floats as targets.")
        return finite(name, torch.as_tensor(values))
    if values.dtype.kind == "U":
        positions = {label: position for position, label in enumerate(classes)}
        codes = np.array([positions.get(str(label), -1) for label in values], dtype=np.int64)
    elif values.dtype.kind in "iub":
        codes = values.astype(np.int64)
    else:
        raise BadInput(name, f" holds {values.dtype} labels. Use whole numbers 0 … {len(classes) - 1}, or strings.")
    bad = np.flatnonzero((codes < 0) | (codes >= len(classes)))
    if len(bad):
        raise BadInput(
            name,
            f" has {len(bad)} labels outside 0 … {len(classes) - 1} for {len(classes)} classes "
            f"(first: row {bad[0]}, label {values[bad[0]]}). Number the classes from 0, or use strings.",
        )
    return torch.from_numpy(codes)
