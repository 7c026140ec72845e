"""Every figure of the package, as PNG, SVG or PDF files: one style, one way to save.

matplotlib is an extra, ``pip install symprompt[report]``, and imported when a figure is drawn.
Figures are objects of their own: no pyplot, no backend or style is set for the whole process. What
they show are plain values: of stored predictions, of reports and of stored metrics.
"""

from __future__ import annotations

import io
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from symprompt.errors import ConfigError, RunError, SympromptError, counted
from symprompt.files.atomic import reason, write_file
from symprompt.probing.results import Array, Ranks, load_asked, load_combination
from symprompt.report.records import METRIC_NAMES, is_share
from symprompt.runs.folder import Folder, Record
from symprompt.runs.statistics import OVER_RELATIONS, Summary, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from symprompt.embeddings.sense_map import SenseMap
    from symprompt.probing.ask import Answer

# Okabe and Ito's palette, which colour-blind readers tell apart; black and grey for what is beside.
BLUE, ORANGE, GREEN, INK, GREY = "#0072B2", "#D55E00", "#009E73", "#222222", "#8C8C8C"
RUN_COLOURS = (GREY, BLUE, ORANGE, GREEN, "#CC79A7", "#E69F00", "#56B4E9")
MAP_COLOURS = (*RUN_COLOURS[1:], GREY)
# One colour means one method in every figure; a name is matched by what stands in it, in this
# order. Names of no known method get colours that are not in the figure yet.
METHOD_COLOURS = {
    "SPE": ORANGE,
    "PT-2": "#7F3C8D",
    "P-tuning": BLUE,
    "LPAQA": GREEN,
    "AutoPrompt": "#CC79A7",
    "OptiPrompt": "#E69F00",
    "SoftPrompt": "#56B4E9",
    "LoRA": "#8B5A2B",
    "fine-tuning": "#994455",
    "FT": "#994455",
    "PT": "#4B9CA8",
    "zero-shot": GREY,
    "manual prompts": GREY,
    "majority object": "#C4C4C4",
}
NEED = "figures need matplotlib, which is not installed; run: pip install symprompt[report]"
OTHER = "other"
"""The label of what is left over in a legend of the most frequent labels."""

