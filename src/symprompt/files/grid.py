"""A table of text cells that becomes Markdown, CSV, LaTeX, HTML or a rich table.

rich is imported when a terminal table is made: machines that only compute do not have it.
"""

from __future__ import annotations

import csv
import io
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from symprompt.errors import escape

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, Group
    from rich.table import Table

# What stands in a cell without a value.
DASH = "–"
EMPTY = "No rows: nothing was measured for this table."
"""What stands in place of a table without rows."""
# So wide is a table in an interpreter.
_WIDTH = 80
# Spaces that a column takes beside its own width.
_GAP = 2
# Narrower no column is made.
_NARROW = 8
# How a cell may stand on a terminal, the widest way first.
_SHAPES: tuple[Callable[[str], str], ...] = (
    lambda cell: cell.replace("\n", " "),
    lambda cell: cell,
    lambda cell: re.sub(r"(\([\d.+-]+) (to [\d.+-]+\))", r"\1\n\2", cell),
)


# A figure with its interval, and of a difference its p; or with the deviation over seeds.
_FIGURE = re.compile(
    r"(?P<value>[-+\d.]+)"
    r"(?: ± (?P<deviation>[\d.]+)"
    r"|\n\((?P<low>[-+\d.]+) to (?P<high>[-+\d.]+)\)(?:\np (?:= )?(?P<p>.+))?)"
)


class _Shown(ABC):
    """What shows itself in a terminal, an interpreter and a notebook; abstract."""

    def __repr__(self) -> str:
        from rich.console import Console

        console = Console(width=_WIDTH, file=io.StringIO(), color_system=None)
        console.print(self)
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue().rstrip("\n")

    @abstractmethod
    def to_html(self) -> str:
        """Return it as HTML."""

    def _repr_html_(self) -> str:
        return self.to_html()


