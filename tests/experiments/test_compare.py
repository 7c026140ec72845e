"""experiments/compare.py: the commands that made the runs, and the files it writes."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import symprompt
from symprompt.config import flatten
from symprompt.probing.config import RunConfig, make_config
from tiny.models import make_facts, run_config
from tiny.runs import write_csv


@pytest.fixture(scope="module")
def compare() -> ModuleType:
    path = Path(__file__).parents[2] / "experiments/compare.py"
    spec = importlib.util.spec_from_file_location("compare", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_command_says_what_is_not_the_default_and_no_place(compare: ModuleType) -> None:
    config = make_config(
        {
            "model": "/home/me/bert",
            "data": "/home/me/lama",
            "out": "/tmp/run",
            "device": "cpu",
            "max_tokens": 7,
            "keep_encoder": False,
            "start_from": "/tmp/other",
            "facts": {"templates": "/home/me/t", "vocabulary": "/v.txt", "relations": ["a b", "c"]},
            "method": {"name": "ptuning"},
            "learning": {"drop_last": False, "model_dropout": True, "rate": 0.01},
        }
    )
    assert compare.train_command(config) == (
        "symprompt train defaults.toml --model $MODEL --data $DATA --out $RUN --start-from $START "
        "--relations 'a b' c --templates $TEMPLATES --vocabulary $VOCABULARY --name ptuning "
        "--rate 0.01 --no-drop-last --model-dropout"
    )
    assert compare.train_command(RunConfig(model="m", out="o")).endswith("--out $RUN")


def test_a_command_makes_the_config_it_was_made_from(
    compare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = run_config(facts={"uhn": True, "vocabulary": "objects"}, model="$MODEL", out="$RUN")
    (tmp_path / "defaults.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    found: list[RunConfig] = []

    def keep(config: RunConfig, **_: Any) -> None:
        found.append(config)
        raise symprompt.SympromptError("enough.")

    monkeypatch.setattr("symprompt.cli.facts.train", keep)
    words = compare.shlex.split(compare.train_command(config))
    with pytest.raises(SystemExit):
        symprompt.cli.main(words[1:])
    mine, theirs = flatten(found[0]), flatten(config)
    assert {key for key in mine if mine[key] != theirs[key]} == {"data", "device"}


def test_runs_are_compared_and_the_files_name_their_commands(
    compare: ModuleType, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    data = write_csv(make_facts().select(["capital", "in"]), tmp_path / "facts.csv")
    place = {"model": str(family_folder("bert")), "data": str(data), "learning": {"epochs": 0}}
    for name, seed in (("ptuning", 34), ("ptuning", 35), ("manual", 34)):
        out = str(tmp_path / f"{name}{seed}")
        symprompt.train(run_config(**place, out=out, seed=seed, method={"name": name}))
    groups = [
        f"plain={tmp_path}/manual34",
        f"learned={tmp_path}/ptuning34,{tmp_path}/ptuning35",
    ]
    flags = ["--name", "small", "--base", "plain", "--note", "São Tomé", "--draws", "20"]
    compare.main([*flags, *groups], tmp_path / "results")
    report = json.loads((tmp_path / "results/small.json").read_text(encoding="utf-8"))
    text = (tmp_path / "results/small.md").read_text(encoding="utf-8")
    assert text.startswith("São Tomé\n")
    assert report["learned"]["seeds"] == [34, 35]
    assert "minus plain" in report["learned"]
    assert "| learned - plain | | facts |" in text
    assert report["learned"]["command"].endswith("--seed $SEED  # SEED: 34, 35")
    block = text.split("```")[1].strip().splitlines()
    assert len(block) == 2
    assert block[0].startswith("symprompt train defaults.toml --model $MODEL")
    assert block[1].endswith("# learned; SEED: 34, 35")
    assert str(tmp_path) not in text + json.dumps(report)
    with pytest.raises(SystemExit, match="differ in more than the seed"):
        compare.main([*flags, f"plain={tmp_path}/manual34,{tmp_path}/ptuning34"], tmp_path)