# What a figure may be saved as, each without the time of drawing.
_ENDINGS: dict[str, dict[str, None]] = {
    ".png": {},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
_DOTS_PER_INCH = 200
_WIDTH = 7.2
# Letters in a line of a title.
_TITLE = 84
_DASHED: dict[str, Any] = {"color": INK, "linestyle": (0, (4, 2)), "linewidth": 1.1}
_PLAIN_LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 8.5}
_ABOVE: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 2}
_MARKS = "os^Dv<>"
# Lines of one colour differ in their dashes.
_DASHES: tuple[Any, ...] = ("-", (0, (2.5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
_MAP_MARKS = "os^DvPo"
_MOST_LABELS = 6
# So many bars leave no room for a number above each, unless it is turned.
_CROWDED = 13
# More runs than these stand below each other.
_SIDE_BY_SIDE = 4
# The width of all panels, and that of a letter below them, in inches.
_INCHES = 6.3
_LETTER = 0.065
# Names of a table of cosines: so wide in letters, and so short that they also head the columns.
_LABEL = 44
_SHORT = 12
# Larger tables of cosines are shown by their colours alone.
_MOST_NUMBERS = 20
_LOSSES = {"mlm": "masked tokens", "nsp": "next sentence", "sbo": "span boundary"}


# -- one style, one way to save -------------------------------------------------------------------


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def check_figure(path: str) -> None:
    """Refuse a figure that could not be drawn, before the work it shows; empty asks for none.

    Raises:
        ConfigError: the file's ending is none of a figure, or matplotlib is not installed.
    """
    if path and Path(path).suffix not in _ENDINGS:
        raise ConfigError(f"--figure is {path}; give a name that ends in {', '.join(_ENDINGS)}.")
    if path and not can_draw():
        raise ConfigError(NEED + ".")


def make_figure(height: float, title: str, caption: str = "") -> Figure:
    """Return an empty figure with a title above and a caption below what will be drawn."""
    if not can_draw():
        raise SympromptError(NEED + ".")
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    spaced = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06)
    figure = Figure(figsize=(_WIDTH, height), layout=spaced, facecolor="white")
    shown = "\n".join(textwrap.fill(line, _TITLE) for line in title.split("\n"))
    figure.suptitle(shown, x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK)
    figure.supxlabel(textwrap.fill(caption, 126), x=0.01, ha="left", fontsize=7.5, color="#444444")
    return figure


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure as its file's ending says, whole or not at all; return where it is.

    Raises:
        RunError: it cannot be written.
    """
    write_file(path, figure_bytes(figure, path.suffix))
    return path


def figure_bytes(figure: Figure, ending: str = ".png") -> bytes:
    """Return a figure as PNG, or as what another ending names; the same bytes whenever drawn."""
    from matplotlib import rc_context
    from matplotlib.text import Text

    # A dollar sign in a name is no formula.
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    stream = io.BytesIO()
    with rc_context({"svg.hashsalt": "symprompt"}):
        figure.savefig(
            stream, format=ending[1:], dpi=_DOTS_PER_INCH, metadata=_ENDINGS.get(ending, {})
        )
    return stream.getvalue()


def _style(axes: Axes, grid: str = "y") -> None:
    """Take away what carries no information."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y" if grid == "y" else "x", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)
    axes.xaxis.label.set_fontsize(9)
    axes.yaxis.label.set_fontsize(9)


def _write(
    axes: Axes, text: str, at: tuple[float, float], shift: tuple[float, float], **look: Any
) -> None:
    """Write a text beside a point; the shift is in points of print."""
    options = {"fontsize": 8, "color": INK, "textcoords": "offset points", **look}
    axes.annotate(text, at, shift, **options)


def _paler(same: int) -> float:
    """Return how opaque a bar is when so many before it have its colour."""
    return (1.0, 0.6, 0.35)[min(same, 2)]


def _spread(bars: Sequence[Bar]) -> tuple[list[float], list[float]]:
    """Return how far the intervals reach below and above the bars' values."""
    below = [max(0.0, bar.value - bar.low) for bar in bars]
    return below, [max(0.0, bar.high - bar.value) for bar in bars]


# -- what figures of facts show, from stored predictions -------------------------------------------

METHOD_NAMES = {
    "autoprompt": "AutoPrompt",
    "lpaqa": "LPAQA",
    "majority": "majority object",
    "finetune": "fine-tuning",
    "manual": "manual prompts",
    "optiprompt": "OptiPrompt",
    "ptuning": "P-tuning",
    "softprompt": "SoftPrompt",
    "spe": "SPE",
}


@dataclass(frozen=True)
class Bar:
    """One run's value of one metric in percent, mean over relations, with its 95 % interval.

    Attributes:
        method: what the run is a run of, where its name does not tell.
    """

    run: str
    metric: str
    value: float
    low: float
    high: float
    method: str = ""


def method_bars(runs: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """Return the bars of compared runs: metric after metric, the runs in their order.

    Args:
        runs: as ``comparison`` has them in its values.
    """
    return [
        Bar(
            METHOD_NAMES.get(run["label"], run["label"]),
            name,
            **run[OVER_RELATIONS][metric],
            method=METHOD_NAMES.get(run["method"], run["method"]),
        )
        for metric, name in METRIC_NAMES.items()
        for run in runs
    ]


def method_looks(methods: Mapping[str, str]) -> dict[str, tuple[str, int]]:
    """Return a colour for each name, and how many names before have the same one.

    Args:
        methods: name -> the method it stands for.
    """
    known = {
        name: next((METHOD_COLOURS[key] for key in METHOD_COLOURS if key in method), "")
        for name, method in methods.items()
    }
    free = [colour for colour in RUN_COLOURS[1:] if colour not in known.values()] or [GREY]
    looks: dict[str, tuple[str, int]] = {}
    for name, found in known.items():
        others = [own for own, colour in known.items() if not colour]
        colour = found or free[others.index(name) % len(free)]
        looks[name] = (colour, sum(colour == before for before, _ in looks.values()))
    return looks


@dataclass(frozen=True, eq=False)
class KCurve:
    """The means over relations when 1, 2, ... K candidates are asked back.

    Attributes:
        means: by K.
        forward: without asking back.
        weights: of the subject score, of any number of relations.
    """

    means: Mapping[int, Summary]
    forward: Summary
    weights: Array

    @property
    def shown_weights(self) -> str:
        """The smallest and the largest weight, for a caption."""
        ends = dict.fromkeys((float(self.weights.min()), float(self.weights.max())))
        return " to ".join(f"{weight:.3g}" for weight in ends)


def k_curve(folder: Folder) -> KCurve:
    """Re-rank a run's stored candidates for every K up to the stored one, realistic ranks.

    Raises:
        RunError: the run did not ask back.
    """
    predictions, combination = load_asked(folder, "test").predictions, load_combination(folder)
    if combination is None or combination.subject is None:
        raise RunError(f"{folder.path} did not ask back, so it has no curve over K.")

    def mean(ranks: Ranks[Array]) -> Summary:
        return summarise(ranks.realistic, predictions.relation)[OVER_RELATIONS]

    pools = range(1, predictions.candidates.shape[1] + 1)
    found = {k: mean(predictions.reranked(combination, k=k)) for k in pools}
    return KCurve(found, mean(predictions.ranks()), combination.subject)


@dataclass(frozen=True)
class Panel:
    """One order of the candidates, best first: their texts and log-probabilities."""

    title: str
    texts: tuple[str, ...]
    scores: tuple[float, ...]


def question_panels(answers: Sequence[Answer]) -> list[Panel]:
    """Return a question's candidates by object, subject and joint score.

    Args:
        answers: candidates that were asked back.
    """
    panels = []
    for title, name in (("object", "object_score"), ("subject", "subject_score"), ("joint",) * 2):
        scored = [(answer.text, getattr(answer, name)) for answer in answers]
        there = [entry for entry in scored if entry[1] is not None]
        if len(there) < len(scored) or not there:
            raise RunError(
                f"{counted(len(scored) - len(there), 'candidate')} without {title} score to draw."
            )
        there.sort(key=lambda entry: -entry[1])
        texts, scores = zip(*there, strict=True)
        panels.append(Panel(title, texts, scores))
    return panels


# -- facts ----------------------------------------------------------------------------------------


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
    looks = method_looks({bar.run: bar.method or bar.run for bar in bars})
    for number, run in enumerate(runs):
        by_metric = {bar.metric: bar for bar in bars if bar.run == run}
        own = [by_metric[metric] for metric in metrics]
        at = [place + (number - (len(runs) - 1) / 2) * width for place in range(len(metrics))]
        axes.bar(
            at,
            [bar.value for bar in own],
            0.92 * width,
            color=looks[run][0],
            alpha=_paler(looks[run][1]),
            label=run,
            yerr=_spread(own),
            error_kw={"ecolor": INK, "elinewidth": 1.0, "capsize": 3.0},
        )
        for place, bar in zip(at, own, strict=True):
            _write(axes, f"{bar.value:.1f}", (place, max(bar.value, bar.high)), (0, 3), ha="center")
    if baseline is not None and "P@1" in metrics:
        place = metrics.index("P@1")
        ends = (place - 0.44, place + 0.44)
        axes.plot(ends, (baseline, baseline), label="most frequent object", **_DASHED)
    axes.set_xticks(range(len(metrics)), metrics)
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel("percent, mean over relations")
    axes.set_ylim(0, 1.12 * max(bar.high for bar in bars))
    axes.set_yticks([tick for tick in range(0, 101, 20) if tick <= axes.get_ylim()[1]])
    _style(axes)
    # The runs first, as they stand from left to right; matplotlib lists lines before bars.
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda place: labels[place] not in runs)
    shown = [handles[place] for place in order], [labels[place] for place in order]
    axes.legend(*shown, loc="upper left", **_PLAIN_LEGEND)
    return figure


def draw_k_curve(curve: KCurve, *, title: str, caption: str) -> Figure:
    """Draw what each metric gains, in points, when so many candidates are re-ranked."""
    figure = make_figure(3.3, title, caption)
    # One scale that holds zero, so that a step of a point looks the same in every panel.
    panels = figure.subplots(1, len(METRIC_NAMES), sharex=True, sharey=True)
    look: dict[str, Any] = {"color": ORANGE, "marker": "o", "markersize": 3.5, "linewidth": 1.5}
    for axes, (metric, name) in zip(panels, METRIC_NAMES.items(), strict=True):
        before = getattr(curve.forward, metric)
        values = [getattr(own, metric) for own in curve.means.values()]
        gains = [value - before for value in values]
        axes.axhline(0, label="not asked back", **_DASHED)
        axes.plot(list(curve.means), gains, label="asked back", **look)
        axes.set_title(f"{name}: {before:.1f} % to {values[-1]:.1f} %", fontsize=10)
        axes.set_xlabel("K, candidates asked back")
        axes.set_xticks([k for k in curve.means if k == 1 or k % 5 == 0])
        _style(axes)
    low, high = panels[0].get_ylim()
    panels[0].set_ylim(min(low, -0.5), max(high, 1.0))
    panels[0].set_ylabel("points, mean over relations")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2, **_PLAIN_LEGEND)
    return figure