@dataclass(frozen=True, repr=False)
class Grid(_Shown):
    """Text cells under a header; final. A line break in a cell shows in HTML and on terminals.

    Attributes:
        sections: rows in groups, parted by a rule where the medium has one.
        marked: columns (by place) whose numbers are not ours; HTML gives them another ground.
        folded: columns (by place) of text, which may break between words on a terminal.
    """

    title: str
    header: tuple[str, ...]
    sections: tuple[tuple[tuple[str, ...], ...], ...]
    marked: tuple[int, ...] = ()
    folded: tuple[int, ...] = ()

    def to_markdown(self) -> str:
        """Return the grid as a Markdown table under a bold title."""
        rule = "|---|" + "---:|" * (len(self.header) - 1)
        rows = [_markdown_row(row) for section in self.sections for row in section]
        table = [_markdown_row(self.header), rule, *rows] if rows else [EMPTY]
        return "\n".join([f"**{escape(self.title, 'markdown')}**", "", *table])

    def to_html(self) -> str:
        """Return the grid as an HTML table, cells taken literally."""
        if not any(self.sections):
            return f"<p><b>{escape(self.title, 'html')}</b></p>\n<p>{EMPTY}</p>"
        lines = [f"<table><caption>{escape(self.title, 'html')}</caption>", "<thead>"]
        lines += [self._html_row(self.header, "th"), "</thead>"]
        for section in self.sections:
            rows = [self._html_row(row, "td") for row in section]
            lines += ["<tbody>", *rows, "</tbody>"] if rows else []
        return "\n".join([*lines, "</table>"])

    def to_latex(self) -> str:
        """Return the grid as a LaTeX table (with booktabs), cells taken literally."""
        rows = ["\n".join(map(_latex_row, section)) for section in self.sections if section]
        columns = f"l{'r' * (len(self.header) - 1)}"
        lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", _latex_row(self.header)]
        lines += [r"\midrule", "\n\\midrule\n".join(rows), r"\bottomrule", r"\end{tabular}"]
        body = lines if rows else [EMPTY]
        caption = rf"\caption{{{escape(self.title, 'latex')}}}"
        return "\n".join([r"\begin{table}", r"\centering", caption, *body, r"\end{table}"])

    def to_rows(self) -> list[dict[str, str]]:
        """Return each row as column -> cell, for other programs.

        A figure becomes several columns: P@1, P@1 low, P@1 high, P@1 p, or its deviation over
        seeds. A name that stands once for several rows is given in each.
        """
        found = []
        for section in self.sections:
            first = ""
            for row in section:
                first = row[0] or first
                own = {_one_line(self.header[0]): _one_line(first)}
                for name, cell in zip(self.header[1:], row[1:], strict=True):
                    parts = _FIGURE.fullmatch(cell)
                    own[_one_line(name)] = "" if cell == DASH else _one_line(cell)
                    for part, value in (parts.groupdict() if parts else {}).items():
                        if value is not None:
                            own[f"{_one_line(name)} {part}".removesuffix(" value")] = value
                found.append(own)
        return found

    def _html_row(self, cells: Sequence[str], kind: str) -> str:
        parts = []
        for place, cell in enumerate(cells):
            mark = ' class="theirs"' if place in self.marked else ""
            text = escape(cell, "html").replace("\n", "<br>")
            parts.append(f"<{kind}{mark}>{text}</{kind}>")
        return f"<tr>{''.join(parts)}</tr>"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        """Give tables that fit the terminal, cells taken literally (no markup).

        Intervals stand beside their figures where there is room, else below them, in one line or
        two. Columns for which there is still no room follow in a table of their own. Names and
        numbers stay whole.
        """
        from rich.text import Text

        if self.title:
            yield Text(escape(self.title), style="table.title")
        if not any(self.sections):
            yield Text(EMPTY)
            return
        rows = [self.header, *(row for section in self.sections for row in section)]
        layouts = []
        for shape in _SHAPES:
            columns = [
                _Column([escape(shape(cell)) for cell in cells], text=place in (0, *self.folded))
                for place, cells in enumerate(zip(*rows, strict=True))
            ]
            layouts.append((columns, list(_parts(columns, options.max_width))))
        columns, parts = min(layouts, key=lambda layout: len(layout[1]))
        for part in parts:
            yield self._table(columns, part, options.max_width)

    def _table(self, columns: Sequence[_Column], part: Sequence[int], room: int) -> Table:
        """Return some of the columns as a rich table."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
        own = [columns[place] for place in part]
        spare = max(0, room - sum(column.least + _GAP for column in own))
        wanted = sum(column.most - column.least for column in own)
        for column in own:
            more = (column.most - column.least) * min(spare, wanted) // max(1, wanted)
            table.add_column(
                Text(column.cells[0]),
                justify="left" if column.text else "right",
                overflow="fold",
                width=column.least + more,
            )
        rows = zip(*(column.cells[1:] for column in own), strict=True)
        for section in self.sections:
            for cells in islice(rows, len(section)):
                table.add_row(*map(Text, cells))
            table.add_section()
        return table


class _Column:
    """The cells of a column as they are shown, its heading first; final.

    Attributes:
        text: it may break between words; of others the heading alone may.
        least: how narrow it can be.
        most: how wide it need be.
    """

    def __init__(self, cells: Sequence[str], *, text: bool) -> None:
        from rich.cells import cell_len

        self.cells, self.text = cells, text
        self.most = max(cell_len(line) for cell in cells for line in (cell.splitlines() or [""]))
        whole = [] if text else [line for cell in cells[1:] for line in cell.splitlines()]
        broken = [word for cell in (cells if text else cells[:1]) for word in cell.split()]
        self.least = max((cell_len(piece) for piece in (*whole, *broken)), default=0)


def _parts(columns: Sequence[_Column], room: int) -> Iterator[list[int]]:
    """Yield the places of columns that fit beside each other, the first column in every part."""
    first, *others = columns
    widest = max((column.least for column in others), default=0)
    # A name that leaves no room for anything else is broken all the same.
    first.least = min(first.least, max(_NARROW, room - widest - 2 * _GAP))
    left = room - first.least - _GAP
    part, used = [0], 0
    for place, column in enumerate(others, start=1):
        column.least = min(column.least, max(_NARROW, left - _GAP))
        if used + column.least + _GAP > left and len(part) > 1:
            yield part
            part, used = [0], 0
        part.append(place)
        used += column.least + _GAP
    yield part


@dataclass(frozen=True, repr=False)
class Grids(_Shown):
    """Results as several tables, with notes below them; final.

    Attributes:
        values: the same as plain values, ready for JSON.
    """

    values: dict[str, Any]
    grids: Sequence[Grid]
    notes: Sequence[str] = ()

    def to_markdown(self) -> str:
        """Return the tables and the notes as Markdown."""
        parts = [grid.to_markdown() for grid in self.grids]
        if self.notes:
            parts.append("\n".join(f"- {escape(note, 'markdown')}" for note in self.notes))
        return "\n\n".join(parts) + "\n"

    def to_csv(self) -> str:
        """Return all rows as one CSV table, the title of each in the first column; no notes."""
        rows = [
            {"table": _one_line(grid.title)} | row for grid in self.grids for row in grid.to_rows()
        ]
        stream = io.StringIO()
        writer = csv.DictWriter(stream, _joined_columns(rows), restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return stream.getvalue()

    def to_latex(self) -> str:
        """Return the tables and the notes as LaTeX."""
        notes = [rf"\item {escape(note, 'latex')}" for note in self.notes]
        listed = "\n".join([r"\begin{itemize}", *notes, r"\end{itemize}"])
        parts = [grid.to_latex() for grid in self.grids]
        return "\n\n".join([*parts, listed] if notes else parts) + "\n"

    def to_html(self) -> str:
        """Return the tables and the notes as HTML."""
        notes = "".join(f"<li>{escape(note, 'html')}</li>" for note in self.notes)
        parts = [grid.to_html() for grid in self.grids]
        return "\n".join([*parts, f"<ul>{notes}</ul>"] if notes else parts)

    def __rich__(self) -> Group:
        return stack(*self.grids, *self.notes)


def stack(*parts: Grid | str) -> Group:
    """Return tables and lines of text, taken literally, as one rich renderable."""
    from rich.console import Group
    from rich.text import Text

    return Group(*(Text(escape(part)) if isinstance(part, str) else part for part in parts))


def interval_cell(value: float, low: float, high: float) -> str:
    """Return a figure with its interval."""
    return f"{value:.2f}\n({low:.2f} to {high:.2f})"


def difference_cell(difference: float, low: float, high: float, p: float) -> str:
    """Return a difference, its interval and p; z keeps a rounded zero from showing as -0.00."""
    shown = "p < 0.01" if p < 0.01 else f"p = {p:.2f}"
    return f"{difference:+z.2f}\n({low:+z.2f} to {high:+z.2f})\n{shown}"


def _markdown_row(cells: Sequence[str]) -> str:
    shown = (escape(cell, "markdown").replace("|", "\\|").replace("\n", " ") for cell in cells)
    return f"| {' | '.join(shown)} |"


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(escape(_one_line(cell), "latex") for cell in cells) + r" \\"


def _one_line(cell: str) -> str:
    return escape(cell.replace("\n", " "))


def _joined_columns(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the columns of all rows, each after the one that it follows where it first stands."""
    columns: list[str] = []
    for row in rows:
        place = 0
        for name in row:
            if name not in columns:
                columns.insert(place, name)
            place = columns.index(name) + 1
    return columns
