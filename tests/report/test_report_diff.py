"""What one run knows and another does not, against a slow loop over stored predictions."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import symprompt
from symprompt import Run
from symprompt.probing.results import load_asked, load_combination, write_predictions
from symprompt.report.diff import diff_runs
from symprompt.report.printing import show
from symprompt.runs.folder import Folder, Manifest
from symprompt.runs.statistics import sign_test
from tiny.runs import Call


def slow(run: Run, *, filtered: bool = False) -> dict[tuple[str, str, str], Any]:
    """Fact -> (rank, first answer), by sorting candidates and counting, one fact at a time."""
    asked = load_asked(run.folder, "test")
    own, combination, found = asked.predictions, load_combination(run.folder), {}
    for row, key in enumerate(asked.keys()):
        scores = own.object_score[row].astype(np.float32)
        if combination is not None:
            weight = np.float32(combination.weights["subject"][own.relation[row]])
            scores = scores + weight * own.subject_score[row] if weight else scores
        kept = [place for place in range(len(scores)) if not (filtered and own.known[row, place])]
        best = max(kept, key=lambda place: (scores[place], -place))
        right = np.flatnonzero(own.candidates[row] == own.gold[row])
        if len(right):
            others = [place for place in kept if place != right[0]]
            above = sum(scores[place] > scores[right[0]] for place in others)
            level = sum(scores[place] == scores[right[0]] for place in others)
            rank = 1 + above + level / 2
        else:
            rank = float("inf")
        found[key] = (rank, asked.candidates()[row][best])
    return found


@pytest.mark.parametrize(("top", "filtered"), [(1, False), (3, False), (2, True)])
def test_facts_that_differ_are_those_of_a_slow_loop(
    runs: dict[str, Run], top: int, filtered: bool
) -> None:
    one, other = (slow(runs[name], filtered=filtered) for name in ("ptuning", "spe"))
    paths = [runs[name].folder.path for name in ("ptuning", "spe")]
    found = diff_runs(*paths, top=top, filtered=filtered, examples=2)
    wanted = {key for key in one if (one[key][0] <= top) != (other[key][0] <= top)}
    assert wanted or top > 1, "the runs must differ for the test to say anything"
    assert {(row["relation"], row["subject"], row["object"]) for row in found.rows} == wanted
    for row in found.rows:
        key = (row["relation"], row["subject"], row["object"])
        assert row["known_by"] == ("first" if one[key][0] <= top else "second")
        assert (row["first_answer"], row["second_answer"]) == (one[key][1], other[key][1])
        for side, ranks in (("first", one), ("second", other)):
            if ranks[key][0] < float("inf"):
                assert row[f"{side}_rank"] == ranks[key][0]
    every = found.tables.values["all"]
    assert every["facts"] == len(one)
    assert every["both"] == sum(one[key][0] <= top and other[key][0] <= top for key in one)
    assert every["p"] == sign_test(every["first_alone"], every["second_alone"])
    for name in ("both", "first_alone", "second_alone", "neither", "facts"):
        assert sum(row[name] for row in found.tables.values["groups"]) == every[name]


def test_counts_agree_with_the_runs_figures_and_turn_with_the_order(runs: dict[str, Run]) -> None:
    paths = [runs[name].folder.path for name in ("ptuning", "spe")]
    found, turned = diff_runs(*paths).tables.values["all"], diff_runs(*paths[::-1])
    right = found["both"] + found["second_alone"]
    p1 = runs["spe"].metrics["test"]["raw"]["realistic"]["mean over facts"]["p1"]
    assert 100 * right / found["facts"] == pytest.approx(p1)
    back = turned.tables.values["all"]
    assert (back["first_alone"], back["p"]) == (found["second_alone"], found["p"])
    same = diff_runs(paths[0], paths[0])
    assert (same.rows, same.tables.values["all"]["p"]) == ([], 1.0)


def test_only_facts_that_both_have_are_compared(runs: dict[str, Run], tmp_path: Path) -> None:
    source = runs["ptuning"].folder
    asked = load_asked(source, "test")
    kept = np.array([row for row, key in enumerate(asked.keys()) if key[0] != "in"])
    less = Folder(shutil.copytree(source.path, tmp_path / "less"))
    every = [text for row in asked.candidates() for text in row]
    texts = dict(zip(asked.predictions.candidates.ravel().tolist(), every, strict=True))
    facts = asked.facts()
    write_predictions(
        less,
        "test",
        asked.predictions.take(kept),
        [facts[row] for row in kept],
        asked.relations,
        texts,
    )
    manifest = json.loads((less.path / "symprompt.json").read_text())
    manifest["files"].pop("predictions/test.safetensors")
    (less.path / "symprompt.json").write_text(json.dumps(manifest))
    found = diff_runs(runs["spe"].folder.path, less.path)
    assert found.tables.values["all"]["facts"] == len(kept)
    count = len(facts) - len(kept)
    note = f"spe: {count} facts that the other run does not have, not compared: in {count}"
    assert note in found.tables.values["notes"]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_tables_fit_the_terminal(runs: dict[str, Run], width: int) -> None:
    found = diff_runs(runs["ptuning"].folder.path, runs["spe"].folder.path).tables
    console = Console(file=io.StringIO(), width=width)
    show(found, console)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert max(map(len, shown.splitlines())) <= width
    assert "What ptuning and spe know" in shown
    assert "Known by spe alone" in shown


def test_the_command_prints_and_writes(call: Call, runs: dict[str, Run], tmp_path: Path) -> None:
    paths = [str(runs[name].folder.path) for name in ("ptuning", "spe")]
    found = symprompt.diff_runs(*paths)
    for name in ("all.jsonl", "all.csv"):
        said = call("diff", *paths, "--out", tmp_path / name).done
        assert f"all that differ: {tmp_path / name}" in said
    lines = (tmp_path / "all.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == found.rows
    with (tmp_path / "all.csv").open(newline="") as stream:
        table = list(csv.DictReader(stream))
    assert [{key: str(value) for key, value in row.items()} for row in found.rows] == table
    plain = json.loads(call("diff", *paths, "--json").out)
    assert plain == json.loads(json.dumps(found.tables.values))
    assert [run["name"] for run in plain["runs"]] == ["ptuning", "spe"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("SPE SPE --out all.txt", "must end in .jsonl or .csv"),
        ("SPE SPE --split train", "splits dev and test"),
        ("SPE .", "is not a run folder"),
        ("SPE task", "is a run on facts and task one on a labelled task"),
        ("task other", "no example in common"),
        ("task task --top 2", "leave --top"),
        ("task task --split dev", "--split may be one of: test"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    call: Call,
    runs: dict[str, Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    task(tmp_path / "task", ROWS["classes"])
    task(tmp_path / "other", [{"id": "x", "prediction": "a", "gold": "a"}])
    given = words.replace("SPE", str(runs["spe"].folder.path)).split()
    assert message in call("diff", *given).refusal


def test_no_model_library_is_loaded(runs: dict[str, Run]) -> None:
    paths = [str(runs[name].folder.path) for name in ("ptuning", "spe")]
    code = (
        "import sys\nfrom symprompt import cli\n"
        f"cli.main(['diff', *{paths!r}])\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


ROWS: dict[str, list[dict[str, Any]]] = {
    "classes": [
        {"id": "0", "prediction": "yes", "gold": "yes"},
        {"id": "1", "prediction": "no", "gold": "yes"},
        {"id": "2", "prediction": "no", "gold": "no"},
    ],
    "tags": [
        {"id": "0", "prediction": ["O", "B-X"], "gold": ["O", "B-X"]},
        {"id": "1", "prediction": ["O", "O"], "gold": ["O", "B-X"]},
        {"id": "2", "prediction": ["O"], "gold": ["O"]},
    ],
    "questions": [
        {"id": "0", "prediction": "The Seine", "gold": ["seine", "the river"]},
        {"id": "1", "prediction": "", "gold": ["Rhine"]},
        {"id": "2", "prediction": "", "gold": []},
    ],
    "relations": [
        {
            "id": "0",
            "prediction": [["A", 0, 1], ["B", 2, 3]],
            "gold": [["B", 2, 3], ["A", 0, 1]],
            "relations": [["r", 0, 1]],
            "gold_relations": [["r", 1, 0]],
        },
        {
            "id": "1",
            "prediction": [["A", 0, 1], ["B", 2, 3]],
            "gold": [["A", 0, 1], ["B", 2, 3]],
            "relations": [["r", 0, 1]],
            "gold_relations": [["r", 1, 0]],
        },
        {"id": "2", "prediction": [], "gold": [], "relations": [], "gold_relations": []},
    ],
}
"""Of each kind: right, wrong, right."""


def task(path: Path, rows: list[dict[str, Any]]) -> Folder:
    """A finished run on a labelled task with these predictions."""
    folder = Folder(path)
    manifest = Manifest(command="tune", data="mine", method="pt2", model="tiny")
    folder.start(None, manifest)
    folder.write_rows("predictions/test.jsonl", rows)
    folder.finish(details={"reported": "test"})
    return folder


@pytest.mark.parametrize("kind", list(ROWS))
def test_runs_on_tasks_are_compared_by_example(
    kind: str, tmp_path: Path, plain_wide_terminal: None
) -> None:
    rows = ROWS[kind]
    better = [rows[0], {**rows[1], "prediction": rows[1]["gold"]}, rows[2]]
    if kind == "questions":
        better[1] = {**rows[1], "prediction": "Rhine."}
    if kind == "relations":
        better[1] |= {"relations": rows[1]["gold_relations"]}
    paths = [task(tmp_path / name, own).path for name, own in (("a", rows), ("b", better))]
    found = diff_runs(*paths)
    every = found.tables.values["all"]
    assert (every["both"], every["first_alone"], every["second_alone"]) == (2, 0, 1)
    assert [(row["example"], row["known_by"]) for row in found.rows] == [("1", "second")]
    assert "Known by b alone: 1 of 1 example" in repr(found.tables)
