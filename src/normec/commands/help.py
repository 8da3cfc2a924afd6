"""The help of the commands, whole and plain, and one sentence on a command line that is none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import click
from typer.core import TyperGroup

from normec.errors import BadInput, Interrupted


class Commands(TyperGroup):
    """The commands, listed with their whole first sentence."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.suggest_commands = False  # click suggests, and both would
        for command in self.commands.values():
            command.context_class = _Context

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        """Parses what stands before a command's name."""
        with _one_sentence():
            return super().make_context(*args, **more)

    def invoke(self, ctx: click.Context) -> Any:
        """Parses the rest, and runs the command."""
        with _one_sentence():
            return super().invoke(ctx)

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


@contextlib.contextmanager
def _one_sentence() -> Iterator[None]:
    """Turns what click would say on several lines, or not at all, into an error of our own."""
    try:
        yield
    except KeyboardInterrupt:  # of a command that has no more to say of it
        raise Interrupted("interrupted") from None
    except click.UsageError as error:
        if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
            raise
        path = error.ctx.command_path if error.ctx else "normec"
        raise BadInput("", error.format_message(), remedy=f"See {path} --help") from None


def _summary(command: click.Command) -> str:
    return " ".join((command.help or "").split("\n\n")[0].split())