def draw_method_rows(bars: Sequence[Bar], *, title: str, caption: str) -> Figure:
    """Draw many runs, one a line, in one panel for each metric, with their intervals."""
    metrics = list(dict.fromkeys(bar.metric for bar in bars))
    runs = list(dict.fromkeys(bar.run for bar in bars))
    figure = make_figure(1.3 + 0.27 * len(runs), title, caption)
    panels = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
    looks = method_looks({bar.run: bar.method or bar.run for bar in bars})
    for axes, metric in zip(panels, metrics, strict=True):
        by_run = {bar.run: bar for bar in bars if bar.metric == metric}
        own = [by_run[run] for run in runs]
        best = max(bar.value for bar in own)
        axes.barh(
            range(len(runs)),
            [bar.value for bar in own],
            0.68,
            color=[looks[run][0] for run in runs],
            xerr=_spread(own),
            error_kw={"ecolor": INK, "elinewidth": 0.9, "capsize": 2.0},
        )
        for row, bar in enumerate(own):
            end = max(bar.value, bar.high)
            look: dict[str, Any] = {"va": "center", "fontsize": 7.5}
            look |= {"fontweight": "bold"} if bar.value == best else {}
            _write(axes, f"{bar.value:.1f}", (end, row), (4, 0), **look)
        axes.set_title(metric, fontsize=10)
        # Room for the number behind the longest bar.
        axes.set_xlim(0, 1.3 * max(bar.high for bar in own) or 1.0)
        axes.set_ylim(len(runs) - 0.45, -0.55)
        axes.set_yticks(range(len(runs)), runs, parse_math=False)
        axes.tick_params(axis="y", length=0)
        axes.set_xticks([tick for tick in range(0, 101, 20) if tick <= axes.get_xlim()[1]])
        axes.set_xlabel("percent")
        _style(axes, grid="x")
    return figure


