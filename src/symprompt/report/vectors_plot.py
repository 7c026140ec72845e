"""Pictures of word vectors: cosines between words, and scores of word senses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

from symprompt.report.figures import BLUE, GREY, INK, make_figure, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_NUMBERS = 20
"""Larger tables are shown by their colours alone."""


def draw_cosines(
    labels: Sequence[str],
    cosines: Sequence[Sequence[float]],
    *,
    title: str = "Cosine of word vectors",
    caption: str = "",
) -> Figure:
    """Return a table of cosines as colours, with the numbers where there is room.

    Args:
        labels: of the rows, and of the columns.
        cosines: a row for each label.
    """
    figure = make_figure(1.4 + 0.3 * len(labels), title, caption)
    axes = figure.subplots()
    image = axes.imshow(cosines, vmin=-1, vmax=1, cmap="RdBu_r", aspect="auto")
    places = range(len(labels))
    axes.set_xticks(places, labels, rotation=45, ha="right", rotation_mode="anchor", fontsize=8)
    axes.set_yticks(places, labels, fontsize=8)
    axes.tick_params(length=0)
    if len(labels) <= _MOST_NUMBERS:
        for row, numbers in enumerate(cosines):
            for column, number in enumerate(numbers):
                colour = "white" if abs(number) > 0.7 else INK
                shown = f"{number:z.2f}"
                axes.text(
                    *(column, row, shown), ha="center", va="center", fontsize=6.5, color=colour
                )
    figure.colorbar(image, ax=axes, shrink=0.8).ax.tick_params(labelsize=8)
    return figure


def draw_senses(evaluation: Mapping[str, Any]) -> Figure:
    """Return F1 of each set beside the most frequent sense's, with the difference's interval."""
    scores = [*evaluation["sets"], evaluation["all"], evaluation["seen"]]
    figure = make_figure(
        1.2 + 0.4 * len(scores),
        "Word senses: the nearest against the most frequent",
        "F1 in percent. Lines: the 95 % interval of the paired difference, drawn from the most "
        "frequent sense's F1.",
    )
    axes = figure.subplots()
    places = [len(scores) - place for place in range(len(scores))]
    for place, score in zip(places, scores, strict=True):
        change = score["difference"]
        low, high = (score["baseline"] + change[key] for key in ("low", "high"))
        axes.plot([low, high], [place, place], color=BLUE, linewidth=2, alpha=0.4)
        axes.annotate(
            f"{change['difference']:+z.1f}", (high, place), xytext=(5, -3),
            textcoords="offset points", fontsize=8, color=INK,
        )  # fmt: skip
    for key, mark, colour, label in (
        ("baseline", "s", GREY, "most frequent sense"),
        ("f1", "o", BLUE, "nearest sense"),
    ):
        values = [score[key] for score in scores]
        axes.plot(values, places, linestyle="", marker=mark, color=colour, label=label)
    names = [fill(f"{score['name']} ({score['instances']:,})", 28) for score in scores]
    axes.set_yticks(places, names, fontsize=8)
    axes.set_ylim(0.4, len(scores) + 0.6)
    axes.margins(x=0.12)
    axes.set_xlabel("F1")
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, fontsize=8, labelcolor=INK
    )
    plain(axes, grid="x")
    return figure
