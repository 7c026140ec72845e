"""Pages: a report as Markdown, HTML and plain values, and the map of a word's occurrences."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symprompt.errors import counted, escape
from symprompt.files.atomic import to_json, write_file
from symprompt.files.grid import Grid, Grids
from symprompt.report.figures import (
    MAP_COLOURS,
    figure_bytes,
    legend_labels,
    map_caption,
    save_figure,
)
from symprompt.report.records import plain_results
from symprompt.runs.folder import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from symprompt.embeddings.sense_map import SenseMap

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
    """A figure's place, seen from the page, and what it shows."""

    file: str
    about: str


def save_picture(figure: Figure, folder: Path, file: str, about: str) -> Picture:
    """Write a figure into a folder."""
    save_figure(figure, folder / file)
    return Picture(f"{folder.name}/{file}", about)


def embed_picture(figure: Figure, about: str) -> Picture:
    """Return a figure that stands in the page itself."""
    png = base64.b64encode(figure_bytes(figure)).decode()
    return Picture(f"data:image/png;base64,{png}", about)


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
        parts = [escape(text, "markdown") for text in (f"## {self.title}", *self.text)]
        parts += [grid.to_markdown() for grid in self.grids]
        if self.notes:
            parts.append("\n".join(f"- {escape(note, 'markdown')}" for note in self.notes))
        for picture in self.pictures:
            parts.append(f"![{escape(picture.about, 'markdown')}]({picture.file})")
        return "\n\n".join(parts)

    def to_html(self) -> str:
        """Return the section as HTML."""
        parts = [f"<h2>{escape(self.title, 'html')}</h2>"]
        parts += [f"<p>{escape(text, 'html')}</p>" for text in self.text]
        parts.append(Grids({}, self.grids, self.notes).to_html())
        for picture in self.pictures:
            source = escape(picture.file, "html")
            about = escape(picture.about, "html")
            parts.append(f'<p><img src="{source}" alt="{about}"></p>')
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
    """A whole report: sections under a title, and the results behind them; final.

    Attributes:
        text: paragraphs before the sections.
        about: what the results are about, such as a note.
    """

    title: str
    text: tuple[str, ...]
    sections: tuple[Section, ...]
    about: Mapping[str, Any]
    records: Sequence[Record]

    def to_markdown(self) -> str:
        """Return the report as Markdown."""
        parts = [escape(text, "markdown") for text in (f"# {self.title}", *self.text)]
        parts += [section.to_markdown() for section in self.sections]
        return "\n\n".join(parts) + "\n"

    def to_html(self) -> str:
        """Return the report as one HTML page; its figures lie beside it."""
        body = [f"<h1>{escape(self.title, 'html')}</h1>"]
        body += [f"<p>{escape(paragraph, 'html')}</p>" for paragraph in self.text]
        body += [section.to_html() for section in self.sections]
        title = escape(self.title, "html")
        head = f'<meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        start = f'<html lang="en"><head>{head}</head><body>'
        return "\n".join(["<!doctype html>", start, *body, "</body></html>\n"])

    def write(self, folder: Path) -> list[Path]:
        """Write report.md, report.html and results.json; return them and the figures there."""
        results = plain_results(self.about, self.records)
        results["tables"] = [section.to_dict() for section in self.sections]
        written = {
            folder / "report.md": self.to_markdown().encode(),
            folder / "report.html": self.to_html().encode(),
            folder / "results.json": to_json(results),
        }
        for path, content in written.items():
            write_file(path, content)
        pictures = [picture for section in self.sections for picture in section.pictures]
        return [*written, *(folder / picture.file for picture in pictures)]


def tables_page(tables: Grids, title: str, figure: Figure | None = None) -> str:
    """Return tables, their notes and a figure as one HTML page that needs nothing else."""
    pictures = (embed_picture(figure, title),) if figure else ()
    section = Section("Results", (), tuple(tables.grids), tuple(tables.notes), pictures)
    return Page(title, (), (section,), {}, ()).to_html()


