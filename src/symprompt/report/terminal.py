"""Print to the terminal; rich is imported when something is printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_WIDEST = 1000


def show(table: RenderableType, console: Console | None = None) -> None:
    """Print a table or any rich renderable to the terminal, or to the given console.

    What does not fit is printed wider: lines that wrap can be read, numbers that are cut off are
    wrong.
    """
    from rich.console import Console
    from rich.measure import Measurement

    target = console or Console()
    needed = Measurement.get(target, target.options.update(width=_WIDEST), table).minimum
    before = target.width
    if needed > before:
        target.width = needed
    target.print(table)
    if needed > before:
        target.width = before
