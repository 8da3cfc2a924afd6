"""Partitions: which client holds each training sample. Every sample is used once; a client may get none, unless min_size forbids."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from normec.errors import BadInput, plural

DRAWS = 100
"""Draws of a partition before its min_size is refused."""


def with_min_size(draw: Callable[[], np.ndarray], clients: int, min_size: int, draws: int, remedy: str) -> np.ndarray:
    """The first draw of owners (n,) in which every client holds min_size samples.

    Raises:
        BadInput: where there is none, with what the best of them gave and the remedy, settings to change.
    """
    best = 0
    for _ in range(draws):
        owners = draw()
        smallest = int(np.bincount(owners, minlength=clients).min())
        if smallest >= min_size:
            return owners
        best = max(best, smallest)
    tried = f" in the best of {draws} draws" if draws > 1 else ""
    raise BadInput(
        "data.min_size", f": the smallest of {clients} clients gets {plural(best, 'training sample')}{tried}", value=min_size, remedy=remedy
    )


def iid(samples: int, clients: int, generator: np.random.Generator) -> np.ndarray:
    """Shuffles the samples and deals them evenly: client positions of shape (samples,)."""
    owners = np.empty(samples, dtype=np.int64)
    owners[generator.permutation(samples)] = np.arange(samples) % clients
    return owners


def dirichlet(labels: np.ndarray, clients: int, concentration: float, generator: np.random.Generator) -> np.ndarray:
    """Each class is split among the clients in proportions drawn from Dirichlet(concentration, …, concentration).

    A small concentration gives each class to few clients. Reference: Hsu et al. 2019. One draw a class.
    """
    owners = np.empty(len(labels), dtype=np.int64)
    by_label = np.argsort(labels, kind="stable")
    for sorted_members in np.split(by_label, np.flatnonzero(np.diff(labels[by_label])) + 1):
        members = generator.permutation(sorted_members)
        shares = generator.dirichlet(np.full(clients, concentration))
        if not np.isfinite(shares).all():  # every gamma variate underflowed: the limit gives all to one client
            shares = np.eye(clients)[generator.integers(clients)]
        cuts = np.round(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        owners[members] = np.searchsorted(cuts, np.arange(len(members)), side="right")
    return owners


def power_law(samples: int, clients: int, size_exponent: float, generator: np.random.Generator) -> np.ndarray:
    """Shuffles the samples and deals them in sizes proportional to rank^(−size_exponent); the ranks of the clients are drawn.

    Sizes are rounded by largest remainder, so that they add up; they are the same in every draw.
    """
    weights = np.arange(1.0, clients + 1) ** -size_exponent
    exact = samples * weights / weights.sum()
    sizes = np.floor(exact).astype(np.int64)
    sizes[np.argsort(sizes - exact, kind="stable")[: samples - sizes.sum()]] += 1
    order, ranked = generator.permutation(samples), generator.permutation(clients)
    owners = np.empty(samples, dtype=np.int64)
    owners[order] = np.repeat(ranked, sizes)
    return owners


def shards(labels: np.ndarray, clients: int, classes_per_client: int, generator: np.random.Generator) -> np.ndarray:
    """Sorts by label and cuts into clients · classes_per_client shards; each client gets classes_per_client of them.

    Reference: McMahan et al. 2017.
    """
    pieces = clients * classes_per_client
    if pieces > len(labels):
        raise BadInput(
            "data.classes_per_client",
            f"for {clients} clients needs {pieces} shards of {len(labels)} training samples",
            value=classes_per_client,
            remedy="Use fewer clients or classes per client",
        )
    by_label = np.argsort(labels, kind="stable")
    shard_owner = generator.permutation(pieces) % clients
    owners = np.empty(len(labels), dtype=np.int64)
    owners[by_label] = shard_owner[np.arange(len(labels)) * pieces // len(labels)]
    return owners
