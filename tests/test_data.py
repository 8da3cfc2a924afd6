"""Federations, partitions and readers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

import normec
from conftest import Outcome, quadratic, x_of
from normec.data import Data, load, partition
from normec.streams import Streams


def digits(**choices: Any) -> normec.Federation:
    return load(Data(**choices), Streams(1))


def test_digits() -> None:
    data = digits()
    assert len(data) == 100 and len(data.x) == 1438 and data.x.shape[1] == 64
    assert data.test is not None and len(data.test[1]) == 359
    assert float(data.x.min()) == 0.0 and float(data.x.max()) == 1.0
    assert set(data.sizes) == {14, 15} and data.classes == tuple("0123456789")


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "shards"])
def test_every_sample_is_held_once_and_keeps_its_label(kind: str) -> None:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    data = digits(partition=kind, clients=30, test_fraction=0.1)
    assert data.test is not None
    held = torch.cat([data.x, data.test[0]]).numpy() * 16
    labels = torch.cat([data.y, data.test[1]]).numpy()
    assert Counter((*map(int, row), int(label)) for row, label in zip(held, labels, strict=True)) == Counter(
        (*map(int, row), int(label)) for row, label in zip(x, y, strict=True)
    )


def test_partitions_differ_in_heterogeneity() -> None:
    def classes_of_a_client(data: normec.Federation) -> float:
        return float(np.mean([len(data.client(i)[1].unique()) for i in range(len(data)) if len(data.client(i)[1])]))

    iid, mild, strong = (digits(clients=20, **kw) for kw in ({}, *({"partition": "dirichlet", "concentration": c} for c in (100.0, 0.1))))
    shards = digits(clients=20, partition="shards", classes_per_client=2)
    assert classes_of_a_client(iid) > 9.5 and classes_of_a_client(mild) > 9
    assert classes_of_a_client(strong) < 5
    assert classes_of_a_client(shards) <= 4  # a shard may straddle two classes
    assert classes_of_a_client(digits(clients=10, partition="shards", classes_per_client=1)) <= 2


def test_tiny_concentration_ends_and_leaves_empty_clients() -> None:
    labels = np.repeat(np.arange(100), 50)
    owners = partition.dirichlet(labels, 500, 1e-3, np.random.default_rng(0))
    assert len(owners) == 5000 and owners.min() >= 0 and owners.max() < 500
    data = digits(partition="dirichlet", concentration=1e-6)
    assert len(data) == 100 and (data.sizes == 0).sum() >= 80


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_table(tmp_path: Path, suffix: str) -> None:
    """Features are the numeric columns in file order; ids are opaque; samples keep their order; strings become classes."""
    path = tmp_path / f"table.{suffix}"
    if suffix == "csv":
        path.write_text("b,word,client,label,a\n1,x,30,dog,0.5\n2,y,7,cat,1.5\n3,z,30,cat,2.5\n4,z,1000,dog,3\n")
    else:
        columns = {
            "b": pa.array([1, 2, 3, 4], pa.int8()), "word": ["x", "y", "z", "z"], "client": [30, 7, 30, 1000],
            "label": pa.array(["dog", "cat", "cat", "dog"]).dictionary_encode(), "a": pa.array([0.5, 1.5, 2.5, 3.0], pa.float32()),
        }  # fmt: skip
        pyarrow.parquet.write_table(pa.table(columns), path)
    data = load(Data(source=str(path), partition="column", test_fraction=0.0), Streams(0))
    assert data.ids == (7, 30, 1000) and data.sizes.tolist() == [1, 2, 1] and data.test is None
    assert data.classes == ("cat", "dog")
    assert data.x.tolist() == [[2.0, 1.5], [1.0, 0.5], [3.0, 2.5], [4.0, 3.0]]
    assert data.y.tolist() == [0, 1, 0, 1]


def test_other_column_names(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("f,hospital,sick\n1,north,0\n2,south,1\n3,north,1\n")
    data = load(
        Data(source=str(tmp_path / "t.csv"), partition="column", client_column="hospital", label_column="sick", test_fraction=0.0),
        Streams(0),
    )
    assert data.ids == ("north", "south") and data.x.shape == (3, 1)


def test_columns_that_are_no_features_are_dropped_and_identifiers_are_pointed_out(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("patient,age,label\n" + "".join(f"{1000 - i},{i % 7},{i % 2}\n" for i in range(30)))
    whole = load(Data(source=str(path), clients=3, test_fraction=0.0), Streams(0))
    assert whole.x.shape == (30, 2)
    (warned,) = [note for note in whole.notes if note.startswith("warning: the feature")]
    assert "'patient' is another whole number in each row" in warned and "data.drop_columns" in warned
    less = load(Data(source=str(path), clients=3, test_fraction=0.0, drop_columns=("patient",)), Streams(0))
    assert less.x.shape == (30, 1) and not any("warning" in note for note in less.notes)
    for dropped, said in (
        (["patien"], "'patien' is not a column of the file. Did you mean patient?"),
        (["label"], "which is the label_column"),
    ):
        with pytest.raises(normec.BadInput, match=r"drop_columns") as error:
            load(Data(source=str(path), drop_columns=dropped), Streams(0))
        assert said in str(error.value)


def test_client_that_lost_all_samples_to_the_test_set_stays(tmp_path: Path) -> None:
    rows = "".join(f"{i},{i % 2},{i}\n" for i in range(10))
    (tmp_path / "t.csv").write_text("f,label,client\n" + rows)
    data = load(Data(source=str(tmp_path / "t.csv"), partition="column", test_fraction=0.3), Streams(0))
    assert len(data) == 10 and (data.sizes == 0).sum() == 3


def test_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x=np.arange(24.0).reshape(4, 2, 3), y=np.array([0, 1, 1, 0]), client=np.array(["b", "a", "b", "b"]))
    data = load(Data(source=str(tmp_path / "t.npz"), partition="column", test_fraction=0.0), Streams(0))
    assert data.ids == ("a", "b") and data.x.shape == (4, 2, 3)
    assert data.client(0)[0].reshape(-1).tolist() == [6, 7, 8, 9, 10, 11]


def test_ids_are_opaque_keys() -> None:
    data = normec.Federation.from_arrays([[1.0], [2.0], [3.0], [4.0]], [0, 1, 0, 1], [7, "7", 3, "7"])
    assert data.ids == (3, 7, "7")
    assert [data.client(i)[0].reshape(-1).tolist() for i in range(3)] == [[3.0], [1.0], [2.0, 4.0]]


def test_from_clients_keeps_empty_ones() -> None:
    empty = (np.zeros((0, 2)), np.zeros(0, dtype=int))
    data = normec.Federation.from_clients([(np.ones((2, 2)), np.array([0, 1])), empty, (np.zeros((1, 2)), np.array([1]))])
    assert len(data) == 3 and data.sizes.tolist() == [2, 0, 1]


def test_from_dataset() -> None:
    pairs = torch.utils.data.TensorDataset(torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 1]))
    data = normec.Federation.from_dataset(pairs, ["b", "a", "b"])
    assert data.ids == ("a", "b") and data.client(0)[0].tolist() == [[2.0, 3.0]] and data.y.tolist() == [1, 0, 1]
    half = normec.Federation.from_dataset(
        [(torch.ones(2, dtype=torch.bfloat16), "cat"), (torch.zeros(2, dtype=torch.bfloat16), "dog")], [0, 1]
    )
    assert half.classes == ("cat", "dog") and half.client(0)[0].tolist() == [[1.0, 1.0]]


class Drawn(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Twelve samples, on which `draw` works at each reading."""

    def __init__(self, draw: Callable[[int, torch.Tensor], torch.Tensor]) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.draw(index, torch.arange(4.0) + 10 * index), index % 2


