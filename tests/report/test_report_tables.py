"""Contents of the comparison tables: numbers, differences, notes, and literal text."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from symprompt.errors import SympromptError
from symprompt.files.grid import Grids
from symprompt.report.printing import show
from symprompt.report.records import Results
from symprompt.report.tables import RunScores, comparison
from symprompt.runs import statistics as averages


def make_run(name: str = "a", **changes: Any) -> RunScores:
    fields: dict[str, Any] = {
        "name": name,
        "title": f"Method {name} on [X]",
        "relation_names": ("P19", "P36"),
        "relation": np.array([0, 0, 0, 1]),
        "rank": np.array([1.0, 2.0, 20.0, 1.0]),
        "key": [("P19", "s", "o"), ("P19", "t", "o"), ("P19", "u", "o"), ("P36", "s", "o")],
        "note": "",
    }
    return RunScores(**(fields | changes))


def printed(table: Grids, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    show(table, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_one_run_shows_means_intervals_and_facts() -> None:
    found = comparison([make_run()])
    entry = found.values["runs"][0]
    assert entry["name"] == "a"
    assert (entry["facts"], entry["relations"]) == (4, 2)
    assert entry["mean over relations"]["p1"]["value"] == pytest.approx((100 / 3 + 100) / 2)
    assert entry["mean over facts"]["p1"]["value"] == pytest.approx(50.0)
    intervals = averages.bootstrap(make_run().rank, make_run().relation, draws=1000)
    assert entry["mean over facts"]["mrr"]["low"] == intervals["mean over facts"]["mrr"].low
    assert found.values["differences"] == []
    assert "| Method a on [X] | 4 | 66.67 (50.00 to 100.00) | 83.33" in found.to_markdown()
    assert "| Method a on [X] | 4 | 50.00 (25.00 to 100.00) | 75.00" in found.to_markdown()


def test_any_run_may_be_the_one_others_are_compared_with() -> None:
    ranks = {"a": [3.0, 3, 30, 2], "b": [2.0, 2, 20, 1], "c": [1.0, 2, 20, 1]}
    runs = [make_run(name, rank=np.array(rank)) for name, rank in ranks.items()]
    found = comparison(runs, reference=1, draws=20)
    plain = found.values
    assert [(row["name"], row["to"]) for row in plain["differences"]] == [("a", "b"), ("c", "b")]
    assert plain["differences"][0]["mean over facts"]["mrr"]["difference"] < 0
    assert plain["differences"][1]["mean over facts"]["mrr"]["difference"] == pytest.approx(12.5)
    assert "Method c on [X] minus Method b on [X]" in found.to_markdown()


def test_dictionary_is_json_and_keeps_its_numbers() -> None:
    runs = [make_run("a"), make_run("b", rank=np.array([2.0, 2, 30, 1]))]
    found = comparison(runs, by_relation=True).values
    assert json.loads(json.dumps(found)) == found
    assert found["bootstrap"] == {"draws": 1000, "seed": 0, "level": 0.95}


def test_a_worse_run_is_shown_as_worse_and_a_better_one_as_better() -> None:
    worse = make_run("b", rank=np.array([2.0, 3.0, 30.0, 2.0]))
    found = comparison([make_run("a"), worse])
    entry = found.values["differences"][0]
    assert (entry["name"], entry["to"]) == ("b", "a")
    assert entry["mean over facts"]["p1"]["difference"] == pytest.approx(-50.0)
    assert entry["mean over facts"]["p1"]["p"] < 0.01
    assert "| Method b on [X] minus Method a on [X] | 4 | -66.67 (" in found.to_markdown()
    assert "| +0.00 (+0.00 to +0.00) p = 1.00 |" in found.to_markdown()
    runs = [make_run("a", rank=np.full(4, 30.0)), make_run("b", rank=np.ones(4))]
    assert "+100.00 (+100.00 to +100.00) p < 0.01" in comparison(runs).to_markdown()


def test_differing_facts_are_compared_on_those_that_both_have() -> None:
    own = list(make_run().key)
    other = make_run("b", key=[*own[:3], ("P36", "other", "o")], rank=np.array([1.0, 1, 1, 1]))
    found = comparison([make_run("a"), other])
    (row,) = found.values["differences"]
    assert row["facts"] == 3
    assert row["mean over facts"]["p1"]["difference"] == pytest.approx(200 / 3)
    assert "Method b on [X] minus Method a on [X] | 3 | +66.67" in found.to_markdown()
    assert found.notes[0] == (
        "Method b on [X]: compared with Method a on [X] on the 3 facts that both have; it has 1 "
        "others, Method a on [X] has 1."
    )
    alien = make_run("b", key=[("P1", str(place), "o") for place in range(4)])
    found = comparison([make_run("a"), alien])
    assert found.values["differences"] == []
    assert found.notes == [
        "Method b on [X]: no fact in common with Method a on [X], so no paired comparison."
    ]


def test_facts_in_another_order_are_the_same_facts() -> None:
    own = list(make_run().key)
    ranks = make_run().rank[[1, 0, 2, 3]]
    found = comparison([make_run("a"), make_run("b", key=[own[1], own[0], *own[2:]], rank=ranks)])
    change = found.values["differences"][0]["mean over facts"]["mrr"]
    assert (change["difference"], change["low"], change["high"]) == (0.0, 0.0, 0.0)
    assert found.notes == [averages.ABOUT_P]


def test_the_model_and_shared_remarks_stand_once() -> None:
    runs = [make_run("a", model="bert", note="seed 3"), make_run("b", model="bert")]
    notes = comparison(runs).notes
    assert notes[:2] == ["all runs: model bert", "Method a on [X]: seed 3"]
    assert comparison(runs).values["runs"][0]["model"] == "bert"


def test_notes_and_relations_without_facts_are_shown() -> None:
    run = make_run(note="seed 3", relation_names=("P19", "P36", "P101"))
    found = comparison([run], by_relation=True)
    assert found.notes == [
        "Method a on [X]: seed 3",
        "Method a on [X]: no facts, so not in the means: P101.",
    ]
    assert "| P101 | 0 | – | – | – |" in found.to_markdown()


def test_by_relation_has_a_row_for_each_run_with_intervals_and_labels() -> None:
    labels = {"P36": "capital"}
    runs = [make_run("a", labels=labels), make_run("b", rank=np.ones(4))]
    found = comparison(runs, by_relation=True)
    rows = found.values["relations"]
    assert [(row["relation"], row["label"]) for row in rows] == [("P19", ""), ("P36", "capital")]
    text = found.to_markdown()
    assert "| P36 capital | Method a on [X] | 1 | 100.00 (100.00 to 100.00) |" in text
    assert "|  | Method b on [X] | 1 | 100.00 (100.00 to 100.00) |" in text
    entry = rows[0]["runs"][0]
    wanted = averages.bootstrap(runs[0].rank[:3], np.zeros(3, dtype=int), draws=1000)
    assert entry["p10"]["value"] == pytest.approx(200 / 3)
    assert entry["p10"]["low"] == wanted["mean over facts"]["p10"].low
    assert comparison(runs).values["relations"] == []
    alone = comparison(runs[:1], by_relation=True).to_markdown()
    assert "| P36 capital | 1 | 100.00 (100.00 to 100.00) |" in alone


def test_by_relation_joins_runs_by_name_not_by_number() -> None:
    other = make_run(
        "b", relation_names=("P36", "P50"), relation=np.array([0, 0, 1, 1]), rank=np.ones(4)
    )
    rows = comparison([make_run("a"), other], by_relation=True).values["relations"]
    assert [(row["relation"], tuple(run["facts"] for run in row["runs"])) for row in rows] == [
        ("P19", (3, 0)),
        ("P36", (1, 2)),
        ("P50", (0, 2)),
    ]
    assert "p1" not in rows[0]["runs"][1]
    assert "p1" not in rows[2]["runs"][0]


def test_terminal_shows_brackets_literally_and_every_number() -> None:
    runs = [make_run("a", title="P-tuning [red]"), make_run("b", title="a|b", note="[bold] kept")]
    found = comparison(runs, by_relation=True)
    text = printed(found)
    for piece in ("P-tuning [red]", "66.67", "(50.00 to 100.00)", "[bold] kept", "P36", "a|b"):
        assert piece in text
    assert "Mean over relations" in text
    assert "Mean over facts" in text
    assert "a\\|b" in found.to_markdown()


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_tables_fit_the_terminal_and_break_no_name_or_number(count: int, width: int) -> None:
    names = ("manual", "ptuning-bert-base-cased", "spe-bert-base-cased", "lpaqa-top1")[:count]
    draw = np.random.default_rng(0)
    runs = [make_run(name, title=name, rank=draw.integers(1, 30, 4) * 1.0) for name in names]
    found = comparison(runs, by_relation=True)
    text = printed(found, width)
    assert max(map(len, text.splitlines())) <= width
    for row in found.values["runs"]:
        assert row["title"] in text
        for averaging in ("mean over relations", "mean over facts"):
            for metric in row[averaging].values():
                assert all(f"{value:.2f}" in text for value in metric.values())
    # An interval stands beside its figure where there is room.
    assert ("0.00 (0.00 to 0.00)" in text) == ((count, width) == (1, 120))


def test_runs_with_one_title_are_told_apart_by_name() -> None:
    text = comparison([make_run("a", title="T"), make_run("b", title="T")]).to_markdown()
    assert "| T (a) |" in text
    assert "| T (b) minus T (a) |" in text


@pytest.mark.parametrize(
    "changes",
    [
        {"rank": np.ones(3)},
        {"relation": np.array([0, 0, 0, 2])},
        {"relation": np.array([0, 0, 0, -1])},
        {"relation_names": ("P19", "P19")},
        {"key": [], "rank": np.ones(0), "relation": np.zeros(0, dtype=int)},
    ],
)
def test_inconsistent_scores_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(SympromptError, match="Run 'a'"):
        make_run(**changes)


def test_equal_names_are_refused() -> None:
    with pytest.raises(SympromptError, match="distinct names"):
        comparison([make_run("a"), make_run("a")])


def with_filtered(run: RunScores, rank: list[float]) -> RunScores:
    return replace(run, beside={"filtered": replace(run, rank=np.array(rank))})


def test_filtered_ranks_stand_beside_raw_ones_where_they_differ() -> None:
    one = with_filtered(make_run("a"), [1.0, 1.0, 12.0, 1.0])
    other = make_run("b", rank=np.array([2.0, 2, 30, 1]))
    other = with_filtered(other, [2.0, 1.0, 30.0, 1.0])
    found = comparison([one, other], by_relation=True, draws=50)
    # What stands beside is what would be shown alone.
    filtered = [run.beside["filtered"] for run in (one, other)]
    alone = comparison(filtered, by_relation=True, draws=50).values
    for place in (0, 1):
        for mean in (averages.OVER_RELATIONS, averages.OVER_FACTS):
            beside = found.values["runs"][place]["filtered"]
            assert beside[mean] == alone["runs"][place][mean]
    changes, wanted = found.values["differences"][0], alone["differences"][0]
    assert changes["filtered"]["mean over facts"] == wanted["mean over facts"]
    raw = comparison([replace(run, beside={}) for run in (one, other)], draws=50).values
    assert changes["mean over facts"] == raw["differences"][0]["mean over facts"]
    # No filtered rank of the second relation is another than the raw one.
    first, second = found.values["relations"]
    assert [set(row) >= {"filtered"} for row in first["runs"] + second["runs"]] == [True] * 2 + [
        False
    ] * 2
    (change,), (unchanged,) = first["differences"], second["differences"]
    (wanted,) = alone["relations"][0]["differences"]
    assert change["filtered"] == wanted
    assert change["mrr"] != wanted["mrr"]
    assert "filtered" not in unchanged
    for section, shown in zip(found.grids[-1].sections, (True, False), strict=True):
        assert section[-1][-1].startswith(f"{wanted['mrr']['difference']:+.2f}") is shown
    assert "| filtered P@1 | filtered P@10 | filtered MRR |" in found.to_markdown()
    assert "other true objects of the same subject are left out" in found.to_markdown()


def test_filtered_ranks_that_are_the_raw_ones_are_not_shown() -> None:
    run = make_run("a")
    found = comparison([with_filtered(run, run.rank.tolist())], by_relation=True, draws=20)
    assert found.values == comparison([run], by_relation=True, draws=20).values
    assert "filtered" not in found.to_markdown()
    # One run in which they differ suffices: the other is held against it.
    runs = [with_filtered(run, run.rank.tolist()), with_filtered(make_run("b"), [1.0, 1, 2, 1])]
    assert all("filtered" in row for row in comparison(runs, draws=20).values["runs"])


@pytest.mark.parametrize("width", [60, 80, 120])
def test_raw_and_filtered_columns_fit_the_terminal(width: int) -> None:
    ranks = ([1.0, 1.0, 12.0, 1.0], [1.0, 1.0, 20.0, 1.0])
    runs = [with_filtered(make_run(name), rank) for name, rank in zip("ab", ranks, strict=True)]
    shown = printed(comparison(runs, by_relation=True, draws=20), width)
    assert max(map(len, shown.splitlines())) <= width
    for figure in ("66.67", "83.33", "filtered", "P@10", "MRR"):
        assert figure in shown


def test_by_relation_runs_are_compared_with_the_first_and_losses_are_named() -> None:
    count = 60
    relation = np.arange(count) % 3
    names = ("P19", "P36", "P50")
    key = [(names[own], f"s{place}", "o") for place, own in enumerate(relation)]
    common: dict[str, Any] = {"relation_names": names, "relation": relation, "key": key}
    before = np.full(count, 2.0)
    after = np.where(relation == 1, 4.0, np.where(np.arange(count) < 3, 1.0, 2.0))
    # In another order, and without one of the facts.
    order = np.arange(count)[::-1][1:]
    other = replace(
        make_run("b", **common, rank=after),
        rank=after[order],
        relation=relation[order],
        key=[key[place] for place in order],
    )
    found = comparison([make_run("a", **common, rank=before), other], by_relation=True, draws=50)
    wanted = averages.paired_by_relation(
        before[order][::-1], after[order][::-1], relation[order][::-1], draws=50
    )
    for number, row in enumerate(found.values["relations"]):
        (change,) = row["differences"]
        assert (change["name"], change["to"]) == ("b", "a")
        assert change["facts"] == int((relation[order] == number).sum())
        assert change["mrr"]["difference"] == wanted[number]["mrr"].difference
        assert change["mrr"]["p"] == wanted[number]["mrr"].p
    lost = "lose more than 1 MRR (p < 0.01, corrected for 3 relations): P36 (-25.0)."
    assert any(note.endswith(lost) for note in found.notes)
    assert "Method b on [X] minus Method a on [X] | 20 |" in found.to_markdown()
    same = comparison(
        [make_run("a", **common, rank=before), make_run("b", **common, rank=before)],
        by_relation=True,
        draws=20,
    )
    assert any(note.endswith("corrected for 3 relations): none.") for note in same.notes)
    alone = comparison([make_run("a", **common, rank=before)], by_relation=True, draws=20)
    assert not alone.notes


@pytest.mark.parametrize(
    ("lower", "told"), [({"P463": "-1.27, p = 0.490"}, "P463 -1.27, p = 0.490."), ({}, "none.")]
)
def test_stored_results_name_the_relations_that_lose(lower: dict[str, str], told: str) -> None:
    (line,) = Results((), {"relations with a lower MRR": lower}).tables().notes
    assert line.endswith(f": {told}")
    assert Results((), {"note": "a note"}).tables().notes == ["a note"]
