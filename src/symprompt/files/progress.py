"""Progress of long work: a function that is called with stage, steps done, steps in all, a note."""

from __future__ import annotations

from collections.abc import Callable

Tick = Callable[[str, int, int, str], None]
"""Called with (stage, done, total, note) as work goes on."""


def silent(stage: str, done: int, total: int, note: str) -> None:
    """Show nothing."""
