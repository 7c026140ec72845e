"""SuperGLUE's files: hand-made ones of every task, and what is refused, with its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from symprompt.errors import DataError
from symprompt.tasks.patterns.data import VerbalData, load_verbal
from symprompt.tasks.patterns.pattern import TASKS
from tiny.labelled import lines, rows_of, write_lines, write_task


@pytest.mark.parametrize("task", list(TASKS))
def test_a_task_is_read_from_its_folder_and_from_the_one_above(task: str, tmp_path: Path) -> None:
    folder = write_task(tmp_path / TASKS[task].folder, task)
    one, other = load_verbal(task, folder), load_verbal(task.upper(), tmp_path)
    assert one.counts() == other.counts()
    assert set(one.splits) == {"train", "dev", "val"}
    count = 8 if task == "multirc" else 4
    for split in one.splits.values():
        assert len(split) == count
        assert len({example.id for example in split}) == count
        for example in split:
            assert set(example.fields) == set(TASKS[task].fields)
            assert example.label in range(len(TASKS[task].labels))


@pytest.mark.parametrize("task", list(TASKS))
def test_full_superglue_holds_out_what_chooses(task: str, tmp_path: Path) -> None:
    write_task(tmp_path, task, few=False)
    data = load_verbal(task, tmp_path, held_out=0.25)
    whole = 8 if task == "multirc" else 4
    held = len(data.splits["dev"])
    assert held == (2 if task == "multirc" else 1)
    assert len(data.splits["train"]) == whole - held
    ids = {example.id for split in ("train", "dev") for example in data.splits[split]}
    assert len(ids) == whole
    assert "held out" in data.notes[-1]
    if task not in ("multirc",):
        assert all(example.label is None for example in data.splits["test"])
    same = load_verbal(task, tmp_path, held_out=0.25)
    assert [one.id for one in same.splits["dev"]] == [one.id for one in data.splits["dev"]]


def test_answers_to_one_question_are_held_out_together(tmp_path: Path) -> None:
    write_task(tmp_path, "multirc", few=False)
    data = load_verbal("multirc", tmp_path, held_out=0.5)
    groups = [{example.group for example in data.splits[split]} for split in ("train", "dev")]
    assert len(groups[0]) == len(groups[1]) == 2
    assert not groups[0] & groups[1]


def test_rte_is_read_as_glue_has_it(tmp_path: Path) -> None:
    head = "index\tsentence1\tsentence2\tlabel\n"
    line = '0\tHe said "no.\tHe said it.\tentailment\n'
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text(head + line + line.replace("0\t", "1\t", 1))
    data = load_verbal("rte", tmp_path, held_out=0.5)
    (example,) = data.splits["train"]
    assert example.fields == {"premise": 'He said "no.', "hypothesis": "He said it."}
    assert example.label == TASKS["rte"].labels.index("entailment")


def test_a_pronoun_is_marked_where_it_stands(tmp_path: Path) -> None:
    rows = rows_of("wsc")
    rows[1]["target"] = {**rows[1]["target"], "span2_index": 4}
    write_lines(tmp_path / "train.jsonl", rows)
    write_lines(tmp_path / "val.jsonl", rows_of("wsc"))
    write_lines(tmp_path / "dev32.jsonl", rows_of("wsc"))
    data = load_verbal("wsc", tmp_path)
    for example in data.splits["train"]:
        assert example.fields["text"] == "Rome is old , and *it*, is the capital ."
        assert example.choices == ("Rome",)
    assert data.notes == ("WSC 1: the pronoun 'it' stands at word 5, not 4",)


def test_copa_says_which_way_it_asks(tmp_path: Path) -> None:
    data = load_verbal("copa", write_task(tmp_path, "copa"))
    links = [example.fields["link"] for example in data.splits["train"]]
    assert links == ["because", "so", "because", "so"]
    assert data.splits["train"][0].choices == ("The city lies in it.", "It is new.")


BAD: dict[str, tuple[str, dict[str, Any] | str, str]] = {
    "no JSON": ("rte", "{", "is not valid JSON"),
    "no object": ("rte", "[]", "got a JSON list"),
    "a field is missing": ("rte", {"premise": "a", "label": "entailment"}, "'hypothesis'"),
    "a field is empty": ("boolq", {"passage": " ", "question": "b", "label": True}, "no text"),
    "a label of another task": (
        "cb",
        {"premise": "a", "hypothesis": "b", "label": "not_entailment"},
        "allowed are: entailment",
    ),
    "no label": ("rte", {"premise": "a", "hypothesis": "b"}, "there is no label"),
    "a question of another kind": (
        "copa",
        {"premise": "a", "choice1": "b", "choice2": "c", "question": "why", "label": 0},
        "cause, effect",
    ),
    "a pronoun that is not there": (
        "wsc",
        {
            "text": "Rome is old",
            "target": {"span1_text": "Rome", "span2_text": "she", "span2_index": 1},
            "label": True,
        },
        "no word 'she'",
    ),
    "a span without its place": (
        "wsc",
        {
            "text": "she is old",
            "target": {"span1_text": "Rome", "span2_text": "she", "span2_index": "0"},
            "label": True,
        },
        "no number",
    ),
    "a passage without answers": (
        "multirc",
        {"passage": {"text": "a", "questions": []}},
        "no answers",
    ),
}


@pytest.mark.parametrize("case", list(BAD))
def test_a_bad_line_is_named(case: str, tmp_path: Path) -> None:
    task, row, message = BAD[case]
    write_task(tmp_path, task)
    path = tmp_path / "dev32.jsonl"
    lines = path.read_text().splitlines()
    lines[2:2] = [row if isinstance(row, str) else json.dumps(row)]
    path.write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"dev32.jsonl, line 3") as caught:
        load_verbal(task, tmp_path)
    assert message in str(caught.value)


LINES = lines(*rows_of("rte")).encode()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "holds no files of rte"),
        ({"train": LINES}, r"has no val.jsonl or dev.tsv"),
        ({"train": LINES, "val": b""}, "is empty"),
        ({"train": LINES, "val": b"\xff\xfe"}, "the bytes are not UTF-8"),
        ({"train": LINES, "val": LINES}, "held_out"),
    ],
)
def test_what_is_not_there_is_named(files: dict[str, bytes], message: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / f"{name}.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_verbal("rte", tmp_path, held_out=1.0)


def test_a_task_without_patterns_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no patterns; tasks with patterns are: boolq"):
        load_verbal("record", tmp_path)


def test_counts_say_how_many_of_each_label(tmp_path: Path) -> None:
    data: VerbalData = load_verbal("multirc", write_task(tmp_path, "multirc"))
    assert data.counts()["val"] == {"examples": 8, "questions": 4, "0": 4, "1": 4}
