"""experiments/equal_care.py: a search by dev, one more rate at an edge, then seeds of the best."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_nested_names import load_script

from symprompt.papers.records import load_results
from symprompt.papers.settings import PTUNING_V2
from tiny.labelled import write_labelled, write_long_model
from tiny.runs import InlineExecutor


def test_the_best_rate_is_trained_with_every_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = load_script("equal_care")
    write_labelled(tmp_path / "data")
    write_long_model(tmp_path / "toy")
    ordinary, searched = script.sweep, []

    def here(settings: Any, **given: Any) -> Any:
        done = ordinary(settings, executor=InlineExecutor(), **given)
        if settings.out.endswith("search"):
            # The lowest of the first rates is best, so that one below it is tried.
            rates = [one.setting["learning.rate"] for one in done.tried]
            searched.append(sorted(rates))
            order = sorted(done.tried, key=lambda one: one.setting["learning.rate"] != 1e-3)
            return type(done)(tuple(order), done.outcome, done.files)
        return done

    monkeypatch.setattr(script, "sweep", here)
    call = [str(tmp_path / "out"), "--model", str(tmp_path / "toy"), "--name", "toy"]
    call += ["--tasks", f"rte={tmp_path / 'data' / 'rte'}", "--methods", "pt2"]
    call += ["--rates", "pt2=1e-3,1e-2", "ft=1"]
    call += ["--seeds", "1", "2", "--limit", "4", "--set", "learning.epochs=1", "prefix.length=2"]
    script.main(call)
    assert searched == [[1e-3, 1e-2], [1e-4, 1e-3, 1e-2]]
    stored = json.loads((tmp_path / "out" / "results.json").read_text())
    (about,) = stored["about"]["runs"]
    assert about["rate"] == 1e-3
    assert sorted(about["searched on dev"], key=float) == ["0.0001", "0.001", "0.01"]
    assert [len(curve) for curve in about["dev by epoch"]] == [1, 1]
    found = load_results([str(tmp_path / "out" / "results.json")], PTUNING_V2)
    entry = found.find("toy", "rte", "pt2")
    assert entry is not None
    assert len(entry["accuracy"]) == 2
    search = json.loads((tmp_path / "out" / "search.json").read_text())
    assert {record["split"] for record in search["records"]} == {"dev"}


def test_a_single_rate_is_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, ordinary = load_script("equal_care"), load_script("equal_care").sweep
    write_labelled(tmp_path / "data")
    write_long_model(tmp_path / "toy")
    monkeypatch.setattr(
        script, "sweep", lambda *own, **given: ordinary(*own, executor=InlineExecutor(), **given)
    )
    call = [str(tmp_path / "out"), "--model", str(tmp_path / "toy"), "--methods", "pt2"]
    call += ["--tasks", f"rte={tmp_path / 'data' / 'rte'}", "--rates", "pt2=1e-2"]
    script.main([*call, "--seeds", "1", "2", "--set", "learning.epochs=1", "prefix.length=2"])
    (about,) = json.loads((tmp_path / "out" / "results.json").read_text())["about"]["runs"]
    assert (about["rate"], about["searched on dev"]) == (1e-2, {})
    assert len(about["dev by epoch"]) == 2
    assert not (tmp_path / "out" / "rte-pt2" / "search").exists()
