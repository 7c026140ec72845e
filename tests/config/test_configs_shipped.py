"""Every config that ships: it loads, says what it is, and trains from end to end."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from symprompt import Run, cli
from symprompt.cli.parsing import flag_of, short_name
from symprompt.config import (
    command_of,
    flat_fields,
    flatten,
    load,
    read_tables,
    shipped_configs,
    to_toml,
)
from symprompt.pretraining.config import PretrainConfig, load_pretrain_config
from symprompt.pretraining.folder import load_training
from symprompt.probing.config import RunConfig, load_config
from symprompt.probing.methods.base import method_class
from symprompt.prompts import Template
from symprompt.tasks.config import PatternRunConfig, TuneConfig
from tiny.models import make_facts
from tiny.runs import write_prompts
from tiny.text import write_text

NAMES = list(shipped_configs("train"))
PRETRAIN = list(shipped_configs("pretrain"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = ["subject\trelation\tobject\tsplit\ttemplate"]
    for relation in make_facts().select(["capital", "in"]).relations:
        for split in ("train", "dev", "test"):
            lines += [
                f"{fact.subject}\t{fact.relation}\t{fact.object}\t{split}\t{relation.template}"
                for fact in relation.split(split)  # type: ignore[arg-type]
            ]
    path = tmp_path_factory.mktemp("facts") / "facts.tsv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_papers_and_your_own_facts_have_configs() -> None:
    wanted = {"lama-manual", "lama-ptuning-paper", "lama-spe-paper", "lama-spe", "my-facts"}
    assert wanted <= set(NAMES)


def kind_of(name: str) -> type[Any]:
    tables = read_tables(shipped_configs()[name])
    if "pattern" in tables:
        return PatternRunConfig
    return {"train": RunConfig, "pretrain": PretrainConfig, "tune": TuneConfig}[
        command_of(tables) or "train"
    ]


@pytest.mark.parametrize("name", list(shipped_configs()))
def test_a_shipped_config_loads_is_stored_and_leaves_the_users_part_open(
    name: str, tmp_path: Path
) -> None:
    config = load(kind_of(name), name)
    (tmp_path / "own.toml").write_text(to_toml(config))
    assert load(kind_of(name), str(tmp_path / "own.toml")) == config
    # What only the user can know is left to the flags.
    plain = flatten(config)
    assert all(plain.get(key, "") == "" for key in ("out", "work", "start_from"))
    assert plain.get("model", "shipped") == ("" if kind_of(name) is PretrainConfig else "shipped")
    if kind_of(name) is RunConfig and config.prompt.template != "manual":
        Template.parse(config.prompt.template)


@pytest.mark.parametrize("name", list(shipped_configs()))
def test_a_shipped_config_begins_with_a_sentence_and_mentions_flags_there_are(name: str) -> None:
    text = shipped_configs()[name].read_text()
    lines = text.splitlines()
    header = list(itertools.takewhile(lambda line: line.startswith("# "), lines[2:]))
    assert lines[0].startswith("# ")
    assert lines[1] == "#"
    assert all(len(line) <= 102 for line in header)
    told = " ".join(line.removeprefix("# ") for line in header)
    assert len(told.split()) >= 8
    assert told.endswith(".")
    fields = flat_fields(kind_of(name))
    known = {flag_of(flag) for key in fields for flag in (key, short_name(key))}
    assert set(re.findall(r"--[a-z][a-z-]*(?:\.[a-z-]+)?", text)) <= known


PUBLISHED = {
    name: tomllib.loads(path.read_text()).get("published", {})
    for name, path in shipped_configs().items()
}


@pytest.mark.parametrize("name", [name for name, tables in PUBLISHED.items() if tables])
def test_a_recipe_states_a_papers_numbers_and_the_table_they_stand_in(name: str) -> None:
    for table, rows in PUBLISHED[name].items():
        assert re.match(r"(SPE|P-tuning|P-tuning v2), Table \d|BEAR, leaderboard", table)
        for model, numbers in rows.items():
            assert numbers, model
            assert all(0 < value <= 100 for value in numbers.values())


def test_no_number_of_a_paper_stands_in_two_recipes() -> None:
    spe = [name for name, tables in PUBLISHED.items() if "SPE, Table 1" in tables]
    assert {"lama-spe", "lama-ptuning", "lama-manual"} <= set(spe)
    rows = [str(PUBLISHED[name]["SPE, Table 1"]) for name in spe]
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_config_trains_from_end_to_end(
    name: str,
    family_folder: Callable[[str], Path],
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "run"
    place = ["--model", str(family_folder("bert")), "--data", str(data), "--out", str(out)]
    if method_class(load_config(name).method.name).several_prompts:
        place += ["--prompts", str(write_prompts(tmp_path / "prompts"))]
    cli.main(["train", name, *place, "--device", "cpu", "--epochs", "1"])
    assert f"run folder: {out}" in capsys.readouterr().out
    run = Run.load(out)
    config = load_config(name)
    assert run.metrics["method"] == config.method.name
    # Names are ranked among the training objects, and three objects of test are none; where all 20
    # facts are test's, among the objects of all.
    names = config.facts.objects == "any-length"
    asked = 20 if config.facts.shares == (0, 0, 100) else 5 if names else 8
    assert run.metrics["test"]["facts"] == asked
    predictions, _ = run.predictions("test")
    assert predictions.asked_back == (config.method.name == "spe")
    assert names or predictions.candidates.shape[1] == config.method.k
    learns = config.method.name not in ("majority", "manual", "sentence")
    tunes = config.method.name == "finetune"
    assert (out / "prompts.safetensors").exists() == (learns and not tunes)
    assert (out / "weights").exists() == (tunes and config.tuning.tune == "lora")
    if learns and config.method.name != "lpaqa":
        assert len(run.folder.read_json("history.json")["epochs"]) == 1


def test_there_is_a_config_for_every_size_of_machine() -> None:
    assert {"pretrain-tiny", "pretrain-small", "pretrain-medium"} <= set(PRETRAIN)


@pytest.mark.parametrize("name", PRETRAIN)
def test_a_shipped_pretraining_config_trains_from_end_to_end(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_pretrain_config(name)
    assert (config.out, config.work, config.vocabulary.whole_words) == ("", "", "")
    text, out = write_text(tmp_path / "text.txt"), tmp_path / "model"
    small = ["--size", "110", "--hidden", "16", "--heads", "2", "--layers", "2", "--length", "16"]
    if config.shape.family == "electra":
        small += ["--embedding", "8"]
    steps = ["--batch", "8", "--steps", "2", "--device", "cpu", "--held-out", "0.1"]
    cli.main(["pretrain", name, "--text", str(text), "--out", str(out), *small, *steps])
    assert f"model folder: {out}" in capsys.readouterr().out
    loss = load_training(out)["loss"]["mlm"]
    assert 3 < loss < 7
    stored = AutoConfig.from_pretrained(out)
    assert stored.model_type == config.shape.family
