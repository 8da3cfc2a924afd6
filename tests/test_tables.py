"""Tables: CSV, parquet and npz files. What is read, what is refused, and that every remedy works when it is followed."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

import normec
import normec.models
from conftest import Outcome
from normec.config import parse_assignments
from normec.data import Data, load
from normec.data.delimited import Form, read_delimited
from normec.data.huggingface import Samples
from normec.data.leaf import Held
from normec.data.limits import check_size, regular_file
from normec.data.pixels import Pixels
from normec.data.readers import Table
from normec.streams import Streams

Command = Callable[..., Outcome]


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
        ("fifo", "is a FIFO"), ("to fifo", "is a FIFO"), ("endless", "is a device"), ("s", "is a socket"), (".", "is not a file, but a folder"),
        ("circle", "cannot be looked up"), ("none", "does not exist"), ("x" * 300, "cannot be looked up"), ("a\0b", "cannot be looked up"),
    ):  # fmt: skip
        with pytest.raises(normec.BadInput, match=r"data.source=.*Give a table.") as error:
            regular_file(tmp_path / name, "data.source", "a table")
        assert said in str(error.value), error.value


def test_the_limit_of_the_memory_names_a_limit_that_is_enough(tmp_path: Path) -> None:
    with pytest.raises(normec.BadInput, match=r"takes 1,001 bytes of memory, and 1,000 are allowed. Set data.size_limit=1001 ") as error:
        check_size(tmp_path, 1001, 1000)
    check_size(tmp_path, 1001, int(str(error.value).split("size_limit=")[1].split()[0]))


def federation(source: Path | str, **choices: Any) -> normec.Federation:
    """All of a file: nothing is held out, and one client holds what no column deals."""
    own = {"clients": 1} if choices.get("partition") != "column" else {}
    return load(Data(source=str(source), **{"test_fraction": 0.0, **own, **choices}), Streams(0))


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refused(source: Path | str, **choices: Any) -> str:
    with pytest.raises(normec.BadInput) as error:
        federation(source, **choices)
    return str(error.value)


def followed(said: str) -> dict[str, Any]:
    """The setting that a remedy names, as the command reads it."""
    found = re.search(r"""'?data\.((?!source)\w+=(?:\[.*?"\]|\[[^\]]*\]|[^\s'.]+))""", said)
    assert found is not None, said
    return dict(parse_assignments([found[1]]))


@pytest.mark.parametrize(
    ("ids", "held"),
    [
        (["007", "7"], ("007", "7")),
        (["0x01", "1"], ("0x01", "1")),
        (["1e3", "1000"], ("1000", "1e3")),
        (["TRUE", "true"], ("TRUE", "true")),
        (["1_000", "1000"], ("1000", "1_000")),
        (["+7", "7"], ("+7", "7")),
        (["-0", "0"], ("-0", "0")),
        (['"nan"', '"NA"'], ("NA", "nan")),
        (["12345678901234567890", "12345678901234567891"], ("12345678901234567890", "12345678901234567891")),
        (["30", "7"], (7, 30)),
    ],
)
def test_ids_of_a_csv_keep_their_identity(tmp_path: Path, ids: list[str], held: tuple[Any, ...]) -> None:
    """As labels too, where whole numbers are 0 … C − 1 and all others texts."""
    rows = "".join(f"{i},{name},{'ab'[i % 2]}\n" for i, name in enumerate(ids))
    path = written(tmp_path / "t.csv", f"f,client,label\n{rows}")
    assert federation(path, partition="column").ids == held
    if isinstance(held[0], str):
        path = written(tmp_path / "t.csv", f"f,client,label\n{rows}")
        assert federation(path, label_column="client", client_column="label").classes == held


@pytest.mark.parametrize(
    ("mark", "row"),
    [("12%", 1), ('"1,234"', 1), ("5 mg", 1), ("?", 1), ("-", 1), ("<0.5", 1), ("€ 3", 1), ("true", 1), ("1_000", 1), ('"NA"', 1)],
)
def test_a_column_of_numbers_is_not_left_out_for_a_few_marks(tmp_path: Path, mark: str, row: int) -> None:
    path = written(tmp_path / "t.csv", f"a,b,old,label\n1,2,9,x\n2,{mark},9,y\n3,4,9,x\n4,5,9,y\n")
    said = refused(path, drop_columns=["old"])
    assert "the column 'b' holds numbers, except in 1 row" in said and f"first: row {row}, counting from 0: {mark.strip(chr(34))!r}" in said
    assert federation(path, **followed(said[said.index("leave such") :])).x.tolist() == [[1], [2], [3], [4]]  # the old one stays out too


def test_a_decimal_comma_is_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", "a;b;label\n1,5;2;x\n2;3;y\n")
    said = refused(path)
    assert "'1,5'" in said
    data = federation(path, **followed(said))
    assert data.x.tolist() == [[1.5, 2.0], [2.0, 3.0]] and any("separator: ;" in note for note in data.notes)
    both = written(tmp_path / "t.csv", "a;label\n1.234,5;x\n2,5;y\n")
    assert "'1.234,5'" in refused(both, decimal=",")
    targets = written(tmp_path / "t.csv", "a;label\n1;0,5\n2;-1,5\n")
    assert load(Data(source=str(targets), decimal=",", clients=1, test_fraction=0), Streams(0)).y.tolist() == [0.5, -1.5]


def test_booleans_are_numbers_and_what_is_left_out_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", "a,flag,word,when,none,label\n1,true,u,2020-01-02,,x\n2,False,v,2020-01-03,,y\n")
    data = federation(path)
    assert data.x.tolist() == [[1.0, 1.0], [2.0, 0.0]]
    assert "features: a, flag; left out, not numeric: word (text), when (text), none (empty): 3 of 5 columns" in data.notes
    columns = {
        "flag": [True, False], "small": pa.array([1, 2], pa.float16()), "money": pa.array([1, 2]).cast(pa.decimal128(21, 2)),
        "code": pa.array([3, 4]).dictionary_encode(), "word": pa.array(["u", "v"]).dictionary_encode(), "when": pa.array([1, 2], pa.timestamp("us")),
        "list": [["p"], ["q"]], "map": [{"k": 1}, {"k": 2}], "raw": [b"1", b"2"], "label": ["x", "y"],
    }  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    data = federation(tmp_path / "t.parquet")
    assert data.x.tolist() == [[1, 1, 1, 3], [0, 2, 2, 4]]
    (note,) = [note for note in data.notes if "left out" in note]
    for name in ("word (text)", "when (timestamp[us])", "list (list<", "map (struct<", "raw (binary)", "5 of 9 columns"):
        assert name in note, note
    assert "holds list<" in refused(tmp_path / "t.parquet", label_column="list")


@pytest.mark.parametrize("kind", [pa.list_(pa.float64(), 2), pa.list_(pa.float32()), pa.large_list(pa.int64())])
def test_lists_of_one_length_are_as_many_features(tmp_path: Path, kind: pa.DataType) -> None:
    path = tmp_path / "t.parquet"

    def table(*lists: list[int | None] | None, **choices: Any) -> Path:
        pq.write_table(pa.table({"e": pa.array(lists, kind), "age": [7, 8, 9], "label": ["x", "y", "x"]}), path, row_group_size=2)
        return path

    data = federation(table([1, 2], [3, 4], [5, 6]))
    assert data.x.tolist() == [[1, 2, 7], [3, 4, 8], [5, 6, 9]]
    assert "'e' holds lists of 2 numbers, read as 2 columns: e[0] …" in data.notes and "features: e[0], e[1], age" in data.notes
    assert federation(path, drop_columns=("e[0]",)).x.tolist() == [[2, 7], [4, 8], [6, 9]]
    assert federation(path, label_column=("e[0]", "e[1]"), drop_columns=("label",)).y.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert "'e' holds lists. Name one of their places, such as e[0]." in refused(path, label_column="e")
    said = refused(table([1, 2], [3, None], [5, 6]))
    assert "1 row with missing" in said and "row 1," in said and "'e[1]' 1." in said
    assert federation(path, **followed(said)).x.tolist() == [[1, 7], [3, 8], [5, 9]]


def test_lists_of_several_lengths_are_refused(tmp_path: Path) -> None:
    columns = {"e": [[1, 2], [3, 4], None, [5]], "age": [7, 8, 9, 10], "label": ["x", "y", "x", "y"]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    said = refused(tmp_path / "t.parquet")
    assert "the column 'e' holds lists of 1 to 2 numbers (first unlike those before it: row 3, counting from 0)" in said
    assert federation(tmp_path / "t.parquet", **followed(said)).x.tolist() == [[7], [8], [9], [10]]
    pq.write_table(pa.table({"e[0]": [1, 2], "e": [[1], [2]], "label": ["x", "y"]}), tmp_path / "t.parquet")
    assert "has a column 'e[0]' beside the lists of 'e'. Rename one." in refused(tmp_path / "t.parquet")


@pytest.mark.parametrize("partition", ["column", "iid"])
def test_a_misspelt_client_column_names_the_nearest(tmp_path: Path, partition: str) -> None:
    path = written(tmp_path / "t.csv", "ward,a,label\n1,2,x\n2,3,y\n")
    said = refused(path, client_column="wrad", partition=partition)
    assert said == f"data.client_column='wrad' is not a column of {path}. Did you mean ward?"


def test_json_in_folders_below_is_named(tmp_path: Path) -> None:
    for part in ("train", "test"):
        (tmp_path / "data" / part).mkdir(parents=True)
        written(tmp_path / "data" / part / "a.json", leaf(ann=([[1, 2], [3, 4]], [0, 1])))
    assert f"such as data/test/a.json. Give the folder {tmp_path}/data if" in refused(tmp_path)
    assert federation(tmp_path / "data").x.tolist() == [[1, 2], [3, 4]]


def test_numbers_as_text_in_a_parquet_are_not_left_out(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2], "b": ["1.5", "2.5"], "label": ["x", "y"]}), tmp_path / "t.parquet")
    said = refused(tmp_path / "t.parquet")
    assert "'b' holds numbers as text" in said and federation(tmp_path / "t.parquet", **followed(said)).x.tolist() == [[1], [2]]


def test_an_index_of_pandas_is_no_feature(tmp_path: Path) -> None:
    parts = [pd.DataFrame({"a": [1.5, 2.5], "label": ["x", "y"]}) for _ in range(2)]
    for name, frame in {
        "repeats": pd.concat(parts),
        "sorted": parts[0].sort_values("label", ascending=False),
        "named": parts[0].rename_axis("p"),
    }.items():
        frame.to_parquet(tmp_path / f"{name}.parquet")
        frame.to_csv(tmp_path / f"{name}.csv")
        data = federation(tmp_path / f"{name}.parquet")
        assert data.x.shape[1] == 1 and (name == "named" or name == "sorted" or "'__index_level_0__'" in data.notes[1])
        if name != "named":
            again = pd.read_csv(tmp_path / f"{name}.csv")
            again.to_csv(tmp_path / "twice.csv")
            for path in (tmp_path / f"{name}.csv", tmp_path / "twice.csv"):
                data = federation(path)
                assert data.x.shape[1] == 1 and any("index of a table and no feature" in note for note in data.notes)
    patients = pd.DataFrame({"a": [1.0, 2.0], "label": ["x", "y"]}, index=pd.Index([7, 8], name="patient"))
    patients.to_parquet(tmp_path / "p.parquet")
    assert federation(tmp_path / "p.parquet").x.tolist() == [[1], [2]]
    assert federation(tmp_path / "p.parquet", partition="column", client_column="patient").ids == (7, 8)


def test_an_index_that_became_a_column_is_none_either_and_a_counter_is_pointed_out(tmp_path: Path) -> None:
    rows = [(i % 25, i % 25, i % 7, "xy"[i % 2]) for i in range(50)]
    frame = pd.DataFrame(rows, columns=["index", "count", "weekday", "label"])
    frame.to_csv(tmp_path / "t.csv", index=False)
    data = federation(tmp_path / "t.csv")
    assert data.x.shape == (50, 2)
    assert any("no feature: 'index'" in note for note in data.notes)
    assert [note for note in data.notes if note.startswith("warning")] == [
        "warning: the feature 'count' counts rows, and starts anew, as an index of several tables does; data.drop_columns leaves columns out"
    ]


def test_missing_values_are_counted_by_column(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", "a,b,c,label\n1,,3,x\n2,NA,inf,y\n3,4,5,x\n")
    said = refused(path)
    assert "has 2 rows with missing or infinite values (first: row 0, counting from 0); by column: 'b' 2, 'c' 1." in said
    assert federation(path, **followed(said)).x.tolist() == [[1], [2], [3]]
    with pytest.raises(
        normec.BadInput,
        match=r"x has 2 rows with NaN or infinite values .first: row 0, counting from 0.; by column, counting from 0: 1: 2\. Fill",
    ):
        normec.Federation.from_arrays([[1, np.nan], [2, np.inf]], [0, 1], [0, 0])


def test_names_that_are_nearly_one_are_warned_of(command: Command) -> None:
    Path("t.csv").write_text(
        "f,client,label\n" + "1,Klinik 000,died\n2,Klinik 000 ,Died\n3,KLINIK 000,x\n4,caf\u00e9,x\n5,cafe\u0301,x\n6,z,x\n" * 3
    )
    done = command("train", "data.source=t.csv", "data.partition=column", "privacy.trust=none", "rounds=1", "--out", "out")
    assert done.code == 0, done.err
    shown = " ".join(done.out.split())
    assert "client ids that differ by case, blanks" in shown and "'KLINIK 000' and 'Klinik 000' and 'Klinik 000 ', and 1 more such" in shown
    assert "labels that differ by case, blanks" in shown and "'Died' and 'died'" in shown
    apart = normec.Federation.from_arrays(np.zeros((3, 1)), ["a", "b", "a"], [1, "1", "2"])
    assert not apart.notes


def test_a_federation_shows_sizes_alone() -> None:
    data = normec.Federation.from_arrays([[123.0], [456.0]], ["secret", "x"], ["Ann", "Bob"], test=([[7.0]], ["x"]))
    assert repr(data) == "Federation(2 clients, 2 training samples of shape (1,), 2 classes, 1 test sample)"
    assert "Ann" not in repr(data.thinned(1)) and "123" not in f"{data}"


def test_what_readers_return_shows_sizes_alone(tmp_path: Path) -> None:
    for record in (Table(np.full((2, 3), 4711.5), np.array(["secret"]), np.array(["secret"]), ("secret",)),
                   Samples(np.full((2, 3), 4711.5), np.array(["secret"]), ("secret",), ()), Pixels(np.full((2, 3), 47), 47.0),
                   Held(np.full((2, 3), 4711.5), np.array(["secret"]), np.array(["secret"]))):  # fmt: skip
        assert "ndarray(2, 3)" in repr(record) and "secret" not in repr(record) and "47" not in repr(record)
    frame = read_delimited(written(tmp_path / "t.csv", "a,label\n4711,secret\n"), Form(), "label", 10**6)
    assert "(1, 2)" in repr(frame) and "secret" not in repr(frame) and "4711" not in str(frame)


def test_a_csv_does_not_depend_on_where_blocks_end(tmp_path: Path) -> None:
    """Two megabytes with line breaks in quotation marks, two rows of which are longer than a megabyte together."""
    rows = [(i, f"line\r\nbreak, {i} " + "x" * (600_000 if i in (3, 4) else 10), "xy"[i % 2]) for i in range(30_000)]
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("a", "note", "label"), *rows])
    data = federation(tmp_path / "t.csv")
    assert data.x[:, 0].tolist() == list(range(30_000)) and data.y[:4].tolist() == [0, 1, 0, 1]


TABLE = "a,b,label\n1,2,ä\n3,4,b\n"


@pytest.mark.parametrize(
    ("name", "content", "choices"),
    [
        ("t.CSV", TABLE.encode(), {}),
        ("t.csv", TABLE.replace(",", ";").encode(), {}),
        ("t.csv", TABLE.replace(",", "\t").encode(), {}),
        ("t.csv", TABLE.replace(",", "|").encode(), {}),
        ("t.tsv", TABLE.replace(",", "\t").encode(), {}),
        ("t.csv", TABLE.replace(",", "^").encode(), {"separator": "^"}),
        ("t.csv", TABLE.replace(",", "\t").encode(), {"separator": "tab"}),
        ("t.csv", TABLE.replace("\n", "\r\n").encode(), {}),
        ("t.csv", TABLE.rstrip("\n").encode(), {}),
        ("t.csv", ("\n\n" + TABLE).encode(), {}),
        ("t.csv", TABLE.encode("utf-8-sig"), {}),
        ("t.csv", TABLE.encode("utf-16"), {}),
        ("t.csv", TABLE.encode("cp1252"), {"encoding": "cp1252"}),
        ("t.csv", TABLE.replace(",", ", ").replace(" ä", "ä").replace(" b\n3", "b\n3").replace("4, b", "4,b").encode(), {}),
        ("t.csv.gz", gzip.compress(TABLE.encode()), {}),
        ("t.csv", gzip.compress(TABLE.encode()), {}),
    ],
)
def test_a_csv_as_others_write_it(tmp_path: Path, name: str, content: bytes, choices: dict[str, Any]) -> None:
    data = federation(written(tmp_path / name, content), **choices)
    assert data.x.tolist() == [[1, 2], [3, 4]] and data.classes == ("b", "ä")


def test_a_csv_that_cannot_be_read_names_cause_and_remedy(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for content in (TABLE.encode("latin-1"), TABLE.encode("utf-16-le"), TABLE.encode("utf-16-be")):
        assert federation(path, **followed(refused(written(path, content)))).classes == ("b", "ä")
    numbers = "5.1,3.5,0\n4.9,3.0,1\n"
    said = refused(written(path, numbers))
    assert "has no names of columns: its first row begins with '5.1, 3.5, 0'. Put a first row into it" in said
    assert federation(written(path, f"a,b,label\n{numbers}")).x.tolist() == [[5.1, 3.5], [4.9, 3.0]]
    assert "1 row without 3 cells as the first row has, but 2 (first: row 1, counting from 0: '3,4')" in refused(
        written(path, "a,b,label\n1,2,x\n3,4\n")
    )
    assert "give that column a name in the first row too" in refused(written(path, "a,label\nr1,1,x\nr2,2,y\n"))
    assert federation(written(path, "row,a,label\nr1,1,x\nr2,2,y\n")).x.tolist() == [[1], [2]]
    assert "a quotation mark opens in row 0, counting from 0, and never closes" in refused(written(path, 'a,label\n1,"x\n2,y\n'))
    assert "close or remove the quotation mark that opens there" in refused(written(path, 'f,a,label\nb,"2,1\nb,3,1\na",4,0\n'))
    np.savez(tmp_path / "o.npz", x=np.array([1, "a"], dtype=object), y=np.arange(2))
    assert "array x of" in refused(tmp_path / "o.npz") and "holds Python objects" in refused(tmp_path / "o.npz")
    assert "two columns of one name, 'a'" in refused(written(path, "a,a,label\n1,2,x\n"))
    assert "it is a zip archive, as .xlsx" in refused(written(path, b"PK\x03\x04\0\0"))
    assert "it is a workbook of Excel. Save the sheet as .csv" in refused(written(tmp_path / "t.xls", b"\xd0\xcf\x11\xe0\xa1"))
    assert "it is a zip archive" in refused(written(tmp_path / "t.parquet", b"PK\x03\x04\0\0"))
    said = refused(written(path, f"Export;;\n;vom 1.1.2024;\n{TABLE.replace(',', ';')}"))
    assert "names its columns in row 3 and not in the first one, which is 'Export, , '. Remove the 2 rows before the names" in said
    excel = federation(written(path, f"sep=;\r\n{TABLE.replace(',', ';')}"))
    assert excel.classes == ("b", "ä") and "separator: ; (the first line of the file sets it)" in excel.notes
    said = refused(written(path, TABLE.replace(",", ":")))
    assert "has one column alone" in said and federation(path, separator=":").classes == ("b", "ä")
    assert "'rot13' is not an encoding of text" in refused(written(path, TABLE), encoding="rot13")
    for separator in (",;", '"', "\n", "é"):
        with pytest.raises(normec.BadInput, match="separator"):
            Data(source="t.csv", separator=separator)


def rows_with(**replaced: str) -> list[str]:
    rows = [f"{i},{i * 0.5},note {i},{i % 2}" for i in range(12)]
    for row, text in replaced.items():
        rows[int(row[1:])] = text
    return rows


@pytest.mark.parametrize(
    ("rows", "row", "swallowed"),
    [
        (rows_with(r5='5,2.5,"note 5,1', r9='9,4.5,note 9",1'), 5, "6,3.0,note 6,0"),
        (rows_with(r5='5,2.5,"note 5,1', r9='9,4.5,"note 9",1'), 5, "6,3.0,note 6,0"),
        (rows_with(r5='5,2.5,"note 5,1', r6='6,3.0,note 6",0'), 5, "6,3.0,note 6"),
        (rows_with(r5='5,2.5,"note 5,1', r7="7,NA,?,?", r8="8,only", r9='9,4.5,note 9",1'), 5, "6,3.0,note 6,0"),
        (rows_with(r2='"2,1.0,note 2,0', r3='3",1.5,note 3,1'), 2, "3"),
        (rows_with(r2='2,1.0,"a\nb, c",0', r8='8,4.0,"note,0', r9='9,4.5,note",1'), 8, "9,4.5,note"),
    ],
)
def test_a_quotation_mark_that_stays_open_hides_no_rows(tmp_path: Path, rows: list[str], row: int, swallowed: str) -> None:
    said = refused(written(tmp_path / "t.csv", "\n".join(["id,f,note,label", *rows]) + "\n"))
    assert f"a quotation mark opens in row {row}, counting from 0, and closes only after {swallowed!r}" in said


@pytest.mark.parametrize("text", ["one\ntwo, and\nthree", "see 1,2,3\nDear a, b\n\nbye", '""one"" \r\n\r\n two', "a, b\nc, d, e", "1\n2"])
def test_a_text_of_several_lines_stays_one_cell(tmp_path: Path, text: str) -> None:
    rows = rows_with(r5=f'5,2.5,"{text}",1')
    data = federation(written(tmp_path / "t.csv", "\n".join(["id,f,note,label", *rows])), drop_columns=["id"])
    assert data.x[:, 0].tolist() == [i * 0.5 for i in range(12)]


def test_thousands_are_not_taken_for_decimals(tmp_path: Path) -> None:
    english = written(tmp_path / "e.csv", 'a,b,label\n1,"1,234",x\n2,"2,345.50",y\n')
    assert "Write plain numbers, without commas between thousands" in refused(english) and "data.decimal" not in refused(english)
    german = written(tmp_path / "g.csv", "a;b;label\n1,5;1.234;x\n2;2.345;y\n")
    said = refused(german, decimal=",")
    assert "without points between thousands" in said and "remove data.decimal" not in said
    assert "'1,5'" in refused(german)
    mixed = written(tmp_path / "m.csv", 'a,b,label\n1,"1,234",x\n2,"2,5",y\n')
    assert followed(refused(mixed)) == {"decimal": ","} and "'2,5'" in refused(mixed)
    unclear = federation(written(tmp_path / "u.csv", "a;b;label\n12;0.123;x\n2.345;2.345;y\n"))
    assert [note for note in unclear.notes if "thousands" in note] == [
        "warning: in 'a' the point of numbers such as 2.345 is read as the decimal point. If it stands between thousands, write plain numbers"
    ]


def test_labels_with_a_decimal_comma_are_no_names_of_classes(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", "a;label\n1;0,5\n2;-1,5\n3;2\n")
    said = refused(path)
    assert "such as '-1,5', which would be names of classes" in said
    assert federation(path, **followed(said)).y.tolist() == [0.5, -1.5, 2.0]


@pytest.mark.parametrize(
    ("ids", "shown"),
    [(["007", "7"], "'007' and '7'"), (["A", "A\u200b"], "'A' and 'A\\u200b'"), (["a  b", "A b"], "'A b' and 'a  b'"), (["?", "a"], "'?'"),
     (["k.A.", "a"], "'k.A.'"), (["000", "x"], ""), (["1-2", "12"], "")],
)  # fmt: skip
def test_ids_that_a_spreadsheet_may_have_changed_are_pointed_out(tmp_path: Path, ids: list[str], shown: str) -> None:
    path = written(tmp_path / "t.csv", "f,client,label\n" + "".join(f"{i},{name},{i % 2}\n" for i, name in enumerate(ids)))
    warned = [note for note in federation(path, partition="column").notes if "client ids" in note]
    assert len(warned) == bool(shown) and all(shown in note for note in warned)


def test_identifiers_above_every_int64_stay_apart(tmp_path: Path) -> None:
    ids = np.array([2**63, 2**63 + 1], dtype=np.uint64)
    pq.write_table(pa.table({"client": ids, "f": [1.0, 2.0], "label": pa.array(["x", "y"], pa.string_view())}), tmp_path / "t.parquet")
    data = federation(tmp_path / "t.parquet", partition="column")
    assert data.ids == ("9223372036854775808", "9223372036854775809") and data.classes == ("x", "y")


def varint(value: int, length: int) -> bytes:
    """As thrift writes an integer in a parquet's footer, in so many bytes."""
    return bytes((2 * value >> 7 * place) & 127 | (128 if place < length - 1 else 0) for place in range(length))


