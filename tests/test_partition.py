"""Partitions: every sample once, sizes and heterogeneity as declared, least sizes kept or refused, the same for the same seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import normec
from normec.data import Data, load, partition
from normec.data.overview import overview
from normec.streams import Streams

SAMPLES = 240
LABELS = np.arange(SAMPLES) ** 2 % 11 % 7
OWNERS = {"iid": "010022101221", "dirichlet": "221022010000", "shards": "210210201201"}
"""Of twelve samples of three classes, from one stream: what versions before gave."""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """240 samples x = 0 … 239 of 6 classes of different sizes, and who holds them: 4 people with 200, 30, 9 and 1."""
    path = tmp_path_factory.mktemp("partition") / "table.npz"
    np.savez(path, x=np.arange(float(SAMPLES)), y=LABELS, client=np.repeat(["ann", "bob", "cyn", "dan"], [200, 30, 9, 1]))
    return path


def dealt(table: Path, seed: int = 0, **choices: Any) -> normec.Federation:
    return load(Data(source=str(table), **{"test_fraction": 0.0, **choices}), Streams(seed))


KINDS = st.one_of(
    st.just({"partition": "iid"}),
    st.builds(lambda c: {"partition": "dirichlet", "concentration": c}, st.floats(1e-6, 1e3)),
    st.builds(lambda k: {"partition": "shards", "classes_per_client": k}, st.integers(1, 4)),
    st.builds(lambda a: {"partition": "power-law", "size_exponent": a}, st.floats(1e-3, 50)),
)


@settings(max_examples=60, deadline=None)
@given(
    choices=KINDS,
    clients=st.integers(1, 60),
    min_size=st.integers(0, 5),
    test_fraction=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 2**32),
)
def test_clients_are_disjoint_and_complete(
    table: Path, choices: dict[str, Any], clients: int, min_size: int, test_fraction: float, seed: int
) -> None:
    """x names the sample, so that what the clients hold can be compared with the table."""
    settings = {"clients": clients, "min_size": min_size, "test_fraction": test_fraction, **choices}
    try:
        data = dealt(table, seed, **settings)
    except normec.BadInput:
        with pytest.raises(normec.BadInput, match=r"min_size=[1-9]|classes_per_client="):
            dealt(table, seed, **settings)
        return
    assert len(data) == clients and data.sizes.min() >= min_size
    held_out = data.test[0].reshape(-1).tolist() if data.test else []
    parts = [data.client(i) for i in range(clients)]
    assert sorted([*held_out, *(float(v) for x, _ in parts for v in x)]) == list(range(SAMPLES))
    counts = overview(data)["by_client"]
    for (x, _), row in zip(parts, counts, strict=True):
        mine = LABELS[x.reshape(-1).numpy().astype(int)]
        assert row["samples"] == len(mine) and row["counts"] == np.bincount(mine, minlength=6).tolist()
    again = dealt(table, seed, **settings)
    assert again.fingerprint() == data.fingerprint()


def test_power_law_sizes_by_hand() -> None:
    """Ranks 1 … 4 weigh 12, 6, 4, 3 of 25: of 30 samples 14.4, 7.2, 4.8, 3.6, and the two left over go to 4.8 and 3.6."""
    first, other = (partition.power_law(30, 4, 1.0, np.random.default_rng(seed)) for seed in (0, 1))
    assert sorted(np.bincount(first)) == sorted(np.bincount(other)) == [4, 5, 7, 14]
    assert np.bincount(first).tolist() != np.bincount(other).tolist()  # which client is large is drawn
    assert sorted(np.bincount(partition.power_law(30, 4, 2.0, np.random.default_rng(0)))) == [1, 3, 5, 21]  # 21.07, 5.27, 2.34, 1.32


def test_power_law_is_one_by_default_and_says_nothing_of_labels(table: Path) -> None:
    data = dealt(table, clients=12, partition="power-law")
    assert data.fingerprint() == dealt(table, clients=12, partition="power-law", size_exponent=1.0).fingerprint()
    large = data.client(int(np.argmax(data.sizes)))[1].numpy()
    assert len(set(large)) == len(set(data.y.tolist()))


def test_an_extreme_exponent_gives_all_to_one_or_the_same_to_each() -> None:
    generator = np.random.default_rng(0)
    assert sorted(np.bincount(partition.power_law(90, 4, 1e30, generator), minlength=4)) == [0, 0, 0, 90]
    assert np.bincount(partition.power_law(90, 4, 1e-30, generator)).tolist().count(22) == 2


def test_the_streams_of_partitions_stay_as_they_were() -> None:
    labels = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2])
    draw = {
        "iid": partition.iid(12, 3, np.random.Generator(np.random.Philox(key=7))),
        "dirichlet": partition.dirichlet(labels, 3, 0.5, np.random.Generator(np.random.Philox(key=7))),
        "shards": partition.shards(labels, 3, 2, np.random.Generator(np.random.Philox(key=7))),
    }
    assert {kind: "".join(map(str, owners)) for kind, owners in draw.items()} == OWNERS


def test_min_size_takes_the_first_draw_that_has_it(table: Path) -> None:
    plain = dealt(table, clients=10, partition="dirichlet", concentration=1.0)
    least = int(plain.sizes.min())
    same = dealt(table, clients=10, partition="dirichlet", concentration=1.0, min_size=least)
    more = dealt(table, clients=10, partition="dirichlet", concentration=1.0, min_size=least + 1)
    assert same.fingerprint() == plain.fingerprint() != more.fingerprint() and more.sizes.min() > least


def test_low_concentrations_are_clearly_more_heterogeneous(table: Path) -> None:
    strong, mild = (overview(dealt(table, clients=10, partition="dirichlet", concentration=c)) for c in (0.1, 100.0))
    assert strong["heterogeneity"] > 0.5 > 0.25 > mild["heterogeneity"]
    assert strong["classes_per_client"]["mean"] < 4 < 5 < mild["classes_per_client"]["mean"]


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"partition": "iid", "min_size": 25}, ["data.min_size=25", "10 clients", "250 of 240", "fewer clients"]),
        ({"partition": "dirichlet", "concentration": 0.01, "min_size": 5}, ["concentration than 0.01", "fewer clients", "min_size", "100 draws"]),
        ({"partition": "power-law", "size_exponent": 3.0, "min_size": 2}, ["size_exponent than 3", "fewer clients", "min_size", "0 training"]),
        ({"partition": "shards", "classes_per_client": 7, "min_size": 24}, ["classes_per_client than 7", "fewer clients", "min_size"]),
        ({"partition": "column", "clients": None, "min_size": 10}, ["client 'cyn' has 9 training samples", "1 other client"]),
        ({"partition": "column", "clients": None, "min_size": 2}, ["client 'dan' has 1 training sample."]),
    ],
)  # fmt: skip
def test_a_min_size_that_cannot_be_had_is_refused(table: Path, choices: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(normec.BadInput) as refusal:
        dealt(table, **{"clients": 10, **choices})
    for word in words:
        assert word in str(refusal.value)


def test_a_federation_of_ones_own_keeps_min_size_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own_federation.py").write_text(
        "import normec\ndef make(): return normec.Federation.from_arrays([[1.0], [2.0], [3.0]], [0, 1, 0], ['a', 'b', 'a'])\n"
    )
    with pytest.raises(normec.BadInput, match=r"min_size=2: client 'b' has 1 training sample\."):
        load(Data(source="own_federation:make", min_size=2), Streams(0))


def test_redrawing_ends() -> None:
    """100 classes and 500 clients at concentration 0.01: no draw gives all of them ten samples, and that is said."""
    labels, generator = np.repeat(np.arange(100), 100), np.random.default_rng(0)
    with pytest.raises(normec.BadInput, match="100 draws"):
        partition.with_min_size(lambda: partition.dirichlet(labels, 500, 0.01, generator), 500, 10, partition.DRAWS, "")


def test_another_partition_drops_the_settings_of_the_file(tmp_path: Path) -> None:
    from normec.config import resolve

    (tmp_path / "run.toml").write_text('[data]\npartition = "power-law"\nsize_exponent = 2.0\nmin_size = 3\n')
    data = resolve(tmp_path / "run.toml", ["data.partition=iid"]).data
    assert data.size_exponent is None and data.min_size == 3
