"""Sections of a report as Markdown, HTML and plain values."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from symprompt.files.atomic import to_json, write_file
from symprompt.report.grid import Grid

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 75em; margin: 2em auto;
       padding: 0 1em; }
table { border-collapse: collapse; margin: 1.2em 0; font-size: 13px; display: block;
        overflow-x: auto; }
caption { text-align: left; font-weight: 600; padding: .3em 0; }
th, td { padding: .25em .7em; text-align: right; vertical-align: top; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 1px solid #222; vertical-align: bottom; white-space: pre-line; }
tbody + tbody { border-top: 1px solid #aaa; }
.theirs { background: #f3efe2; color: #555; }
img { max-width: 100%; }
p, li { max-width: 50em; }
"""


@dataclass(frozen=True)
class Picture:
    """A figure's file name and what it shows."""

    file: str
    about: str


@dataclass(frozen=True)
class Section:
    """One part of the report; final.

    Attributes:
        text: paragraphs before the tables.
        notes: remarks below them.
    """

    title: str
    text: tuple[str, ...] = ()
    grids: tuple[Grid, ...] = ()
    notes: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()

    def to_markdown(self) -> str:
        """Return the section as Markdown."""
        parts = [f"## {self.title}", *self.text]
        parts += [grid.to_markdown() for grid in self.grids]
        if self.notes:
            parts.append("\n".join(f"- {note}" for note in self.notes))
        parts += [f"![{picture.about}](figures/{picture.file})" for picture in self.pictures]
        return "\n\n".join(parts)

    def to_html(self) -> str:
        """Return the section as HTML."""
        parts = [f"<h2>{html.escape(self.title)}</h2>"]
        parts += [f"<p>{html.escape(text)}</p>" for text in self.text]
        parts += [grid.to_html() for grid in self.grids]
        if self.notes:
            notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
            parts.append(f"<ul>{notes}</ul>")
        for picture in self.pictures:
            source = html.escape(f"figures/{picture.file}")
            parts.append(f'<p><img src="{source}" alt="{html.escape(picture.about)}"></p>')
        return "\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the section as plain values, for JSON."""
        return {
            "title": self.title,
            "tables": [
                {
                    "title": grid.title,
                    "header": list(grid.header),
                    "rows": [list(row) for section in grid.sections for row in section],
                }
                for grid in self.grids
            ],
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Page:
    """A whole report: sections under a title, and the values behind them; final.

    Attributes:
        text: paragraphs before the sections.
        results: plain values for results.json, to which the sections are added as "tables".
    """

    title: str
    text: tuple[str, ...]
    sections: tuple[Section, ...]
    results: Mapping[str, Any] = field(default_factory=dict)

    def to_markdown(self) -> str:
        """Return the report as Markdown."""
        parts = [f"# {self.title}", *self.text]
        parts += [section.to_markdown() for section in self.sections]
        return "\n\n".join(parts) + "\n"

    def to_html(self) -> str:
        """Return the report as one HTML page; its figures lie beside it."""
        body = [f"<h1>{html.escape(self.title)}</h1>"]
        body += [f"<p>{html.escape(paragraph)}</p>" for paragraph in self.text]
        body += [section.to_html() for section in self.sections]
        title = html.escape(self.title)
        head = f'<meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        start = f'<html lang="en"><head>{head}</head><body>'
        return "\n".join(["<!doctype html>", start, *body, "</body></html>\n"])

    def write(self, folder: Path) -> list[Path]:
        """Write report.md, report.html and results.json; return them and the figures there."""
        tables = [section.to_dict() for section in self.sections]
        written = {
            folder / "report.md": self.to_markdown().encode(),
            folder / "report.html": self.to_html().encode(),
            folder / "results.json": to_json({**self.results, "tables": tables}),
        }
        for path, content in written.items():
            write_file(path, content)
        pictures = [picture for section in self.sections for picture in section.pictures]
        return [*written, *(folder / "figures" / picture.file for picture in pictures)]