def test_a_parquet_that_holds_more_than_its_headers_say_is_refused(tmp_path: Path) -> None:
    table = pa.table({"s": [f"{i:04d}" + "x" * 9996 for i in range(8_000)], "f": np.arange(8_000.0), "label": ["a", "b"] * 4_000})
    pq.write_table(table, tmp_path / "t.parquet", compression="snappy", use_dictionary=False, row_group_size=2_000)
    content, chunk = (tmp_path / "t.parquet").read_bytes(), pq.read_metadata(tmp_path / "t.parquet").row_group(0).column(0)
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    for said in (chunk.total_uncompressed_size, chunk.num_values):
        length = next(n for n in range(1, 6) if 2 * said < 128**n)
        forged = content[:start] + content[start:].replace(varint(said, length), varint(40, length))
        assert "values or bytes than its headers say" in refused(written(tmp_path / "f.parquet", forged), size_limit=10**7)
    assert federation(tmp_path / "t.parquet").sizes.tolist() == [8_000]


def test_sizes_are_known_before_anything_is_read(tmp_path: Path) -> None:
    """Files of a few kilobytes that hold megabytes; the limit that is named is enough."""
    pq.write_table(pa.table({"a": pa.array(np.zeros(10**6, np.int8)), "label": pa.array(np.arange(10**6) % 2)}), tmp_path / "t.parquet")
    np.savez_compressed(tmp_path / "t.npz", x=np.zeros((10**4, 100)), y=np.arange(10**4) % 2, z=np.zeros(10**7))
    for name, needed in (("t.parquet", 16_000_000), ("t.npz", 8_080_000)):
        assert (tmp_path / name).stat().st_size < needed / 20
        said = refused(tmp_path / name, size_limit=10**6)
        limit = followed(said)["size_limit"]
        assert needed <= limit < 1.3 * needed and "1,000,000 are allowed" in said
        assert len(federation(tmp_path / name, size_limit=limit).y) in (10**4, 10**6)
    assert "left out: 1 array (z)" in federation(tmp_path / "t.npz").notes[0]
    written(tmp_path / "t.csv.gz", gzip.compress(b"a,label\n" + b"1,x\n2,y\n" * 10**5))
    assert "more than the 100,000 bytes of memory" in refused(tmp_path / "t.csv.gz", size_limit=10**5)
    assert len(federation(tmp_path / "t.csv.gz", size_limit=10**7).y) == 2 * 10**5


