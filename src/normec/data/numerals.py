"""Numbers that are written as text: which columns hold them, and what stands between them."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np

from normec.data.checks import marked_as_missing
from normec.data.parquet import is_number

PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|infinity|nan)", re.IGNORECASE)
LIKE_A_NUMBER = re.compile(
    r"[<>≤≥~≈±=]{0,2}\s*[€$£¥]?\s*[+-]?(\d{1,3}([., '’_\u00a0\u202f]\d{3})+([.,]\d+)?|\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?"
    r"(\s*[%‰°€$£¥A-Za-zµμΩ²³/^·]{1,10})?"
)
"""Numbers, also with signs of money or comparison, groups of thousands, a per cent sign or a unit."""
WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")
GROUPED = {sign: re.compile(rf"\s*[+-]?[1-9]\d{{0,2}}(\{other}\d{{3}})+(\{sign}\d+)?\s*") for sign, other in ((".", ","), (",", "."))}
"""Numbers with groups of thousands, by the decimal sign beside which they are."""
SHORT = re.compile(r"\s*[+-]?\d{1,3}\s*")
DECIMAL = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")


class Odd(NamedTuple):
    """A column of numbers that holds other values too: their number, and the first of them with its row.

    grouped: all of them may be numbers with groups of thousands. other_decimal: the other decimal sign reads all of them, and the
    first of them is no such number.
    """

    number: int
    row: int
    value: str
    grouped: bool
    other_decimal: bool


def numbers_of(column: Any, written: bool, decimal: str) -> np.ndarray | str | Odd:
    """A column as float64 with NaN for missing values; or its kind, where it is left out; or the first value that is not a number."""
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if column.null_count == len(column):
        return "empty"
    if is_number(kind):
        plain = column.cast(kind)
        plain = plain.cast(pa.uint8()) if pa.types.is_boolean(kind) else plain
        return np.asarray(plain.cast(pa.float64(), safe=False).to_numpy())
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return str(kind)
    if written and decimal == ".":
        try:
            return np.asarray(column.cast(pa.float64()).to_numpy())
        except pa.ArrowInvalid:
            pass
    return _numbers_of_text(column.cast(kind), written, decimal)


def _numbers_of_text(column: Any, written: bool, decimal: str) -> np.ndarray | str | Odd:
    import pyarrow as pa
    import pyarrow.compute

    counted = column.value_counts()
    pairs = zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True)
    texts = {text: n for text, n in pairs if text is not None}
    words = {text: n for text, n in texts.items() if text.strip() and not marked_as_missing(text)}
    boolean = {text: n for text, n in words.items() if text.strip().lower() in ("true", "false")}
    like = {text for text in words if LIKE_A_NUMBER.fullmatch(text.strip())}
    if not words or 2 * sum(words[text] for text in (*like, *boolean)) < sum(words.values()):
        return "text"
    value: dict[str, float] = {}
    for text in texts:
        plain = text.strip()
        if not plain:
            value[text] = np.nan
        elif boolean and not like:
            value |= {text: float(plain.lower() == "true")} if text in boolean else {}
        elif (number := _number(plain, decimal)) is not None:
            value[text] = number
    bad = [text for text in texts if text not in value] if written else list(texts)
    if bad:
        held = pyarrow.compute.is_in(column, pa.array(bad, column.type)).to_numpy()
        grouped = [bool(GROUPED[decimal].fullmatch(text)) for text in bad]
        decimals = not all(grouped) and all(_number(text.strip(), "," if decimal == "." else ".") is not None for text in bad)
        if decimals:  # what shows the decimal sign, rather than what may be thousands
            bad = [text for text, thousands in zip(bad, grouped, strict=True) if not thousands]
            first = int(np.flatnonzero(pyarrow.compute.is_in(column, pa.array(bad, column.type)).to_numpy())[0])
        else:
            first = int(np.flatnonzero(held)[0])
        return Odd(number=int(held.sum()), row=first, value=column[first].as_py(), grouped=all(grouped), other_decimal=decimals)
    codes = column.combine_chunks().dictionary_encode()
    table = np.array([value[text] for text in codes.dictionary.to_pylist()])
    indices = codes.indices.fill_null(len(table)).to_numpy()
    numbers: np.ndarray = np.append(table, np.nan)[indices]
    return numbers


def _number(plain: str, decimal: str) -> float | None:
    """What a text without blanks says, None where that is not a number."""
    text = plain if decimal == "." else plain.replace(".", "?").replace(decimal, ".")
    return float(text) if PLAIN.fullmatch(text) else None


def may_be_thousands(column: Any) -> str | None:
    """The first value with a point of a column of text, where every point may stand between thousands; None elsewhere."""
    import pyarrow.compute

    texts = [text for text in pyarrow.compute.unique(column).to_pylist() if text is not None and text.strip()]
    pointed = [text for text in texts if "." in text]
    fit = all(GROUPED[","].fullmatch(text) for text in pointed) and all(
        re.fullmatch(r"\s*[+-]?\d{1,3}\s*", t) for t in texts if "." not in t
    )
    return pointed[0] if pointed and fit else None


def decimal_comma(texts: np.ndarray) -> str | None:
    """The first of the texts with a comma, where all are numbers with a decimal comma or whole; None elsewhere."""
    distinct = np.unique(texts).tolist()
    commas = [text for text in distinct if "," in text]
    return commas[0] if commas and all(_number(text.strip(), ",") is not None for text in distinct) else None


def as_written(texts: list[str], decimal: str = ".") -> np.ndarray:
    """Labels or ids of a CSV: whole numbers where all are written as such, without leading zeros; floats where all are decimal
    numbers, and one has a decimal point; else the texts as they stand, so that "007", "0x01", "1e3" and "TRUE" stay what they are.
    """
    distinct = {text: text.strip() for text in set(texts)}
    if all(WHOLE.fullmatch(plain) for plain in distinct.values()):
        return np.array([int(text) for text in texts], dtype=np.int64)
    dotted = {text: plain.replace(decimal, ".") if decimal != "." and "." not in plain else plain for text, plain in distinct.items()}
    if all(DECIMAL.fullmatch(plain) for plain in dotted.values()) and any("." in plain for plain in dotted.values()):
        return np.array([float(dotted[text]) for text in texts])
    return np.array(texts, dtype=str)
