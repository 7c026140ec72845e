"""The grid: the same cells as Markdown and HTML, taken literally."""

from __future__ import annotations

import csv
import io
import sys

import pytest
from rich.cells import cell_len
from rich.console import Console

from symprompt.errors import counted
from symprompt.files.grid import Grid, Grids
from symprompt.report.pages import Page, Picture, Section
from symprompt.report.printing import show

GRID = Grid(
    "A <title>",
    ("name", "ours", "published:\nBERT"),
    ((("a|b", "1.00\n(0.50)", "<2>"),), (("c", "", "–"),)),
    marked=(2,),
)


def test_markdown_keeps_bars_and_breaks_out_of_the_table() -> None:
    lines = GRID.to_markdown().splitlines()
    assert lines[0] == "**A &lt;title>**"
    assert lines[2:] == [
        "| name | ours | published: BERT |",
        "|---|---:|---:|",
        "| a\\|b | 1.00 (0.50) | <2> |",
        "| c |  | – |",
    ]


FIGURES = Grid(
    "By relation",
    ("relation", "run", "P@1"),
    ((("P36", "a", "50.00\n(40.00 to 60.00)"), ("", "b", "–")),),
)
CHANGES = Grid(
    "All",
    ("run", "P@1", "F1"),
    ((("b\nminus a", "+1.00\n(-0.50 to +2.00)\np < 0.01", "81.5 ± 0.25"), ("c", "1,000", "7")),),
)


def test_csv_is_one_table_whose_intervals_are_columns() -> None:
    rows = list(csv.reader(io.StringIO(Grids({}, [FIGURES, CHANGES], ["a note"]).to_csv())))
    assert rows == [
        [
            *("table", "relation", "run", "P@1"),
            "P@1 low",
            "P@1 high",
            "P@1 p",
            "F1",
            "F1 deviation",
        ],
        ["By relation", "P36", "a", "50.00", "40.00", "60.00", "", "", ""],
        ["By relation", "P36", "b", "", "", "", "", "", ""],
        ["All", "", "b minus a", "+1.00", "-0.50", "+2.00", "< 0.01", "81.5", "0.25"],
        ["All", "", "c", "1,000", "", "", "", "7", ""],
    ]


def test_csv_keeps_commas_quotes_and_odd_names_whole() -> None:
    name = 'a, "b"\x1b;\nc'
    rows = list(csv.reader(io.StringIO(Grids({}, [Grid("", ("n",), (((name,),),))]).to_csv())))
    assert rows == [["table", "n"], ["", 'a, "b"\\u001b; c']]


def test_latex_takes_cells_literally_and_parts_sections() -> None:
    lines = GRID.to_latex().splitlines()
    assert lines[:4] == [
        r"\begin{table}",
        r"\centering",
        r"\caption{A \textless{}title\textgreater{}}",
        r"\begin{tabular}{lrr}",
    ]
    assert lines[5:10] == [
        r"name & ours & published: BERT \\",
        r"\midrule",
        r"a|b & 1.00 (0.50) & \textless{}2\textgreater{} \\",
        r"\midrule",
        r"c &  & – \\",
    ]
    odd = Grids(
        {}, [Grid(r"\input{x} 5 %", ("a_b", "#"), (((r"$&~^", "1"),),))], ["50 %"]
    ).to_latex()
    assert r"\textbackslash{}input\{x\} 5 \%" in odd
    assert r"a\_b & \# \\" in odd
    assert r"\$\&\textasciitilde{}\textasciicircum{} & 1 \\" in odd
    assert r"\item 50 \%" in odd


def test_html_escapes_cells_and_marks_the_columns_of_others() -> None:
    text = GRID.to_html()
    assert "<caption>A &lt;title&gt;</caption>" in text
    assert '<th class="theirs">published:<br>BERT</th>' in text
    assert '<td>a|b</td><td>1.00<br>(0.50)</td><td class="theirs">&lt;2&gt;</td>' in text
    assert text.count("<tbody>") == 2


def test_names_control_no_terminal_and_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    name = "a\x1b[31m\u202eb<script>"
    grid = Grid(name, (name, "n"), (((name, "1"),),))
    show(Grids({}, [grid], [name]), Console(width=80, file=sys.stdout))
    show(name)
    section = Section(name, (name,), (grid,), (name,), (Picture("a.png", name),))
    page = Page(name, (name,), (section,), {}, ())
    print(page.to_html(), page.to_markdown())
    text = capsys.readouterr().out
    assert text.count(r"a\u001b[31m\u202eb") > 15
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "<script" not in page.to_html() + page.to_markdown()


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
    for cell in (*header, *row[1:], "fine-tuning"):
        assert cell in text
    assert max(map(len, text.splitlines())) <= 40


@pytest.mark.parametrize("width", [20, 30, 60])
def test_wide_characters_and_names_wider_than_the_terminal_fit_all_the_same(width: int) -> None:
    rows = (("東京都" * 9, "1.00\n(0.50 to 1.50)"), ("a/very/long/path/to/a/run/of/ptuning", ""))
    console = Console(width=width, file=io.StringIO())
    show(Grid("", ("run", "P@1"), (rows,)), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(cell_len, text.splitlines())) <= width
    assert "1.00" in text


def test_a_table_without_rows_is_a_sentence() -> None:
    grid = Grid("Facts that rose", ("fact", "rank"), ((), ()))
    console = Console(width=80, file=io.StringIO())
    show(grid, console)
    for text in (grid.to_markdown(), grid.to_html(), console.file.getvalue()):  # type: ignore[attr-defined]
        assert "Facts that rose" in text
        assert "nothing was measured" in text
        assert "rank" not in text


def test_tables_show_themselves_in_interpreters_and_notebooks() -> None:
    found = Grids({"a": 1}, [GRID], ["a <note>"])
    lines = repr(found).splitlines()
    assert lines[0] == "A <title>"
    assert lines[-1] == "a <note>"
    assert any("1.00 (0.50)" in line for line in lines)
    assert found._repr_html_() == f"{GRID.to_html()}\n<ul><li>a &lt;note&gt;</li></ul>"


def test_one_of_a_kind_is_no_plural() -> None:
    found = [counted(1, "relation"), counted(0, "fact"), counted(2000, "pass")]
    assert found == ["1 relation", "0 facts", "2,000 passes"]
