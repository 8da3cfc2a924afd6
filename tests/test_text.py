"""Text: codes that lose nothing but foreign characters, windows of each speaker's own words, refusals, and a model that learns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

import normec
from normec.data import Data, load
from normec.data.alphabet import ALPHABET, CLASSES, encode
from normec.data.readers import Table
from normec.data.text import STRIDE, read_speakers
from normec.models.text import CharLM
from normec.streams import Streams

PLAY = Path(__file__).parent.parent / "examples" / "text" / "play.txt"
SMALL = """
ANNA:
The sun is up, the sea
is calm.

FIRST SAILOR:
Aye.
 \t
 BEN :
Then let us sail: away!

MUTE:

ANNA:
Not yet:
Soon.
"""
SAID = {"ANNA": "The sun is up, the sea\nis calm.\nNot yet:\nSoon.", "FIRST SAILOR": "Aye.", "BEN": "Then let us sail: away!"}


def decode(codes: np.ndarray) -> str:
    return "".join(ALPHABET[code] for code in codes)


def samples(table: Table) -> list[tuple[str, str, str]]:
    assert table.client is not None
    return [(str(name), decode(x), ALPHABET[y]) for name, x, y in zip(table.client, table.x, table.y, strict=True)]


def written(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "play.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@settings(deadline=None)
@given(st.text(st.sampled_from(ALPHABET[:-1])))
def test_codes_of_the_alphabet_lose_nothing(text: str) -> None:
    codes = encode(text)
    assert codes.dtype == np.int64 and decode(codes) == text


@settings(deadline=None)
@given(st.text(st.characters(categories=None)))
def test_every_other_character_is_the_last_symbol(text: str) -> None:
    assert encode(text).tolist() == [ALPHABET.index(each) if each in ALPHABET else 96 for each in text]


def test_the_alphabet_is_newline_printable_ascii_and_one_more() -> None:
    assert encode("\n ~é\t\x7f😀\ud800").tolist() == [0, 1, 95, 96, 96, 96, 96, 96]
    assert len(ALPHABET) == len(CLASSES) == len(set(CLASSES)) == 97
    assert (CLASSES[0], CLASSES[1], CLASSES[encode("a")[0]], CLASSES[96]) == ("newline", "space", "a", "other")


def test_windows_and_the_characters_after_them_by_hand(tmp_path: Path) -> None:
    table = read_speakers(written(tmp_path, "A:\nabcdefg\n\nB:\n12345\n\nA:\nhij\n\nC:\n6789\n"), window=4)
    assert samples(table) == [("A", "abcd", "e"), ("A", "fg\nh", "i"), ("B", "1234", "5")]
    assert table.notes == ("2 speakers; left out, with at most 4 characters: 1",)
    assert table.classes == CLASSES and table.text


@pytest.mark.parametrize("window", [1, 4, 5, 12, 22, 23])
def test_each_speaker_has_the_windows_of_its_own_words(tmp_path: Path, window: int) -> None:
    table = read_speakers(written(tmp_path, SMALL), window)
    assert table.x.dtype == table.y.dtype == np.int64 and table.x.shape == (len(table.y), window)
    assert samples(table) == [
        (name, said[start : start + window], said[start + window])
        for name, said in SAID.items()
        for start in range(0, len(said) - window, STRIDE)
    ]
    short = sum(len(said) <= window for said in SAID.values()) + 1  # MUTE
    assert table.notes[0].endswith(f": {short}") and table.notes[0].startswith(f"{len(SAID) + 1 - short} speaker")


def test_line_ends_and_a_byte_order_mark_change_nothing(tmp_path: Path) -> None:
    plain = samples(read_speakers(written(tmp_path, SMALL), 10))
    assert samples(read_speakers(written(tmp_path, b"\xef\xbb\xbf" + SMALL.strip().replace("\n", "\r\n").encode()), 10)) == plain


def test_only_newlines_end_a_line(tmp_path: Path) -> None:
    table = read_speakers(written(tmp_path, "A:\nab\u2028cd\x0cef"), window=7)
    assert samples(table) == [("A", f"ab{ALPHABET[96]}cd{ALPHABET[96]}e", "f")]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("ANNA:\nThe sun.\n\nThe sea.\n", "without a speaker in line 4: 'The sea.'. Begin it with a line NAME:"),
        ("\n\nACT I\n\nANNA:\nThe sun.\n", "without a speaker in line 3: 'ACT I'"),
        ("ANNA: The sun.\n", "without a speaker in line 1"),
        (":\nThe sun.\n", "without a speaker in line 1"),
        ("", "is empty"),
        (" \n\n\t\n", "is empty"),
        (b"ANNA:\nCaf\xe9\n", "cannot be read: .*position 9.*UTF-8"),
        ("ANNA:\nAye.\n\nBEN:\nNo.\n", r"more than 4 characters \(the most: 4\)"),
        ("ANNA:\n", r"more than 4 characters \(the most: 0\)"),
    ],
)
def test_what_is_no_play_is_refused_in_one_sentence(tmp_path: Path, content: str | bytes, problem: str) -> None:
    with pytest.raises(normec.BadInput, match=problem) as caught:
        read_speakers(written(tmp_path, content), window=4)
    assert caught.value.setting == "data.source" and "\n" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.txt", tmp_path):
        with pytest.raises(normec.BadInput, match="is not a file"):
            read_speakers(path, window=4)


def test_the_example_is_a_play_with_many_speakers() -> None:
    table = read_speakers(PLAY, window=40)
    assert len({name for name, _, _ in samples(table)}) == 38 and len(table.y) == 17_349
    assert CLASSES[96] == "other" and not (table.x == 96).any()
    assert samples(table)[0] == ("FIRST WITCH", "When shall we three meet again?\nIn thund", "e")


def test_the_model_gives_logits_of_the_character_after_each_window() -> None:
    torch.manual_seed(0)
    model = CharLM((12,), 97)
    assert sum(parameter.numel() for parameter in model.parameters()) == 62_433
    x = torch.randint(97, (5, 12))
    logits = model(x)
    assert logits.shape == (5, 97)
    torch.testing.assert_close(model(x[3:4]), logits[3:4])  # samples do not mix
    for position in (0, 11):
        other = x.clone()
        other[:, position] = (other[:, position] + 1) % 97
        assert bool((model(other) != logits).any(dim=1).all())  # each of the window's characters counts


@pytest.mark.parametrize(("shape", "classes"), [((8, 8), 97), ((), 97), ((40,), 10), ((40,), None)])
def test_the_model_refuses_what_is_no_text(shape: tuple[int, ...], classes: int) -> None:
    with pytest.raises(ValueError, match="not windows of text"):
        CharLM(shape, classes)


def test_the_model_learns_what_depends_on_more_than_one_character(tmp_path: Path) -> None:
    table = read_speakers(written(tmp_path, "A:\n" + "she sells sea shells by the sea shore. " * 8), window=10)
    x, y = torch.from_numpy(table.x), torch.from_numpy(table.y)
    torch.manual_seed(0)
    model = CharLM((10,), 97)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(60):
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert abs(losses[0] - np.log(97)) < 0.5 and losses[-1] < 0.1
    assert bool((model(x).argmax(1) == y).all())


def test_a_text_whose_speakers_are_not_the_clients_is_warned_of() -> None:
    dealt, own = (load(Data(source=str(PLAY), **choice), Streams(0)).notes for choice in ({"clients": 5}, {"partition": "column"}))
    assert any("warning" in note and "data.partition=column" in note for note in dealt)
    assert not any("warning" in note for note in own)
