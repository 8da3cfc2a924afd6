"""The choice of the test set: drawn, the last in time, or from a separate source."""

from __future__ import annotations

import numpy as np

from normec.data.readers import Table
from normec.errors import BadInput
from normec.streams import Streams


def split(table: Table, test_fraction: float, natural: bool, streams: Streams) -> tuple[np.ndarray, np.ndarray]:
    """Training and test rows, each in source order; no test rows where the table has a test set.

    They are drawn; or, of a text and where the table has times, the last of each client's: in the order of the text, or by time.
    Where samples are dealt (natural is false), those with times are split at one time for all.

    Raises:
        BadInput: where nothing is left to train on.
    """
    samples = len(table.y)
    chosen = np.zeros(samples, dtype=bool)
    if table.test is not None:
        return np.arange(samples), np.arange(0)
    if table.time is not None or (table.text and table.client is not None):
        order = np.arange(samples) if table.time is None else np.argsort(table.time, kind="stable")
        owner = table.client if table.client is not None and (natural or table.text) else np.zeros(samples, dtype=np.int64)
        chosen[_last(order, owner, test_fraction)] = True
    else:
        chosen[streams.generator("test split").permutation(samples)[: round(test_fraction * samples)]] = True
    if chosen.all():
        raise BadInput(
            "data.test_fraction", f"of {samples} samples leaves none to train on", value=test_fraction, remedy="Use a smaller one"
        )
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def _last(order: np.ndarray, owner: np.ndarray, fraction: float) -> np.ndarray:
    """Of each owner's rows the last share, in this order of all rows."""
    by_owner = order[np.argsort(owner[order], kind="stable")]
    _, sizes = np.unique(owner, return_counts=True)
    ends = np.cumsum(sizes)
    return np.concatenate([by_owner[end - round(fraction * size) : end] for end, size in zip(ends.tolist(), sizes.tolist(), strict=True)])


def with_test(table: Table, other: Table) -> Table:
    """The table with another one as its test set, its features in the same order.

    Labels and ids that are whole numbers in one table and text in the other are text in both.

    Raises:
        BadInput: where the first has a test set already, or where the features differ.
    """
    if table.test is not None or other.test is not None:
        raise BadInput("data.test_source", ": the source brings its own test set", remedy="Remove data.test_source")
    x = other.x
    if table.features is not None and other.features is not None and table.features != other.features:
        missing = [name for name in table.features if name not in other.features]
        more = [name for name in other.features if name not in table.features]
        if missing or more:
            differ = [f"lacks {', '.join(map(repr, missing))}"] if missing else []
            differ += [f"has {', '.join(map(repr, more))} more"] if more else []
            raise BadInput(
                "data.test_source",
                f": of the features of data.source it {' and '.join(differ)}",
                remedy="Give both the same columns of numbers",
            )
        x = x[:, [other.features.index(name) for name in table.features]]
    elif table.x.shape[1:] != x.shape[1:] or table.y.shape[1:] != other.y.shape[1:]:
        raise BadInput(
            "data.test_source",
            f": its samples are of shape {x.shape[1:]}, those of data.source of shape {table.x.shape[1:]}",
            remedy="Give both the same features",
        )
    y, test_y = _alike(table.y, other.y)
    client, test_client = table.client, other.client
    if client is not None and test_client is not None:
        client, test_client = _alike(client, test_client)
    own = [note for note in other.notes if note not in table.notes and "left out" in note]
    notes = tuple(f"of the test set: {note}" for note in own)
    return table._replace(y=y, client=client, test=(x, test_y), test_client=test_client, notes=(*table.notes, *notes))


def _alike(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both as text, where one is and the other holds whole numbers."""
    return (a.astype(str), b.astype(str)) if {a.dtype.kind, b.dtype.kind} == {"i", "U"} else (a, b)
