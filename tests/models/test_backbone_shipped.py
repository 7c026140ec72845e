"""The name "shipped": the packaged folder, wherever one stands, and one sentence without it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import symprompt
from symprompt.cli import flags
from symprompt.errors import ModelError
from symprompt.models import SHIPPED, LanguageModel, load_vocabulary, locate_model
from symprompt.probing.config import RunConfig
from symprompt.probing.folder import load_facts
from symprompt.probing.folder import run_config as stored_config
from tiny.models import make_facts, run_config
from tiny.runs import other_model, write_csv


@pytest.fixture
def packaged(
    family_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A tiny model in the place of the packaged one."""
    folder = tmp_path / "package/models/shipped"
    shutil.copytree(family_folder("bert"), folder)
    monkeypatch.setattr("symprompt.models.loading.FOLDER", folder)
    return folder


def test_the_name_is_every_commands_default() -> None:
    assert RunConfig().model == SHIPPED
    assert flags.CheckFlags(source="world").model == SHIPPED
    assert flags.DemoFlags().model == SHIPPED


def test_the_packaged_folder_lies_in_the_package() -> None:
    from symprompt.models import loading as shipped

    package = Path(symprompt.__file__).parent
    assert package / "models" / "shipped" == shipped.FOLDER


def test_the_name_loads_the_packaged_model(packaged: Path) -> None:
    assert locate_model(SHIPPED) == str(packaged)
    named, by_path = (LanguageModel.load(name, device="cpu") for name in (SHIPPED, str(packaged)))
    assert named.source == SHIPPED
    assert named.fingerprint == by_path.fingerprint
    assert len(load_vocabulary(SHIPPED)) == len(by_path.vocabulary)


def test_other_names_are_left_as_they_are() -> None:
    for name in ("bert-base-cased", "./shipped", "shipped/", "/models/shipped", "Shipped"):
        assert locate_model(name) == name


def test_a_folder_called_shipped_is_not_mistaken_for_it(
    packaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    other_model(packaged, tmp_path / "shipped")
    assert locate_model(SHIPPED) == str(packaged)
    by_name, by_path = (LanguageModel.load(name, device="cpu") for name in (SHIPPED, "./shipped"))
    assert by_name.fingerprint != by_path.fingerprint
    assert by_name.fingerprint == LanguageModel.load(str(packaged), device="cpu").fingerprint


def test_a_run_keeps_the_name_and_the_fingerprint(packaged: Path, tmp_path: Path) -> None:
    data = write_csv(make_facts(), tmp_path / "facts.csv")
    config = run_config(model=SHIPPED, data=str(data), out=str(tmp_path / "run"), dtype="float32")
    run = symprompt.train(config)
    card = json.loads((tmp_path / "run/prompts.json").read_text())
    assert stored_config(run.folder).model == SHIPPED
    assert card["base_model"] == SHIPPED
    assert (
        card["base_model_fingerprint"]
        == LanguageModel.load(str(packaged), device="cpu").fingerprint
    )
    fact = load_facts(run.folder).facts("test")[0]
    assert run.ask(fact.relation, subject=fact.subject, top=2, device="cpu")


@pytest.mark.parametrize("load", [LanguageModel.load, load_vocabulary])
def test_an_installation_without_it_says_so_in_one_sentence(
    load: Callable[[str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("symprompt.models.loading.FOLDER", tmp_path / "none")
    with pytest.raises(ModelError) as refused:
        load(SHIPPED)
    said = str(refused.value)
    assert said.startswith('the model "shipped" is not in this installation')
    assert said.endswith("name another model with --model.")
    assert "\n" not in said