OWN = np.random.default_rng(5)


@pytest.mark.parametrize(
    "draw",
    [
        lambda index, x: x + torch.rand(()),
        lambda index, x: x + random.random(),
        lambda index, x: x + np.random.rand(),  # noqa: NPY002
        lambda index, x: x + torch.rand(()) * (index == 5),
        lambda index, x: x.flip(0) if OWN.random() < 0.5 else x,
        lambda index, x: x[: 3 + int(OWN.integers(2))],
    ],
)
def test_one_draw_of_a_random_transform_is_not_kept_unasked(draw: Any) -> None:
    dataset = Drawn(draw)
    with pytest.raises(normec.BadInput, match=r"sample \d+ is another one at each reading.*To keep one draw, give \[dataset\[i\]"):
        normec.Federation.from_dataset(dataset, [0] * 12)


def test_one_draw_is_kept_as_the_error_advises() -> None:
    dataset = Drawn(lambda index, x: x + torch.rand(()))
    assert normec.Federation.from_dataset([dataset[i] for i in range(len(dataset))], [0] * 12).x.shape == (12, 4)


def seeded(index: int, x: torch.Tensor) -> torch.Tensor:
    """Draws the same numbers at each reading, in the global generators."""
    torch.manual_seed(index)
    random.seed(index)
    return x + torch.rand(()) + random.random()


