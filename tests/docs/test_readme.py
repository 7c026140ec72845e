"""The commands and the example of the README run as they are printed, on a tiny model."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from symprompt.cli import main
from symprompt.config import load
from symprompt.pretraining.config import PretrainConfig
from tiny.labelled import write_entities
from tiny.models import CITIES, COUNTRIES
from tiny.runs import write_prompts
from tiny.text import pretrain_config, write_text

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [
    shlex.split(line, comments=True)[1:]
    for _, block in BLOCKS
    for line in block.splitlines()
    if line.startswith("symprompt ")
]


def load_tiny(kind: type[Any], name: str) -> Any:
    """Load a config; of pretraining return one for the tiny text instead."""
    config = load(kind, name)
    return pretrain_config() if kind is PretrainConfig else config


@pytest.fixture
def workplace(
    tmp_path: Path, family_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder with what the README talks about: a model, LAMA-like data, a file of facts."""
    (tmp_path / "bert-base-cased").symlink_to(family_folder("bert"))
    monkeypatch.setattr("symprompt.models.loading.FOLDER", family_folder("bert"))
    pairs = list(zip(COUNTRIES, CITIES, strict=True))
    folder = tmp_path / "data" / "P36"
    folder.mkdir(parents=True)
    for split, part in {"train": pairs[:4], "dev": pairs[4:6], "test": pairs[6:]}.items():
        lines = [json.dumps({"sub": country, "obj": city}) for country, city in part]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    rows = [f"{country},capital,{city}" for country, city in pairs]
    (tmp_path / "my_facts.csv").write_text("subject,relation,object\n" + "\n".join(rows))
    write_text(tmp_path / "my_text.txt")
    write_entities(tmp_path / "ner")
    words = ("[X] is the capital of [Y] .", "[X] lies in [Y] .")
    write_prompts(tmp_path / "pararel", {"P36": words})
    (tmp_path / "my_sentences.conll").write_text("Ada\nsings\n\nOslo\nis\nquiet\n")
    monkeypatch.setattr("symprompt.cli.parsing.load", load_tiny)
    tiny = pretrain_config()
    monkeypatch.setattr("symprompt.cli.pretraining.load_pretrain_config", lambda _name: tiny)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_readme_has_commands() -> None:
    assert {words[0] for words in COMMANDS} == {
        *("train", "ask", "table", "data", "configs", "pretrain", "rerank", "prompts", "reproduce"),
        *("tune", "predict", "runs", "sweep", "examples", "diff", "coherency", "consistency"),
    }


def test_the_commands_run_as_printed(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in COMMANDS:
        places = {"$DATA": "data", "$NER": "ner", "$PARAREL": "pararel"}
        places = {name: str(workplace / folder) for name, folder in places.items()}
        main([places.get(word, word) for word in words])
        assert capsys.readouterr().out.strip()


def test_the_python_example_runs_as_printed(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = (block for language, block in BLOCKS if language == "python")
    code = [line for line in example.splitlines() if line.strip()]
    assert len(code) <= 10
    exec(compile(example, "README.md", "exec"), {})
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 10
    assert all(len(line.split()) >= 4 for line in shown)
