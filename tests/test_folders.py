"""Folders of images: what is a sample, what is left out and said, every depth and colour, and files that are a trap."""

from __future__ import annotations

import io
import os
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import normec
from normec.data import Data, load
from normec.data.overview import overview
from normec.streams import Streams


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMEC_CACHE", str(tmp_path / "cache"))


def federation(source: Path, **settings: Any) -> normec.Federation:
    return load(Data(source=str(source), **{"clients": 2, "test_fraction": 0} | settings), Streams(0))


def write(path: Path, value: int = 0, mode: str = "RGB", size: tuple[int, int] = (4, 3)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, value, value)).save(path)
    return path


def two_classes(root: Path, **settings: Any) -> Path:
    for number, label in enumerate(("cat", "dog")):
        write(root / label / "a.png", 50 * number, **settings)
        write(root / label / "b.png", 50 * number + 20, **settings)
    return root


def test_images_below_a_class_are_of_that_class(tmp_path: Path) -> None:
    write(two_classes(tmp_path) / "dog" / "small" / "left" / "c.png", 90)
    data = federation(tmp_path)
    assert data.classes == ("cat", "dog") and sorted(data.y.tolist()) == [0, 0, 1, 1, 1] and data.notes == ()


@pytest.mark.parametrize("name", ["c.tif", "c.TIFF", "c.bmp", "c.webp", "c.JPG", "c.Jpeg", "c.gif", "c.jfif"])
def test_every_suffix_of_what_is_read(tmp_path: Path, name: str) -> None:
    two_classes(tmp_path)
    write(tmp_path / "cat" / name, 90)
    assert len(federation(tmp_path).y) == 5


def test_what_is_no_sample_is_named_and_counted(tmp_path: Path) -> None:
    two_classes(tmp_path)
    for hidden in (".git", "cat/.ipynb_checkpoints", "__MACOSX", "@eaDir", "dog/@eaDir"):
        write(tmp_path / hidden / "x.png")
    for file in ("Thumbs.db", "cat/.DS_Store", "cat/._a.png", "desktop.ini", "dog/notes.md", "dog/b.PSD", "dog/scan"):
        (tmp_path / file).write_bytes(b"x")
    write(tmp_path / "loose.png")
    (tmp_path / "fish" / "below").mkdir(parents=True)
    os.mkfifo(tmp_path / "cat" / "pipe.png")
    (tmp_path / "cat" / "endless.png").symlink_to("/dev/zero")
    (tmp_path / "cat" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "dog" / "round").symlink_to(tmp_path)
    data = federation(tmp_path)
    assert data.classes == ("cat", "dog") and len(data.y) == 4
    assert set(data.notes) == {
        "left out, hidden: 5 folders (first: .git)",
        "left out, hidden: 4 files (first: Thumbs.db)",
        "left out, not an image by its suffix (.md, .psd, no suffix): 3 files (first: dog/b.PSD)",
        "left out, in no folder of a class: 1 image (first: loose.png)",
        "left out, without an image: 1 folder (first: fish)",
        "left out, not a regular file: 3 paths (first: cat/endless.png)",
        "left out, a link to what is read already: 1 folder (first: dog/round)",
    }
    assert overview(data)["notes"] == list(data.notes)


def test_pages_after_the_first_are_counted(tmp_path: Path) -> None:
    two_classes(tmp_path)
    pages = [Image.new("RGB", (4, 3), (shade, 0, 0)) for shade in (10, 20, 30)]
    pages[0].save(tmp_path / "cat" / "m.tif", save_all=True, append_images=pages[1:])
    pages[0].save(tmp_path / "dog" / "m.gif", save_all=True, append_images=pages[1:2])
    assert federation(tmp_path).notes == (f"left out: 3 pages or frames after the first of 2 images (first: {tmp_path / 'cat' / 'm.tif'})",)
    content = (tmp_path / "cat" / "m.tif").read_bytes()
    pq.write_table(pa.table({"image": [content] * 2, "label": ["a", "b"], "age": [1, 2]}), tmp_path / "t.parquet")
    for _ in range(2):  # the second time too
        notes = federation(tmp_path / "t.parquet").notes
        assert notes[0] == "left out, beside the images: 1 column ('age')" and "4 pages or frames after the first of 2 images" in notes[1]


