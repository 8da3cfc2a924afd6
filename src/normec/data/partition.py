"""Partitions: which client holds each training sample. Every sample is used once; a client may get none."""

from __future__ import annotations

import numpy as np

from normec.errors import BadInput


def iid(samples: int, clients: int, generator: np.random.Generator) -> np.ndarray:
    """Shuffled and dealt evenly: client positions of shape (samples,)."""
    owners = np.empty(samples, dtype=np.int64)
    owners[generator.permutation(samples)] = np.arange(samples) % clients
    return owners


def dirichlet(labels: np.ndarray, clients: int, concentration: float, generator: np.random.Generator) -> np.ndarray:
    """Each class is split among the clients in proportions drawn from Dirichlet(concentration, …, concentration).

    A small concentration gives each class to few clients. Reference: Hsu et al. 2019. One draw a class, no retries.
    """
    owners = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        shares = generator.dirichlet(np.full(clients, concentration))
        if not np.isfinite(shares).all():  # every gamma variate underflowed: the limit gives all to one client
            shares = np.eye(clients)[generator.integers(clients)]
        cuts = np.round(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        owners[members] = np.searchsorted(cuts, np.arange(len(members)), side="right")
    return owners


def shards(labels: np.ndarray, clients: int, classes_per_client: int, generator: np.random.Generator) -> np.ndarray:
    """Sorted by label and cut into clients · classes_per_client shards, of which each client gets classes_per_client.

    Reference: McMahan et al. 2017.
    """
    pieces = clients * classes_per_client
    if pieces > len(labels):
        raise BadInput(
            "data.classes_per_client",
            f"={classes_per_client} for {clients} clients needs {pieces} shards of {len(labels)} training samples. "
            "Use fewer clients or classes per client.",
        )
    by_label = np.argsort(labels, kind="stable")
    shard_owner = generator.permutation(pieces) % clients
    owners = np.empty(len(labels), dtype=np.int64)
    owners[by_label] = shard_owner[np.arange(len(labels)) * pieces // len(labels)]
    return owners