def draw_comparison(values: Mapping[str, Any]) -> Figure:
    """Draw compared runs: side by side, or one a line where there are many.

    Args:
        values: those of ``tables.comparison``.
    """
    runs = values["runs"]
    least, most = (pick(run["facts"] for run in runs) for pick in (min, max))
    facts = counted(most, "fact") if least == most else f"{least:,} to {counted(most, 'fact')}"
    models = ", ".join(dict.fromkeys(run["model"] for run in runs if run["model"]))
    caption = (
        f"{f'Model {models}; ' if models else ''}{facts}. Mean over relations with 95 % bootstrap "
        f"intervals ({values['bootstrap']['draws']:,} draws)."
    )
    draw = draw_methods if len(runs) <= _SIDE_BY_SIDE else draw_method_rows
    return draw(method_bars(runs), title="Runs compared", caption=caption)


def draw_results(records: Sequence[Record]) -> Figure | None:
    """Draw runs on labelled tasks, a panel for each task, split and model; None without any."""
    found: dict[tuple[str, ...], dict[str, dict[str, list[float]]]] = {}
    for own in records:
        if own.command == "tune" and is_share(own.metric):
            panel = found.setdefault((own.data, own.split, Path(own.model).name), {})
            method = panel.setdefault(own.label or own.method, {})
            method.setdefault(own.metric, []).append(own.value)
    panels = []
    for key, methods in found.items():
        metrics = list(dict.fromkeys(metric for own in methods.values() for metric in own))
        bars = {
            method: [float(np.mean(own[metric])) if metric in own else None for metric in metrics]
            for method, own in methods.items()
        }
        panels.append(BarPanel("\n".join(filter(None, key)), metrics, bars))
    if not panels:
        return None
    return draw_bar_panels(panels, title="Runs compared", caption="Percent, mean over seeds.")


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
    looks = method_looks({run: run for run in lines})
    for number, (run, values) in enumerate(lines.items()):
        there = {at: value for at, place in enumerate(kept) if (value := values[place]) is not None}
        axes.plot(
            list(there),
            list(there.values()),
            color=looks[run][0],
            linestyle=_DASHES[looks[run][1] % len(_DASHES)],
            marker=_MARKS[number % len(_MARKS)],
            markersize=4.5,
            linewidth=1.5,
            label=run,
        )
    labels = [f"{bins[place]}\n{counted(counts[place], 'fact')}" for place in kept]
    axes.set_xticks(range(len(kept)), labels)
    axes.set_xlim(-0.3, len(kept) - 0.7)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("right object's share of its relation's training facts")
    axes.set_ylabel("MRR, percent")
    _style(axes)
    # Long handles, so that dashes show on both sides of the marker.
    figure.legend(loc="outside right center", handlelength=3.4, **_PLAIN_LEGEND)
    return figure