@pytest.mark.parametrize("names", [("train", "test"), ("Training", "TEST")])
def test_validation_beside_train_and_test_is_said_to_be_left_out(tmp_path: Path, names: tuple[str, str]) -> None:
    for name in (*names, "val", "other"):
        two_classes(tmp_path / name)
    data = federation(tmp_path)
    assert len(data.y) == 4 and data.test is not None and len(data.test[1]) == 4 and data.classes == ("cat", "dog")
    assert f"left out, in val/ beside {names[0]}/: 4 images (first: val/cat/a.png)" in data.notes
    assert f"left out, in other/ beside {names[0]}/: 4 images (first: other/cat/a.png)" in data.notes


def test_validation_is_the_test_set_where_there_is_none(tmp_path: Path) -> None:
    for name in ("train", "val"):
        two_classes(tmp_path / name)
    data = federation(tmp_path)
    assert data.test is not None and "the test set is the folder val/, since there is none that is called test" in data.notes
    (tmp_path / "train").rename(tmp_path / "test")
    with pytest.raises(normec.BadInput, match="holds test, val and no train"):
        federation(tmp_path)
    (tmp_path / "test").rename(tmp_path / "train")  # as it says
    assert len(federation(tmp_path).y) == 4 and len(federation(tmp_path / "val").y) == 4


def test_a_folder_for_each_client(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for number, client in enumerate(("ann", "bob")):
            two_classes(tmp_path / part / client)
            write(tmp_path / part / client / "cat" / "deeper" / "e.png", 200 + number)
    natural = {"partition": "column", "clients": None}
    data = federation(tmp_path / "train", **natural)
    assert data.ids == ("ann", "bob") and data.sizes.tolist() == [5, 5] and data.classes == ("cat", "dog")
    assert data.client(1)[1].tolist() == [0, 0, 0, 1, 1]
    assert float(data.client(1)[0][2].max()) == pytest.approx(201 / 127.5 - 1)
    both = federation(tmp_path, **natural)
    assert both.test_owners is not None and both.test_owners.tolist() == [0] * 5 + [1] * 5
    (tmp_path / "test" / "ann").rename(tmp_path / "test" / "zoe")
    strangers = federation(tmp_path, **natural)
    assert strangers.test_owners is None and any("1 client of the test set" in note and "'zoe'" in note for note in strangers.notes)
    write(tmp_path / "train" / "ann" / "loose.png")
    assert any("in no folder of a class of a client: 1 image" in note for note in federation(tmp_path / "train", **natural).notes)
    with pytest.raises(normec.BadInput, match=r"holds no images as CLIENT/CLASS/NAME.png"):
        federation(two_classes(tmp_path / "flat"), **natural)


def test_folders_that_look_like_those_of_clients_are_pointed_out(tmp_path: Path) -> None:
    for client in ("ann", "bob"):
        two_classes(tmp_path / client)
    data = federation(tmp_path)
    assert data.classes == ("ann", "bob") and any("data.partition=column takes the outer folders as clients" in note for note in data.notes)


def test_sizes_that_differ_and_what_the_error_advises(tmp_path: Path) -> None:
    write(two_classes(tmp_path) / "dog" / "z.png", 70, size=(8, 6))
    with pytest.raises(normec.BadInput, match=r"z.png has 6×8 pixels.*Set data.resize, such as data.resize=\[3, 4\]"):
        federation(tmp_path)
    assert federation(tmp_path, resize=[3, 4]).x.shape == (5, 3, 3, 4)
    data = federation(tmp_path, resize=2)
    assert data.x.shape == (5, 3, 2, 2) and sorted(data.x[:, 0, 0, 0].tolist()) == pytest.approx(
        [v / 127.5 - 1 for v in (0, 20, 50, 70, 70)]
    )


def test_resizing_averages_what_becomes_one_pixel(tmp_path: Path) -> None:
    two_classes(tmp_path, mode="L", size=(64, 64))
    pixels = np.zeros((64, 64), dtype=np.uint8)
    pixels[:, ::2] = 200
    Image.fromarray(pixels).save(tmp_path / "cat" / "a.png")
    data = federation(tmp_path, resize=4)
    striped = data.x[(data.x.reshape(4, -1).mean(1) - (100 / 127.5 - 1)).abs() < 0.01]
    assert striped.shape == (1, 1, 4, 4) and float((striped - (100 / 127.5 - 1)).abs().max()) < 3 / 127.5


def test_grey_beside_colour_and_what_the_error_advises(tmp_path: Path) -> None:
    write(two_classes(tmp_path) / "dog" / "z.png", 70, mode="L")
    with pytest.raises(normec.BadInput, match=r"z.png has .*1 channel of 8 bits.*data.channels=3 for colour, or data.channels=1"):
        federation(tmp_path)
    assert federation(tmp_path, channels=3).x.shape == (5, 3, 3, 4) and federation(tmp_path, channels=1).x.shape == (5, 1, 3, 4)


def png(values: np.ndarray) -> bytes:
    """(height, width, channels) of uint16 as a PNG, written by hand, since Pillow writes no colour of 16 bits."""
    height, width, channels = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 16, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def tiff(values: np.ndarray, order: str, deflate: bool = False) -> bytes:
    """(height, width, 3) of uint16 as a TIFF of one strip."""
    height, width, channels = values.shape
    content = values.astype(f"{order}u2").tobytes()
    content = zlib.compress(content) if deflate else content
    after = 8 + 2 + 12 * 9 + 4
    tags = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, channels, after), (259, 3, 1, 8 if deflate else 1), (262, 3, 1, 2),
            (273, 4, 1, after + 2 * channels), (277, 3, 1, channels), (278, 4, 1, height), (279, 4, 1, len(content))]  # fmt: skip

    def entry(tag: int, kind: int, number: int, value: int) -> bytes:
        short = kind == 3 and number == 1
        return struct.pack(f"{order}HHI", tag, kind, number) + (
            struct.pack(f"{order}HH", value, 0) if short else struct.pack(f"{order}I", value)
        )

    head = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HIH", 42, 8, len(tags))
    return head + b"".join(entry(*tag) for tag in tags) + struct.pack(f"{order}I", 0) + struct.pack(f"{order}HHH", 16, 16, 16) + content


