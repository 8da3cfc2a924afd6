"""Which client each sample belongs to."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from normec.errors import BadInput


def owners_of(
    client_ids: Sequence[Hashable] | np.ndarray | None, test: tuple[Any, Any] | None, ids: tuple[Hashable, ...]
) -> np.ndarray | None:
    """The position of each test sample's client among the ids."""
    if client_ids is None:
        return None
    if test is None or len(client_ids) != len(test[1]):
        held = f"{len(test[1])} test samples" if test else "no test set"
        raise BadInput("test_client_ids", f"names {len(client_ids)} clients for {held}", remedy="Give one id a test sample")
    position = {key: index for index, key in enumerate(ids)}
    keys = client_ids.tolist() if isinstance(client_ids, np.ndarray | Tensor) else list(client_ids)
    for key in keys:
        if key not in position:
            raise BadInput("test_client_ids", f"names {key!r}, which is not a client", remedy="Name it in empty_clients, or correct it")
    return np.array([position[key] for key in keys], dtype=np.int64)


def grouped(client_ids: Sequence[Hashable] | np.ndarray, empty: Sequence[Hashable]) -> tuple[np.ndarray, tuple[Hashable, ...]]:
    """The position of each sample's client among the ids, and the ids in order: by type, then by value."""
    try:
        keys: list[Hashable] = client_ids.tolist() if isinstance(client_ids, np.ndarray | Tensor) else list(client_ids)
        distinct = {*keys, *empty}
    except TypeError:
        raise BadInput("client_ids", must="be one number or string for each sample") from None
    if any(key != key for key in keys):
        raise BadInput("client_ids", "holds NaN", remedy="Give each sample the id of its client")
    try:
        ids = tuple(sorted(distinct, key=lambda key: (type(key).__name__, key)))
    except TypeError:  # values of one type that have no order
        ids = tuple(sorted(distinct, key=lambda key: (type(key).__name__, repr(key))))
    position = {key: index for index, key in enumerate(ids)}
    return np.array([position[key] for key in keys], dtype=np.int64), ids