def draw_question(panels: Sequence[Panel], *, right: str, title: str, caption: str) -> Figure:
    """Draw a question's candidates in object, subject and joint order, the right one marked."""
    rows = max(len(panel.texts) for panel in panels)
    figure = make_figure(1.5 + 0.22 * rows, title, caption)
    heads = {
        "object": "object prompt:\nobject given subject",
        "subject": "subject prompt:\nsubject given object",
        "joint": "both together:\nobject + w × subject",
    }
    for axes, panel in zip(figure.subplots(1, len(panels)), panels, strict=True):
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
        head = heads.get(panel.title, panel.title)
        if right in panel.texts:
            place = panel.texts.index(right)
            axes.get_yticklabels()[place].set(color=ORANGE, fontweight="bold")
            head += f"\n{right}: rank {place + 1}"
        axes.set_title(head, fontsize=9)
        # Joint scores are weighed sums, and subject scores means over tokens: no probabilities.
        axes.set_xlabel("log-probability" if panel.title == "object" else f"{panel.title} score")
        _style(axes, grid="x")
    return figure


# -- labelled tasks -------------------------------------------------------------------------------


@dataclass(frozen=True)
class BarPanel:
    """One panel: a group of bars for each name, a bar for each method.

    Attributes:
        bars: method -> a number for each group, None where there is none.
        published: the numbers are a paper's; they are hatched.
        seeds: method -> each group's single runs, whose mean a bar is; they are dots.
    """

    title: str
    groups: Sequence[str]
    bars: Mapping[str, Sequence[float | None]]
    published: bool = False
    seeds: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)