DEEP = np.random.default_rng(0).integers(0, 65536, (5, 4, 4)).astype(np.uint16)
DEEP[0, 0], DEEP[0, 1] = 0, 65535


@pytest.mark.parametrize(
    ("name", "content", "channels"),
    [
        ("grey.png", lambda: png(DEEP[:, :, :1]), 1),
        ("colour.png", lambda: png(DEEP[:, :, :3]), 3),
        ("transparent.png", lambda: png(DEEP), 3),
        ("little.tif", lambda: tiff(DEEP[:, :, :3], "<"), 3),
        ("big.tif", lambda: tiff(DEEP[:, :, :3], ">"), 3),
        ("deflated.tif", lambda: tiff(DEEP[:, :, :3], "<", deflate=True), 3),
        ("deflated-big.tif", lambda: tiff(DEEP[:, :, :3], ">", deflate=True), 3),
    ],
)
def test_16_bits_are_read_in_full(tmp_path: Path, name: str, content: Callable[[], bytes], channels: int) -> None:
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        (tmp_path / label / name).write_bytes(content())
    data = federation(tmp_path)
    expected = DEEP[:, :, :channels].transpose(2, 0, 1) / 32767.5 - 1
    np.testing.assert_allclose(data.x[0].numpy(), expected, atol=1e-6)
    assert any("data.pixel_max=4095 is right for 12 bits in 16" in note for note in data.notes)
    assert any("transparency of 2 images" in note for note in data.notes) == (name == "transparent.png")
    grey = federation(tmp_path, channels=1, resize=[5, 4]).x[0].numpy()
    np.testing.assert_allclose(grey, np.tensordot([0.299, 0.587, 0.114], expected, 1)[None] if channels == 3 else expected, atol=1e-5)


def write_array(path: Path, values: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)
    return path


