"""Images: what is decoded is what was encoded; CIFAR-10 from parquet files and from its original batches; damaged files."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import normec
from normec.data import Data, images, load
from normec.streams import Streams


def encoded(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()


def pictures(count: int, shape: tuple[int, ...] = (8, 9, 3), seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def scaled(pixels: np.ndarray) -> np.ndarray:
    """8 bits in [−1, 1]."""
    return pixels.astype(np.float32) / np.float32(127.5) - np.float32(1)


def write_parquet(path: Path, pixels: np.ndarray, labels: Any, column: str = "img") -> None:
    rows = [{"bytes": encoded(each), "path": "x.png"} for each in pixels]
    pq.write_table(pa.table({column: rows, "label": labels}), path)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMEC_CACHE", str(tmp_path / "cache"))


def cifar(path: Path) -> normec.Federation:
    return load(Data(source="cifar10", path=str(path), clients=2), Streams(0))


def in_source_order(federation: normec.Federation, like: np.ndarray) -> np.ndarray:
    """The training images, sorted; beside those of the source, sorted too."""
    return np.sort(federation.x.numpy().reshape(len(like), -1), axis=0)


@pytest.mark.parametrize("column", ["img", "image"])
def test_cifar_from_parquet_is_what_was_encoded_with_its_own_test_set(tmp_path: Path, column: str) -> None:
    train, test = pictures(20, (32, 32, 3)), pictures(5, (32, 32, 3), seed=1)
    write_parquet(tmp_path / "train-00000.parquet", train[:12], np.arange(12) % 10, column)
    write_parquet(tmp_path / "train-00001.parquet", train[12:], np.arange(12, 20) % 10, column)
    write_parquet(tmp_path / "test-00000.parquet", test, [9, 8, 7, 6, 5], column)
    for _ in range(2):  # decoded, then from the cache
        data = cifar(tmp_path)
        expected = scaled(train.transpose(0, 3, 1, 2)).reshape(20, -1)
        np.testing.assert_array_equal(in_source_order(data, train), np.sort(expected, axis=0))
        assert data.test is not None and data.classes is not None and data.classes[3] == "cat"
        np.testing.assert_array_equal(data.test[0].numpy(), scaled(test.transpose(0, 3, 1, 2)))
        assert data.test[1].tolist() == [9, 8, 7, 6, 5]
        assert float(data.x.min()) == -1.0 and float(data.x.max()) == 1.0
    label_of = {each.tobytes(): label for each, label in zip(expected, np.arange(20) % 10, strict=True)}
    assert all(label_of[x.numpy().tobytes()] == int(y) for x, y in zip(data.x, data.y, strict=True))


def test_the_cache_is_read_and_a_damaged_one_is_not(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train.parquet", pictures(4, (32, 32, 3)), [0, 1, 2, 3])
    write_parquet(tmp_path / "test.parquet", pictures(2, (32, 32, 3)), [0, 1])
    first = cifar(tmp_path)
    kept = sorted((tmp_path / "cache").iterdir(), key=lambda file: file.stat().st_size)[-1]
    held = np.load(kept)
    np.save(kept, 255 - held)
    assert float((cifar(tmp_path).x + first.x).abs().max()) < 1e-6  # the negatives
    kept.write_bytes(kept.read_bytes()[:100])
    assert bool((cifar(tmp_path).x == first.x).all())
    np.testing.assert_array_equal(np.load(kept), held)
    write_parquet(tmp_path / "train.parquet", pictures(4, (32, 32, 3), seed=5), [0, 1, 2, 3])
    assert not bool((cifar(tmp_path).x == first.x).all())  # another content, another key


def test_no_cache_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NORMEC_CACHE", str(tmp_path / "file" / "cache"))
    for part in ("train", "test"):
        write_parquet(tmp_path / f"{part}.parquet", pictures(4, (32, 32, 3)), [0, 1, 2, 3])
    assert len(cifar(tmp_path)) == 2 and "decoded images are not kept" in caplog.text


def batches(folder: Path, monkeypatch: pytest.MonkeyPatch, protocol: int = 2) -> dict[str, np.ndarray]:
    """Six batches as the archive has them, of ten images each, with their own checksums in place of the published ones."""
    folder.mkdir(parents=True)
    held, sums = {}, {}
    for number, name in enumerate(images.BATCHES):
        held[name] = np.random.default_rng(number).integers(0, 256, (10, 3072), dtype=np.uint8)
        content = pickle.dumps({b"data": held[name], b"labels": [number] * 10, b"batch_label": b"x"}, protocol=protocol)
        (folder / name).write_bytes(content)
        sums[name] = hashlib.md5(content).hexdigest()
    monkeypatch.setattr(images, "BATCHES", sums)
    return held


@pytest.mark.parametrize("inside", [".", "cifar-10-batches-py"])
def test_cifar_from_its_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: str) -> None:
    held = batches(tmp_path / "c" / inside, monkeypatch)
    data = cifar(tmp_path / "c")
    assert data.x.shape == (50, 3, 32, 32) and sorted(data.y.tolist()) == [label for label in range(5) for _ in range(10)]
    assert data.test is not None and data.test[1].tolist() == [5] * 10
    np.testing.assert_array_equal(data.test[0].reshape(10, -1).numpy(), scaled(held["test_batch"]))


def test_a_batch_that_is_not_the_published_one_is_refused(tmp_path: Path) -> None:
    for name in images.BATCHES:
        (tmp_path / name).write_bytes(b"something else")
    with pytest.raises(normec.BadInput, match=r"path: .*data_batch_1 is not the published file"):
        cifar(tmp_path)


def test_a_batch_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches(tmp_path / "c", monkeypatch)

    def denied(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(normec.BadInput, match=r"path: .*data_batch_1 cannot be read \(Permission denied\)"):
        cifar(tmp_path / "c")


class Runs:
    """Would run code while it is unpickled."""

    def __reduce__(self) -> Any:
        return (os.system, ("touch /tmp/should-not-exist",))


@pytest.mark.parametrize("content", [Runs(), {b"data": Runs()}, [1, 2], {b"labels": [1]}, {b"data": np.zeros(3), b"labels": [1]}])
def test_no_batch_runs_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: Any) -> None:
    batches(tmp_path / "c", monkeypatch)
    harmful = pickle.dumps(content)
    (tmp_path / "c" / "data_batch_1").write_bytes(harmful)
    monkeypatch.setitem(images.BATCHES, "data_batch_1", hashlib.md5(harmful).hexdigest())
    with pytest.raises(normec.BadInput, match="holds no batch of CIFAR-10"):
        cifar(tmp_path / "c")
    assert not Path("/tmp/should-not-exist").exists()


def test_an_image_column_of_any_parquet_file(tmp_path: Path) -> None:
    pixels = pictures(6, (8, 8))
    write_parquet(tmp_path / "mine.parquet", pixels, ["a", "b"] * 3, "image")
    data = load(Data(source=str(tmp_path / "mine.parquet"), clients=2, test_fraction=0), Streams(0))
    assert data.x.shape == (6, 1, 8, 8) and data.classes == ("a", "b")
    held = pq.read_table(tmp_path / "mine.parquet").append_column("writer", pa.array(["u", "v", "v", "u", "w", "w"]))
    pq.write_table(held, tmp_path / "mine.parquet")
    data = load(Data(source=str(tmp_path / "mine.parquet"), partition="column", client_column="writer", test_fraction=0), Streams(0))
    assert data.ids == ("u", "v", "w")
    np.testing.assert_array_equal(data.client(1)[0].numpy(), scaled(pixels[1:3, None]))


def test_a_number_that_is_called_image_is_a_feature(tmp_path: Path) -> None:
    pq.write_table(pa.table({"img": [1.0, 2.0], "label": [0, 1]}), tmp_path / "t.parquet")
    data = load(Data(source=str(tmp_path / "t.parquet"), clients=2, test_fraction=0), Streams(0))
    assert sorted(data.x[:, 0].tolist()) == [1.0, 2.0]


def write_folder(path: Path, part: str = ".") -> None:
    for label, name in (("cat", "a.png"), ("cat", "b.jpg"), ("dog", "c.png"), ("dog", "d.PNG")):
        (path / part / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pictures(1, seed=len(name))[0]).save(path / part / label / name)
    (path / part / "cat" / "notes.md").write_text("not an image")


def test_a_folder_of_images_by_class(tmp_path: Path) -> None:
    write_folder(tmp_path / "a")
    data = load(Data(source=str(tmp_path / "a"), clients=2, test_fraction=0), Streams(0))
    assert data.x.shape == (4, 3, 8, 9) and data.classes == ("cat", "dog") and sorted(data.y.tolist()) == [0, 0, 1, 1]
    for part in ("train", "test"):
        write_folder(tmp_path / "b", part)
    data = load(Data(source=str(tmp_path / "b"), clients=2), Streams(0))
    assert len(data.y) == 4 and data.test is not None and len(data.test[1]) == 4
    assert any("4 test samples of the source's own, so that test_fraction does not act" in note for note in data.notes)


def test_a_folder_called_train_is_a_class_or_a_part(tmp_path: Path) -> None:
    write_folder(tmp_path / "part", "train")
    data = load(Data(source=str(tmp_path / "part"), clients=2, test_fraction=0.5), Streams(0))
    assert len(data.y) == 2 and data.test is not None and len(data.test[1]) == 2
    write_folder(tmp_path / "class")
    (tmp_path / "class" / "cat").rename(tmp_path / "class" / "train")
    assert load(Data(source=str(tmp_path / "class"), clients=2, test_fraction=0), Streams(0)).classes == ("dog", "train")


def test_damaged_and_foreign_images(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken" / "cat").mkdir(parents=True)
    (tmp_path / "broken" / "cat" / "a.png").write_bytes(b"no image")
    write_folder(tmp_path / "sizes")
    Image.fromarray(pictures(1, (4, 4, 3))[0]).save(tmp_path / "sizes" / "dog" / "z.png")
    write_parquet(tmp_path / "null.parquet", pictures(2), [0, 1])
    pq.write_table(
        pa.table({"img": [{"bytes": None, "path": "x"}, {"bytes": b"x", "path": "x"}], "label": [0, 1]}), tmp_path / "null.parquet"
    )
    pq.write_table(pa.table({"image": [{"path": "x"}] * 2, "label": ["a", "b"]}), tmp_path / "paths.parquet")
    for source, words in {
        "paths.parquet": "numeric feature columns",
        "empty": "holds no images as CLASS/NAME.png", "broken": "a.png cannot be decoded", "sizes": "z.png has 4×4 pixels",
        "null.parquet": "1 missing image of 2",
    }.items():  # fmt: skip
        with pytest.raises(normec.BadInput, match=words):
            load(Data(source=str(tmp_path / source), clients=2, test_fraction=0), Streams(0))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"source": "cifar10"}, "path=None is not a folder"),
        ({"source": "cifar10", "path": "nowhere"}, "path='nowhere' is not a folder"),
        ({"source": "cifar10", "path": "."}, "holds neither parquet files"),
        ({"source": "digits", "path": "."}, "path='.' acts only with source='cifar10'"),
    ],
)
def test_paths_that_are_not_cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], words: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(normec.BadInput, match=words):
        load(Data(**settings), Streams(0))


def test_labels_that_are_not_cifar_s(tmp_path: Path) -> None:
    for part, labels in (("train", [0, 10]), ("test", [0, 1])):
        write_parquet(tmp_path / f"{part}.parquet", pictures(2, (32, 32, 3)), labels)
    with pytest.raises(normec.BadInput, match="labels outside 0 … 9"):
        cifar(tmp_path)


@pytest.mark.skipif("NORMEC_CIFAR10" not in os.environ, reason="NORMEC_CIFAR10 does not name the folder of CIFAR-10")
def test_the_real_cifar_10() -> None:
    data = cifar(Path(os.environ["NORMEC_CIFAR10"]))
    assert data.x.shape == (50_000, 3, 32, 32) and data.test is not None and data.test[0].shape == (10_000, 3, 32, 32)
    assert np.bincount(data.y.numpy()).tolist() == [5000] * 10 and np.bincount(data.test[1].numpy()).tolist() == [1000] * 10
    # The published means of the red, green and blue channels.
    np.testing.assert_allclose((data.x.mean((0, 2, 3)).numpy() + 1) / 2, [0.4914, 0.4822, 0.4465], atol=2e-3)


def test_pooled_images_are_means_of_squares(tmp_path: Path) -> None:
    for part in ("train", "test"):
        write_parquet(tmp_path / f"{part}.parquet", pictures(4, (32, 32, 3)), [0, 1, 2, 3])
    source = {"source": "cifar10", "path": str(tmp_path), "clients": 2}
    whole, half = load(Data(**source), Streams(0)), load(Data(**source, pool=2), Streams(0))
    assert half.x.shape == (4, 3, 16, 16) and half.test is not None and half.test[0].shape == (4, 3, 16, 16)
    np.testing.assert_allclose(half.x[1, 2, 0, 3], whole.x[1, 2, :2, 6:8].mean(), rtol=1e-6)
    for settings, words in ((source | {"pool": 5}, "pool=5 does not fit: .* 32×32"), ({"source": "digits", "pool": 2}, "holds no images")):
        with pytest.raises(normec.BadInput, match=words):
            load(Data(**settings), Streams(0))
