"""A table of text cells that becomes Markdown, HTML or a rich table, and the way to print one.

rich is imported when a terminal table is made: machines that only compute do not have it.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

# What stands in a cell without a value.
DASH = "–"
# So narrow may the first column become, its words broken.
_NARROW = 8
_WIDEST = 1000


@dataclass(frozen=True)
class Grid:
    """Text cells under a header; final. A line break in a cell shows in HTML and on terminals.

    Attributes:
        sections: rows in groups, parted by a rule where the medium has one.
        marked: columns (by place) whose numbers are not ours; HTML gives them another ground.
        folded: columns (by place) of text, which may break over lines on a terminal.
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
        return "\n".join([f"**{self.title}**", "", _markdown_row(self.header), rule, *rows])

    def to_html(self) -> str:
        """Return the grid as an HTML table, cells taken literally."""
        lines = [f"<table><caption>{html.escape(self.title)}</caption>", "<thead>"]
        lines += [self._html_row(self.header, "th"), "</thead>"]
        for section in self.sections:
            rows = [self._html_row(row, "td") for row in section]
            lines += ["<tbody>", *rows, "</tbody>"] if rows else []
        return "\n".join([*lines, "</table>"])

    def _html_row(self, cells: Sequence[str], kind: str) -> str:
        parts = []
        for place, cell in enumerate(cells):
            mark = ' class="theirs"' if place in self.marked else ""
            text = html.escape(cell).replace("\n", "<br>")
            parts.append(f"<{kind}{mark}>{text}</{kind}>")
        return f"<tr>{''.join(parts)}</tr>"

    def __rich__(self) -> Table:
        """Return the grid as a rich table, cells taken literally (no markup)."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        table = Table(
            title=Text(self.title),
            title_justify="left",
            box=SIMPLE_HEAD,
            collapse_padding=True,
            pad_edge=False,
        )
        for index, heading in enumerate(self.header):
            text = index in (0, *self.folded)
            justify: JustifyMethod = "left" if text else "right"
            # On a narrow terminal names may break over lines, numbers and intervals should not.
            unbroken = not text and "\n" not in heading
            cells = [heading, *(row[index] for section in self.sections for row in section)]
            width = max((len(line) for cell in cells for line in cell.splitlines()), default=0)
            table.add_column(
                Text(heading),
                justify=justify,
                no_wrap=unbroken,
                overflow="fold",
                min_width=width if unbroken else None,
            )
        for section in self.sections:
            for row in section:
                table.add_row(_Name(row[0]), *(Text(cell) for cell in row[1:]))
            table.add_section()
        return table


class _Name:
    """A cell whose words may be broken where there is little room; final."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        yield Text(self._text, overflow="fold")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        widest = max(map(len, self._text.splitlines()), default=0)
        return Measurement(min(widest, _NARROW), widest)


@dataclass(frozen=True)
class Grids:
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
            parts.append("\n".join(f"- {note}" for note in self.notes))
        return "\n\n".join(parts) + "\n"

    def __rich__(self) -> Group:
        return stack(*self.grids, *self.notes)


def stack(*parts: Grid | str) -> Group:
    """Return tables and lines of text, taken literally, as one rich renderable."""
    from rich.console import Group
    from rich.text import Text

    return Group(*(Text(part) if isinstance(part, str) else part.__rich__() for part in parts))


def interval_cell(value: float, low: float, high: float) -> str:
    """Return a figure with its interval."""
    return f"{value:.2f}\n({low:.2f} to {high:.2f})"


def difference_cell(difference: float, low: float, high: float, p: float) -> str:
    """Return a difference, its interval and p; z keeps a rounded zero from showing as -0.00."""
    shown = "p < 0.01" if p < 0.01 else f"p = {p:.2f}"
    return f"{difference:+z.2f}\n({low:+z.2f} to {high:+z.2f})\n{shown}"


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


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
