"""The FewGLUE grid: it goes on where it was, keeps to its budget, and prints again."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from symprompt.report.stored import load_stored
from symprompt.tasks.patterns.superglue import TASKS
from tiny.labelled import write_long_model
from tiny.superglue import write_task

SCRIPT = Path(__file__).parents[3] / "experiments" / "fewglue.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fewglue", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fewglue"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("grid")
    for task in TASKS:
        write_task(folder / "data" / TASKS[task].folder, task)
    words = ("Rome", "Yes", "No", "Maybe", "?", ":", "*")
    write_long_model(folder / "model", words, positions=512)
    places = ["--model", f"tiny={folder / 'model'}", "--data", str(folder / "data")]
    return [*places, "--steps", "2", "--evaluate-every", "1", "--seeds", "2", "--device", "cpu"]


def run(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["fewglue.py", *arguments])
    script.main()


def test_the_grid_goes_on_where_it_was(
    script: ModuleType,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = [*words, "--cells", str(tmp_path), "--results", str(tmp_path), "--tasks", "rte", "wic"]
    rows = ["--rows", "zero-shot", "mp", "ptuning", "pet", "cls"]
    run(script, monkeypatch, *own, *rows, "--budget", "0")
    assert "the budget is spent" in capsys.readouterr().out
    assert not (tmp_path / "cells.jsonl").exists()
    # "2" and "b" are not the tiny model's words: that row is named, the others are made.
    with pytest.raises(SystemExit):
        run(script, monkeypatch, *own, *rows)
    cells = (tmp_path / "cells.jsonl").read_text()
    # A kill in the middle of a line loses that line alone.
    (tmp_path / "cells.jsonl").write_text(cells[: cells.rindex("{") + 9] + "\n")
    with pytest.raises(SystemExit):
        run(script, monkeypatch, *own, *rows)
    made = list(script.read_cells(tmp_path / "cells.jsonl"))
    assert len(made) == len({script.key_of(cell) for cell in made})
    assert len(made) == 2 * (1 + 2 + 2 + 2) + 2 * 5 + 2 * 2
    stored = load_stored(str(tmp_path / "fewglue.json"))
    shown = stored.to_markdown()
    assert "PET mean of 5 of 5 patterns" in shown
    assert "PET mean of 2 of 3 patterns" in shown
    assert "Not made: tiny wic pet pet-2: the verbalizer's word '2'" in shown
    assert "P-tuning minus MP, by seed" in shown
    assert str(tmp_path) not in (tmp_path / "fewglue.json").read_text()


def test_whole_sets_have_a_row_of_prefixes_with_words(
    script: ModuleType, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [*words, "--cells", str(tmp_path), "--results", str(tmp_path), "--name", "deep"]
    rows = ["--rows", "pt2-verbalizer", "--epochs", "1"]
    with pytest.raises(SystemExit):
        run(script, monkeypatch, *own, *rows)
    rte = write_task(tmp_path / "RTE", "rte", few=False)
    run(script, monkeypatch, *own, *rows, "--supervised", f"rte={rte}")
    (entry,) = json.loads((tmp_path / "deep.json").read_text())["tasks"]
    assert (entry["method"], entry["split"]) == ("pt2-verbalizer", "val, full train")
    assert entry["label"] == "PT-2, verbalizer"
    assert entry["seeds"] == [42, 43]


def test_deviations_and_differences_are_over_seeds(script: ModuleType) -> None:
    def cell(
        row: str, pattern: str, seed: int, value: float, dev: float = 50.0
    ) -> dict[str, object]:
        return {
            "model": "m",
            "task": "rte",
            "full": False,
            "row": row,
            "pattern": pattern,
            "seed": seed,
            "val": {"accuracy": value},
            "dev": {"accuracy": dev, "step": 20},
            "rate": 1e-5,
            "batch": 16,
            "tried": [],
            "wall": 1.0,
            "cut": {},
            "text": "t",
            "words": [],
        }

    cells = [cell("mp", "ptuning", 1, 50), cell("mp", "ptuning", 2, 60)]
    cells += [cell("ptuning", "", 1, 52), cell("ptuning", "", 2, 66)]
    cells += [cell("pet", "pet-0", 1, 40, 60), cell("pet", "pet-1", 1, 70, 55)]
    found = {entry["label"]: entry["metrics"]["accuracy"] for entry in script.entries_of(cells)}
    assert found["P-tuning"]["value"] == 59
    assert found["P-tuning"]["deviation"] == pytest.approx(9.899, abs=1e-3)
    assert found["P-tuning minus MP, by seed"]["values"] == [2, 6]
    assert found["PET mean of 2 of 5 patterns"]["value"] == 55
    assert found["PET best on dev32 (pet-0)"]["value"] == 40
    assert found["PET best on val, an oracle (pet-1)"]["value"] == 70
    json.dumps(script.entries_of(cells))
