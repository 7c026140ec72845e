"""Progress of long work: the function that is called with it, and how a terminal shows it.

rich is imported when progress is shown: machines that only compute do not have it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from symprompt.errors import escape

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Task, TaskID
    from rich.text import Text

Tick = Callable[[str, int, int, str], None]
"""Called with (stage, done, total, note) as work goes on; a total of 0 is not known.

0 of 0 and a note is that note alone, such as what was chosen.
"""
# An estimate looks back at so many marks at most, so far apart at least.
_MARKS = 1000
_MARK_SECONDS = 0.1


def silent(stage: str, done: int, total: int, note: str) -> None:
    """Show nothing."""


def duration(seconds: float) -> str:
    """Return a time as people say it: "45 s", "12 min 5 s", "11 h 28 min"."""
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


@contextmanager
def show_progress(console: Console | None = None) -> Iterator[Tick]:
    """Show every stage's progress, a bar or lines, while the block runs; yields what to call.

    Example:
        >>> with show_progress() as tick:
        ...     answers = load("runs/spe").ask("P36", object="Paris", tick=tick)
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
        bars.TextColumn("{task.description:<12}", markup=False),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        Rate(),
        bars.TextColumn("{task.fields[note]}", markup=False),
        bars.TimeElapsedColumn(),
        bars.TextColumn("left"),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=console) as progress:
        tasks: dict[str, tuple[TaskID, int]] = {}

        def tick(stage: str, done: int, total: int, note: str) -> None:
            note = escape(note)
            if note and done == total == 0:
                progress.console.print(
                    f"{escape(stage)}: {note}", highlight=False, markup=False, emoji=False
                )
                return
            # A stage that falls back has begun anew, as in a second run: it gets a bar of its own.
            if stage not in tasks or done < tasks[stage][1]:
                tasks[stage] = (progress.add_task(stage, total=total or None, note=note), done)
            bar = tasks[stage][0]
            progress.update(bar, completed=done, total=total or None, note=note)
            tasks[stage] = (bar, done)

        yield tick


class _Lines:
    """Writes a line at the start and end of a stage and every ten seconds between."""

    def __init__(self, console: Console, every: float = 10.0) -> None:
        self.console = console
        self.every = every
        # When each stage was how far: the first time, for a resumed one is not at its start; of
        # late; and last.
        self.begun: dict[str, tuple[float, int]] = {}
        self.late: dict[str, deque[tuple[float, int]]] = {}
        self.done: dict[str, int] = {}
        self.last = 0.0

    def __call__(self, stage: str, done: int, total: int, note: str) -> None:
        now = time.monotonic()
        if note and done == total == 0:
            self._print(f"{stage}: {note}")
            return
        # A stage that falls back has begun anew, as in a second run.
        first = stage not in self.done or done < self.done[stage]
        self.done[stage] = done
        if first:
            self.begun[stage], self.late[stage] = (now, done), deque(maxlen=_MARKS)
        (begun, start), late = self.begun[stage], self.late[stage]
        if not late or now - late[-1][0] >= _MARK_SECONDS:
            late.append((now, done))
        # The first steps are slow where they compile or record: the later half counts.
        while len(late) > 1 and 2 * (done - late[1][1]) >= done - start > 0:
            late.popleft()
        if not first and (not total or done < total) and now - self.last < self.every:
            return
        self.last = now
        (since, before), spent, rate, left = late[0], now - begun, "", ""
        if now > begun and done > start:
            # A slow one is read off the time that is left.
            each = (done - start) / spent
            rate = f" ({each:,.1f}/s)" if each >= 2 else ""
        if now > since and total > done > before > start:
            rest = (now - since) / (done - before) * (total - done)
            left = f", about {duration(rest)} left"
        far, note = f"{done}/{total}" if total else f"{done}", f" {note}" if note else ""
        self._print(f"{stage}: {far}{note}, {duration(spent)}{rate}{left}")

    def _print(self, line: str) -> None:
        self.console.print(escape(line), highlight=False, markup=False, emoji=False, soft_wrap=True)
