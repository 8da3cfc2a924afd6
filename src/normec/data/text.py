"""Plays: the next character is the label, and each speaker is a client."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from normec.data.alphabet import CLASSES, encode
from normec.data.limits import check_size, regular_file
from normec.data.readers import Table
from normec.errors import BadInput, plural

STRIDE = 5
"""Characters from the start of a window to the start of the next: each fifth one is predicted, and neighbours are less alike."""
SPEAKER = re.compile(r"\s*(\S.*?)\s*:\s*")


def read_speakers(path: Path, window: int, limit: int = 2**63) -> Table:
    """A play as a .txt file in UTF-8: paragraphs between blank lines, each of a line `NAME:` and the lines that NAME says.

    What a speaker says is joined in the order of the play, with a newline between lines. x: windows of codes (n, window), int64,
    that start every STRIDE characters; y (n,): the code of the character after each; client (n,): names. Samples are grouped by
    speaker, in the order of the play. A speaker who says no more than `window` characters has no sample, and is left out.

    Raises:
        BadInput: for a missing, undecodable or empty file, a paragraph without a speaker, or where every speaker is left out.
    """
    check_size(regular_file(path, "data.source", "the path of a .txt file"), path.stat().st_size * 8 * window // STRIDE, limit)
    lines = _spoken(path)
    texts = {name: encode("\n".join(said)) for name, said in lines.items()}
    kept = {name: codes for name, codes in texts.items() if len(codes) > window}
    if not kept:
        longest = max(map(len, texts.values()))
        raise BadInput(
            "data.source",
            f"has no speaker who says more than {plural(window, 'character')} (the most: {longest})",
            value=path,
            remedy="Use a smaller data.window, or a longer text",
        )
    samples = [sliding_window_view(codes, window + 1)[::STRIDE] for codes in kept.values()]
    x = np.concatenate([part[:, :-1] for part in samples])
    y = np.concatenate([part[:, -1] for part in samples])
    client = np.repeat(list(kept), [len(part) for part in samples])
    short = len(texts) - len(kept)
    notes = f"{plural(len(kept), 'speaker')}" + (f"; left out, with at most {plural(window, 'character')}: {short}" if short else "")
    return Table(x, y, client, (notes,), classes=CLASSES, text=True)


def _spoken(path: Path) -> dict[str, list[str]]:
    """The lines of each speaker, in the order of the play.

    Raises:
        BadInput: as `read_speakers`.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput("data.source", f"cannot be read: {error}", value=path, remedy="Give a text in UTF-8") from None
    speakers: dict[str, list[str]] = {}
    speech: list[str] | None = None
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            speech = None
        elif speech is not None:
            speech.append(line)
        elif heading := SPEAKER.fullmatch(line):
            speech = speakers.setdefault(heading[1], [])
        else:
            raise BadInput(
                "data.source",
                f"has a paragraph without a speaker in line {number}: {line.strip()[:40]!r}",
                value=path,
                remedy="Begin it with a line NAME:, or remove it",
            )
    if not speakers:
        raise BadInput("data.source", "is empty", value=path, remedy="Give paragraphs that begin with a line NAME:")
    return speakers
