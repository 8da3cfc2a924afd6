"""The help of the commands: whole summaries, and plain text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click
from typer.core import TyperGroup


class Commands(TyperGroup):
    """The commands, listed with their whole first sentence."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.suggest_commands = False  # click suggests, and both would
        for command in self.commands.values():
            command.context_class = _Context

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One line a command, or more where its summary is longer."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _summary(command)) for name, command in self.commands.items()])


class _Formatter(click.HelpFormatter):
    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Typer escapes brackets for rich, which does not print here."""
        super().write_dl([(term, text.replace("\\[", "[")) for term, text in rows], col_max, col_spacing)


class _Context(click.Context):
    formatter_class = _Formatter


def _summary(command: click.Command) -> str:
    return " ".join((command.help or "").split("\n\n")[0].split())
