"""Progress: a bar on a terminal, few lines elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from symprompt.files import progress
from symprompt.files.progress import show_progress


def terminal() -> Console:
    return Console(force_terminal=True, file=io.StringIO(), width=120)


def plain() -> Console:
    return Console(force_terminal=False, file=io.StringIO(), width=120)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands still until the test moves it."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


Ticks = list[tuple[str, int, int, str]]


def shown(console: Console, ticks: Ticks, clock: list[float], seconds: float = 0.0) -> list[str]:
    """Return what is written; the clock moves between two ticks."""
    with show_progress(console) as tick:
        for entry in ticks:
            tick(*entry)
            clock[0] += seconds
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_terminal_has_a_bar_for_each_stage_and_each_time_it_begins(clock: list[float]) -> None:
    ticks: Ticks = [("training", step, 5, f"epoch {step}") for step in (1, 2, 5)]
    lines = shown(terminal(), [*ticks, ("asking dev", 3, 7, ""), ticks[-1], *ticks], clock)
    text = "\n".join(lines)
    assert all(part in text for part in ("training", "epoch 5", "asking dev", "3/7", "/s", "left"))
    # The last picture holds a finished bar for each of the two times.
    assert sum("5/5" in line for line in lines[-4:]) == 2


def test_a_note_is_a_line_without_a_bar_on_a_terminal(clock: list[float]) -> None:
    lines = shown(terminal(), [("acceleration", 0, 0, "plain"), ("asking", 1, 2, "")], clock)
    assert any("acceleration: plain" in line for line in lines)
    assert not any("1/1" in line for line in lines)


@pytest.mark.parametrize(
    ("ticks", "seconds", "expected"),
    [
        (
            [("training", step, 100, f"epoch {step}") for step in range(1, 101)],
            0,
            ["training: 1/100 epoch 1, 0 s", "training: 100/100 epoch 100, 0 s"],
        ),
        # What was chosen is no work.
        (
            [("acceleration", 0, 0, "plain"), ("saving", 1, 1, "all")],
            0,
            ["acceleration: plain", "saving: 1/1 all, 0 s"],
        ),
        # Ten seconds for the ten steps after the first, twenty to go.
        (
            [("training", step, 31, "") for step in range(1, 21)],
            1,
            ["training: 1/31, 0 s", "training: 11/31, 10 s, about 20 s left"],
        ),
        # A resumed stage counts from where it was resumed.
        (
            [("training", step, 1100, "") for step in (1000, 1010, 1020)],
            20,
            [
                "training: 1000/1100, 0 s",
                "training: 1010/1100, 20 s",
                "training: 1020/1100, 40 s, about 2 min 40 s left",
            ],
        ),
        # One that falls back has begun anew.
        (
            [("training", 1, 2, ""), ("training", 2, 2, "")] * 2,
            0,
            ["training: 1/2, 0 s", "training: 2/2, 0 s"] * 2,
        ),
        ([("asking [b]", 1, 2, "[/i] :smile:")], 0, ["asking [b]: 1/2 [/i] :smile:, 0 s"]),
        # A total of 0 is not known.
        ([("embed", 1, 0, ""), ("embed", 2, 0, "")], 1, ["embed: 1, 0 s"]),
        ([("asking", 1, 2, "word " * 50)], 0, [f"asking: 1/2 {'word ' * 50}, 0 s"]),
        ([("choice [b]", 0, 0, "word " * 50)], 0, [f"choice [b]: {'word ' * 50}"]),
    ],
)
def test_lines_where_there_is_no_terminal(
    ticks: Ticks, seconds: float, expected: list[str], clock: list[float]
) -> None:
    assert shown(plain(), ticks, clock, seconds) == expected


def test_a_slow_first_step_does_not_count_for_the_rest(clock: list[float]) -> None:
    console = plain()
    with show_progress(console) as tick:
        for step in range(12):
            tick("training", step, 41273, "")
            clock[0] += 30 if step == 0 else 1
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == [
        "training: 0/41273, 0 s",
        "training: 1/41273, 30 s",
        "training: 11/41273, 40 s, about 11 h 27 min left",
    ]


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