def test_reading_a_dataset_leaves_the_global_generators() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    data = normec.Federation.from_dataset(Drawn(seeded), [0] * 12)
    torch.manual_seed(3)
    random.seed(3)
    expected = torch.arange(4.0) + 30 + torch.rand(()) + random.random()
    torch.set_rng_state(before[0])
    random.setstate(before[2])
    assert torch.equal(data.x[3], expected)
    with pytest.raises(normec.BadInput):
        normec.Federation.from_dataset(Drawn(lambda index, x: x + torch.rand(()) + random.random() + np.random.rand()), [0] * 12)  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[2]
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002


def test_a_dataset_that_reuses_its_memory_is_refused() -> None:
    held = torch.zeros(4)
    with pytest.raises(normec.BadInput, match="the same memory for several samples"):
        normec.Federation.from_dataset(Drawn(lambda index, x: held.copy_(x)), [0] * 12)
    assert normec.Federation.from_dataset(Drawn(lambda index, x: held.copy_(x).clone()), [0] * 12).x[2].tolist() == [20, 21, 22, 23]


@pytest.mark.parametrize("algorithm", [normec.FedNormEC(), normec.DPFedAvgClip(), normec.DPFedAvgNorm()])
@pytest.mark.parametrize("privacy", [normec.Privacy(trust="none"), normec.Privacy(trust="central", epsilon=1.0)])
def test_clients_and_rounds_may_be_empty(algorithm: normec.Algorithm, privacy: normec.Privacy) -> None:
    """One client of three holds data, at p = 0.05 nearly every round is empty: the run goes on, noise alone is released."""
    centres = [np.ones((2, 4)), np.zeros((0, 4)), np.zeros((0, 4))]
    run = quadratic(centres, algorithm=algorithm, privacy=privacy, participation=normec.Poisson(0.05), rounds=40)
    assert np.isfinite(x_of(run)).all()
    assert len(run.metrics) == 41 and run.metrics[-1]["transmissions"] < 20
    if privacy.trust == "central":
        assert np.abs(x_of(run)).min() > 0 and run.metrics[-1]["epsilon"] == run.epsilon


def test_an_empty_client_sends_zero_and_weighs_in_the_mean() -> None:
    run = quadratic([np.ones((1, 2)), np.zeros((0, 2))], algorithm=normec.DPFedAvgClip(clip_norm=100), rounds=1)
    np.testing.assert_allclose(x_of(run), [0.5, 0.5])
    assert run.metrics[0]["train_loss"] == pytest.approx(1.0)  # mean over the clients that have samples


def test_uneven_clients_weigh_alike() -> None:
    run = quadratic([np.ones((9, 1)), -np.ones((1, 1))], algorithm=normec.DPFedAvgClip(clip_norm=100), rounds=1)
    np.testing.assert_allclose(x_of(run), [0.0], atol=1e-15)


def test_labels_of_the_run_are_in_the_summary(command: Callable[..., Outcome], tmp_path: Path) -> None:
    import json

    Path("t.csv").write_text("f,label\n" + "".join(f"{i % 7},{'cat' if i % 7 > 3 else 'dog'}\n" for i in range(40)))
    done = command("train", "data.source=t.csv", "data.clients=4", "privacy.trust=none", "rounds=2", "--out", "out")
    assert done.code == 0, done.err
    assert json.loads(Path("out/summary.json").read_text())["classes"] == ["cat", "dog"]