def test_an_array_nobody_asked_for_is_not_even_looked_at(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x=np.eye(2), y=np.array([0, 1]), client=np.array([{}, {}]), more=np.array([{}]))
    assert federation(tmp_path / "t.npz").x.tolist() == [[1, 0], [0, 1]]
    assert "holds Python objects, which are not read" in refused(tmp_path / "t.npz", partition="column")


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.npz", "t.txt", "t.json", "t.csv.gz"])
def test_a_fifo_is_refused_and_not_read(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    assert "is a FIFO" in refused(tmp_path / name)
    assert "data.test_source=" in refused(written(tmp_path / "good.csv", TABLE), test_source=str(tmp_path / name))


def test_a_file_for_each_client(tmp_path: Path) -> None:
    """In any order of columns; by a folder, a pattern, or a file of one name in a folder for each."""
    (tmp_path / "all").mkdir()
    written(tmp_path / "all" / "north.csv", "a,b,label\n1,2,x\n3,4,y\n")
    written(tmp_path / "all" / "south.csv", "label,b,a\ny,6,5\n")
    for source in (tmp_path / "all", tmp_path / "all" / "*.csv"):
        data = federation(source, partition="column")
        assert data.ids == ("north", "south") and data.sizes.tolist() == [2, 1]
        assert data.client(1)[0].tolist() == [[5, 6]] and any(note.startswith("2 files of ") for note in data.notes)
    assert any("the samples of one file are in many clients' hands" in note for note in federation(tmp_path / "all").notes)
    written(tmp_path / "all" / "README.md", "what these are")
    assert any("left out, no tables of the folder itself: 1 (README.md)" in note for note in federation(tmp_path / "all").notes)
    for name in ("n", "s"):
        (tmp_path / "each" / name).mkdir(parents=True)
        written(tmp_path / "each" / name / "data.csv", TABLE)
    assert federation(tmp_path / "each" / "*" / "data.csv", partition="column").ids == ("n", "s")
    written(tmp_path / "all" / "west.csv", "a,c,label\n1,2,x\n")
    said = refused(tmp_path / "all", partition="column")
    assert "west.csv lacks 'b' and has 'c' more in comparison with north.csv" in said
    written(tmp_path / "all" / "west.csv", "a,b,label\n1,?,x\n")
    assert "first: row 0, counting from 0, of west.csv: '?'" in refused(tmp_path / "all", partition="column")
    written(tmp_path / "all" / "west.csv", "a,b,label\n")
    assert "west.csv has no rows" in refused(tmp_path / "all", partition="column")
    assert "matches no file" in refused(tmp_path / "none" / "*.csv")


def test_parts_of_a_table_keep_their_client_column(tmp_path: Path) -> None:
    for number, ids in enumerate((["u", "v"], ["v", "w"])):
        pq.write_table(pa.table({"a": [1.0, 2.0], "client": ids, "label": ["x", "y"]}), tmp_path / f"part-{number}.parquet")
    data = federation(tmp_path, partition="column")
    assert data.ids == ("u", "v", "w") and data.sizes.tolist() == [1, 2, 1] and "says who holds what" in " ".join(data.notes)


def test_a_test_file_of_its_own(tmp_path: Path) -> None:
    train = written(tmp_path / "train.csv", "a,b,client,label\n1,2,7,0\n3,4,8,1\n5,6,8,2\n")
    test = written(tmp_path / "test.csv", "b,a,client,label\n20,10,8,0\n40,30,7,2\n")
    data = federation(train, partition="column", test_source=str(test))
    assert data.test is not None and data.test[0].tolist() == [[10, 20], [30, 40]] and data.test[1].tolist() == [0, 2]
    assert data.ids == (7, 8) and data.test_owners is not None and data.test_owners.tolist() == [1, 0]
    assert any("2 test samples of data.test_source" in note for note in data.notes)
    written(test, "b,a,client,label\n20,10,007,0\n40,30,7,2\n")
    strangers = federation(train, partition="column", test_source=str(test))
    assert strangers.ids == ("7", "8") and strangers.test_owners is None and "first: '007'" in " ".join(strangers.notes)
    written(test, "b,c,client,label\n20,10,8,0\n")
    assert "data.test_source: of the features of data.source it lacks 'a' and has 'c' more" in refused(
        train, partition="column", test_source=str(test)
    )
    assert "test_source" in refused("digits", test_source="nothing.csv")


def test_a_test_file_that_is_trained_on_is_refused(tmp_path: Path) -> None:
    rows = "a,label\n1,x\n2,y\n"
    for name in ("north.csv", "south.csv", "test.csv"):
        written(tmp_path / name, rows)
    (tmp_path / "link.csv").symlink_to("north.csv")
    for source, test in (("", "test.csv"), ("*.csv", "test.csv"), ("test.csv", "test.csv"), ("north.csv", "link.csv"), ("test.csv", "")):
        said = refused(str(tmp_path / source), test_source=str(tmp_path / test))
        assert "data.test_source" in said and "and data.source share " in said
    (tmp_path / "link.csv").unlink()
    data = federation(str(tmp_path / "[ns]*.csv"), test_source=str(tmp_path / "test.csv"), partition="column")
    assert data.ids == ("north", "south") and data.test is not None and len(data.test[1]) == 2
    assert "no results by client: the test set has no column 'client'" in data.notes


def test_labels_of_several_kinds_are_pointed_out(tmp_path: Path) -> None:
    train, test = written(tmp_path / "a.csv", "a,label\n1,0\n2,1\n"), written(tmp_path / "b.csv", "a,label\n1,no\n2,yes\n")
    notes = federation(train, test_source=str(test)).notes
    assert any("some labels are numbers, such as '0', and some are words, such as 'no': 4 classes" in note for note in notes)
    assert any("of 4 classes 2 have no training samples, but test samples (first: 'no')" in note for note in notes)
    assert not [note for note in federation(train).notes if "warning" in note]


def test_a_folder_of_folders_of_tables_names_a_pattern(tmp_path: Path) -> None:
    for client in ("north", "south"):
        (tmp_path / client).mkdir()
        written(tmp_path / client / "data.csv", "a,label\n1,x\n2,y\n")
    written(tmp_path / "readme.txt", "two clients")
    said = refused(tmp_path, partition="column")
    assert "holds tables in folders below it alone, such as north/data.csv" in said
    assert federation(said.split("such as ")[-1].rstrip("."), partition="column").ids == ("north", "south")


@pytest.mark.parametrize("style", ["{:03d}", "2024-01-{:02d}", "2024-01-{:02d}T10:00:00Z", "{}.5"])
def test_a_split_by_time(tmp_path: Path, style: str) -> None:
    """Client u holds times 1, 3, …, 19, and v the even ones, in falling order: with a fifth to test, the last two of each."""
    rows = "".join(f"{t},{style.format(t)},{'vu'[t % 2]},{'xy'[t % 3 % 2]}\n" for t in range(20, 0, -1))
    path = written(tmp_path / "t.csv", f"a,when,client,label\n{rows}")
    own = federation(path, partition="column", time_column="when", test_fraction=0.2)
    assert own.test is not None and sorted(own.test[0].ravel().tolist()) == [17, 18, 19, 20]
    dealt = federation(path, time_column="when", clients=2, test_fraction=0.25)
    assert dealt.test is not None and sorted(dealt.test[0].ravel().tolist()) == [16, 17, 18, 19, 20]
    kind = "dates" if "-" in style else "numbers"
    assert any(f"by 'when', which is not a feature, read as {kind}" in note for note in own.notes)


def test_times_whose_order_is_not_known_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "wrong.csv", "a,t,label\n1,2024-05-31,x\n2,2024-06-31,y\n")
    assert "such as '2024-06-31', of which the order is not known" in refused(path, time_column="t")
    path = written(tmp_path / "t.csv", "a,when,label\n1,31.12.2023,x\n2,01.01.2024,y\n")
    assert "'31.12.2023', of which the order is not known" in refused(path, time_column="when")
    assert "not a column" in refused(path, time_column="then")
    with pytest.raises(normec.BadInput, match="has another role"):
        Data(source="t.csv", time_column="label")