def test_12_bits_keep_all_their_values(tmp_path: Path) -> None:
    values = np.arange(4096, dtype=np.uint16).reshape(64, 64)
    for label in ("cat", "dog"):
        write_array(tmp_path / label / "a.tif", values)
    data = federation(tmp_path, pixel_max=4095)
    assert len(data.x[0].unique()) == 4096
    np.testing.assert_allclose(data.x[0, 0].numpy(), values / 2047.5 - 1, atol=1e-6)
    with pytest.raises(normec.BadInput, match=r"pixel_max=1000: .*a.tif holds numbers from 0 to 4095. Set data.pixel_max to the largest"):
        federation(tmp_path, pixel_max=1000)


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_numbers_of_32_bits_need_a_white(tmp_path: Path, kind: Any) -> None:
    values = np.arange(12).reshape(3, 4).astype(kind)
    for label in ("cat", "dog"):
        write_array(tmp_path / label / "a.tif", values)
    with pytest.raises(normec.BadInput, match=r"pixel_max: .*a.tif holds .* and no format says which of them is white. Set it"):
        federation(tmp_path)
    np.testing.assert_allclose(federation(tmp_path, pixel_max=11).x[0, 0].numpy(), values / 5.5 - 1, atol=1e-6)
    write_array(tmp_path / "cat" / "a.tif", values - 5)
    with pytest.raises(normec.BadInput, match=r"from -5 to 6. Give numbers below 0 as they are, as arrays x and y in an .npz file"):
        federation(tmp_path, pixel_max=11)
    files = [tmp_path / label / "a.tif" for label in ("cat", "dog")]
    np.savez(tmp_path / "t.npz", x=np.stack([np.asarray(Image.open(file)) for file in files]), y=np.array(["cat", "dog"]))
    assert federation(tmp_path / "t.npz").x.min() == -5


def test_depths_that_differ_under_a_white_of_ones_own(tmp_path: Path) -> None:
    two_classes(tmp_path, mode="L")
    write_array(tmp_path / "dog" / "z.png", np.full((3, 4), 4095, dtype=np.uint16))
    with pytest.raises(normec.BadInput, match=r"has 8. Leave it out; or, where others have more, save .* each value times 16.059"):
        federation(tmp_path, pixel_max=4095)
    for file in tmp_path.glob("*/[ab].png"):
        write_array(file, (np.asarray(Image.open(file)) * 16.059).round().astype(np.uint16))
    found = sorted(federation(tmp_path, pixel_max=4095).x[:, 0, 0, 0].tolist())
    assert found == pytest.approx([v / 127.5 - 1 for v in (0, 20, 50, 70, 255)], abs=3e-4)


def test_depths_that_differ_and_what_the_error_advises(tmp_path: Path) -> None:
    two_classes(tmp_path, mode="L")
    write_array(tmp_path / "dog" / "z.png", np.full((3, 4), 65535, dtype=np.uint16))
    with pytest.raises(
        normec.BadInput, match=r"z.png has .*values up to 65535.*8 bits.* Save those of 8 bits with 16, each value times 257"
    ):
        federation(tmp_path)
    for file in tmp_path.glob("*/[ab].png"):
        write_array(file, np.asarray(Image.open(file)).astype(np.uint16) * 257)
    assert sorted(federation(tmp_path).x[:, 0, 0, 0].tolist()) == pytest.approx([v / 127.5 - 1 for v in (0, 20, 50, 70, 255)])


def test_a_white_for_8_bits_and_what_the_error_advises(tmp_path: Path) -> None:
    with pytest.raises(normec.BadInput, match=r"pixel_max=4095 acts only with images of more than 8 bits.*Leave it out"):
        federation(two_classes(tmp_path), pixel_max=4095)
    assert len(federation(tmp_path).y) == 4


def test_kinds_whose_depth_is_not_read(tmp_path: Path) -> None:
    (two_classes(tmp_path) / "cat" / "a.png").write_bytes(png(DEEP[:, :, :2]))
    with pytest.raises(normec.BadInput, match=r"a.png is of a kind \(RGBA, stored as LA;16B\).*Save it as RGB or grey of 8 or 16 bits"):
        federation(tmp_path)


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("1", 1, [255]),
        ("L", 90, [90]),
        ("LA", (90, 255), [90]),
        ("P", 1, [10, 20, 30]),
        ("RGB", (10, 20, 30), [10, 20, 30]),
        ("RGBA", (10, 20, 30, 255), [10, 20, 30]),
        ("CMYK", (245, 235, 225, 0), [10, 20, 30]),
    ],
)
def test_every_mode_of_8_bits(tmp_path: Path, mode: str, colour: Any, expected: list[int]) -> None:
    image = Image.new(mode, (4, 3), colour)
    if mode == "P":
        image.putpalette([0, 0, 0, 10, 20, 30])
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        image.save(tmp_path / label / "a.tif")
    data = federation(tmp_path)
    assert data.x.shape == (2, len(expected), 3, 4) and data.notes == ()
    np.testing.assert_allclose(data.x[0, :, 1, 1].numpy(), np.array(expected) / 127.5 - 1, atol=1e-6)


