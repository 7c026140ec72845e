"""Runs for others: paths become names, labels that look like paths stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from symprompt.config import settings
from symprompt.errors import RunError
from symprompt.runs.folder import CONFIG, Folder, Manifest, Record
from symprompt.runs.sharing import (
    card_head,
    copy_without_places,
    import_whole,
    is_model_name,
    require_inside,
    write_whole,
)


@settings
class Config:
    """A config with paths."""

    model: str = ""
    data: str = ""
    out: str = ""
    words: tuple[str, ...] = ()


def make_run(folder: Path, model: str) -> Folder:
    run = Folder(folder)
    words = (str(folder / "words.txt"), "/", "and/or", "<3> [X] [Y]")
    run.start(
        Config(model=model, data="data/facts.csv", out=str(folder), words=words),
        Manifest(command="tune", model=model, data="data/facts.csv", method="ft"),
    )
    run.write_json("card.json", {"base_model": model, "labels": ["/", "/tmp", "a/b"]})
    run.write_rows("predictions/test.jsonl", [{"text": str(folder)}])
    records = (Record(metric="accuracy", value=71.238, split="test"),)
    run.finish(records=records, details={"from": str(folder / "other")})
    return run


def test_a_copy_names_no_place_and_is_whole(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", str(tmp_path / "bert"))
    copied = copy_without_places(run, tmp_path / "copy", model="./bert")
    assert copied.manifest.model == "./bert"
    assert copied.manifest.data == "facts.csv"
    assert copied.manifest.details == {"from": "other"}
    assert copied.manifest.records == run.manifest.records
    assert copied.read_json("card.json") == {"base_model": "./bert", "labels": ["/", "/tmp", "a/b"]}
    keys = copied.config_keys()
    assert keys["words"] == ["words.txt", "/", "and/or", "<3> [X] [Y]"]
    assert (keys["model"], keys["data"], keys["out"]) == ("./bert", "facts.csv", "run")
    # What was predicted is as it was.
    for name in ("predictions/test.jsonl",):
        assert (copied.path / name).read_bytes() == (run.path / name).read_bytes()


def test_a_whole_run_comes_back_with_its_model_elsewhere(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "./bert")
    write_whole(tmp_path / "sent", run, why="it is ft", card="# a card\n")
    back = import_whole(tmp_path / "sent", tmp_path / "back", model="/models/bert")
    assert back.require_finished().model == "/models/bert"
    assert back.config_keys()["model"] == "/models/bert"
    assert back.read_json("card.json")["base_model"] == "/models/bert"
    assert back.manifest.details["imported"] == "as exported"
    same = import_whole(tmp_path / "sent", tmp_path / "same")
    assert (same.path / CONFIG).read_bytes() == (run.path / CONFIG).read_bytes()
    (tmp_path / "sent" / "run" / "card.json").unlink()
    with pytest.raises(RunError, match=r"cannot read .*card\.json"):
        import_whole(tmp_path / "sent", tmp_path / "broken")
    assert not (tmp_path / "broken").exists()


@pytest.mark.parametrize("name", ["", "..", "../a", "a/../b", "/a", "a\\..\\b"])
def test_names_outside_of_a_folder_are_refused(name: str) -> None:
    with pytest.raises(RunError, match="names a file outside of its folder"):
        require_inside(name, Path("run"))


def test_a_card_without_figures_has_no_index() -> None:
    options: dict[str, Any] = {"name": "x", "library": "peft", "tags": ["a"], "task": "fill-mask"}
    head = card_head(base="./bert", data="my facts (2).csv", figures=(), **options)
    assert head == ('---\nlibrary_name: "peft"\ntags: ["a"]\ndatasets: ["my-facts-2-.csv"]\n---\n')
    assert is_model_name("google/bert_uncased")
    assert not is_model_name("shipped")
    assert not is_model_name("/models/bert")
