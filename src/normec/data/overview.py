"""Which client has what: a federation in plain numbers, without privacy, and nothing about single samples."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
from scipy.stats import hypergeom

from normec.data.federation import Federation

QUANTILES = {"min": 0.0, "10%": 0.1, "median": 0.5, "90%": 0.9, "max": 1.0}
SIMULATED = "a simulated client"
NATURAL = "a simulated client, or who a column names"
SOURCES = (
    ("digits", "scikit-learn's handwritten digits", "1,797 of 64 features, 10 classes", SIMULATED),
    ("cifar10", "CIFAR-10 in the folder data.path, with its own test set", "50,000 + 10,000 of 3×32×32, 10 classes", SIMULATED),
    ("FOLDER", "images in a folder for each class, or for each client and class", "as found", NATURAL),
    ("PATH.parquet", "a table, or a column of encoded images", "as found", NATURAL),
    ("PATH.csv", "a table; also .tsv, and either as .gz", "as found", NATURAL),
    ("FOLDER or data/*.csv", "tables, a file for each client", "as found", "a simulated client, or a file"),
    ("PATH.json", "LEAF's users, num_samples and user_data, or a folder of such", "as found", "a simulated client, or a user"),
    ("PATH.npz", "arrays x, y and, for natural clients, client", "as found", NATURAL),
    ("PATH.txt", "a play, to predict the next of 97 characters", "data.window (40) characters", "a simulated client, or a speaker"),
    ("package.module:function", "returns a normec.Federation", "as returned", "who its ids name"),
)
PARTITIONS = (
    ("iid", "shuffled and dealt evenly", "equal, up to one sample", SIMULATED),
    ("dirichlet", "each class split in random proportions, to few clients where concentration (0.3) is small", "uneven", SIMULATED),
    ("shards", "sorted by label and cut, classes_per_client (2) pieces for each client", "nearly equal", SIMULATED),
    ("power-law", "shuffled, sizes proportional to rank^(−size_exponent) (1)", "very uneven", SIMULATED),
    ("column", "natural clients, which client_column names", "as found", "who the column names"),
)


def catalogue() -> dict[str, list[dict[str, str]]]:
    """The built-in sources and partitions: the name of each, what it is, its samples (of a partition: of each client), its unit."""
    keys = ("name", "what", "samples", "unit")
    return {
        "sources": [dict(zip(keys, row, strict=True)) for row in SOURCES],
        "partitions": [dict(zip(keys, row, strict=True)) for row in PARTITIONS],
    }


class ClassesHeld(TypedDict):
    """How many classes a client holds: the fewest, the mean, the most."""

    min: int
    mean: float
    max: int


class ClientData(TypedDict):
    """What one client has. counts: samples of each class."""

    client: int | str
    samples: int
    counts: list[int] | None


class Overview(TypedDict):
    """A federation in plain values; `overview` says what each is."""

    clients: int
    samples: int
    features: list[int]
    targets: list[int] | None
    classes: list[str] | None
    test_samples: int
    test_by_client: bool
    sizes: dict[str, float]
    clients_without_samples: int
    counts: list[int] | None
    heterogeneity: float | None
    heterogeneity_by_chance: float | None
    classes_per_client: ClassesHeld | None
    by_client: list[ClientData]
    notes: list[str]


def overview(federation: Federation) -> Overview:
    """The overview of a federation that `normec datasets` shows, in plain values; None where targets are not classes.

    sizes: quantiles of the number of training samples, over all clients. heterogeneity: the mean over clients with samples of
    the total variation distance ½ Σ_c |p_ic − p_c| between their label shares and the global ones, 0 where all are alike;
    heterogeneity_by_chance: its expectation where the samples are shuffled and dealt in these sizes.
    classes_per_client: of clients with samples, the number of classes they hold. counts: samples of each class.
    """
    sizes, counts = federation.sizes, class_counts(federation)
    return {
        "clients": len(federation),
        "samples": int(sizes.sum()),
        "features": list(federation.x.shape[1:]),
        "targets": None if counts is not None else list(federation.y.shape[1:]),
        "classes": None if federation.classes is None else list(federation.classes),
        "test_samples": 0 if federation.test is None else len(federation.test[1]),
        "test_by_client": federation.test_owners is not None,
        "sizes": {name: float(np.quantile(sizes, q)) for name, q in QUANTILES.items()},
        "clients_without_samples": int((sizes == 0).sum()),
        "counts": None if counts is None else counts.sum(axis=0).tolist(),
        "heterogeneity": None if counts is None else _heterogeneity(counts),
        "heterogeneity_by_chance": None if counts is None else _by_chance(counts),
        "classes_per_client": None if counts is None else _classes_held(counts),
        "by_client": [
            {"client": _plain(key), "samples": int(sizes[i]), "counts": None if counts is None else counts[i].tolist()}
            for i, key in enumerate(federation.ids)
        ],
        "notes": list(federation.notes),
    }


def class_counts(federation: Federation) -> np.ndarray | None:
    """The number of training labels of each client and class, (M, C); None without classes."""
    if federation.classes is None:
        return None
    classes, owners = len(federation.classes), np.repeat(np.arange(len(federation)), federation.sizes)
    labels = federation.y.cpu().numpy().reshape(len(owners), -1)
    cells = (owners[:, None] * classes + labels)[(labels >= 0) & (labels < classes)]
    return np.bincount(cells, minlength=len(federation) * classes).reshape(-1, classes)


def _heterogeneity(counts: np.ndarray) -> float:
    held = counts[counts.sum(axis=1) > 0]
    shares = held / held.sum(axis=1, keepdims=True)
    return float(np.abs(shares - held.sum(axis=0) / held.sum()).sum(axis=1).mean() / 2)


def _by_chance(counts: np.ndarray) -> float:
    """Σ_c E|X_c / n − K_c / N| / 2, X_c hypergeometric: n of N samples, K_c of which are of class c.

    E|X − nK/N| = 2ν (N − K − n + ν) P(X = ν) / N with ν = ⌊nK/N⌋ + 1, the analogue of De Moivre's formula for the binomial
    (Ramasubban 1958).
    """
    sizes, clients = np.unique(counts.sum(axis=1), return_counts=True)
    n, clients = sizes[sizes > 0, None], clients[sizes > 0]
    of_class, total = counts.sum(axis=0), counts.sum()
    above = n * of_class // total + 1
    distances = above * (total - of_class - n + above) * hypergeom.pmf(above, total, of_class, n) / total / n
    return float(np.average(distances.sum(axis=1), weights=clients))


def _classes_held(counts: np.ndarray) -> ClassesHeld:
    held = (counts[counts.sum(axis=1) > 0] > 0).sum(axis=1)
    return {"min": int(held.min()), "mean": float(held.mean()), "max": int(held.max())}


def label(name: object) -> str:
    """A client or a class in a table or a picture; quoted where it would be invisible."""
    text = str(name)
    return text if text and text.isprintable() and text.strip() == text else repr(text)


def _plain(key: object) -> int | str:
    return key if isinstance(key, int | str) else repr(key)