def draw_bar_panels(panels: Sequence[BarPanel], *, title: str, caption: str) -> Figure:
    """Draw panels beside each other on one scale from 0 to 100, colours by method."""
    # The line left free below the title is the legend's: matplotlib would put it beside the title.
    figure = make_figure(4.1, f"{title}\n", caption)
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Patch

    sizes = [max(1.5, float(len(panel.groups))) for panel in panels]
    room = max(6, int((_INCHES / sum(sizes)) / _LETTER))
    axes = figure.subplots(
        1, len(panels), sharey=True, squeeze=False, gridspec_kw={"width_ratios": sizes}
    )[0]
    methods = list(dict.fromkeys(method for panel in panels for method in panel.bars))
    looks = method_looks({method: method for method in methods})
    colours = {method: to_rgba(colour, _paler(same)) for method, (colour, same) in looks.items()}
    crowded = sum(len(panel.groups) * len(panel.bars) for panel in panels) > _CROWDED
    for own, panel in zip(axes, panels, strict=True):
        _draw_panel(own, panel, colours, crowded=crowded)
        # A name breaks at its own line breaks, spaces and hyphens.
        names = [
            "\n".join(textwrap.fill(line, room) for line in name.split("\n"))
            for name in panel.groups
        ]
        own.set_xticks(range(len(names)), names)
    axes[0].set_ylabel("percent")
    axes[0].set_ylim(0, 112)
    axes[0].set_yticks(range(0, 101, 20))
    figure.legend(
        handles=[Patch(color=colours[method], label=method) for method in methods],
        loc="upper left",
        bbox_to_anchor=(0.0, 1 - 0.045 * max(1, len(textwrap.wrap(title, _TITLE)))),
        ncols=len(methods),
        frameon=False,
        fontsize=8,
    )
    return figure


def _draw_panel(axes: Axes, panel: BarPanel, colours: Mapping[str, Any], *, crowded: bool) -> None:
    width = 0.82 / max(1, len(panel.bars))
    text: dict[str, Any] = {"ha": "center", "va": "bottom", "color": INK}
    text |= {"fontsize": 6.5, "rotation": 90} if crowded else {}
    text |= {"color": GREY} if panel.published else {}
    for number, (method, values) in enumerate(panel.bars.items()):
        shift = (number - (len(panel.bars) - 1) / 2) * width
        look: dict[str, Any] = {"color": colours[method]}
        if panel.published:
            look = {"color": "white", "edgecolor": colours[method], "hatch": "////"}
        every = panel.seeds.get(method) or [()] * len(values)
        for place, (value, runs) in enumerate(zip(values, every, strict=True)):
            if value is None:
                continue
            axes.bar(place + shift, value, 0.9 * width, **look)
            top, above = value, 2
            if len(runs) > 1:
                places = [place + shift] * len(runs)
                axes.plot(places, runs, "o", color=INK, markersize=3, markeredgecolor="white")
                top, above = max(value, *runs), 4
            _write(axes, f"{value:.1f}", (place + shift, top), (0, above), **text)
    axes.set_xlim(-0.55, len(panel.groups) - 0.45)
    axes.set_title(panel.title, fontsize=9, color=INK)
    _style(axes)
    axes.tick_params(axis="x", length=0, labelsize=7.5)


# -- pretraining ----------------------------------------------------------------------------------


def save_loss_curve(training: Mapping[str, Any], path: Path) -> str:
    """Write a pretraining run's loss curve; return why it could not be written, empty if it was.

    The model is finished without it, so a full disk is no error: no figure is left then.

    Args:
        training: what a model's run states, see ``load_training``.
        path: the PNG file to write.
    """
    try:
        save_figure(draw_loss(training), path)
    except RunError as error:
        return reason(error.__cause__) if isinstance(error.__cause__, OSError) else str(error)
    return ""


def draw_loss(training: Mapping[str, Any]) -> Figure:
    """Draw a run's losses over its steps, with the validation losses as dots."""
    figure = make_figure(
        4.0,
        f"{training['model']['parameters'] / 1e6:.3g} M weights, "
        f"{training['tokens'] / 1e6:,.4g} M tokens seen, {training['passes']:.3g} passes",
    )
    axes = figure.subplots()
    history = training["history"]
    steps = [row["step"] for row in history]
    checked = [row for row in history if row["validation"]]
    # The last dot lies on the edge.
    dots: dict[str, Any] = {"linestyle": "none", "marker": "o", "clip_on": False, "zorder": 3}
    dots |= {"markersize": 4, "markerfacecolor": "white"}
    for colour, part in zip(RUN_COLOURS[1:], training["loss"], strict=False):
        label = _LOSSES.get(part, part)
        losses = [row["parts"][part] for row in history]
        axes.plot(steps, losses, color=colour, linewidth=1.2, label=f"{label}, training")
        if checked:
            values = [row["validation"][part] for row in checked]
            places = [row["step"] for row in checked]
            axes.plot(places, values, color=colour, label=f"{label}, validation", **dots)
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats)")
    axes.set_xlim(0, max(steps))
    _style(axes)
    axes.legend(**_PLAIN_LEGEND)
    return figure


