"""Bars of several methods side by side in panels, with published numbers told apart by hatching."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from symprompt.report.figures import GREY, INK, RUN_COLOURS, make_figure, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CROWDED = 13
"""So many bars leave no room for a number above each, unless it is turned."""


_INCHES = 6.3
_LETTER = 0.065
"""The panels' width, and that of a letter below them, in inches."""


@dataclass(frozen=True)
class BarPanel:
    """One panel: a group of bars for each name, a bar for each method.

    Attributes:
        bars: method -> a number for each group, None where there is none.
        published: the numbers are a paper's; they are hatched.
    """

    title: str
    groups: Sequence[str]
    bars: Mapping[str, Sequence[float | None]]
    published: bool = False


def draw_bar_panels(panels: Sequence[BarPanel], *, title: str, caption: str) -> Figure:
    """Draw panels beside each other on one scale from 0 to 100, colours by method."""
    # The line left free below the title is the legend's: matplotlib would put it beside the title.
    figure = make_figure(4.1, f"{title}\n", caption)
    sizes = [max(1.5, float(len(panel.groups))) for panel in panels]
    room = max(6, int((_INCHES / sum(sizes)) / _LETTER))
    axes = figure.subplots(
        1, len(panels), sharey=True, squeeze=False, gridspec_kw={"width_ratios": sizes}
    )[0]
    methods = list(dict.fromkeys(method for panel in panels for method in panel.bars))
    colours = {
        method: RUN_COLOURS[place % len(RUN_COLOURS)] for place, method in enumerate(methods)
    }
    for own, panel in zip(axes, panels, strict=True):
        _draw_panel(own, panel, colours, crowded=_count(panels) > _CROWDED)
        names = [_wrapped(name, room) for name in panel.groups]
        own.set_xticks(range(len(names)), names)
    axes[0].set_ylabel("percent")
    axes[0].set_ylim(0, 112)
    axes[0].set_yticks(range(0, 101, 20))
    handles = [_patch(colours[method], method) for method in methods]
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0.0, 0.955),
        ncols=len(methods),
        frameon=False,
        fontsize=8,
    )
    return figure


def _count(panels: Sequence[BarPanel]) -> int:
    return sum(len(panel.groups) * len(panel.bars) for panel in panels)


def _draw_panel(axes: Axes, panel: BarPanel, colours: Mapping[str, str], *, crowded: bool) -> None:
    width = 0.82 / max(1, len(panel.bars))
    for number, (method, values) in enumerate(panel.bars.items()):
        shift = (number - (len(panel.bars) - 1) / 2) * width
        for place, value in enumerate(values):
            if value is None:
                continue
            colour = colours[method]
            if panel.published:
                axes.bar(
                    place + shift, value, 0.9 * width, color="white", edgecolor=colour, hatch="////"
                )
            else:
                axes.bar(place + shift, value, 0.9 * width, color=colour)
            axes.annotate(
                f"{value:.1f}",
                (place + shift, value),
                (0, 2),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=6.5 if crowded else 8,
                rotation=90 if crowded else 0,
                color=GREY if panel.published else INK,
            )
    axes.set_xlim(-0.55, len(panel.groups) - 0.45)
    axes.set_title(panel.title, fontsize=9, color=INK)
    plain(axes)
    axes.tick_params(axis="x", length=0, labelsize=7.5)


def _wrapped(name: str, room: int) -> str:
    """Break a name over lines, at its own line breaks, spaces and hyphens."""
    return "\n".join(textwrap.fill(line, room) for line in name.split("\n"))


def _patch(colour: str, label: str) -> object:
    from matplotlib.patches import Patch

    return Patch(color=colour, label=label)
