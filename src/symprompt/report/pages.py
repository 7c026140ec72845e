"""Sections of a report as Markdown, HTML and plain values."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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


def markdown_page(title: str, text: Sequence[str], sections: Sequence[Section]) -> str:
    """Return a whole report as Markdown."""
    parts = [f"# {title}", *text, *(section.to_markdown() for section in sections)]
    return "\n\n".join(parts) + "\n"


def html_page(title: str, text: Sequence[str], sections: Sequence[Section]) -> str:
    """Return a whole report as one HTML page; its figures lie beside it."""
    body = [f"<h1>{html.escape(title)}</h1>"]
    body += [f"<p>{html.escape(paragraph)}</p>" for paragraph in text]
    body += [section.to_html() for section in sections]
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>'
    return "\n".join(
        ["<!doctype html>", f'<html lang="en"><head>{head}</head><body>', *body, "</body></html>\n"]
    )
