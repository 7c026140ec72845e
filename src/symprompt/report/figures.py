"""Figures as PNG files, drawn with matplotlib from the plain numbers in ``series``.

matplotlib is an extra, ``pip install symprompt[report]``, and imported when a figure is drawn.
Figures are objects of their own: no pyplot, no backend or style is set for the whole process.

Bars of several methods side by side in panels, with published numbers told apart by hatching.

The loss curve of a pretraining run as a picture.

Pictures of word vectors: cosines between words, and scores of word senses.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symprompt.errors import ConfigError, SympromptError
from symprompt.report.series import Bar, KCurve, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from symprompt.errors import RunError
from symprompt.files.atomic import reason, replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure
from textwrap import fill

# Okabe and Ito's palette, which colour-blind readers tell apart; black and grey for what is beside.
BLUE, ORANGE, GREEN, INK, GREY = "#0072B2", "#D55E00", "#009E73", "#222222", "#8C8C8C"
RUN_COLOURS = (GREY, BLUE, ORANGE, GREEN, "#CC79A7", "#E69F00", "#56B4E9")
_DOTS_PER_INCH = 200
_WIDTH = 7.2
_DASHED: dict[str, Any] = {"color": INK, "linestyle": (0, (4, 2)), "linewidth": 1.1}
NEED = "figures need matplotlib, which is not installed; run: pip install symprompt[report]"


def can_draw() -> bool:
    """Say whether matplotlib is there."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def check_figure(path: str) -> None:
    """Refuse a figure that could not be drawn, before the work it shows; empty asks for none.

    Raises:
        ConfigError: the file's name does not end in .png, or matplotlib is not installed.
    """
    if path and not path.endswith(".png"):
        raise ConfigError(f"--figure is {path}; figures are PNG files: give a name in .png.")
    if path and not can_draw():
        raise ConfigError(NEED + ".")


def draw_methods(
    bars: Sequence[Bar], *, title: str, caption: str, baseline: float | None = None
) -> Figure:
    """Draw runs side by side, metric after metric, with their intervals.

    Args:
        baseline: P@1 of always giving the most frequent training object, in percent.
    """
    figure = make_figure(4.3, title, caption)
    axes = figure.subplots()
    metrics = list(dict.fromkeys(bar.metric for bar in bars))
    runs = list(dict.fromkeys(bar.run for bar in bars))
    width = 0.8 / len(runs)
    for number, run in enumerate(runs):
        own = {bar.metric: bar for bar in bars if bar.run == run}
        at = [place + (number - (len(runs) - 1) / 2) * width for place in range(len(metrics))]
        colour = RUN_COLOURS[number % len(RUN_COLOURS)]
        _draw_bars(axes, at, [own[metric] for metric in metrics], 0.92 * width, colour)
    if baseline is not None and "P@1" in metrics:
        place = metrics.index("P@1")
        ends = (place - 0.44, place + 0.44)
        axes.plot(ends, (baseline, baseline), label="most frequent object", **_DASHED)
    axes.set_xticks(range(len(metrics)), metrics)
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel("percent, mean over relations")
    axes.set_ylim(0, 1.12 * max(bar.high for bar in bars))
    axes.set_yticks([tick for tick in range(0, 101, 20) if tick <= axes.get_ylim()[1]])
    plain(axes)
    # The runs first, as they stand from left to right; matplotlib lists lines before bars.
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda place: labels[place] not in runs)
    shown = [handles[place] for place in order], [labels[place] for place in order]
    axes.legend(*shown, loc="upper left", frameon=False, fontsize=8.5)
    return figure


def _draw_bars(
    axes: Axes, at: Sequence[float], bars: Sequence[Bar], width: float, colour: str
) -> None:
    """Draw one run's bars with their intervals and the value above each."""
    below = [max(0.0, bar.value - bar.low) for bar in bars]
    above = [max(0.0, bar.high - bar.value) for bar in bars]
    axes.bar(
        at,
        [bar.value for bar in bars],
        width,
        color=colour,
        label=bars[0].run,
        yerr=(below, above),
        error_kw={"ecolor": INK, "elinewidth": 1.0, "capsize": 3.0},
    )
    for place, bar in zip(at, bars, strict=True):
        axes.annotate(
            f"{bar.value:.1f}",
            (place, max(bar.value, bar.high)),
            (0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=INK,
        )


def draw_k_curve(curve: KCurve, *, title: str, caption: str) -> Figure:
    """Draw each metric against the number of candidates that are asked back."""
    figure = make_figure(3.3, title, caption)
    panels = figure.subplots(1, len(curve.values), sharex=True)
    # One scale for all, so that a step of a point looks the same in every panel.
    spans = [
        max(*values, curve.forward[name]) - min(*values, curve.forward[name])
        for name, values in curve.values.items()
    ]
    half = 0.6 * max(*spans, 1.0)
    for axes, (name, values) in zip(panels, curve.values.items(), strict=True):
        before = curve.forward[name]
        axes.axhline(before, label="not asked back", **_DASHED)
        axes.plot(
            curve.k,
            values,
            color=ORANGE,
            marker="o",
            markersize=3.5,
            linewidth=1.5,
            label="asked back",
        )
        middle = (max(*values, before) + min(*values, before)) / 2
        axes.set_ylim(middle - half, middle + half)
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("K, candidates asked back")
        axes.set_xticks([k for k in curve.k if k == 1 or k % 5 == 0])
        plain(axes)
    panels[0].set_ylabel("percent, mean over relations")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2, frameon=False, fontsize=8.5)
    return figure


