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


def test_what_cannot_be_used_is_refused(tmp_path: Path) -> None:
    folder = write_prompts(tmp_path / "mine")
    with pytest.raises(DataError, match=r"absent does not exist; give a folder"):
        load_prompts([tmp_path / "absent"], ["in"])
    with pytest.raises(DataError, match=r"no prompt for any of the relations.*'P36'"):
        load_prompts([folder], ["P36"])
    (folder / "in.jsonl").write_text('{"template": "[X] lies in nothing"}\n')
    with pytest.raises(DataError, match=r"in.jsonl, line 1: .*must hold \[X\] and \[Y\]"):
        load_prompts([folder], ["in"])
    (folder / "in.jsonl").write_text('{"weight": 1}\n')
    with pytest.raises(DataError, match="there is no column 'template'"):
        load_prompts([folder], ["in"])
