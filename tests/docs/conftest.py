"""The folder that commands and Python of pages and docstrings run in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from symprompt.config import load
from symprompt.pretraining.config import PretrainConfig
from tiny.labelled import write_entities
from tiny.models import CITIES, COUNTRIES
from tiny.runs import write_prompts
from tiny.text import pretrain_config, write_text


def load_tiny(kind: type[Any], name: str) -> Any:
    """Load a config; of pretraining return one for the tiny text instead."""
    config = load(kind, name)
    return pretrain_config() if kind is PretrainConfig else config


@pytest.fixture
def workplace(
    tmp_path: Path, family_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder with what the pages talk about: a model, LAMA-like data, files of one's own."""
    (tmp_path / "bert-base-cased").symlink_to(family_folder("bert"))
    monkeypatch.setattr("symprompt.models.loading.FOLDER", family_folder("bert"))
    pairs = list(zip(COUNTRIES, CITIES, strict=True))
    folder = tmp_path / "lama" / "P36"
    folder.mkdir(parents=True)
    for split, part in {"train": pairs[:4], "dev": pairs[4:6], "test": pairs[6:]}.items():
        lines = [json.dumps({"sub": country, "obj": city}) for country, city in part]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    about = {"relation": "P36", "template": "The capital of [X] is [Y] ."}
    (tmp_path / "lama" / "relations.jsonl").write_text(json.dumps(about) + "\n")
    rows = [f"{country},capital,{city}" for country, city in pairs]
    (tmp_path / "my_facts.csv").write_text("subject,relation,object\n" + "\n".join(rows))
    questions = [f"P36,{country}" for country, _ in pairs]
    (tmp_path / "questions.csv").write_text("relation,subject\n" + "\n".join(questions))
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