def map_page(found: SenseMap) -> str:
    """Return a page that needs nothing else: points, a legend, and the text under the pointer."""
    shown = legend_labels(found.labels)
    low, high = found.points.min(axis=0), found.points.max(axis=0)
    span = [float(size) or 1.0 for size in (high - low)]
    points: list[dict[str, Any]] = []
    for (x, y), label, around in zip(found.points.tolist(), found.labels, found.hover, strict=True):
        points.append(
            {
                "x": round(20 + 860 * (x - float(low[0])) / span[0], 1),
                "y": round(20 + 520 * (1 - (y - float(low[1])) / span[1]), 1),
                "c": shown.index(label) if label in shown else len(shown) - 1,
                "l": label,
                "t": around,
            }
        )
    counts = Counter(point["c"] for point in points)
    legend = [f"{label} ({counted(counts[number], 'time')})" for number, label in enumerate(shown)]
    values = {"points": points, "legend": legend, "colours": MAP_COLOURS}
    # Inside a script no "<" may begin a tag.
    data = json.dumps(values, ensure_ascii=False).replace("<", "\\u003c")
    title = escape(f"“{found.word}”", "html")
    return (
        _PAGE.replace("@TITLE@", title)
        .replace("@CAPTION@", escape(map_caption(found), "html"))
        .replace("@DATA@", data)
    )


_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>@TITLE@</title>
<style>
body { font: 15px/1.4 system-ui, sans-serif; color: #222; margin: 1.5em auto; max-width: 920px; }
h1 { font-size: 1.3em; margin: 0; } p { margin: .2em 0 .8em; color: #555; }
svg { width: 100%; border: 1px solid #ddd; background: #fff; }
circle { opacity: .75; stroke: #fff; stroke-width: .5; }
circle:hover, circle:focus { opacity: 1; stroke: #222; stroke-width: 2; outline: none; }
circle.off { opacity: .05; pointer-events: none; }
#legend button { border: 0; background: none; font: inherit; padding: .15em .6em .15em 0; }
#legend button { cursor: pointer; text-align: left; }
#legend button[aria-pressed=false] { color: #aaa; text-decoration: line-through; }
#legend i { display: inline-block; width: .8em; height: .8em; margin-right: .4em; }
#legend i { border-radius: 50%; }
#text { min-height: 4.5em; padding: .5em 0; } mark { background: #ffe9a8; font-weight: 600; }
</style></head><body>
<h1>@TITLE@</h1><p>@CAPTION@. Point at a dot to read it; click a colour to hide it.</p>
<svg viewBox="0 0 900 560" role="img" aria-label="map of occurrences"></svg>
<div id="text" aria-live="polite"></div><div id="legend"></div>
<script>
const data = @DATA@;
const svg = document.querySelector("svg"), text = document.getElementById("text");
const show = point => {
  text.replaceChildren();
  const label = document.createElement("div");
  label.textContent = point.l; label.style.color = data.colours[point.c];
  const mark = document.createElement("mark"); mark.textContent = point.t[1];
  text.append(label, "… " + point.t[0], mark, point.t[2] + " …");
};
data.points.forEach(point => {
  const dot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
  dot.setAttribute("cx", point.x); dot.setAttribute("cy", point.y); dot.setAttribute("r", 5);
  dot.setAttribute("fill", data.colours[point.c]); dot.setAttribute("tabindex", 0);
  dot.dataset.c = point.c;
  dot.addEventListener("pointerenter", () => show(point));
  dot.addEventListener("focus", () => show(point));
  svg.append(dot);
});
data.legend.forEach((label, number) => {
  const button = document.createElement("button"), swatch = document.createElement("i");
  swatch.style.background = data.colours[number];
  button.setAttribute("aria-pressed", "true");
  button.append(swatch, label);
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", on);
    svg.querySelectorAll(`[data-c="${number}"]`).forEach(dot => dot.classList.toggle("off", !on));
  });
  document.getElementById("legend").append(button, document.createElement("br"));
});
</script></body></html>
"""
