"""Runs on the tiny BERT and two relations of made-up facts, shared by the tests of this room."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import symprompt
from symprompt import Run
from symprompt.probing.config import RunConfig
from tiny.models import make_facts, run_config
from tiny.runs import SEPARATE, Make, write_csv, write_prompts


@pytest.fixture(scope="session")
def model(family_folder: Callable[[str], Path]) -> Path:
    """The tiny BERT's folder."""
    return family_folder("bert")


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of two relations; tests must not change it."""
    folder = tmp_path_factory.mktemp("facts")
    return write_csv(make_facts().select(["capital", "in"]), folder / "facts.csv")


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several manual templates for each relation; tests must not change them."""
    return write_prompts(tmp_path_factory.mktemp("prompts"))


@pytest.fixture(scope="session")
def make(model: Path, data: Path) -> Make:
    """Configs of runs on the tiny model and facts; the run folder is the first argument."""

    def config(out: Path, **sections: Any) -> RunConfig:
        place = {"model": str(model), "data": str(data), "out": str(out), "dtype": "float32"}
        return run_config(**(place | sections))

    return config


@pytest.fixture(scope="session")
def finished(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished SPE run with separate vectors; tests must not change its folder."""
    return symprompt.train(make(tmp_path_factory.mktemp("finished") / "run", method=SEPARATE))
