"""Samples (x, y) as arrays, and torch datasets read sample by sample."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normec.errors import BadInput

READ_AGAIN = 16
"""Samples of a dataset that are read a second time; all are where it draws from a global generator."""

Pair = tuple[np.ndarray, np.ndarray]
"""(x, y) of one sample or of several."""


def read_dataset(dataset: Any) -> list[Pair]:
    """Reads every sample of a map-style dataset once, and some of them again.

    The global generators of torch, numpy and Python stand afterwards as they stood before.

    Raises:
        BadInput: where it cannot be read, is empty, or gives another sample at another reading.
    """
    total = _length(dataset)
    chosen = set(np.linspace(0, total - 1, min(READ_AGAIN, total)).round().astype(int).tolist())
    with _generators_kept() as moved:
        pairs, copies = [], {}
        for index in range(total):
            pairs.append(_sample(dataset, index))
            if index in chosen:
                copies[index] = tuple(part.copy() for part in pairs[index])
        for index in range(total) if moved() else sorted(chosen):
            if not _same(_sample(dataset, index), copies.get(index, pairs[index])):
                problem = (
                    f": sample {index} is another one at each reading, as a random transform makes it; one draw would stand for all rounds"
                )
                remedy = "Leave the random part out, or put it into the model's forward pass. To keep one draw, give"
                raise BadInput("dataset", problem, remedy=f"{remedy} [dataset[i] for i in range(len(dataset))]")
    if not all(_same(pairs[index], copy) for index, copy in copies.items()):
        raise BadInput("dataset", "gives the same memory for several samples, so that each would become the last", remedy="Return a copy")
    return pairs


def _length(dataset: Any) -> int:
    try:
        length = len(dataset)
    except Exception as error:  # whatever a user's dataset raises
        raise BadInput("dataset", f"cannot be read sample by sample ({type(error).__name__}: {error})") from error
    if not length:
        raise BadInput("dataset", "is empty", remedy="Give one with samples")
    return int(length)


def _sample(dataset: Any, index: int) -> Pair:
    try:
        given = dataset[index]
    except Exception as error:  # whatever a user's dataset raises
        raise BadInput("dataset", f"cannot be read sample by sample ({type(error).__name__}: {error})") from error
    return pair("dataset", f"sample {index} of the dataset", given)


def _same(one: tuple[np.ndarray, ...], other: tuple[np.ndarray, ...]) -> bool:
    """Whether two samples are equal, NaN to NaN."""
    return all(a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all()) for a, b in zip(one, other, strict=True))


@contextlib.contextmanager
def _generators_kept() -> Iterator[Callable[[], bool]]:
    """Puts the global generators back at the end; yields what says whether anything was drawn from them."""

    def states() -> tuple[Any, ...]:
        return torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002

    def moved() -> bool:
        now = states()
        numpys_stand = all(np.array_equal(a, b) for a, b in zip(before[1], now[1], strict=True))
        return not (torch.equal(before[0], now[0]) and numpys_stand and before[2] == now[2])

    before = states()
    try:
        yield moved
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        random.setstate(before[2])


def pair(setting: str, what: str, given: Any) -> tuple[np.ndarray, np.ndarray]:
    """(x, y) as arrays of numbers or, for y, strings."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise BadInput(setting, f": {what} is not a pair (x, y)", remedy="Give one")
    try:
        x, y = (_array(part) for part in given)
    except (TypeError, ValueError) as error:
        raise BadInput(setting, f": {what} holds no tensors or arrays of one shape ({error})", remedy="Give such") from None
    return x, y


def _array(given: Any) -> np.ndarray:
    """Numbers or strings as an array.

    Raises:
        TypeError, ValueError: for anything else, and for rows of several lengths.
    """
    if isinstance(given, Tensor):
        plain: np.ndarray = (given.float() if given.dtype == torch.bfloat16 else given).numpy(force=True)
        return plain
    if not isinstance(given, np.ndarray | np.generic | int | float | str | list | tuple) and not hasattr(given, "to_numpy"):
        raise TypeError(f"{type(given).__name__} is none")
    array = np.asarray(given)
    if array.dtype.kind == "O" and not all(isinstance(each, str) for each in array.reshape(-1)):
        raise TypeError("it holds objects")
    return array