def leaf(**users: tuple[list[Any], list[Any]]) -> str:
    data = {name: {"x": x, "y": y} for name, (x, y) in users.items()}
    return json.dumps({"users": list(users), "num_samples": [len(y) for _, y in users.values()], "user_data": data})


def test_leaf(tmp_path: Path) -> None:
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
    written(tmp_path / "train" / "a.json", leaf(ann=([[1, 2], [3, 4]], [0, 1])))
    written(tmp_path / "train" / "b.json", leaf(bob=([[5, 6]], [1])))
    written(tmp_path / "test" / "a.json", leaf(bob=([[7, 8]], [0])))
    data = federation(tmp_path, partition="column")
    assert data.ids == ("ann", "bob") and data.client(0)[0].tolist() == [[1, 2], [3, 4]] and data.client(1)[1].tolist() == [1]
    assert data.test is not None and data.test[0].tolist() == [[7, 8]] and data.test_owners is not None and data.test_owners.tolist() == [1]
    assert any("the samples of one user are in many clients' hands" in note for note in federation(tmp_path).notes)
    text = federation(written(tmp_path / "s.json", leaf(romeo=(["to b", "o be"], ["e", " "]))), partition="column")
    assert text.x.dtype == torch.int64 and text.x.shape == (2, 4) and text.classes is not None
    assert [text.classes[code] for code in text.x[0]] == ["t", "o", "space", "b"] and [text.classes[code] for code in text.y] == [
        "e",
        "space",
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[]", "not as LEAF writes it"),
        ("{", "not as LEAF writes it"),
        ('{"users": ["a"], "num_samples": [1]}', "'user_data' is missing"),
        (leaf(a=([[1]], [0])).replace('"num_samples": [1]', '"num_samples": [2]'), "user 'a' has not 2 samples"),
        (leaf(a=([[1], [1, 2]], [0, 1])), "samples of several shapes"),
        (leaf(a=(["ab", "b"], ["c", "d"])), "strings of 1 to 2 characters"),
        (leaf(a=([], [])), "holds no samples"),
    ],
)
def test_bad_leaf(tmp_path: Path, content: str, said: str) -> None:
    assert said in refused(written(tmp_path / "t.json", content))


