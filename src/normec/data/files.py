"""Tables in files: one file, or one file per client."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from normec.data.arrays import read_npz
from normec.data.delimited import Form, read_delimited
from normec.data.features import samples
from normec.data.frame import Frame, joined
from normec.data.limits import check_size, refuse_other_kind, regular_file
from normec.data.parquet import read_parquet
from normec.data.readers import Columns, Table
from normec.errors import BadInput, plural

DELIMITED = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
T = TypeVar("T")
TABLES = (*DELIMITED, ".parquet")
HIDDEN = (".", "_", "~$")
"""How names begin that are no data: of hidden files, and of locks of spreadsheets."""
KNOWN = "digits, cifar10, a file, a folder of images or of tables, or package.module:function"


class Way(NamedTuple):
    """The way in which tables are read: the meaning of columns, the form of a CSV, and the bytes of memory that they may take."""

    columns: Columns
    form: Form
    limit: int


def suffix(path: Path) -> str:
    """The end of a file's name that tells its kind, in lower case, .gz included."""
    name = path.name.lower()
    return next((end for end in TABLES if name.endswith(end)), path.suffix.lower())


def is_pattern(source: str) -> bool:
    """Whether a source is a pattern of file names, such as data/*.csv."""
    return glob.has_magic(source) and not Path(source).exists()


def matching(source: str) -> list[Path]:
    """The files that a pattern stands for, in the order of their names.

    Raises:
        BadInput: where there are none.
    """
    files = [Path(name) for name in sorted(glob.glob(source, recursive=True)) if not Path(name).is_dir()]
    if not files:
        raise BadInput("data.source", "matches no file", value=source, remedy="Give a pattern that does, such as data/*.csv")
    return files


def tables_in(folder: Path) -> list[Path]:
    """The tables that lie in a folder itself, in the order of their names; hidden ones are left out."""
    return sorted(path for path in folder.iterdir() if suffix(path) in TABLES and not path.name.startswith(HIDDEN) and not path.is_dir())


def shared_file(source: str, other: str) -> Path | None:
    """The first file or folder of one source that is one of the other, or lies in a folder of it; None where there is none."""
    held = {path.resolve() for path in _parts(source)}
    return next((path for path in _parts(other) if held & {path.resolve(), *path.resolve().parents}), None)


def _parts(source: str) -> list[Path]:
    """The files that a source is read from; of images and JSON, the folder."""
    if is_pattern(source):
        return matching(source)
    path = Path(source)
    return (tables_in(path) if path.is_dir() else []) or [path]


def tables_below(folder: Path) -> BadInput | None:
    """The error for a folder of which most files are tables in folders below it, with a pattern that matches them; else None."""
    files = [Path(place, name) for place, _, names in os.walk(folder) for name in names if not name.startswith(HIDDEN)]
    tables = [path.relative_to(folder) for path in sorted(files) if suffix(path) in TABLES]
    if 2 * len(tables) <= len(files):
        return None
    pattern = folder.joinpath(*["*"] * (len(tables[0].parts) - 1), f"*{suffix(tables[0])}")
    return BadInput(
        "data.source",
        f"holds tables in folders below it alone, such as {tables[0]}",
        value=folder,
        remedy=f"Give a pattern such as {pattern}",
    )


def read_file(path: Path, way: Way) -> Table:
    """A .parquet, .csv or .npz file, the last with arrays x, y and perhaps client.

    Raises:
        BadInput: for a missing, foreign or empty file, a missing column, or missing values.
    """
    if suffix(path) == ".npz":
        return _guarded(path, lambda: read_npz(regular_file(path, "data.source", KNOWN), way.columns.natural, way.limit))
    return _guarded(path, lambda: samples(_frame(path, way), way.columns))


def read_files(paths: list[Path], way: Way) -> Table:
    """Tables with the same columns, one per client, whose id is the name of its file without the suffix.

    Where the files have the client column, it says who holds what instead.

    Raises:
        BadInput: as `read_file`, for columns that differ, and for two files of one name.
    """
    check_size(paths[0].parent, sum(regular_file(path, "data.source", KNOWN).stat().st_size for path in paths), way.limit)
    kinds = {"a CSV" if suffix(path) in DELIMITED else suffix(path) for path in paths}
    if len(kinds) > 1 or not kinds <= {"a CSV", ".parquet"}:
        raise BadInput(
            "data.source",
            f": {paths[0].parent} holds files of several kinds ({', '.join(sorted(kinds))})",
            remedy=f"Give tables of one kind, CSV or parquet, such as with a pattern {paths[0].parent}/*.csv",
        )
    names = [path.name[: -len(suffix(path))] for path in paths]
    if len(paths) > 1 and len(set(names)) == 1:
        names = [path.parent.name for path in paths]  # CLIENT/data.csv
    if len(set(names)) != len(names):
        raise BadInput(
            "data.source",
            (
                f": {next((path for path, name in zip(paths, names, strict=True) if names.count(name) > 1))} has a namesake, "
                "and both would be one client"
            ),
            remedy="Rename one",
        )
    frame = joined([_guarded(path, lambda path=path: _frame(path, way)) for path in paths])  # type: ignore[misc]
    table = samples(frame, way.columns)
    read = f"{plural(len(paths), 'file')} of {os.path.commonpath([path.parent for path in paths])}"
    if table.client is not None:
        return table._replace(notes=(*table.notes, f"{read}; the column {way.columns.client!r} says who holds what"))
    empty = [name for name, (_, rows) in zip(names, frame.parts, strict=True) if not rows]
    if empty:
        raise BadInput("data.source", f": {paths[names.index(empty[0])]} has no rows", remedy="Remove it, or give it rows")
    owners = np.repeat(names, [rows for _, rows in frame.parts])
    return table._replace(client=owners, notes=(*table.notes, read), unit="file")


def read_table_folder(path: Path, way: Way) -> Table:
    """The tables of a folder; everything else in it is named.

    Raises:
        BadInput: as `read_files`.
    """
    tables = tables_in(path)
    others = sorted(entry.name for entry in path.iterdir() if entry not in tables)
    table = read_files(tables, way)
    if not others:
        return table
    return table._replace(notes=(*table.notes, f"left out, no tables of the folder itself: {len(others):,} ({', '.join(others[:20])})"))


def _frame(path: Path, way: Way) -> Frame:
    kind = suffix(regular_file(path, "data.source", KNOWN))
    if kind == ".parquet":
        return read_parquet(path, way.columns.dropped, way.limit)
    if kind in DELIMITED:
        return read_delimited(path, way.form, way.columns.label, way.limit)
    with path.open("rb") as file:
        refuse_other_kind(path, file.read(4))
    raise BadInput("data.source", value=path, must="end in .parquet, .csv, .csv.gz, .tsv or .npz")


def _guarded(path: Path, read: Callable[[], T]) -> T:
    """What a reader returns; whatever it raises on a damaged file is one sentence."""
    try:
        return read()
    except BadInput:
        raise
    except Exception as error:
        reason = re.sub(r"\s+", " ", str(error)).strip().rstrip(".") or type(error).__name__
        raise BadInput("data.source", f"cannot be read: {reason[:200]}", value=path, remedy=f"Give an intact {suffix(path)} file") from None
