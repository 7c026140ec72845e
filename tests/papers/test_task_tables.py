"""Tables of labelled tasks: published figures in their places, ours apart, and what is missing."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from symprompt.errors import ConfigError, RunError
from symprompt.files.grid import Grid
from symprompt.papers.ptuning import (
    FULL_MODELS,
    METHODS,
    TASKS,
    pet_values,
    printed_average,
    printed_full,
    ptuning_panels,
    ptuning_sections,
)
from symprompt.papers.ptuning_v2 import TABLES, v2_panels, v2_sections
from symprompt.papers.records import FEW, FULL, Entries, load_results
from symprompt.papers.report import report_results
from symprompt.papers.settings import TaskPaper
from symprompt.report.figures import BarPanel, draw_bar_panels
from symprompt.report.records import plain_results
from symprompt.runs.folder import Record

NOT_MEASURED = "not measured"


SIZES = {"large": 2_000_000_000, "small": 30_000_000}


def entry(
    task: str, method: str, *, model: str = "ours", split: str = "dev", **changes: Any
) -> list[Record]:
    """Return the records of two seeds, half a percent below and above each value."""
    own = {"data": task, "method": method, "model": model, "split": split, "command": "tune"}
    figures = changes.pop("metrics", {"accuracy": 50.0})
    return [
        Record(metric=name, value=value + shift, seeds=(seed,), **own, **changes)
        for name, value in figures.items()
        for seed, shift in ((1, -0.5), (2, 0.5))
    ]


def pattern(
    task: str, method: str, value: float, *, name: str = "", dev: float = 0.0, **changes: Any
) -> list[Record]:
    figures = changes.pop("metrics", {"accuracy": value})
    figures |= {"dev accuracy": dev or value - 1}
    settings = {"settings": {"pattern": name}} if name else {}
    return entry(task, method, metrics=figures, **({"split": FEW} | settings | changes))


def stored(folder: Path, entries: Sequence[list[Record]], name: str = "results") -> str:
    path = folder / f"{name}.json"
    about = {"note": "made up", "model parameters": SIZES}
    records = [record for own in entries for record in own]
    path.write_text(json.dumps(plain_results(about, records)))
    return str(path)


def load(folder: Path, *entries: list[Record]) -> Entries:
    worded = all(own[0].split in (FEW, FULL) for own in entries)
    return load_results([stored(folder, entries)], "ptuning" if worded else "ptuning-v2")


def row(grids: Sequence[Grid], name: str) -> tuple[str, ...]:
    """Return the cells of the only row of a name."""
    (found,) = [
        cells
        for grid in grids
        for section in grid.sections
        for cells in section
        if cells[0] == name
    ]
    return found[1:]


def test_v2_tables_have_ours_and_the_papers_figures_apart(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        entry("rte", "pt2"),
        entry("conll2003", "mpt2", metrics={"f1": 80.0}, split="test"),
        entry("squad", "ft", metrics={"exact": 60.0, "f1": 70.0}),
        entry("conll05", "pt", metrics={"f1": 40.0}, split="test"),
        entry("conll05", "pt", metrics={"f1": 30.0}, split="test-brown"),
        entry("propbank-ewt", "lora", metrics={"f1": 20.0}, split="test"),
    )
    grids = [grid for section in v2_sections(found) for grid in section.grids]
    assert row(grids, "RTE: PT-2") == ("50.00 ± 0.71", "78.3", "88.4", "90.3", "93.1")
    assert row(grids, "RTE: FT") == (NOT_MEASURED, "70.4", "86.6", "90.3", "93.1")
    assert row(grids, "MNLI-m: PT") == (NOT_MEASURED, "75.6", "83.8", "–", "–")
    assert row(grids, "CB: PT-2") == (NOT_MEASURED, "94.6", "100.0", "96.4", "96.4")
    assert row(grids, "CoNLL03: MPT-2") == ("80.00 ± 0.71", "91.0", "92.8", "93.1")
    assert row(grids, "CoNLL04: PT") == (NOT_MEASURED, "73.6", "76.2", "82.4")
    assert row(grids, "OntoNotes 5.0: LoRA") == (NOT_MEASURED, "–", "–", "–")
    assert row(grids, "SQuAD 1.1 EM: FT") == ("60.00 ± 0.71", "84.2", "88.9", "90.1")
    assert row(grids, "SQuAD 1.1 F1: FT") == ("70.00 ± 0.71", "91.1", "94.6", "95.5")
    assert row(grids, "SQuAD 2.0 F1: MPT-2") == (NOT_MEASURED, "75.9", "86.7", "90.8")
    assert row(grids, "CoNLL05 WSJ: PT") == ("40.00 ± 0.71", "76.0", "76.8", "82.3")
    assert row(grids, "CoNLL05 Brown: PT") == ("30.00 ± 0.71", "70.0", "70.7", "77.7")
    assert row(grids, "PropBank EWT: LoRA") == ("20.00 ± 0.71", "–", "–", "–")
    for grid in grids[:4]:
        assert all(grid.header[place].startswith("published:") for place in grid.marked)
        assert len(grid.marked) == len(grid.header) - 2
        assert all(len(cells) == len(grid.header) for part in grid.sections for cells in part)


def test_the_ablations_set_two_rows_side_by_side(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        entry("rte", "pt2"),
        entry("rte", "pt", metrics={"accuracy": 45.0}),
        entry("rte", "pt2", settings={"prefix.encoder": "mlp"}, metrics={"accuracy": 40.0}),
        # A search over settings is on another split, and in no table.
        entry("rte", "pt2", settings={"prefix.length": 4}, metrics={"accuracy": 99.0}),
        entry("rte", "verbalizer", split=FULL, metrics={"accuracy": 46.0}),
        entry("rte", "pt2-verbalizer", split=FULL, metrics={"accuracy": 47.0}),
        entry("boolq", "frozen", split=FULL, metrics={"accuracy": 48.0}),
    )
    section = v2_sections(found)[-1]
    assert row(section.grids, "RTE: free (PT-2)") == ("50.00 ± 0.71",)
    assert row(section.grids, "RTE: reparameterised") == ("40.00 ± 0.71",)
    assert row(section.grids, "RTE: head on [CLS] (PT)") == ("45.00 ± 0.71",)
    assert row(section.grids, "RTE: verbalizer (PT)") == ("46.00 ± 0.71",)
    assert row(section.grids, "RTE: head on [CLS] (PT-2)") == ("50.00 ± 0.71",)
    assert row(section.grids, "RTE: verbalizer (PT-2)") == ("47.00 ± 0.71",)
    assert row(section.grids, "BoolQ: verbalizer (PT)") == ("48.00 ± 0.71",)
    assert "BoolQ: verbalizer (PT-2)" not in str(section)
    assert "99.00" not in str(section)


def test_ptuning_tables_have_ours_and_the_papers_figures_apart(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        pattern("rte", "ptuning", 60.0, split=FULL),
        pattern("rte", "ptuning", 55.0),
        pattern("cb", "mp", 52.0, metrics={"accuracy": 52.0, "macro_f1": 33.0}),
        pattern("rte", "table6", 51.0, name="named"),
    )
    full, few, patterns = ptuning_sections(found)
    ours = "60.00 ± 0.71"
    assert row(full.grids, "RTE: P-tuning") == (ours, "71.1", "70.8", "75.5", "75.5")
    assert row(full.grids, "CB accuracy: P-tuning") == (
        NOT_MEASURED,
        "89.2",
        "91.1",
        "96.4",
        "98.2",
    )
    assert row(full.grids, "MultiRC F1a: MP zero-shot")[1:] == ("0.9", "23.8", "6.5", "32.5")
    assert row(few.grids, "RTE: P-tuning") == ("55.00 ± 0.71", "76.5", "–")
    assert row(few.grids, "CB F1: MP fine-tuning") == ("33.00 ± 0.71", "–", "–")
    pet = "PET: mean ± deviation over patterns"
    assert row(few.grids, f"BoolQ: {pet}") == (NOT_MEASURED, "73.2 ± 3.1", "–")
    assert row(few.grids, "RTE: GPT-3") == ("–", "–", "72.9")
    assert row(few.grids, "CB F1: iPET") == ("–", "–", "92.4")
    assert row(few.grids, "WSC: iPET") == ("–", "–", "–")
    named = "Premise: [PRE] Hypothesis: [HYP] Answer: [MASK]."
    assert row(patterns.grids, named) == ("51.00 ± 0.71", "50.00 ± 0.71", "68.59", "55.20")
    assert row(patterns.grids, "P-tuning") == ("55.00 ± 0.71", "54.00 ± 0.71", "76.45", "56.25")
    for section in (full, few, patterns):
        (grid,) = section.grids
        assert [grid.header[place].startswith("published:") for place in grid.marked]
        assert all(len(cells) == len(grid.header) for part in grid.sections for cells in part)


@pytest.mark.parametrize("model", FULL_MODELS)
@pytest.mark.parametrize("method", METHODS)
def test_printed_averages_are_those_of_the_printed_figures(model: str, method: str) -> None:
    printed = printed_average(model, method, [])
    assert printed_average(model, method, list(TASKS)) == pytest.approx(printed, abs=0.07)
    # CB's dev set has 56 examples, so the first of its columns is accuracy in Table 4 too.
    accuracy = printed_full(model, method, "cb", "accuracy")
    if accuracy != 85.1:  # printed so; 85.7 would be 48 of 56
        right = accuracy * 56 / 100
        assert abs(right - round(right)) < 0.06  # printed or cut after one digit


def test_pet_is_over_its_patterns_and_dev32_chooses(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        pattern("boolq", "mp", 50.0, name="pet-0", dev=70.0),
        pattern("boolq", "pet", 60.0, name="pet-1", dev=55.0),
        pattern("boolq", "pet", 55.0, name="pet-2", dev=60.0),
        pattern("boolq", "pet", 1.0, label="PET mean"),
        pattern("boolq", "difference", 1.0),
        pattern("rte", "mp", 50.0, name="ptuning"),
        pattern("rte", "pet", 60.0, name="pet-1"),
    )
    values = pet_values(found, "ours", "boolq")
    assert values["pet-mean"]["accuracy"] == [50.0, 60.0, 55.0]
    assert values["pet-dev32"]["accuracy"] == [49.5, 50.5]
    assert values["pet-best"]["accuracy"] == [59.5, 60.5]
    assert pet_values(found, "ours", "rte") == {}


def test_figure_1_averages_the_tasks_that_all_bars_have(tmp_path: Path) -> None:
    entries = [
        entry(task, method, model=model)
        for model in SIZES
        for task in ("rte", "boolq")
        for method in ("ft", "pt2")
        if (model, task, method) != ("small", "boolq", "ft")
    ]
    panels, tasks = v2_panels(load(tmp_path, *entries), TABLES[0], ("rte", "boolq", "cb"))
    assert tasks == ["rte"]
    ours, theirs = panels
    assert list(ours.groups) == ["small\n30M", "large\n2.0B"]
    assert ours.bars == {"FT": [50.0, 50.0], "PT-2": [50.0, 50.0]}
    assert theirs.published
    assert theirs.bars["PT-2"] == [78.3, 88.4, 90.3, 93.1]
    assert v2_panels(load(tmp_path, entry("squad", "ft")), TABLES[0], ("rte",)) == ([], [])
    # Entities likewise, beside the figures of their own table.
    entries = [
        entry("conll2004", method, model=model, split="test", metrics={"f1": 50.0})
        for model in SIZES
        for method in ("ft", "pt2")
    ]
    (ours, theirs), tasks = v2_panels(
        load(tmp_path, *entries), TABLES[1], ("conll2003", "conll2004")
    )
    assert tasks == ["conll2004"]
    assert ours.bars == {"FT": [50.0, 50.0], "PT-2": [50.0, 50.0]}
    assert theirs.bars == {"FT": [85.6, 88.8, 89.1], "PT-2": [84.5, 87.3, 86.5]}


def test_figure_1_of_ptuning_has_the_papers_averages(tmp_path: Path) -> None:
    few = [pattern(task, "ptuning", 60.0) for task in ("rte", "boolq")]
    (ours, theirs), whole = ptuning_panels(load(tmp_path, *few))
    assert whole == []
    assert ours.bars == {"P-tuning": [60.0]}
    assert theirs.bars == {"P-tuning": [68.4, 70.4, 74.6, 75.6]}
    both = [*few, pattern("rte", "ptuning", 62.0, split=FULL)]
    (full, _, theirs), whole = ptuning_panels(load(tmp_path, *both))
    assert whole == ["rte"]
    assert full.bars == {"P-tuning": [62.0]}
    assert theirs.bars == {"P-tuning": [71.1, 70.8, 75.5, 75.5]}


def test_pages_say_which_columns_are_published(tmp_path: Path) -> None:
    path = stored(tmp_path, [entry("rte", method) for method in ("ft", "pt", "pt2")])
    out = tmp_path / "tables"
    made = report_results("ptuning-v2", [path], str(out))
    assert {file.name for file in made.files} >= {"report.md", "report.html", "results.json"}
    assert (out / "figures/figure-1.png").stat().st_size > 5000
    text = (out / "report.md").read_text()
    assert "made up" in text
    assert 'Columns headed "published" are the paper\'s own figures' in text
    assert '<td class="theirs">78.3</td>' in (out / "report.html").read_text()
    # Written anew, but never over something else.
    report_results("ptuning-v2", [path], str(out))
    (out / "mine.txt").write_text("")
    with pytest.raises(RunError, match="holds other things"):
        report_results("ptuning-v2", [path], str(out))


def test_stored_results_that_do_not_serve_are_refused(tmp_path: Path) -> None:
    one = stored(tmp_path, [entry("rte", "ft")])
    with pytest.raises(ConfigError, match=r"both have results of ft on rte with the model ours"):
        load_results([one, stored(tmp_path, [entry("rte", "ft")], "other")], "ptuning-v2")
    (tmp_path / "facts.json").write_text('{"a": {"metrics": {}}}')
    stored(tmp_path, [entry("rte", "pt2", settings={"a": 1})], "grid")
    for name in ("facts", "grid", "nothing"):
        with pytest.raises(RunError):
            load_results([str(tmp_path / f"{name}.json")], "ptuning-v2")


def test_a_folder_of_results_gives_what_a_paper_shows(tmp_path: Path) -> None:
    stored(tmp_path, [entry("rte", "ft"), entry("squad", "pt", settings={"variant": "CRF"})], "v2")
    stored(tmp_path, [entry("rte", "ft", settings={"variant": "tags"})], "variants")
    worded = [pattern("rte", "ptuning", 55.0, model="other"), pattern("cb", "mp", 50.0)]
    stored(tmp_path, [*worded, pattern("rte", "pt2-verbalizer", 47.0, split=FULL)], "words")
    (tmp_path / "facts.json").write_text('{"a": {"metrics": {}}}')
    v2 = load_results([str(tmp_path)], "ptuning-v2")
    assert [key[1:4] for key in v2.values] == [
        ("rte", "ft", "dev"),
        ("rte", "pt2-verbalizer", FULL),
    ]
    assert v2.models == ("ours",)
    words = load_results([str(tmp_path)], "ptuning")
    assert [key[1:3] for key in words.values] == [("rte", "ptuning"), ("cb", "mp")]
    assert words.note == "made up"
    with pytest.raises(RunError, match="no results that the tables of ptuning show; give others"):
        report_results("ptuning", [str(tmp_path / "v2.json")], str(tmp_path / "out"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="no results that the tables of ptuning-v2 show"):
        report_results("ptuning-v2", [str(tmp_path / "empty")], str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_links_to_figures_have_no_spaces(tmp_path: Path) -> None:
    path = stored(tmp_path, [entry("rte", "ft", model="my own/model")])
    report_results("ptuning-v2", [path], str(tmp_path / "out"))
    assert "(figures/tasks-my-own-model.png)" in (tmp_path / "out/report.md").read_text()
    assert (tmp_path / "out/figures/tasks-my-own-model.png").is_file()


@pytest.mark.parametrize(
    ("paper", "measured"),
    [("ptuning-v2", "CoNLL03: FT"), ("ptuning", "COPA: P-tuning")],
)
def test_our_own_results_give_the_tables(tmp_path: Path, paper: TaskPaper, measured: str) -> None:
    results = Path(__file__).parents[2] / "experiments/results"
    report_results(paper, [str(results)], str(tmp_path / "out"))
    text = (tmp_path / "out/report.md").read_text()
    assert re.search(rf"\| {measured} \| \d", text)


def test_bars_that_are_not_there_are_left_out() -> None:
    panels = [
        BarPanel(
            "Ours",
            ["one", "a-very-long-name-of-a-model-that-has-been-tuned"],
            {"FT": [50.0, None], "PT": [1, 2]},
            seeds={"FT": [[40.0, 60.0], []], "PT": [[1.0], [2.0]]},
        ),
        BarPanel("Published", ["x"], {"FT": [99.0]}, published=True),
    ]
    figure = draw_bar_panels(panels, title="title", caption="caption")
    first, second = figure.axes
    assert len(first.patches) == 3
    assert second.patches[0].get_hatch()
    # Single runs are dots where there are several.
    (dots,) = first.lines
    assert list(dots.get_ydata()) == [40.0, 60.0]
    # A number stands above the highest of them.
    assert first.texts[0].get_text() == "50.0"
    assert first.texts[0].xy[1] == 60.0  # type: ignore[attr-defined]
    bar = first.patches[0]
    assert list(dots.get_xdata()) == pytest.approx([bar.get_x() + bar.get_width() / 2] * 2)
    assert [label.get_text() for label in figure.legends[0].get_texts()] == ["FT", "PT"]
    assert "\n" in first.get_xticklabels()[1].get_text()
