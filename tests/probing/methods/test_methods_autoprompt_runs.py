"""Whole runs of AutoPrompt whose search is too short: refused if it must fail, else told."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import symprompt
from symprompt.errors import ConfigError
from symprompt.probing.config import RunConfig
from symprompt.probing.folder import load_card
from symprompt.report import load_scores
from symprompt.report.answers import run_summary
from tiny.models import make_facts
from tiny.runs import write_csv
from tiny.search import search_config

Make = Callable[..., RunConfig]


@pytest.fixture(scope="module")
def make(
    family_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., RunConfig]:
    data = tmp_path_factory.mktemp("facts") / "facts.csv"
    write_csv(make_facts().select(["capital", "in"]), data)

    def config(out: Path, *, epochs: int, steps: int, **sections: Any) -> RunConfig:
        place = {"model": str(family_folder("bert")), "data": str(data), "out": str(out)}
        more = {"learning": {"epochs": epochs}, "search": {"steps": steps}, "dtype": "float32"}
        return search_config(**place, **(more | sections))

    return config


@pytest.mark.parametrize(("epochs", "steps"), [(1, 3), (3, 1), (0, 5)])
def test_fewer_steps_than_words_are_refused_before_a_folder_is_made(
    make: Make, tmp_path: Path, epochs: int, steps: int
) -> None:
    total = epochs * steps
    with pytest.raises(ConfigError, match=rf"steps is {total}, a word each.* has 4 places"):
        symprompt.train(make(tmp_path / "run", epochs=epochs, steps=steps))
    assert not (tmp_path / "run").exists()


def test_a_start_from_words_takes_no_steps(make: Make, tmp_path: Path) -> None:
    run = symprompt.train(make(tmp_path / "run", epochs=1, steps=1, prompt={"start": "manual"}))
    assert run.metrics["unfilled"] == []
    assert run.folder.read_json("history.json")["unfilled"] == []


def test_a_place_that_was_never_drawn_is_told(make: Make, tmp_path: Path) -> None:
    config = make(tmp_path / "run", epochs=1, steps=4, seed=1)
    run = symprompt.train(config)
    card = load_card(run.folder)["relations"]
    expected = [name for name, about in card.items() if "[MASK]" in about["words"]]
    assert expected
    assert run.metrics["unfilled"] == expected
    assert run.folder.read_json("history.json")["unfilled"] == expected
    note = f"too short: {len(expected)} of 2 relations ({', '.join(expected)}); raise"
    assert note in load_scores(str(run.folder.path)).note
    console = Console(file=io.StringIO(), width=300)
    console.print(run_summary(run.metrics))
    assert isinstance(console.file, io.StringIO)
    assert note in console.file.getvalue()


def test_a_resumed_run_tells_it_too(make: Make, tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def kill(stage: str, done: int, total: int, note: str) -> None:
        if stage == "asking test":
            raise Killed

    config = make(tmp_path / "run", epochs=1, steps=4, seed=1)
    with pytest.raises(Killed):
        symprompt.train(config, tick=kill)
    whole = symprompt.train(make(tmp_path / "whole", epochs=1, steps=4, seed=1))
    found = symprompt.train(config, resume=True).metrics["unfilled"]
    assert found == whole.metrics["unfilled"] != []


def test_a_search_that_goes_on_from_words_may_be_short(make: Make, tmp_path: Path) -> None:
    first = symprompt.train(make(tmp_path / "first", epochs=6, steps=4))
    assert first.metrics["unfilled"] == []
    start = {"start_from": str(first.folder.path)}
    assert symprompt.train(make(tmp_path / "more", epochs=1, steps=1, **start)).metrics
