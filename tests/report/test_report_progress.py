"""Progress: a bar on a terminal, few lines elsewhere."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from symprompt.report import progress, show_progress


def terminal() -> Console:
    return Console(force_terminal=True, file=io.StringIO(), width=120)


def plain() -> Console:
    return Console(force_terminal=False, file=io.StringIO(), width=120)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands still until the test moves it."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_terminal_shows_stage_count_rate_and_note() -> None:
    console = terminal()
    with show_progress(console) as tick:
        for step in range(1, 6):
            tick("training", step, 5, f"epoch {step}")
        tick("asking dev", 3, 7, "")
    text = written(console)
    assert "training" in text
    assert "5/5" in text
    assert "epoch 5" in text
    assert "asking dev" in text
    assert "3/7" in text
    assert "/s" in text
    assert "left" in text


def test_a_terminal_keeps_one_bar_for_each_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    bars: list[str] = []
    add = progress.Progress.add_task

    def count(self: progress.Progress, stage: str, **options: Any) -> Any:
        bars.append(stage)
        return add(self, stage, **options)

    monkeypatch.setattr(progress.Progress, "add_task", count)
    with show_progress(terminal()) as tick:
        for step in range(1, 4):
            tick("training", step, 3, "")
        tick("asking dev", 1, 1, "")
        tick("training", 3, 3, "")
    assert bars == ["training", "asking dev"]


def test_lines_tell_the_first_and_last_step_of_every_stage(clock: list[float]) -> None:
    console = plain()
    with show_progress(console) as tick:
        for step in range(1, 101):
            tick("training", step, 100, f"epoch {step}")
        tick("asking dev", 2, 2, "")
    lines = written(console).splitlines()
    assert lines == [
        "training: 1/100 epoch 1, 0 s",
        "training: 100/100 epoch 100, 0 s",
        "asking dev: 2/2, 0 s",
    ]


def test_lines_come_every_ten_seconds_with_the_time_left(clock: list[float]) -> None:
    console = plain()
    with show_progress(console) as tick:
        for step in range(1, 31):
            tick("training", step, 31, "")
            clock[0] += 1
    lines = written(console).splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "training: 1/31",
        "training: 11/31",
        "training: 21/31",
    ]
    # Ten seconds for the ten steps after the first, twenty to go.
    assert lines[1] == "training: 11/31, 10 s, about 20 s left"


def test_the_time_left_of_a_resumed_stage_counts_from_where_it_was_resumed(
    clock: list[float],
) -> None:
    console = plain()
    with show_progress(console) as tick:
        tick("training", 1000, 1100, "")
        clock[0] += 20
        tick("training", 1010, 1100, "")
    assert written(console).splitlines()[1] == "training: 1010/1100, 20 s, about 180 s left"


def test_lines_carry_no_escape_codes_and_take_text_literally(clock: list[float]) -> None:
    console = plain()
    with show_progress(console) as tick:
        tick("asking [b]", 1, 1, "[/i] :smile:")
    assert "asking [b]: 1/1 [/i]" in written(console)
    assert "\x1b" not in written(console)


def test_a_long_line_stays_one_line(clock: list[float]) -> None:
    console = plain()
    with show_progress(console) as tick:
        tick("asking", 1, 1, "word " * 50)
    assert len(written(console).splitlines()) == 1


def test_progress_goes_to_stderr_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress() as tick:
        tick("training", 1, 1, "")
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("training: 1/1")


@pytest.mark.parametrize("console", [terminal(), plain()])
def test_an_error_inside_comes_through(console: Console) -> None:
    def fail() -> None:
        with show_progress(console) as tick:
            tick("training", 1, 2, "")
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()


@pytest.mark.parametrize("terminal", [False, True])
def test_a_stage_that_begins_anew_is_shown_anew(terminal: bool) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=120)
    with show_progress(console) as tick:
        for _ in range(2):
            tick("training", 1, 2, "")
            tick("training", 2, 2, "")
    lines = stream.getvalue().splitlines()
    if terminal:
        # The last picture holds a finished bar for each of the two.
        assert sum("2/2" in line for line in lines[-3:]) == 2
    else:
        shown = [line.split(",")[0] for line in lines]
        assert shown == ["training: 1/2", "training: 2/2"] * 2
