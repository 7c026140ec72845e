"""Whole runs of SoftPrompt: killed, resumed, asked, trained further."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import symprompt
from symprompt.errors import RunError
from symprompt.probing.config import RunConfig
from symprompt.probing.folder import load_card, load_prompts
from tiny.models import make_facts
from tiny.runs import PROMPTS, soft_config, write_csv, write_prompts

RESULTS = (
    "encoder.safetensors",
    "predictions/test.safetensors",
    "prompts.json",
    "prompts.safetensors",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prompts(tmp_path_factory.mktemp("written") / "mine")


@pytest.fixture(scope="module")
def make(family_folder: Callable[[str], Path], folder: Path, tmp_path_factory: Any) -> Any:
    data = write_csv(make_facts(), tmp_path_factory.mktemp("facts") / "facts.csv")

    def config(out: Path, **sections: Any) -> RunConfig:
        table: dict[str, Any] = {
            "model": str(family_folder("bert")),
            "data": str(data),
            "out": str(out),
            "dtype": "float32",
            "ensemble": {"deep": True, "most": 2},
            "checkpoint_seconds": 0.0,
        }
        return soft_config(folder, **(table | sections))

    return config


class Killed(BaseException):
    """Stands for a kill: nothing on the way catches it."""


def test_a_resumed_run_keeps_the_prompts_it_chose(make: Any, tmp_path: Path) -> None:
    def kill(now: str, done: int, total: int, note: str) -> None:
        if note == "epoch 2":
            raise Killed

    with pytest.raises(Killed):
        symprompt.train(make(tmp_path / "run"), tick=kill)
    card = json.loads((tmp_path / "run" / "prompts.json").read_text())
    chosen = ["[X] is the old [Y].", "[X] lies in the city [Y] ."]
    card["relations"]["capital"]["prompts"] = chosen
    (tmp_path / "run" / "prompts.json").write_text(json.dumps(card))
    (tmp_path / "run" / "state.safetensors").unlink()
    run = symprompt.train(make(tmp_path / "run"), resume=True)
    assert load_card(run.folder)["relations"]["capital"]["prompts"] == chosen


def test_a_run_stores_its_prompts_and_goes_on_with_no_others(make: Any, tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "mine")
    ensemble = {"deep": True, "prompts": [str(prompts)]}
    run = symprompt.train(make(tmp_path / "run", ensemble=ensemble))
    for path in prompts.iterdir():
        path.unlink()
    about = load_card(run.folder)["relations"]["capital"]
    assert about["prompts"] == ["The capital of [X] is [Y] .", *PROMPTS["capital"]]
    assert sum(about["prompt_weights"]) == pytest.approx(1, abs=1e-4)
    further = make(tmp_path / "more", start_from=str(run.folder.path))
    with pytest.raises(RunError, match="other manual templates for relation"):
        symprompt.train(further)


def test_training_goes_on_from_a_run(make: Any, tmp_path: Path) -> None:
    first = symprompt.train(make(tmp_path / "one"))
    more = make(tmp_path / "two", start_from=str(first.folder.path), learning={"epochs": 0})
    second = symprompt.train(more)
    one, two = (load_prompts(run.folder, ["forth", "weights", "deep"]) for run in (first, second))
    assert all(torch.equal(one[part], two[part]) for part in one)
