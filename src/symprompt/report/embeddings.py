"""Tables and the picture about word vectors: isotropy, similarity, senses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symprompt.files.atomic import replacing
from symprompt.report.figures import BLUE, GREY, INK, ORANGE
from symprompt.report.grid import Grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table


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


def tags_table(tagged: Sequence[Mapping[str, Any]]) -> Table:
    """Return each content word with its sense, gloss and confidence."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("word", "part", "sense", "confidence", "gloss"):
        table.add_column(Text(heading), overflow="fold")
    for word in tagged:
        sure = word["confidence"]
        share = "first sense" if sure is None else f"{100 * sure:.0f} %"
        cells = (word["word"], word["pos"], word["sense"], share, word["gloss"].split("; ")[0])
        table.add_row(*(Text(cell) for cell in cells))
    return table


def save_isotropy_plot(report: Mapping[str, Any], path: str | Path) -> None:
    """Draw the expected cosine of each layer and the cosines by frequency, before and after.

    Raises:
        RunError: it cannot be written.
    """
    target = Path(path)
    with replacing(target) as part:
        isotropy_figure(report).savefig(part, dpi=130, format=target.suffix.removeprefix("."))


def isotropy_figure(report: Mapping[str, Any]) -> Figure:
    """Return the picture, to be shown or saved."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = [layer["layer"] for layer in report["layers"]]
    for key, colour, mark, label in (
        ("before", ORANGE, "o", "as it is"),
        ("after", BLUE, "s", "standardised"),
    ):
        values = [layer[key] for layer in report["layers"]]
        # The sum of the last layers is no layer, so no line leads to it.
        left.plot(range(len(values) - 1), values[:-1], color=colour, marker=mark, markersize=4)
        left.plot([len(values) - 0.4], values[-1:], color=colour, marker=mark, label=label)
        bands = report[key]
        places = range(len(bands))
        same = [band["same"] for band in bands]
        right.plot(
            places, same, color=colour, marker=mark, markersize=4, label=f"{label}, same word"
        )
        other = [band["other"] for band in bands]
        right.plot(
            *(places, other),
            color=colour,
            marker=mark,
            markersize=4,
            linestyle=(0, (3, 2)),
            label=f"{label}, other words",
        )
    left.set_xticks(
        [*range(len(names) - 1), len(names) - 0.4],
        [name.replace("sum-last-", "sum of\nlast ") for name in names],
    )
    left.set_xlabel("layer (0: embeddings)")
    left.set_ylabel("expected cosine of two random words")
    ticks = [f"{band['low']}–{band['high']}" for band in report["before"]]
    right.set_xticks(range(len(ticks)), ticks, rotation=35, fontsize=8)
    right.set_xlabel(f"occurrences of the word ({names[-1]})")
    right.set_ylabel("mean cosine of two occurrences")
    for axes in (left, right):
        axes.axhline(0, color=GREY, linewidth=0.8)
        axes.set_ylim(min(-0.05, axes.get_ylim()[0]), max(1.0, axes.get_ylim()[1]))
        axes.grid(visible=True, alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        # Above the lines, which may go anywhere between -1 and 1.
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=2,
            frameon=False,
            fontsize=8,
            labelcolor=INK,
        )
    return figure
