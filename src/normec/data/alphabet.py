"""The characters that text is made of: a fixed alphabet, and their codes."""

from __future__ import annotations

import numpy as np

ALPHABET = "\n" + "".join(map(chr, range(32, 127))) + "\N{REPLACEMENT CHARACTER}"
"""Newline, printable ASCII, and one last symbol for every other character. It is fixed, so that it tells nothing of the data."""
CLASSES = ("newline", "space", *ALPHABET[2:-1], "other")
"""The names of the characters, in the order of their codes."""


def encode(text: str) -> np.ndarray:
    """The codes (n,) of a text's characters, int64: their positions in the alphabet."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.int64)
    codes = np.where((points >= 32) & (points < 127), points - 31, len(ALPHABET) - 1)
    codes[points == ord("\n")] = 0
    return codes