def test_transparency_that_is_left_out_is_said(tmp_path: Path) -> None:
    two_classes(tmp_path)
    Image.new("RGBA", (4, 3), (9, 9, 9, 100)).save(tmp_path / "cat" / "c.png")
    assert federation(tmp_path).notes == (f"left out: the transparency of 1 image (first: {tmp_path / 'cat' / 'c.png'})",)


def bomb(width: int, height: int) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
        + chunk(b"IDAT", b"")
        + chunk(b"IEND", b"")
    )


def test_a_small_file_of_huge_pixels_is_refused_by_its_header(tmp_path: Path) -> None:
    two_classes(tmp_path)
    (tmp_path / "cat" / "bomb.png").write_bytes(bomb(200_000, 200_000))
    with pytest.raises(normec.BadInput, match=r"size_limit: .*bomb.png' takes 480,000,000,000 bytes.*Set data.size_limit=480000000000"):
        federation(tmp_path, resize=32, size_limit=10**9)
    with pytest.raises(
        normec.BadInput, match=r"size_limit=10{12}: .*bomb.png' takes 480,000,000,000 bytes of memory, and this machine has"
    ):
        federation(tmp_path, resize=32, size_limit=10**12)
    pq.write_table(pa.table({"image": [bomb(200_000, 200_000)] * 2, "label": ["a", "b"]}), tmp_path / "t.parquet")
    with pytest.raises(normec.BadInput, match=r"size_limit: 'image 0 of"):
        federation(tmp_path / "t.parquet", size_limit=10**9)


def test_a_raised_limit_stands_in_place_of_pillows_own(tmp_path: Path) -> None:
    two_classes(tmp_path)
    (tmp_path / "cat" / "large.png").write_bytes(bomb(10_000, 10_000))  # Pillow warns of a bomb
    with pytest.raises(normec.BadInput, match=r"large.png cannot be decoded"), warnings.catch_warnings(record=True) as seen:
        federation(tmp_path, resize=32, size_limit=10**12)
    assert not seen


def test_what_all_images_take_is_limited_and_the_limit_can_be_raised(tmp_path: Path) -> None:
    two_classes(tmp_path, size=(100, 100))
    with pytest.raises(normec.BadInput, match=r"size_limit: .* takes 600,000 bytes .* Set data.size_limit=600000 if"):
        federation(tmp_path, size_limit=500_000)
    assert len(federation(tmp_path, size_limit=600_000).y) == 4


