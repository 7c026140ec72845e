"""The figures: the numbers they are drawn from, what stands on them, and the files."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex

from symprompt import Answer, Run
from symprompt.errors import RunError, SympromptError
from symprompt.report import figures
from symprompt.report.figures import Bar, KCurve, Panel, k_curve, method_bars, question_panels
from symprompt.report.tables import comparison, load_scores
from symprompt.runs.folder import Record
from symprompt.runs.statistics import Summary

BARS = [
    Bar(run, metric, value, value - 4, value + 3)
    for metric, first in (("P@1", 20.0), ("P@10", 60.0), ("MRR", 35.0))
    for run, value in (("manual prompts", first), ("P-tuning", first + 15), ("SPE", first + 16))
]
BEFORE = Summary(40.0, 70.0, 50.0)
POOLS = {1: BEFORE, 2: Summary(41.0, 70.0, 50.5), 3: Summary(41.5, 70.0, 50.75)}
CURVE = KCurve(POOLS, BEFORE, np.array([0.3, 0.3]))
ANSWERS = [
    Answer("Lima", -1.5, -2.0, -2.5),
    Answer("Peru", -1.0, -6.0, -4.0),
    Answer("Oslo", -3.0, -4.0, -5.0),
]


def test_bars_are_the_comparisons_means_and_intervals(runs: dict[str, Run]) -> None:
    paths = [str(runs[name].folder.path) for name in ("ptuning", "spe")]
    plain = comparison([load_scores(path) for path in paths], draws=50).values["runs"]
    bars = method_bars(plain)
    assert [(bar.metric, bar.run) for bar in bars] == [
        (metric, run) for metric in ("P@1", "P@10", "MRR") for run in ("P-tuning", "SPE")
    ]
    for bar in bars:
        run = plain[("P-tuning", "SPE").index(bar.run)]
        metric = {"P@1": "p1", "P@10": "p10", "MRR": "mrr"}[bar.metric]
        wanted = run["mean over relations"][metric]
        assert (bar.value, bar.low, bar.high) == (wanted["value"], wanted["low"], wanted["high"])


def test_the_curve_is_what_the_table_says_for_every_k(runs: dict[str, Run]) -> None:
    path = str(runs["spe"].folder.path)
    curve = k_curve(runs["spe"].folder)
    assert list(curve.means) == list(range(1, 41))
    assert curve.shown_weights == "5"
    for k, found in curve.means.items():
        (row,) = comparison([load_scores(path, k=k)], draws=1).values["runs"]
        means = row["mean over relations"]
        assert asdict(found) == {metric: own["value"] for metric, own in means.items()}
    # One candidate cannot change places with itself.
    assert curve.means[1] == curve.forward
    assert len({own.mrr for own in curve.means.values()}) > 1
    with pytest.raises(RunError, match="did not ask back"):
        k_curve(runs["ptuning"].folder)


def test_a_question_has_three_orders() -> None:
    forward, backward, joint = question_panels(ANSWERS)
    assert forward == Panel("object", ("Peru", "Lima", "Oslo"), (-1.0, -1.5, -3.0))
    assert backward == Panel("subject", ("Lima", "Oslo", "Peru"), (-2.0, -4.0, -6.0))
    assert joint == Panel("joint", ("Lima", "Peru", "Oslo"), (-2.5, -4.0, -5.0))
    # Candidates without a score are not drawn as if they had one.
    with pytest.raises(RunError, match="1 candidate without subject score"):
        question_panels([*ANSWERS, Answer("Rome", -2.0)])


def test_every_bar_has_its_height_and_label() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    figure = figures.draw_methods(BARS, title="Bars", caption="About.", baseline=12.5)
    (axes,) = figure.axes
    heights = {round(float(patch.get_height()), 6) for patch in axes.patches}
    assert heights == {bar.value for bar in BARS}
    texts = [text.get_text() for text in axes.texts]
    assert sorted(texts) == sorted(f"{bar.value:.1f}" for bar in BARS)
    legend = axes.get_legend()
    assert legend is not None
    assert {text.get_text() for text in legend.get_texts()} == {
        "manual prompts",
        "P-tuning",
        "SPE",
        "most frequent object",
    }
    assert axes.get_ylim()[1] > max(bar.high for bar in BARS)
    assert dict(matplotlib.rcParams) == before, "drawing leaves the process as it was"


def test_every_run_has_a_line_in_every_panel() -> None:
    figure = figures.draw_method_rows(BARS, title="Rows", caption="About.")
    assert [axes.get_title() for axes in figure.axes] == ["P@1", "P@10", "MRR"]
    for axes in figure.axes:
        own = [bar for bar in BARS if bar.metric == axes.get_title()]
        widths = [round(float(patch.get_width()), 6) for patch in axes.patches]
        assert widths == [bar.value for bar in own]
        assert [text.get_text() for text in axes.texts] == [f"{bar.value:.1f}" for bar in own]
        assert axes.get_xlim()[1] > max(bar.high for bar in own)


def test_one_colour_means_one_method_in_every_figure() -> None:
    names = ("LPAQA, top-1", "my own", "SPE", "LPAQA, learned weights", "P-tuning")
    looks = figures.method_looks({name: name for name in names})
    assert looks["SPE"] == (figures.ORANGE, 0)
    assert looks["P-tuning"] == (figures.BLUE, 0)
    assert looks["LPAQA, top-1"] == (figures.GREEN, 0)
    # Two of one method have its colour and differ otherwise.
    assert looks["LPAQA, learned weights"] == (figures.GREEN, 1)
    assert len({colour for colour, _ in looks.values()}) == 4
    bars = figures.draw_methods(BARS[::-1], title="", caption="").axes[0].containers
    lines = figures.draw_frequency(
        {name: [1.0] for name in names}, ("often",), (3,), title="", caption=""
    )
    drawn = {line.get_label(): line.get_color() for line in lines.axes[0].lines}
    for bar in bars:
        if bar.get_label() in drawn:
            colour = to_hex(bar.patches[0].get_facecolor()).upper()
            assert colour == drawn[bar.get_label()]


def test_results_of_labelled_tasks_have_a_panel_for_each_task() -> None:
    about: dict[str, Any] = {"command": "tune", "split": "test", "model": "a/bert"}
    records = [
        Record(metric="accuracy", value=60.0, data="rte", method="ft", label="FT", **about),
        Record(metric="accuracy", value=70.0, data="rte", method="ft", label="FT", **about),
        Record(metric="trained", value=1e6, data="rte", method="ft", label="FT", **about),
        Record(metric="f1", value=80.0, data="conll", method="pt2", label="PT-2", **about),
    ]
    figure = figures.draw_results(records)
    assert figure is not None
    assert [axes.get_title() for axes in figure.axes] == ["rte\ntest\nbert", "conll\ntest\nbert"]
    assert [[bar.get_height() for bar in axes.patches] for axes in figure.axes] == [[65.0], [80.0]]
    assert figures.draw_results([]) is None


def test_bins_without_facts_are_not_drawn() -> None:
    lines = {"P-tuning": [1.0, None, 40.0], "SPE": [2.0, None, 41.0]}
    figure = figures.draw_frequency(
        lines, ("never", "seldom", "often"), (3, 0, 2000), title="Bins", caption="About."
    )
    (axes,) = figure.axes
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["never\n3 facts", "often\n2,000 facts"]
    for line, values in zip(axes.lines, lines.values(), strict=True):
        assert list(line.get_ydata()) == [values[0], values[2]]  # type: ignore[arg-type]


def test_the_lines_go_through_the_curve() -> None:
    figure = figures.draw_k_curve(CURVE, title="Curve", caption="About.")
    titles = ("P@1: 40.0 % to 41.5 %", "P@10: 70.0 % to 70.0 %", "MRR: 50.0 % to 50.8 %")
    every = ([0.0, 1.0, 1.5], [0.0] * 3, [0.0, 0.5, 0.75])
    for axes, title, gains in zip(figure.axes, titles, every, strict=True):
        assert axes.get_title() == title
        line = axes.lines[1]
        assert list(line.get_xdata()) == [1, 2, 3]  # type: ignore[arg-type]
        assert list(line.get_ydata()) == gains  # type: ignore[arg-type]
        # No axis is cut: zero is in it, and it is the same in every panel.
        low, high = axes.get_ylim()
        assert low < min(0, *gains)
        assert high > max(0, *gains)
        assert (low, high) == figure.axes[0].get_ylim()


def test_the_right_answer_is_marked_in_every_panel() -> None:
    panels = question_panels(ANSWERS)
    figure = figures.draw_question(panels, right="Lima", title="Question", caption="About.")
    for axes, panel, rank in zip(figure.axes, panels, (2, 1, 1), strict=True):
        assert axes.get_title().endswith(f"Lima: rank {rank}")
        labels = [label.get_text() for label in axes.get_yticklabels()]
        assert [label.split()[0] for label in labels] == list(panel.texts)
        marked = [
            label.get_text().split()[0]
            for label in axes.get_yticklabels()
            if label.get_color() == figures.ORANGE
        ]
        assert marked == ["Lima"]


def test_a_figure_is_written_whole_and_dollars_are_no_formula(tmp_path: Path) -> None:
    odd = [Answer("$x^$", -1.0, -2.0, -3.0), Answer("[unused1]", -2.0, -3.0, -4.0)]
    figure = figures.draw_question(
        question_panels(odd), right="$x^$", title="US$ and $_$", caption="A$AP $^$."
    )
    path = figures.save_figure(figure, tmp_path / "new/methods.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [entry.name for entry in path.parent.iterdir()] == ["methods.png"]
    (tmp_path / "file").write_text("")
    with pytest.raises(SympromptError, match="cannot write"):
        figures.save_figure(figure, tmp_path / "file/methods.png")


@pytest.mark.parametrize(
    ("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_the_ending_says_how_a_figure_is_saved(tmp_path: Path, ending: str, start: bytes) -> None:
    drawn = []
    for name in ("one", "two"):
        figure = figures.draw_k_curve(CURVE, title="Curve", caption="About.")
        drawn.append(figures.save_figure(figure, tmp_path / f"{name}.{ending}").read_bytes())
    assert drawn[0].startswith(start)
    assert drawn[0] == drawn[1]


def test_without_matplotlib_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert figures.can_draw()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not figures.can_draw()
    with pytest.raises(SympromptError, match=r"pip install symprompt\[report\]"):
        figures.draw_k_curve(CURVE, title="Curve", caption="About.")


def texts(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_cosines_are_written_into_their_cells() -> None:
    figure = figures.draw_cosines(["a", "b"], [[1.0, -0.25], [-0.25, 1.0]])
    assert texts(figure) == ["1.00", "-0.25", "-0.25", "1.00"]
    (axes, _) = figure.axes
    for labels in (axes.get_yticklabels(), axes.get_xticklabels()):
        assert [label.get_text() for label in labels] == ["a", "b"]
    # Texts are numbered, and the numbers head the columns.
    named = ["the [die] is cast", "they [die] young"]
    axes = figures.draw_cosines(named, [[1.0, 0.5], [0.5, 1.0]]).axes[0]
    assert axes.get_yticklabels()[1].get_text() == "2  they [die] young"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2"]
    # Like alone is not the colours' end: they are for what differs.
    assert axes.images[0].get_clim() == pytest.approx((0.45, 0.55))
    # A large table has colours alone.
    many = figures.draw_cosines([str(place) for place in range(25)], [[0.0] * 25] * 25)
    assert texts(many) == []


def test_senses_stand_beside_the_most_frequent_one() -> None:
    def score(name: str, f1: float, baseline: float) -> dict[str, Any]:
        change = {"difference": f1 - baseline, "low": 0.5, "high": 4.0, "p": 0.001}
        own = {"f1": f1, "baseline": baseline, "difference": change}
        return {"name": name, "instances": 1200, **own}

    evaluation = {
        "sets": [score("one", 70.0, 68.0)],
        "all": score("all", 71.5, 68.0),
        "seen": score("seen", 60.0, 61.0),
    }
    axes = figures.draw_senses(evaluation).axes[0]
    assert [text.get_text() for text in axes.texts] == ["+2.0", "+3.5", "-1.0"]
    (baseline, nearest) = axes.lines[-2:]
    assert list(baseline.get_xdata()) == [68.0, 68.0, 61.0]
    assert list(nearest.get_xdata()) == [70.0, 71.5, 60.0]
    assert axes.get_yticklabels()[0].get_text() == "one (1,200)"