def test_tokens_reach_an_embedding_from_a_file_as_from_python(command: Command) -> None:
    """And whole numbers a linear layer, from either."""
    Path("token_models.py").write_text(
        "import torch\n"
        "class Tokens(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.table, self.head = torch.nn.Embedding(7, 4), torch.nn.Linear(4, 2)\n"
        "    def forward(self, x): return self.head(self.table(x).mean(1))\n"
    )
    x, y = np.arange(60).reshape(20, 3) % 7, np.arange(20) % 2
    np.savez("t.npz", x=x, y=y, client=np.arange(20) % 4)
    pq.write_table(pa.table({"p": x[:, 0], "q": x[:, 1], "r": x[:, 2], "label": y, "client": np.arange(20) % 4}), "t.parquet")
    sys.path.insert(0, str(Path.cwd()))
    try:
        import token_models  # type: ignore[import-not-found]

        models = {"token_models:Tokens": token_models.Tokens, "logistic": normec.models.logistic}
        for name, make in models.items():
            data = normec.Federation.from_arrays(x, y, np.arange(20) % 4)
            run = normec.train(
                model=make, data=data, algorithm=normec.FedAvg(server_lr=1.0), local=normec.GD(steps=1, lr=0.1),
                participation=normec.Full(), privacy=normec.Privacy(trust="none"), rounds=2, seed=42,
            )  # fmt: skip
            for source in ("t.npz", "t.parquet"):
                out = f"{name.replace(':', '-')}-{source}"
                done = command(
                    "train",
                    f"data.source={source}",
                    "data.partition=column",
                    "data.test_fraction=0",
                    "algorithm.name=fedavg",
                    "algorithm.server_lr=1.0",
                    "local.steps=1",
                    "local.lr=0.1",
                    "participation.scheme=full",
                    f"model.name={name}",
                    "privacy.trust=none",
                    "rounds=2",
                    "--out",
                    out,
                )
                assert done.code == 0, done.err
                held = load_file(f"{out}/model.safetensors")
                assert all(torch.equal(held[key], value) for key, value in run.model.state_dict().items())
    finally:
        sys.path.remove(str(Path.cwd()))
