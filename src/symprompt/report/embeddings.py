"""What the commands about word vectors print: tables of isotropy, similarity and senses.

And the map of a word's occurrences as a page with hover text; figures are in ``figures``.
"""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symprompt.files.atomic import write_file
from symprompt.report.figures import MAP_COLOURS, legend_labels, map_caption
from symprompt.report.grid import Grid

if TYPE_CHECKING:
    from symprompt.embeddings.sense_map import SenseMap


def isotropy_table(report: Mapping[str, Any]) -> Grid:
    """Return the expected cosine of each layer, before and after, and its rogue dimensions."""
    rows = []
    for layer in report["layers"]:
        shares = ", ".join(f"{place}: {100 * share:.0f} %" for place, share in layer["shares"])
        rows.append((layer["layer"], f"{layer['before']:.3f}", f"{layer['after']:.3f}", shares))
    return Grid(
        "Expected cosine of two random words",
        ("layer", "as it is", "standardised", "dimensions with the largest shares"),
        (tuple(rows),),
    )


def frequency_table(report: Mapping[str, Any]) -> Grid:
    """Return the cosines by word frequency, before and after."""
    rows = []
    for one, other in zip(report["before"], report["after"], strict=True):
        cells = (f"{entry[key]:.3f}" for entry in (one, other) for key in ("same", "other"))
        rows.append((f"{one['low']} to {one['high']}", str(one["types"]), *cells))
    return Grid(
        f"Mean cosine by word frequency, {report['layers'][-1]['layer']}",
        (
            "times seen",
            "words",
            "same word",
            "others",
            "same, standardised",
            "others, standardised",
        ),
        (tuple(rows),),
    )


def similarity_table(marked: Sequence[str], cosines: Sequence[Sequence[float]]) -> Grid:
    """Return the cosine of every two occurrences."""
    rows = [
        (f"{number}  {text}", *(f"{value:.3f}" for value in row))
        for number, (text, row) in enumerate(zip(marked, cosines, strict=True), start=1)
    ]
    header = ("occurrence", *(str(number + 1) for number in range(len(marked))))
    return Grid("Cosine of word occurrences", header, (tuple(rows),))


def senses_table(evaluation: Mapping[str, Any]) -> Grid:
    """Return F1 of each set against the most frequent sense."""
    parts = {"n": "nouns", "v": "verbs", "a": "adjectives", "r": "adverbs"}
    blocks = (
        evaluation["sets"],
        [evaluation["all"], evaluation["seen"]],
        [{**score, "name": parts[score["name"]]} for score in evaluation["parts"]],
    )
    return Grid(
        "F1 in percent, with the 95 % interval of the paired difference",
        ("set", "words", "F1", "most frequent sense", "difference", "p"),
        tuple(tuple(_score_row(score) for score in block) for block in blocks),
    )


def senses_notes(evaluation: Mapping[str, Any]) -> list[str]:
    """Return what a reader must know beside the table: sets and words that are not in it."""
    about = evaluation["about"]
    notes = []
    if about["sets that are not there"]:
        notes.append(f"not there, so not in all: {', '.join(about['sets that are not there'])}")
    for name, dropped in about["words left out"].items():
        reasons = ", ".join(f"{count} ({reason})" for reason, count in dropped.items())
        notes.append(f"words of {name} left out: {reasons}")
    return notes


def _score_row(score: Mapping[str, Any]) -> tuple[str, ...]:
    change = score["difference"]
    p = "< 0.01" if change["p"] < 0.01 else f"{change['p']:.2f}"
    bounds = f"{change['difference']:+z.2f} ({change['low']:+z.2f} to {change['high']:+z.2f})"
    return (
        score["name"],
        str(score["instances"]),
        f"{score['f1']:.2f}",
        f"{score['baseline']:.2f}",
        bounds,
        p,
    )


def tags_table(tagged: Sequence[Mapping[str, Any]]) -> Grid:
    """Return each content word with its sense, gloss and confidence."""
    rows = []
    for word in tagged:
        sure = word["confidence"]
        share = "first sense" if sure is None else f"{100 * sure:.0f} %"
        gloss = word["gloss"].split("; ")[0]
        rows.append((word["word"], word["pos"], word["sense"], share, gloss))
    header = ("word", "part", "sense", "confidence", "gloss")
    return Grid("", header, (tuple(rows),), folded=(1, 2, 4))


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
    values = {"points": points, "legend": legend, "colours": MAP_COLOURS}
    # Inside a script no "<" may begin a tag.
    data = json.dumps(values, ensure_ascii=False).replace("<", "\\u003c")
    title = html.escape(f"“{found.word}”")
    return (
        _PAGE.replace("@TITLE@", title)
        .replace("@CAPTION@", html.escape(map_caption(found)))
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