def draw_method_rows(bars: Sequence[Bar], *, title: str, caption: str) -> Figure:
    """Draw many runs, one a line, in one panel for each metric, with their intervals."""
    metrics = list(dict.fromkeys(bar.metric for bar in bars))
    runs = list(dict.fromkeys(bar.run for bar in bars))
    figure = make_figure(1.3 + 0.27 * len(runs), title, caption)
    panels = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
    for axes, metric in zip(panels, metrics, strict=True):
        own = {bar.run: bar for bar in bars if bar.metric == metric}
        shown = [own[run] for run in runs]
        values = [bar.value for bar in shown]
        spread = (
            [max(0.0, bar.value - bar.low) for bar in shown],
            [max(0.0, bar.high - bar.value) for bar in shown],
        )
        best = max(values)
        colours = [ORANGE if value == best else BLUE for value in values]
        axes.barh(
            range(len(runs)),
            values,
            0.68,
            color=colours,
            xerr=spread,
            error_kw={"ecolor": INK, "elinewidth": 0.9, "capsize": 2.0},
        )
        for row, bar in enumerate(shown):
            axes.annotate(
                f"{bar.value:.1f}",
                (max(bar.value, bar.high), row),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=7.5,
                color=INK,
            )
        axes.set_title(metric, fontsize=10)
        # Room for the number behind the longest bar.
        axes.set_xlim(0, 1.3 * max(bar.high for bar in shown) or 1.0)
        axes.set_ylim(len(runs) - 0.45, -0.55)
        axes.set_yticks(range(len(runs)), runs, parse_math=False)
        axes.tick_params(axis="y", length=0)
        axes.set_xticks([tick for tick in range(0, 101, 20) if tick <= axes.get_xlim()[1]])
        axes.set_xlabel("percent")
        plain(axes, grid="x")
    return figure


def draw_frequency(
    lines: Mapping[str, Sequence[float | None]],
    bins: Sequence[str],
    counts: Sequence[int],
    *,
    title: str,
    caption: str,
) -> Figure:
    """Draw each run's value in every bin of object frequency; empty bins are left out."""
    figure = make_figure(4.0, title, caption)
    axes = figure.subplots()
    kept = [place for place, count in enumerate(counts) if count]
    for number, (run, values) in enumerate(lines.items()):
        there = {at: value for at, place in enumerate(kept) if (value := values[place]) is not None}
        axes.plot(
            list(there),
            list(there.values()),
            color=RUN_COLOURS[number % len(RUN_COLOURS)],
            linestyle="-" if number < len(RUN_COLOURS) else (0, (2.5, 1.5)),
            marker="os^Dv<>"[number % 7],
            markersize=4.5,
            linewidth=1.5,
            label=run,
        )
    labels = [f"{bins[place]}\n{counts[place]:,} facts" for place in kept]
    axes.set_xticks(range(len(kept)), labels)
    axes.set_xlim(-0.3, len(kept) - 0.7)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("right object's share of its relation's training facts")
    axes.set_ylabel("MRR, percent")
    plain(axes)
    # Long handles, so that dashes show on both sides of the marker.
    figure.legend(loc="outside right center", frameon=False, fontsize=8.5, handlelength=3.4)
    return figure


