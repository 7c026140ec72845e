"""experiments/tasks.py: runs within a budget, results that table prints, grids on dev alone."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from symprompt import cli
from symprompt.papers.labelled import recipes
from tiny.entities import write_entities


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = Path(__file__).parents[2] / "experiments" / "tasks.py"
    spec = importlib.util.spec_from_file_location("experiments_tasks", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["experiments_tasks"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def words(
    script: ModuleType,
    family_folder: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> list[str]:
    """The flags of every call, with two short data sets in the packs."""
    write_entities(tmp_path / "packs" / "ner")
    short = {"learning.epochs": 1, "prefix.length": 2, "mixture.epochs": 1}
    for method in ("pt2", "ft", "pt", "lora", "mpt2"):
        for task in ("conll2003", "conll2004", "ner"):
            monkeypatch.setitem(recipes.TASKS, f"{task}:{method}", short)
    monkeypatch.setattr(script, "NER_SETS", ["conll2003", "conll2004"])
    # Wide enough that no name in the table is parted.
    monkeypatch.setenv("COLUMNS", "200")
    place = {"model": family_folder("bert"), "packs": tmp_path / "packs", "runs": tmp_path / "runs"}
    flags = [word for key, value in place.items() for word in (f"--{key}", str(value))]
    return [*flags, "--device", "cpu", "--results", str(tmp_path / "results"), "--name", "x"]


def results(tmp_path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((tmp_path / "results/x.json").read_text())
    return found


def test_runs_are_made_once_and_their_results_print_again(
    script: ModuleType, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--only", "conll2004:pt2", "conll2003:ft", "ner:mpt2", "--seeds", "1", "2"]
    script.main([*words, *asked, "--note", "a trial"])
    first = results(tmp_path)
    names = [(entry["task"], entry["method"]) for entry in first["tasks"]]  # type: ignore[attr-defined]
    assert names == [
        ("conll2004", "pt2"),
        ("conll2003", "ft"),
        ("conll2003", "mpt2"),
        ("conll2004", "mpt2"),
    ]
    entry = first["tasks"][0]  # type: ignore[index]
    assert entry["seeds"] == [1, 2]
    assert entry["command"].startswith("symprompt tune defaults.toml --model $MODEL --data $DATA")
    assert "--prefix.length 2" in entry["command"]
    assert str(tmp_path) not in json.dumps(first)
    script.main([*words, *asked, "--note", "a trial", "--collect"])
    assert results(tmp_path) == first
    capsys.readouterr()
    cli.main(["table", str(tmp_path / "results/x.json")])
    out = capsys.readouterr().out
    assert "MPT-2" in out
    assert "a trial" in out


def test_nothing_is_started_beyond_the_budget(
    script: ModuleType, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.main([*words, "--only", "conll2004:pt2", "--budget", "5", "--reserve", "10"])
    assert "not started" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()


def test_a_grid_never_asks_the_reported_split(
    script: ModuleType, words: list[str], tmp_path: Path
) -> None:
    grid = ["--grid", "conll2004:pt2", "--lengths", "1", "2", "--rates", "0.01", "0.001"]
    script.main([*words, *grid, "--epochs", "1"])
    found = results(tmp_path)["tasks"]
    assert len(found) == 4  # type: ignore[arg-type]
    assert {entry["split"] for entry in found} == {"dev"}  # type: ignore[attr-defined]
    scores = [entry["metrics"]["f1"]["value"] for entry in found]  # type: ignore[attr-defined]
    assert scores == sorted(scores, reverse=True)
    assert not list((tmp_path / "runs").glob("*/predictions/test.jsonl"))
    assert len(script.grid_of("pt2", [16, 32, 64], [3e-3, 1e-2], [10, 20])) == 12