# -- word vectors ---------------------------------------------------------------------------------


def draw_cosines(
    labels: Sequence[str], cosines: Sequence[Sequence[float]], kind: str = "word"
) -> Figure:
    """Draw a table of cosines as colours, with the numbers where there is room.

    Args:
        labels: of the rows, and of the columns.
        cosines: a row for each label.
        kind: word or text, what the vectors are of.
    """
    places = range(len(labels))
    heads, turned, names = list(labels), 45, list(labels)
    if max(map(len, labels)) > _SHORT:
        # Texts would take the room: columns have their numbers.
        heads, turned = [str(place + 1) for place in places], 0
        names = [textwrap.fill(f"{place + 1}  {labels[place]}", _LABEL) for place in places]
    lines = sum(name.count("\n") + 1 for name in names)
    height = 1.0 + max(0.5 * min(len(names), 6), 0.22 * lines)
    figure = make_figure(height, f"Cosine of {kind} vectors")
    axes = figure.subplots()
    # A word is like itself: the colours are for the others, and tell the sign where there are two.
    others = np.ma.masked_array(cosines, mask=np.eye(len(names), dtype=bool))
    low, high = float(others.min()), float(others.max())
    signs = low < 0 < high
    low, high = (-max(-low, high), max(-low, high)) if signs else (low - 0.05, high + 0.05)
    image = axes.imshow(
        others, cmap="RdBu_r" if signs else "Blues", aspect="auto", vmin=low, vmax=high
    )
    axes.set_facecolor("#EEEEEE")
    axes.set_xticks(
        places, heads, rotation=turned, ha="right" if turned else "center", rotation_mode="anchor"
    )
    axes.set_yticks(places, names)
    axes.tick_params(length=0, labelsize=8)
    if len(names) <= _MOST_NUMBERS:
        look: dict[str, Any] = {"ha": "center", "va": "center"}
        look["fontsize"] = 9 if len(names) <= 6 else 6.5
        for row, column in np.ndindex(others.shape):
            number = cosines[row][column]
            share = abs(number) / high if signs else (number - low) / (high - low)
            colour = "white" if share > 0.6 and row != column else INK
            axes.text(column, row, f"{number:z.2f}", color=colour, **look)
    figure.colorbar(image, ax=axes, shrink=0.8).ax.tick_params(labelsize=8)
    return figure