def draw_question(panels: Sequence[Panel], *, right: str, title: str, caption: str) -> Figure:
    """Draw a question's candidates in forward, backward and joint order, the right one marked."""
    rows = max(len(panel.texts) for panel in panels)
    figure = make_figure(1.5 + 0.22 * rows, title, caption)
    heads = {
        "forward": "asked forth:\nobject given subject",
        "backward": "asked back:\nsubject given object",
        "joint": "both together:\nforth + weight × back",
    }
    for axes, panel in zip(figure.subplots(1, len(panels)), panels, strict=True):
        place = panel.texts.index(right) + 1 if right in panel.texts else None
        low, high = min(panel.scores), max(panel.scores)
        reach = (high - low) or 1.0
        start = low - 0.12 * reach
        for row, (text, score) in enumerate(zip(panel.texts, panel.scores, strict=True)):
            colour = ORANGE if text == right else GREY
            axes.plot((start, score), (row, row), color=colour, linewidth=1.4, alpha=0.8)
            axes.plot(score, row, marker="o", markersize=5, color=colour)
        axes.set_xlim(start, high + 0.08 * reach)
        axes.set_ylim(rows - 0.4, -0.6)
        labels = [f"{text}  {row}" for row, text in enumerate(panel.texts, start=1)]
        axes.set_yticks(range(len(labels)), labels, fontsize=8, parse_math=False)
        axes.tick_params(axis="y", length=0)
        for label, text in zip(axes.get_yticklabels(), panel.texts, strict=True):
            if text == right:
                label.set_color(ORANGE)
                label.set_fontweight("bold")
        head = heads.get(panel.title, panel.title)
        axes.set_title(f"{head}\n{right}: rank {place}" if place else head, fontsize=9)
        # Back and joint scores may hold an answer's frequency too, and are then no probabilities.
        axes.set_xlabel("log-probability" if panel.title == "forward" else f"{panel.title} score")
        plain(axes, grid="x")
    return figure


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG, whole or not at all; return where it is."""
    from matplotlib.text import Text

    # A dollar sign in a name is no formula.
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(part, format="png", dpi=_DOTS_PER_INCH)
        part.replace(path)
    except OSError as error:
        raise SympromptError(f"cannot write {path}: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return path


def make_figure(height: float, title: str, caption: str) -> Figure:
    """Return an empty figure with a title above and a caption below what will be drawn."""
    if not can_draw():
        raise SympromptError(NEED + ".")
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    spaced = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06)
    figure = Figure(figsize=(_WIDTH, height), layout=spaced, facecolor="white")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK)
    figure.supxlabel(textwrap.fill(caption, 126), x=0.01, ha="left", fontsize=7.5, color="#444444")
    return figure


def plain(axes: Axes, grid: str = "y") -> None:
    """Take away what carries no information."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y" if grid == "y" else "x", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)
    axes.xaxis.label.set_fontsize(9)
    axes.yaxis.label.set_fontsize(9)


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


# Told apart with any eye for colour, and on paper by their dashes.
_COLOURS = ("#0072b2", "#d55e00", "#009e73")
_LABELS = {"mlm": "masked tokens", "nsp": "next sentence", "sbo": "span boundary"}


def can_plot() -> bool:
    """Say whether matplotlib, which is optional, is there."""
    return find_spec("matplotlib") is not None


def save_loss_plot(training: Mapping[str, Any], path: Path) -> str:
    """Draw a run's losses over its steps, with the validation loss as dots.

    The model is finished without it, so a full disk is no error: no picture is left then.

    Args:
        training: a model folder's training.json.
        path: the picture to write; its ending says the format.

    Returns:
        Why it could not be written; empty if it was.
    """
    try:
        with replacing(path) as part:
            loss_figure(training).savefig(part, dpi=150, format=path.suffix.removeprefix("."))
    except RunError as error:
        return reason(error.__cause__) if isinstance(error.__cause__, OSError) else str(error)
    return ""


def loss_figure(training: Mapping[str, Any]) -> Figure:
    """Return the picture, to be shown or saved."""
    from matplotlib.figure import Figure

    history = training["history"]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    steps = [row["step"] for row in history]
    for colour, part in zip(_COLOURS, training["loss"], strict=False):
        label = _LABELS.get(part, part)
        losses = [row["parts"][part] for row in history]
        axes.plot(steps, losses, color=colour, linewidth=1.2, label=f"{label}, training")
        checked = [row for row in history if row["validation"]]
        if checked:
            axes.plot(
                [row["step"] for row in checked],
                [row["validation"][part] for row in checked],
                color=colour,
                linestyle="none",
                marker="o",
                markersize=4,
                markerfacecolor="white",
                # The last one lies on the edge.
                clip_on=False,
                zorder=3,
                label=f"{label}, validation",
            )
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats)")
    axes.set_xlim(0, max(steps))
    axes.set_title(_title(training), fontsize=10, loc="left")
    axes.grid(visible=True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


def _title(training: Mapping[str, Any]) -> str:
    return (
        f"{training['model']['parameters'] / 1e6:.3g} M weights, "
        f"{training['tokens'] / 1e6:,.4g} M tokens seen, {training['passes']:.3g} passes"
    )


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