@pytest.mark.parametrize("dtype", ["uint8", "int64", ">f8", "float16", "longdouble"])
def test_features_of_any_number_type(tmp_path: Path, dtype: str) -> None:
    np.savez(tmp_path / "t.npz", x=np.arange(8).reshape(4, 2).astype(dtype), y=np.array([0, 1, 1, 0]))
    data = load(Data(source=str(tmp_path / "t.npz"), clients=1, test_fraction=0.0), Streams(0))
    assert data.x.is_floating_point() and data.x.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_arrays_of_many_kinds() -> None:
    x = np.arange(8.0).reshape(4, 2)[::-1]
    for features in (x, x.tolist(), torch.from_numpy(x.copy()).requires_grad_(), torch.from_numpy(x.copy()).bfloat16()):
        data = normec.Federation.from_arrays(features, np.array(["b", "a", "b", "a"], dtype=object), torch.tensor([1, 0, 1, 0]))
        assert data.x.tolist() == [[4, 5], [0, 1], [6, 7], [2, 3]] and data.classes == ("a", "b") and data.ids == (0, 1)


def test_an_empty_test_set_is_none() -> None:
    assert normec.Federation.from_arrays([[1.0], [2.0]], [0, 1], [0, 0], test=([], [])).test is None


def test_columns_that_are_no_features_are_told(command: Callable[..., Outcome]) -> None:
    Path("t.csv").write_text("age,sex,label\n" + "".join(f"{i % 7},{'fm'[i % 2]},{i % 2}\n" for i in range(40)))
    done = command("train", "data.source=t.csv", "data.clients=4", "privacy.trust=none", "rounds=1", "--out", "out")
    assert "features: age; left out, not numeric: sex" in done.out


def test_client_column_is_read_only_where_it_makes_the_clients(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("f,client,label\n1,0.5,a\n2,1.5,b\n")
    data = load(Data(source=str(tmp_path / "t.csv"), clients=2, test_fraction=0.0), Streams(0))
    assert data.x.shape == (2, 1)


def test_training_loss_is_the_mean_over_clients() -> None:
    run = quadratic([np.full((9, 1), 2.0), np.full((1, 1), 4.0)], algorithm=normec.DPFedAvgClip(), rounds=1)
    assert run.metrics[0]["train_loss"] == pytest.approx((2.0 + 8.0) / 2)


@pytest.mark.parametrize("grouped", [True, False])
def test_a_memory_mapped_array_stays_where_it_is(tmp_path: Path, grouped: bool) -> None:
    """Clients are views of the file, or index it; the run is that of the array in RAM."""
    rows = np.random.default_rng(0).normal(size=(4000, 12)).astype(np.float32)
    np.save(tmp_path / "x.npy", rows)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    y = (rows[:, 0] > 0).astype(int)
    ids = np.repeat(np.arange(500), 8) if grouped else np.random.default_rng(1).integers(0, 500, 4000)
    data = normec.Federation.from_arrays(mapped, y, ids)
    moved = data.to(torch.device("cpu"), torch.float32)
    assert moved.x.data_ptr() == mapped.__array_interface__["data"][0]  # no copy
    assert (moved.rows is None) == grouped and (moved.client(7)[0]._base is not None) == grouped
    in_ram = normec.Federation.from_arrays(rows, y, ids)
    assert all(torch.equal(a, b) for i in range(len(data)) for a, b in zip(data.client(i), in_ram.client(i), strict=True))
    ends = [
        normec.train(
            model=lambda: torch.nn.Linear(12, 2), data=each, algorithm=normec.FedNormEC(lazy=True), local=normec.GD(), rounds=3,
            participation=normec.Poisson(rate=0.2), privacy=normec.Privacy(trust="central", epsilon=4.0),
        ).model.weight
        for each in (data, in_ram)
    ]  # fmt: skip
    assert torch.equal(*ends)  # type: ignore[arg-type]
    rows[3000, 2] = np.nan
    np.save(tmp_path / "x.npy", rows)
    with pytest.raises(normec.BadInput, match=r"1 row with NaN or infinite values .first: row 3000"):
        normec.Federation.from_arrays(np.load(tmp_path / "x.npy", mmap_mode="r"), y, ids)
