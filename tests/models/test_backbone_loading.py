"""Names that are no folders: the hub is asked once, and its silence is told at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from symprompt.errors import ModelError
from symprompt.models import LanguageModel, load_vocabulary, loading
from tiny.calling import Call


class Asked:
    """Stands for the hub; counts how often it is asked."""

    def __init__(self, answer: Exception | None) -> None:
        self.answer = answer
        self.names: list[str] = []

    def __call__(self, url: str, **_: Any) -> None:
        self.names.append(url)
        if self.answer is not None:
            raise self.answer


def refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("transformers was asked to load")


@pytest.mark.parametrize("load", [LanguageModel.load, load_vocabulary])
def test_a_hub_that_cannot_be_reached_is_asked_once(
    load: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Asked(ConnectionError("Name or service not known"))
    monkeypatch.setattr(loading, "get_hf_file_metadata", hub)
    monkeypatch.setattr(loading.AutoConfig, "from_pretrained", refuse)
    with pytest.raises(ModelError) as refused:
        load("no-such/model")
    assert len(hub.names) == 1
    assert hub.names[0].endswith("no-such/model/resolve/main/config.json")
    said = str(refused.value)
    assert said.startswith("there is no folder 'no-such/model', and the hub")
    assert "cannot be reached (Name or service not known)" in said
    assert "\n" not in said


@pytest.mark.parametrize("name", ["no-such/model", "a name/with/too/many"])
def test_what_the_hub_says_is_told_by_transformers(name: str) -> None:
    # The tests' hub is switched off, which is an answer too.
    with pytest.raises(ModelError, match="cannot read the config of model"):
        load_vocabulary(name)


def test_a_model_in_the_cache_and_a_folder_need_no_hub(
    monkeypatch: pytest.MonkeyPatch, family_folder: Callable[[str], Path]
) -> None:
    monkeypatch.setattr(loading, "get_hf_file_metadata", refuse)
    assert load_vocabulary(str(family_folder("bert")))
    config = loading.AutoConfig.from_pretrained(family_folder("bert"))
    monkeypatch.setattr(loading, "try_to_load_from_cache", lambda *_: "config.json")
    monkeypatch.setattr(loading.AutoConfig, "from_pretrained", lambda *_, **__: config)
    assert loading.find_model("some/model").config is config


def test_a_model_that_answers_is_loaded(
    monkeypatch: pytest.MonkeyPatch, family_folder: Callable[[str], Path]
) -> None:
    hub = Asked(None)
    config = loading.AutoConfig.from_pretrained(family_folder("bert"))
    monkeypatch.setattr(loading, "get_hf_file_metadata", hub)
    monkeypatch.setattr(loading.AutoConfig, "from_pretrained", lambda *_, **__: config)
    assert loading.find_model("some/model").place == "some/model"
    assert len(hub.names) == 1


def test_a_single_model_is_refused_before_it_is_looked_for(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(loading, "get_hf_file_metadata", refuse)
    out = tmp_path / "words.txt"
    code, _, said = call("data", "vocabulary", "--models", "no-such-model", "--out", out)
    assert code == 2
    assert "1 model was named; a shared vocabulary needs at least two" in said
    assert not out.exists()
