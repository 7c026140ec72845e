"""The grid: the same cells as Markdown and HTML, taken literally."""

from __future__ import annotations

import io

from rich.console import Console

from symprompt.report.grid import Grid, show

GRID = Grid(
    "A <title>",
    ("name", "ours", "published:\nBERT"),
    ((("a|b", "1.00\n(0.50)", "<2>"),), (("c", "", "–"),)),
    marked=(2,),
)


def test_markdown_keeps_bars_and_breaks_out_of_the_table() -> None:
    lines = GRID.to_markdown().splitlines()
    assert lines[0] == "**A <title>**"
    assert lines[2:] == [
        "| name | ours | published: BERT |",
        "|---|---:|---:|",
        "| a\\|b | 1.00 (0.50) | <2> |",
        "| c |  | – |",
    ]


def test_html_escapes_cells_and_marks_the_columns_of_others() -> None:
    text = GRID.to_html()
    assert "<caption>A &lt;title&gt;</caption>" in text
    assert '<th class="theirs">published:<br>BERT</th>' in text
    assert '<td>a|b</td><td>1.00<br>(0.50)</td><td class="theirs">&lt;2&gt;</td>' in text
    assert text.count("<tbody>") == 2


def test_long_texts_break_over_lines_and_hide_no_other_column() -> None:
    rows = (("first", "O " * 100 + "B-PER", "0.5"),)
    console = Console(width=40, file=io.StringIO())
    show(Grid("", ("example", "prediction", "sure"), (rows,), folded=(1,)), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= 40
    for word in ("example", "first", "B-PER", "0.5"):
        assert word in text


def test_numbers_are_never_cut_off_on_a_narrow_terminal() -> None:
    header = ("method", *(f"metric {place}" for place in range(6)))
    row = ("fine-tuning of the last layers", *(f"{place}7.36 ± 21.98" for place in range(6)))
    console = Console(width=40, file=io.StringIO())
    show(Grid("A title", header, ((row,),)), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for cell in (*header, *row[1:], "fine-tun"):
        assert cell in text
    assert console.width == 40
    narrow = Console(width=200, file=io.StringIO())
    show(GRID, narrow)
    assert max(map(len, narrow.file.getvalue().splitlines())) < 60  # type: ignore[attr-defined]
