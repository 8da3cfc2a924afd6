"""Tables: CSV, parquet and npz files. What is read, what is refused, and that every remedy works when it is followed."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

import normec
from normec.data.limits import check_size, regular_file


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    assert regular_file(tmp_path / "link", "data.source", "a table") == tmp_path / "link"
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "to fifo").symlink_to("fifo")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "endless").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "s"))
    for name, said in (
        ("fifo", "is a FIFO"), ("to fifo", "is a FIFO"), ("endless", "is a device"), ("s", "is a socket"), (".", "is no file, but a folder"),
        ("circle", "cannot be looked up"), ("none", "does not exist"), ("x" * 300, "cannot be looked up"), ("a\0b", "cannot be looked up"),
    ):  # fmt: skip
        with pytest.raises(normec.BadInput, match=r"data.source=.*Give a table.") as error:
            regular_file(tmp_path / name, "data.source", "a table")
        assert said in str(error.value), error.value


def test_the_limit_of_the_memory_names_a_limit_that_is_enough(tmp_path: Path) -> None:
    with pytest.raises(normec.BadInput, match=r"takes 1,001 bytes of memory, and 1,000 are allowed. Set data.size_limit=1001 ") as error:
        check_size(tmp_path, 1001, 1000)
    check_size(tmp_path, 1001, int(str(error.value).split("size_limit=")[1].split()[0]))
