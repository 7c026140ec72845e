"""Progress of long work: the function that is called with it, and how a terminal shows it.

rich is imported when progress is shown: machines that only compute do not have it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Task, TaskID
    from rich.text import Text

Tick = Callable[[str, int, int, str], None]
"""Called with (stage, done, total, note) as work goes on."""


def silent(stage: str, done: int, total: int, note: str) -> None:
    """Show nothing."""


@contextmanager
def show_progress(console: Console | None = None) -> Iterator[Tick]:
    """Show every stage's progress, a bar or lines, while the block runs; yields what to call.

    Example:
        >>> with show_progress() as tick:       # doctest: +SKIP
        ...     train(config, tick=tick)
    """
    from rich import progress as bars
    from rich.console import Console
    from rich.text import Text

    class Rate(bars.ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{speed:,.1f}/s" if speed else "", style="progress.data.speed")

    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(console)
        return
    columns = (
        bars.TextColumn("{task.description:<12}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        Rate(),
        bars.TextColumn("{task.fields[note]}"),
        bars.TimeElapsedColumn(),
        bars.TextColumn("left"),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=console) as progress:
        tasks: dict[str, tuple[TaskID, int]] = {}

        def tick(stage: str, done: int, total: int, note: str) -> None:
            # A stage that falls back has begun anew, as in a second run: it gets a bar of its own.
            if stage not in tasks or done < tasks[stage][1]:
                tasks[stage] = (progress.add_task(stage, total=total, note=note), done)
            bar = tasks[stage][0]
            progress.update(bar, completed=done, total=total, note=note)
            tasks[stage] = (bar, done)

        yield tick


class _Lines:
    """Writes a line at the start and end of a stage and every ten seconds between."""

    def __init__(self, console: Console, every: float = 10.0) -> None:
        self.console = console
        self.every = every
        # When each stage was first heard of, and how far it was: a resumed one is not at its start.
        self.begun: dict[str, tuple[float, int]] = {}
        self.done: dict[str, int] = {}
        self.last = 0.0

    def __call__(self, stage: str, done: int, total: int, note: str) -> None:
        now = time.monotonic()
        # A stage that falls back has begun anew, as in a second run.
        first = done < self.done.get(stage, total + 1)
        self.done[stage] = done
        if first:
            self.begun[stage] = (now, done)
        begun, start = self.begun[stage]
        if not first and done < total and now - self.last < self.every:
            return
        self.last = now
        spent, steps = now - begun, done - start
        left = f", about {spent / steps * (total - done):.0f} s left" if spent and steps else ""
        self.console.print(
            f"{stage}: {done}/{total}{' ' + note if note else ''}, {spent:.0f} s{left}",
            highlight=False,
            markup=False,
            emoji=False,
            soft_wrap=True,
        )