def draw_isotropy(report: Mapping[str, Any]) -> Figure:
    """Draw the expected cosine of each layer and the cosines by word frequency.

    Args:
        report: an isotropy report as plain values: before and after standardising.
    """
    names = [layer["layer"] for layer in report["layers"]]
    # Texts hardly ever occur twice: their vectors have the left panel alone.
    words = bool(report["before"])
    caption = "Expected cosine of two random texts."
    if words:
        caption = (
            "Left: expected cosine of two random words. Right: mean cosine of two occurrences, "
            f"{names[-1]}."
        )
    kind = "word" if words else "text"
    figure = make_figure(3.6, f"How much {kind} vectors point one way", caption)
    left, *others = figure.subplots(1, 1 + words, squeeze=False)[0]
    for key, colour, mark, label in (
        ("before", ORANGE, "o", "as it is"),
        ("after", BLUE, "s", "standardised"),
    ):
        look: dict[str, Any] = {"color": colour, "marker": mark, "markersize": 4}
        values = [layer[key] for layer in report["layers"]]
        # The sum of the last layers is no layer, so no line leads to it.
        left.plot(range(len(values) - 1), values[:-1], **look)
        left.plot([len(values) - 0.4], values[-1:], label=label, **look)
        for right in others:
            same, other = ([band[kind] for band in report[key]] for kind in ("same", "other"))
            right.plot(range(len(same)), same, label=f"{label}, same word", **look)
            dashed = (0, (3, 2))
            right.plot(range(len(same)), other, linestyle=dashed, label=f"{label}, others", **look)
    left.set_xticks(
        [*range(len(names) - 1), len(names) - 0.4],
        [name.replace("sum-last-", "sum of\nlast ") for name in names],
    )
    left.set_xlabel("layer (0: embeddings)")
    left.set_ylabel("expected cosine")
    for right in others:
        ticks = [f"{band['low']}–{band['high']}" for band in report["before"]]
        right.set_xticks(range(len(ticks)), ticks, rotation=35)
        right.set_xlabel("occurrences of the word")
        right.set_ylabel("mean cosine")
    for axes in (left, *others):
        axes.axhline(0, color=GREY, linewidth=0.8)
        axes.set_ylim(min(-0.05, axes.get_ylim()[0]), max(1.0, axes.get_ylim()[1]))
        _style(axes)
        # Above the lines, which may go anywhere between -1 and 1.
        axes.legend(**{**_PLAIN_LEGEND, **_ABOVE, "fontsize": 7})
    return figure


def draw_senses(evaluation: Mapping[str, Any]) -> Figure:
    """Draw F1 of each set beside the most frequent sense's, with the difference's interval."""
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
        _write(axes, f"{change['difference']:+z.1f}", (high, place), (5, -3))
    for key, mark, colour, label in (
        ("baseline", "s", GREY, "most frequent sense"),
        ("f1", "o", BLUE, "nearest sense"),
    ):
        values = [score[key] for score in scores]
        axes.plot(values, places, linestyle="", marker=mark, color=colour, label=label)
    names = [textwrap.fill(f"{score['name']} ({score['instances']:,})", 28) for score in scores]
    axes.set_yticks(places, names)
    axes.set_ylim(0.4, len(scores) + 0.6)
    axes.margins(x=0.12)
    axes.set_xlabel("F1")
    axes.legend(**_PLAIN_LEGEND, **_ABOVE)
    _style(axes, grid="x")
    return figure


def legend_labels(labels: Sequence[str]) -> list[str]:
    """Return the most frequent labels, most frequent first; what is left over becomes "other"."""
    ranked = [label for label, _ in Counter(labels).most_common()]
    return ranked if len(ranked) <= _MOST_LABELS + 1 else [*ranked[:_MOST_LABELS], OTHER]


def map_caption(found: SenseMap) -> str:
    """Return what a reader must know about a map of occurrences, in one sentence."""
    how = "UMAP of cosines" if found.projection == "UMAP" else "two principal components"
    by = {"cluster": "cluster of the vectors, named by words typical around it"}
    about = f"{counted(len(found.labels), 'occurrence')}, {how}, coloured by"
    return f"{about} {by.get(found.colour, found.colour)}"


def draw_map(found: SenseMap) -> Figure:
    """Draw a word's occurrences as points in the plane, coloured by label."""
    figure = make_figure(5.6, f"“{found.word}”")
    axes = figure.subplots()
    # Not as the caption of the figure: the legend stands there.
    axes.set_xlabel(map_caption(found), fontsize=8.5, color=INK)
    shown = legend_labels(found.labels)
    owner = [label if label in shown else OTHER for label in found.labels]
    for number, label in enumerate(shown):
        own = [place for place, other in enumerate(owner) if other == label]
        name = textwrap.shorten(label, 64, placeholder=" ...")
        axes.scatter(
            found.points[own, 0],
            found.points[own, 1],
            s=18,
            alpha=0.75,
            linewidths=0.3,
            edgecolors="white",
            color=MAP_COLOURS[number % len(MAP_COLOURS)],
            marker=_MAP_MARKS[number % len(_MAP_MARKS)],
            label=f"{name} ({counted(len(own), 'time')})",
        )
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower left", markerscale=1.4, **_PLAIN_LEGEND)
    return figure
