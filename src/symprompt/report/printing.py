"""The one way to print tables and lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from symprompt.errors import escape

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def show(table: RenderableType, console: Console | None = None) -> None:
    """Print a table, any rich renderable or a line of text to the terminal, or to the console.

    A line is printed as it is, so that commands and paths in it can be copied.
    """
    if isinstance(table, str):
        print(escape(table))
        return
    from rich.console import Console

    (console or Console()).print(table)
