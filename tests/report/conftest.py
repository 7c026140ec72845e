"""Runs that the tests of tables and figures share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import symprompt
from symprompt import Run
from tiny.models import make_facts, run_config
from tiny.runs import write_csv


@pytest.fixture(scope="package")
def runs(
    family_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Run]:
    """Finished runs of three configs; tests must not change them."""
    folder = tmp_path_factory.mktemp("runs")
    data = write_csv(make_facts(), folder / "facts.csv")
    with data.open("a") as stream:
        stream.write(f"Oslo,near,Unheardof,test,{make_facts()['near'].template}\n")
    place = {"model": str(family_folder("bert")), "data": str(data)}
    methods: dict[str, dict[str, Any]] = {
        # Weights and K so large that asking back changes the order.
        "spe": {"name": "spe", "k": 40, "weight": 5.0},
        "chosen": {"name": "spe", "k": 40, "vectors": "separate", "choose_weight": "dev-relation"},
        "ptuning": {"name": "ptuning"},
    }
    return {
        name: symprompt.train(run_config(**place, out=str(folder / name), method=method))
        for name, method in methods.items()
    }
