"""Pieces of HTML whose texts stay text."""

from __future__ import annotations

import html


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A table with a head, which scrolls where it is too wide."""
    head = "".join(f"<th scope=col>{text(each)}</th>" for each in heads)
    body = "".join("<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def text(value: str) -> str:
    """Text as it is, whatever it holds."""
    return html.escape(value)