def test_a_parquet_file_that_grows_is_not_read_on(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(file, "PNG")
    rows = 2000
    pq.write_table(pa.table({"image": [file.getvalue()] * rows, "label": ["a", "b"] * (rows // 2)}), tmp_path / "t.parquet")
    assert (tmp_path / "t.parquet").stat().st_size < 100_000
    with pytest.raises(normec.BadInput, match=r"size_limit: .*t.parquet' takes more than the 5,000,000 bytes"):
        federation(tmp_path / "t.parquet", size_limit=5_000_000)


def test_no_other_program_reads_an_image(tmp_path: Path) -> None:
    two_classes(tmp_path)
    (tmp_path / "cat" / "c.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 3\n")
    with pytest.raises(normec.BadInput, match=r"c.png cannot be decoded: it is no PNG, JPEG, BMP, GIF, WebP or TIFF"):
        federation(tmp_path)


@pytest.mark.parametrize("key", ["resize", "channels", "pixel_max", "pool"])
@pytest.mark.parametrize("source", ["digits", "builtins:list"])
def test_settings_of_images_are_refused_elsewhere(key: str, source: str) -> None:
    clients = {} if ":" in source else {"clients": 2}
    with pytest.raises(normec.BadInput, match=rf"data.{key}=1 acts only with images"):
        load(Data(source=source, **clients, **{key: 1 if key != "pixel_max" else 1.0}), Streams(0))


@pytest.mark.parametrize("value", [0, "32", [3], [3, 0], [3, 4, 5], 2.5, True, [2.5, 3]])
def test_sizes_that_are_none(value: Any) -> None:
    with pytest.raises(normec.BadInput, match=r"resize=.* must be a side in pixels, such as 32, or \[height, width\]"):
        Data(resize=value)


def test_a_name_that_cannot_be_written_down(tmp_path: Path) -> None:
    two_classes(tmp_path)
    os.mkdir(os.fsencode(tmp_path) + b"/bad\xff")
    with pytest.raises(normec.BadInput, match=r"the name of the folder .*bad.* is not UTF-8. Rename it"):
        federation(tmp_path)


def test_cifar_says_which_files_it_leaves_out(tmp_path: Path) -> None:
    pixels = [{"bytes": None}]
    file = io.BytesIO()
    Image.new("RGB", (32, 32)).save(file, "PNG")
    pixels = [{"bytes": file.getvalue(), "path": "x"}] * 2
    for name in ("train", "test", "validation"):
        pq.write_table(pa.table({"img": pixels, "label": [0, 1]}), tmp_path / f"{name}.parquet")
    data = load(Data(source="cifar10", path=str(tmp_path), clients=2), Streams(0))
    assert "left out, neither train* nor test*: 1 parquet file (first: validation.parquet)" in data.notes
    (tmp_path / "test.parquet").unlink()
    os.mkfifo(tmp_path / "test.parquet")
    with pytest.raises(normec.BadInput, match="is a FIFO, not a regular file"):
        load(Data(source="cifar10", path=str(tmp_path), clients=2), Streams(0))


UPRIGHT = np.random.default_rng(0).integers(0, 256, (2, 3, 3)).astype(np.uint8)
STORED = {
    1: UPRIGHT, 2: UPRIGHT[:, ::-1], 3: UPRIGHT[::-1, ::-1], 4: UPRIGHT[::-1], 5: UPRIGHT.swapaxes(0, 1),
    6: UPRIGHT.swapaxes(0, 1)[::-1], 7: UPRIGHT.swapaxes(0, 1)[::-1, ::-1], 8: UPRIGHT.swapaxes(0, 1)[:, ::-1],
}  # fmt: skip
"""How EXIF 2.32 stores an image by its orientation: 6 has the left edge as its top row, 8 the right one."""


def test_orientation_of_exif_is_applied_to_folders_and_parquet_at_every_depth(tmp_path: Path) -> None:
    rows = []
    for orientation, pixels in STORED.items():
        exif, file, label = Image.Exif(), io.BytesIO(), ("cat", "dog")[orientation % 2]
        exif[0x0112] = orientation
        Image.fromarray(pixels).save(file, format="PNG", exif=exif)
        rows.append({"bytes": file.getvalue(), "path": None})
        path = write(tmp_path / "flat" / label / f"{orientation}.png")
        path.write_bytes(file.getvalue())
        for suffix in ("png", "tif"):
            path = write(tmp_path / suffix / label / f"{orientation}.{suffix}")
            Image.fromarray(pixels[..., 0].astype(np.uint16) * 257).save(path, exif=exif)
    pq.write_table(pa.table({"img": rows, "label": [0, 1] * 4}), tmp_path / "flat.parquet")
    expected = UPRIGHT.transpose(2, 0, 1) / 127.5 - 1
    for source in ("flat", "flat.parquet", "png", "tif"):
        x = federation(tmp_path / source).x.numpy()
        wanted = expected if source.startswith("flat") else expected[:1]
        np.testing.assert_allclose(x, np.broadcast_to(wanted, (8, *wanted.shape)), atol=1e-6, err_msg=source)


def test_damaged_exif_leaves_an_image_as_it_is(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        file = write(tmp_path / label / "a.png")
        Image.fromarray(UPRIGHT).save(file, exif=b"Exif\x00\x00nonsense")
    np.testing.assert_allclose(federation(tmp_path).x.numpy()[0], UPRIGHT.transpose(2, 0, 1) / 127.5 - 1, atol=1e-6)
