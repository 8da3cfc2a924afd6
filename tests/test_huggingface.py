"""Hugging Face datasets and partitioners of flwr-datasets as federations; the libraries where they are, stand-ins everywhere."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import normec
from normec.data.huggingface import federation_from_huggingface, federation_from_partitioner

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when the library is imported

TABLE = {
    "age": [3, 1, 4, 1, 5, 9],
    "dose": [0.5, 1.5, 2.5, 3.5, 4.5, 5.5],
    "scan": [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]],
    "grid": [[[n, n + 1], [n + 2, n + 3]] for n in range(6)],
    "word": ["no", "yes", "no", "no", "yes", "yes"],
    "sick": [0, 1, 0, 0, 1, 1],
    "hospital": ["b", "a", "b", "c", "a", "b"],
}


class Image:
    """Stands in for datasets.Image: only the name of the type is looked at."""


@dataclass
class Stored:
    """Stands in for a datasets.Dataset: `features`, `format`, `with_format("arrow")[:]`; images are structs of bytes and path."""

    table: pa.Table
    features: dict[str, Any] = field(default_factory=dict)
    format: dict[str, Any] = field(default_factory=lambda: {"type": None})

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def with_format(self, type: str | None, columns: list[str]) -> Any:
        return self.table.select(columns)


def kept(image: Any) -> dict[str, Any]:
    file = io.BytesIO()
    image.save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def stored(columns: dict[str, Any], names: dict[str, list[str]] | None = None, images: tuple[str, ...] = ()) -> Stored:
    table = pa.table({k: [v if v is None else kept(v) for v in held] if k in images else held for k, held in columns.items()})
    features: dict[str, Any] = {k: Image() if k in images else SimpleNamespace() for k in columns}
    features |= {k: SimpleNamespace(names=given) for k, given in (names or {}).items()}
    return Stored(table, features)


def loaded(columns: dict[str, Any], names: dict[str, list[str]] | None = None, images: tuple[str, ...] = ()) -> Any:
    datasets = pytest.importorskip("datasets", reason="needs the library datasets")
    made = datasets.Dataset.from_dict(columns)
    for column, given in (names or {}).items():
        made = made.cast_column(column, datasets.ClassLabel(names=given))
    for column in images:
        made = made.cast_column(column, datasets.Image())
    return made


Make = Callable[..., Any]


@pytest.fixture(params=[stored, loaded], ids=["stand-in", "datasets"])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


def pictures(*arrays: Any) -> list[Any]:
    from PIL import Image

    return [Image.fromarray(np.asarray(array, dtype=np.uint8)) for array in arrays]


def grey(value: int, height: int = 2, width: int = 3) -> np.ndarray:
    return np.full((height, width), value)


def test_one_column_of_numbers_grouped_by_a_column_of_clients(make: Make) -> None:
    data = federation_from_huggingface(make(TABLE, {"sick": ["no", "yes"]}), features="age", label="sick", client_column="hospital")
    assert data.ids == ("a", "b", "c") and data.classes == ("no", "yes")
    assert data.x.tolist() == [[1], [5], [3], [4], [9], [1]]  # each client's samples in the order of the dataset
    assert data.y.tolist() == [1, 1, 0, 0, 1, 0]


def test_columns_side_by_side_in_the_order_given(make: Make) -> None:
    ids = [1, 0, 0, 0, 0, 0]
    data = federation_from_huggingface(make(TABLE), features=["dose", "scan", "age"], label="sick", client_ids=ids)
    assert data.client(1)[0].tolist() == [[0.5, 0, 1, 3]] and data.client(0)[0][-1].tolist() == [5.5, 10, 11, 9]


def test_sequences_of_sequences_become_arrays(make: Make) -> None:
    data = federation_from_huggingface(make(TABLE), features="grid", label="sick", client_ids=np.zeros(6, dtype=int))
    assert data.x.shape == (6, 2, 2) and data.x[2].tolist() == [[2, 3], [4, 5]]


def test_strings_become_classes_and_floats_are_targets(make: Make) -> None:
    dataset = make(TABLE)
    assert federation_from_huggingface(dataset, features="age", label="word", client_ids=[0] * 6).classes == ("no", "yes")
    regression = federation_from_huggingface(dataset, features="age", label="dose", client_ids=[0] * 6)
    assert regression.classes is None and regression.y.tolist() == TABLE["dose"] and regression.y.dtype == torch.float64


def test_declared_classes_that_no_sample_shows_are_kept_in_order(make: Make) -> None:
    dataset = make({"f": [1.0, 2.0], "label": [2, 0]}, {"label": ["z", "a", "m"]})
    data = federation_from_huggingface(dataset, features="f", label="label", client_ids=[0, 1])
    assert data.classes == ("z", "a", "m") and data.y.tolist() == [2, 0]


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 3)])
def test_images_are_scaled_with_channels_first(make: Make, shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, *shape), dtype=np.uint8)
    dataset = make({"image": pictures(*pixels), "label": [0, 1, 1, 0]}, images=("image",))
    data = federation_from_huggingface(dataset, features="image", label="label", client_ids=[0, 0, 1, 1])
    expected = pixels.reshape(4, 2, 3, -1).transpose(0, 3, 1, 2).astype(np.float64) / 127.5 - 1
    assert data.x.dtype == torch.float32
    np.testing.assert_allclose(data.x.numpy(), expected, atol=1e-6)


def test_test_set_and_its_clients(make: Make) -> None:
    test = {k: v[:2] for k, v in TABLE.items()}
    kinds = {"features": "age", "label": "word", "client_column": "hospital"}
    data = federation_from_huggingface(make(TABLE), **kinds, test=make(test))
    assert data.test is not None and data.test[0].tolist() == [[3], [1]] and data.test[1].tolist() == [0, 1]
    assert data.test_owners is not None and data.test_owners.tolist() == [1, 0]
    strangers = federation_from_huggingface(make(TABLE), **kinds, test=make(test | {"hospital": ["a", "z"]}))
    assert strangers.test is not None and strangers.test_owners is None and len(strangers) == 3


@pytest.mark.parametrize(
    ("change", "choices", "said"),
    [
        ({}, {"features": "agee"}, "features='agee' is not a column of the dataset. Did you mean age?"),
        ({}, {"features": []}, "features=[] must name columns"),
        ({}, {"features": ["age", "sick"]}, "other than the label 'sick'"),
        ({}, {"features": "word"}, "features='word' holds string values"),
        ({}, {"features": ["age", "grid"]}, "features='grid' holds samples of shape (2, 2), which cannot stand beside another column"),
        ({}, {"label": "ill"}, "label='ill' is not a column of the dataset"),
        ({}, {"client_column": "ward"}, "client_column='ward' is not a column of the dataset"),
        ({}, {"client_column": "sick"}, "client_column='sick' is the label too"),
        ({}, {"client_column": "dose"}, "client_column='dose' holds double values"),
        ({}, {"client_ids": [0] * 6}, "both are given"),
        ({}, {"client_column": None}, "neither is given"),
        ({}, {"client_column": None, "client_ids": [0]}, "for 1 client_ids"),
        ({"age": [1, None, 2, None, 3, 4]}, {}, "features='age' has 2 missing values (first: row 1, counting from 0)"),
        ({"sick": [1, 0, None, 0, 1, 1]}, {}, "label='sick' has 1 missing value (first: row 2, counting from 0)"),
        ({"hospital": ["a"] * 5 + [None]}, {}, "client_column='hospital' has 1 missing value (first: row 5"),
        ({"scan": [[1, 2]] * 4 + [None, [1, 2]]}, {"features": "scan"}, "features='scan' has 1 missing value (first: row 4"),
        ({"scan": [[1, 2]] * 4 + [[1, None], [None, 2]]}, {"features": "scan"}, "has 2 missing values (first: row 4"),
        ({"scan": [[1, 2]] * 4 + [[1], [1, 2]]}, {"features": "scan"}, "holds sequences of 2 and of 1 values (first: row 4"),
        ({"grid": [[[1, 2], [3, 4]]] * 3 + [[[1, 2], [3]]] * 3}, {"features": "grid"}, "sequences of 2 and of 1 values (first: row 3"),
        ({"dose": [1.0, float("nan"), *[1.0] * 4]}, {"features": "dose"}, "x has 1 row with NaN or infinite values (first: row 1"),
        ({"sick": [0, 1, 5, 0, 1, 1]}, {}, "outside 0 … 2"),
    ],
)
def test_what_cannot_be_used_is_named(make: Make, change: dict[str, Any], choices: dict[str, Any], said: str) -> None:
    with pytest.raises(normec.BadInput) as refused:
        federation_from_huggingface(make(TABLE | change), **({"features": "age", "label": "sick", "client_column": "hospital"} | choices))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("images", "said"),
    [
        ([grey(1), grey(2), grey(3, 3, 3)], "image 2 of 'image' has 3×3 pixels, 1 channel of 8 bits, image 0 of 'image' 2×3 pixels"),
        (
            [grey(1), np.zeros((2, 3, 3))],
            "image 1 of 'image' has 2×3 pixels, 3 channels of 8 bits, image 0 of 'image' 2×3 pixels, 1 channel",
        ),
        ([grey(1), None, None], "features='image' has 2 missing values (first: row 1, counting from 0)"),
    ],
)
def test_images_that_differ_or_miss_are_named(make: Make, images: list[Any], said: str) -> None:
    dataset = make({"image": [i if i is None else pictures(i)[0] for i in images], "label": [0] * len(images)}, images=("image",))
    with pytest.raises(normec.BadInput) as refused:
        federation_from_huggingface(dataset, features="image", label="label", client_ids=[0] * len(images))
    assert said in str(refused.value)


def test_what_is_wrong_with_the_test_set_is_said_of_it(make: Make) -> None:
    kinds = {"features": "age", "label": "sick", "client_ids": [0] * 6}
    for test, said in (
        (make(TABLE | {"age": [None] * 3 + [1] * 3}), "test.features='age' has 3 missing values"),
        (make(TABLE, {"sick": ["yes", "no"]}), "test.label='sick' has the classes yes, no, in training no, yes"),
        (make({"age": [1]}), "test.label='sick' is not a column"),
        (make({k: v[:0] for k, v in TABLE.items()}), "test has no rows"),
        ([1], "test is of type list"),
    ):
        with pytest.raises(normec.BadInput) as refused:
            federation_from_huggingface(make(TABLE, {"sick": ["no", "yes"]}), **kinds, test=test)
        assert str(refused.value).startswith(said)


@dataclass
class Parts:
    """Stands in for a partitioner of flwr-datasets."""

    parts: list[Any]

    @property
    def num_partitions(self) -> int:
        return len(self.parts)

    def load_partition(self, partition_id: int) -> Any:
        return self.parts[partition_id]


def test_client_i_holds_partition_i(make: Make) -> None:
    whole = {"sick": ["no", "yes"]}
    parts = [make({k: v[rows] for k, v in TABLE.items()}, whole) for rows in (slice(2), slice(0), slice(2, 6))]
    data = federation_from_partitioner(Parts(parts), features=["age", "dose"], label="sick", test=parts[0])
    assert data.ids == (0, 1, 2) and data.sizes.tolist() == [2, 0, 4] and data.classes == ("no", "yes")
    assert data.client(2)[0][0].tolist() == [4, 2.5] and data.test is not None and len(data.test[0]) == 2


def test_partitions_that_cannot_be_used_are_named(make: Make) -> None:
    parts = [make(TABLE), make(TABLE | {"age": [1, None] * 3})]
    with pytest.raises(normec.BadInput, match=r"^load_partition\(1\)\.features='age' has 3 missing values \(first: row 1"):
        federation_from_partitioner(Parts(parts), features="age", label="sick")
    with pytest.raises(normec.BadInput, match="samples of 2 shapes"):
        federation_from_partitioner(Parts([make(TABLE), make(TABLE | {"scan": [[1, 2, 3]] * 6})]), features="scan", label="sick")
    with pytest.raises(normec.BadInput, match="at least one"):
        federation_from_partitioner(Parts([make({k: v[:0] for k, v in TABLE.items()})]), features="age", label="sick")
    with pytest.raises(normec.BadInput, match=r"^partitioner is of type (Stored|Dataset)\."):
        federation_from_partitioner(make(TABLE), features="age", label="sick")


def test_a_federation_made_so_trains(make: Make) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(24) % 2
    pixels = rng.integers(0, 128, (24, 4, 4)) + 127 * labels[:, None, None]
    columns = {"image": pictures(*pixels), "label": labels.tolist(), "client": (np.arange(24) // 4).tolist()}
    dataset = make(columns, {"label": ["dark", "bright"]}, images=("image",))
    data = federation_from_huggingface(dataset, features="image", label="label", client_column="client", test=dataset)
    run = normec.train(
        model=lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2)),
        data=data,
        algorithm=normec.DPFedAvgClip(clip_norm=100.0),
        local=normec.GD(steps=2, lr=0.1),
        privacy=normec.Privacy(trust="none"),
        participation=normec.Full(),
        rounds=2,
    )
    assert run.metrics[-1]["train_loss"] < run.metrics[0]["train_loss"] and run.summary["classes"] == ("dark", "bright")


def test_neither_library_is_imported() -> None:
    code = "import sys, normec.data.huggingface; sys.exit(bool({'datasets', 'flwr_datasets'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# What only the libraries themselves can show.


def test_datasets_of_every_layout() -> None:
    """Selected, joined, formatted and fixed-shape columns read alike, and a transform is not passed over."""
    datasets = pytest.importorskip("datasets", reason="needs the library datasets")
    shaped = datasets.Features({"m": datasets.Array2D((2, 2), "float32"), "v": datasets.Value("float64"), "l": datasets.Value("int64")})
    grids = np.arange(24.0).reshape(6, 2, 2)
    whole = datasets.Dataset.from_dict({"m": grids.tolist(), "v": [1 + 2**-40] * 6, "l": [0, 1] * 3}, features=shaped)
    joined = datasets.concatenate_datasets([whole.select([5, 0]), whole.select([3])])
    for dataset in (joined, joined.with_format("torch"), joined.with_format("numpy", columns=["v"])):
        data = federation_from_huggingface(dataset, features="m", label="l", client_ids=[0] * 3)
        np.testing.assert_array_equal(data.x.numpy(), grids[[5, 0, 3]])
        assert data.x.dtype == torch.float32 and data.y.tolist() == [1, 0, 1]
    exact = federation_from_huggingface(joined.with_format("torch"), features="v", label="l", client_ids=[0] * 3)
    assert exact.x.tolist() == [[1 + 2**-40]] * 3
    for refused, said in (
        (joined.with_transform(lambda batch: batch), "has a transform"),
        (joined.to_iterable_dataset(), "not a streamed one"),
        (datasets.DatasetDict({"train": joined}), "is of type DatasetDict"),
    ):
        with pytest.raises(normec.BadInput, match=said):
            federation_from_huggingface(refused, features="m", label="l", client_ids=[0] * 3)


def test_images_as_the_dataset_says(tmp_path: Any) -> None:
    """Files by path, a mode to convert to, images left encoded, and a damaged one."""
    datasets = pytest.importorskip("datasets", reason="needs the library datasets")
    paths = [str(tmp_path / f"{number}.png") for number in range(3)]
    for number, path in enumerate(paths):
        pictures(np.full((2, 2, 4), 51 * number))[0].save(path)
    dataset = datasets.Dataset.from_dict({"image": paths, "label": [0, 1, 0]}).cast_column("image", datasets.Image())
    choices = {"features": "image", "label": "label", "client_ids": [0, 1, 2]}
    for read in (dataset, dataset.cast_column("image", datasets.Image(mode="RGB"))):
        data = federation_from_huggingface(read, **choices)
        assert data.x.shape == (3, 3, 2, 2)
        np.testing.assert_allclose(data.x[:, 0, 0, 0].numpy(), [-1, -0.6, -0.2], atol=1e-6)
        assert data.notes == ("left out: the transparency of 3 images (first: image 0 of 'image')",)
    assert federation_from_huggingface(dataset, **choices, resize=1, channels=1).x.shape == (3, 1, 1, 1)
    with pytest.raises(normec.BadInput, match=r"asks for images of mode CMYK. Use cast_column\('image', datasets.Image\(\)\)"):
        federation_from_huggingface(dataset.cast_column("image", datasets.Image(mode="CMYK")), **choices)
    (tmp_path / "1.png").write_bytes(b"no image")
    with pytest.raises(normec.BadInput, match=r"features: image 1 of 'image' cannot be decoded: it is no PNG"):
        federation_from_huggingface(dataset.cast_column("image", datasets.Image(mode="L")), **choices)
    (tmp_path / "1.png").unlink()
    os.mkfifo(tmp_path / "1.png")
    with pytest.raises(normec.BadInput, match="is a FIFO, not a regular file"):
        federation_from_huggingface(dataset, **choices)


@pytest.mark.parametrize("mode", [None, "L", "RGB"])
def test_images_of_16_bits_keep_them(mode: str | None) -> None:
    """Whatever mode the dataset asks for: 4,096 grey values stay 4,096."""
    datasets = pytest.importorskip("datasets", reason="needs the library datasets")
    from PIL import Image

    deep = Image.fromarray(np.arange(4096, dtype=np.uint16).reshape(64, 64))
    dataset = datasets.Dataset.from_dict({"image": [deep] * 2, "label": [0, 1]}).cast_column("image", datasets.Image(mode=mode))
    choices = {"features": "image", "label": "label", "client_ids": [0, 1]}
    x = federation_from_huggingface(dataset, **choices, pixel_max=4095).x
    assert x.shape == (2, 3 if mode == "RGB" else 1, 64, 64)
    np.testing.assert_allclose(x[0, 0].numpy().ravel(), np.arange(4096) / 2047.5 - 1, atol=1e-6)
    assert "16 bits" in federation_from_huggingface(dataset, **choices).notes[0]


@pytest.fixture
def partitioners() -> Any:
    pytest.importorskip("datasets", reason="needs the library datasets")
    return pytest.importorskip("flwr_datasets.partitioner", reason="needs the library flwr-datasets")


def test_partitioners_of_flower(partitioners: Any) -> None:
    labels = [n % 2 for n in range(40)]
    columns = {"f": np.arange(80.0).reshape(40, 2).tolist(), "label": labels, "user": [f"u{n % 5}" for n in range(40)]}
    for partitioner in (
        partitioners.IidPartitioner(num_partitions=4),
        partitioners.NaturalIdPartitioner(partition_by="user"),
        partitioners.DirichletPartitioner(num_partitions=4, partition_by="label", alpha=0.5, min_partition_size=0, seed=1),
        partitioners.PathologicalPartitioner(num_partitions=4, partition_by="label", num_classes_per_partition=1),
    ):
        partitioner.dataset = loaded(columns, {"label": ["even", "odd"]})
        data = federation_from_partitioner(partitioner, features="f", label="label")
        assert len(data) == partitioner.num_partitions and data.classes == ("even", "odd")
        for index in range(len(data)):
            assert data.client(index)[0].tolist() == partitioner.load_partition(index)["f"][:]
        held = {(int(row[0]) // 2, int(label)) for row, label in zip(data.x, data.y, strict=True)}
        assert len(data.x) == 40 and held == set(enumerate(labels))


def test_a_partitioner_without_its_dataset_is_refused(partitioners: Any) -> None:
    with pytest.raises(normec.BadInput, match=r"^partitioner failed \(AttributeError: .* Set its dataset"):
        federation_from_partitioner(partitioners.IidPartitioner(num_partitions=4), features="f", label="label")
