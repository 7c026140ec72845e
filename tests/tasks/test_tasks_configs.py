"""The configs of labelled tasks that ship: they load, say what they are, and train."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from symprompt import cli
from symprompt.config import shipped_configs
from symprompt.runs.folder import Folder
from symprompt.tasks.config import load_tune_config
from symprompt.tasks.data.load import SETS
from tiny.labelled import write_entities

# Configs with a pattern are another module's.
OWN = [
    name
    for name, path in shipped_configs("tune").items()
    if "pattern" not in tomllib.loads(path.read_text())
]


def test_every_task_of_the_paper_has_a_config() -> None:
    wanted = {"rte-pt2", "boolq-pt2", "cb-pt2", "sst2-pt2", "mnli-pt2", "squad-pt2", "squad2-pt2"}
    measured = ("rte", "boolq", "sst2", "conll2003", "conll2004", "squad", "srl")
    wanted |= {f"{task}-{method}" for task in measured for method in ("ft", "pt", "pt2", "lora")}
    assert wanted | {"ner-mpt2", "squad-mpt2", "srl-mpt2"} <= set(OWN)


# Configs of the chapter on fine-tuning, which has no figures: named after what reads the labels.
CHAPTER = ["conll2003-bio", "conll2003-crf", "conll2003-spans", "conll2004-relations"]


def test_every_head_of_the_chapter_has_a_config() -> None:
    assert set(CHAPTER) <= set(OWN)
    heads = [load_tune_config(name).head.decoder for name in CHAPTER]
    assert heads == ["softmax", "crf", "softmax", "softmax"]
    kinds = [load_tune_config(name).task.kind for name in CHAPTER]
    assert kinds == ["tagging", "tagging", "spans", "relations"]
    assert {load_tune_config(name).method for name in CHAPTER} == {"ft"}


@pytest.mark.parametrize("name", OWN)
def test_a_shipped_config_is_named_by_its_method_and_task(name: str) -> None:
    config = load_tune_config(name)
    assert name.endswith(f"-{config.method}") or name in CHAPTER or name.startswith("my-")
    named = [entry.partition("=")[0] for entry in config.mixture.tasks] or [config.task.name]
    assert set(named) <= {*SETS, ""}


@pytest.mark.parametrize("name", [name for name in OWN if re.match(r"conll|ner", name)])
def test_a_shipped_config_trains_from_end_to_end(
    name: str,
    family_folder: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = write_entities(tmp_path / "data")
    place = ["--model", str(family_folder("bert")), "--data", str(data), "--out"]
    words = ["--learning.epochs", "1", "--mixture.epochs", "1", "--device", "cpu"]
    if name == "ner-mpt2":
        words += ["--tasks", "conll2003", "conll2004"]
    cli.main(["tune", name, *place, str(tmp_path / "run"), *words])
    assert f"run folder: {tmp_path / 'run'}" in capsys.readouterr().out
    folder = tmp_path / "run" / ("conll2004" if name == "ner-mpt2" else "")
    assert Folder(folder).finished
