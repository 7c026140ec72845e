"""The map of a word's occurrences as a picture and as a page with hover text."""

from __future__ import annotations

import html
import json
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symprompt.files.atomic import replacing, write_file
from symprompt.report.figures import INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from symprompt.embeddings.sense_map import SenseMap

# Okabe and Ito's palette, which colour-blind readers tell apart, then marks of other shapes.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C")
_MARKS = ("o", "s", "^", "D", "v", "P", "o")
_SHOWN = 6
_REST = "other"


def legend_labels(labels: Sequence[str]) -> list[str]:
    """Return the most frequent labels, most frequent first; what is left over becomes "other"."""
    ranked = [label for label, _ in Counter(labels).most_common()]
    return ranked if len(ranked) <= _SHOWN + 1 else [*ranked[:_SHOWN], _REST]


def caption(found: SenseMap) -> str:
    """Return what a reader must know about the picture, in one sentence."""
    how = "UMAP of cosines" if found.projection == "UMAP" else "two principal components"
    return f"{len(found.labels)} occurrences, {how}, coloured by {found.colour}"


def save_map(found: SenseMap, path: str | Path) -> None:
    """Draw a map with matplotlib; the path's ending says the format.

    Raises:
        RunError: it cannot be written.
    """
    target = Path(path)
    with replacing(target) as part:
        map_figure(found).savefig(part, dpi=130, format=target.suffix.removeprefix("."))


def map_figure(found: SenseMap) -> Figure:
    """Return the picture, to be shown or saved."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 5.6), layout="constrained")
    axes = figure.add_subplot()
    shown = legend_labels(found.labels)
    counts = Counter(found.labels)
    for number, label in enumerate(shown):
        own = [
            place
            for place, name in enumerate(found.labels)
            if name == label or (label == _REST and name not in shown)
        ]
        text = textwrap.shorten(label, 64, placeholder=" ...")
        amount = counts[label] if label in counts else len(own)
        axes.scatter(
            found.points[own, 0],
            found.points[own, 1],
            s=18,
            alpha=0.75,
            linewidths=0.3,
            edgecolors="white",
            color=COLOURS[number % len(COLOURS)],
            marker=_MARKS[number % len(_MARKS)],
            label=f"{text} [{amount}]",
        )
    axes.set_title(f"“{found.word}”", loc="left", fontsize=12, color=INK)
    axes.set_xlabel(caption(found), fontsize=8.5, color=INK)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower left", frameon=False, fontsize=8.5, markerscale=1.4)
    return figure


def write_map_page(found: SenseMap, path: str | Path) -> None:
    """Write a page that needs nothing else: the points, a legend, and the text under the pointer.

    Raises:
        RunError: it cannot be written.
    """
    write_file(Path(path), map_page(found).encode())


def map_page(found: SenseMap) -> str:
    """Return the page's HTML."""
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
    legend = [f"{label} [{counts[number]}]" for number, label in enumerate(shown)]
    values = {"points": points, "legend": legend, "colours": COLOURS}
    # Inside a script no "<" may begin a tag.
    data = json.dumps(values, ensure_ascii=False).replace("<", "\\u003c")
    title = html.escape(f"“{found.word}”")
    return (
        _PAGE.replace("@TITLE@", title)
        .replace("@CAPTION@", html.escape(caption(found)))
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
