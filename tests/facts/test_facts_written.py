"""Files of several prompts per relation: what is read from them and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from symprompt.errors import DataError
from symprompt.facts import find_prompts, load_prompts
from tiny.runs import PROMPTS, write_prompts


def test_a_folder_gives_every_named_relations_prompts_in_order(tmp_path: Path) -> None:
    folder = write_prompts(tmp_path / "mine")
    assert load_prompts([folder], ["capital", "near", "other"]) == {
        "capital": PROMPTS["capital"],
        "near": PROMPTS["near"],
    }


def test_folders_and_files_add_up_and_repeats_count_once(tmp_path: Path) -> None:
    folder = write_prompts(tmp_path / "mine")
    rows = [
        {"relation": "in", "template": "[X] : [Y]"},
        {"relation": "in", "template": PROMPTS["in"][0]},
        {"relation": "elsewhere", "template": "no blanks, but not asked for"},
    ]
    file = tmp_path / "more.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    assert load_prompts([folder, file], ["in"]) == {"in": (PROMPTS["in"][0], "[X] : [Y]")}


def test_prompts_are_found_beside_the_data(tmp_path: Path) -> None:
    data = tmp_path / "db" / "trex"
    data.mkdir(parents=True)
    assert find_prompts(data) == []
    places = [
        write_prompts(tmp_path / "prompts" / f"trex_{kind}") for kind in ("mine", "paraphrase")
    ]
    assert find_prompts(data) == [place.resolve() for place in places]


@pytest.mark.parametrize(
    ("place", "relation", "line", "message"),
    [
        ("absent", "in", "", r"absent does not exist; give a folder"),
        ("mine", "P36", "", r"no prompt for any of the relations.*'P36'"),
        (
            "mine",
            "in",
            '{"template": "[X] lies in nothing"}',
            r"in.jsonl, line 1: .*must hold \[X\] and \[Y\]",
        ),
        ("mine", "in", '{"weight": 1}', "there is no column 'template'"),
    ],
)
def test_what_cannot_be_used_is_refused(
    tmp_path: Path, place: str, relation: str, line: str, message: str
) -> None:
    folder = write_prompts(tmp_path / "mine")
    (folder / "in.jsonl").write_text(line)
    with pytest.raises(DataError, match=message):
        load_prompts([tmp_path / place], [relation])
