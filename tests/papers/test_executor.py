"""Reproductions by worker processes: killed, resumed, with failing runs and dying workers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from symprompt.probing.results import load_card
from symprompt.probing.results import run_config as stored_config
from symprompt.runs.folder import Folder
from tiny.runs import write_lama, write_lama_prompts

FILES = ("report.md", "report.html", "results.json")
RUNS = 15


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("forked")


@pytest.fixture(scope="module")
def told(base: Path, family_folder: Callable[[str], Path]) -> dict[str, Any]:
    """What the reproductions of ``forked.py`` did; one process, as importing torch takes long."""
    data = write_lama(base / "lama")
    write_lama_prompts(base / "prompts")
    broken = write_lama(base / "broken", without_dev=("P36",))
    script = Path(__file__).with_name("forked.py")
    words = [sys.executable, str(script), *map(str, (family_folder("bert"), data, broken, base))]
    subprocess.run(words, check=True, timeout=300, capture_output=True)
    found: dict[str, Any] = json.loads((base / "told.json").read_text())
    return found


def test_every_run_is_made_without_what_only_the_command_line_needs(
    told: dict[str, Any], base: Path
) -> None:
    first = told["undisturbed"]
    assert len(first["made"]) == RUNS
    assert first["failed"] == {}
    assert first["skipped"] == []
    out = base / "out/undisturbed"
    assert {path.name for path in out.iterdir()} >= {*FILES, "times.json", "symprompt.json"}
    assert not (out / "figures").exists()
    assert set(json.loads((out / "times.json").read_text())) == set(first["made"])


def test_every_way_to_combine_written_prompts_is_a_row(base: Path) -> None:
    out = base / "out/undisturbed"
    ways = {}
    for name in ("lama-lpaqa-top1", "lama-lpaqa-uniform", "lama-lpaqa"):
        run = Folder(out / "runs/toy" / f"{name}-34")
        ways[stored_config(run).ensemble.combine] = load_card(run)["relations"]["P17"]
    assert set(ways) == {"top1", "uniform", "optimised"}
    assert len({tuple(about["prompts"]) for about in ways.values()}) == 1
    assert sorted(ways["top1"]["prompt_weights"]) == [0, 0, 1]
    assert ways["uniform"]["prompt_weights"] == pytest.approx([1 / 3] * 3, abs=1e-6)
    page = (out / "report.md").read_text()
    for name in ("LPAQA, top-1", "LPAQA, uniform weights", "LPAQA, learned weights"):
        assert f"| {name} | – |" in page
    # The papers print the first of them.
    theirs = [line for line in page.splitlines() if "34.1 / 62.0 / 43.6 [S]" in line]
    assert theirs
    assert all(line.startswith("| LPAQA, top-1 |") for line in theirs)


def test_progress_tells_which_run_of_how_many_and_what_is_done_is_skipped(
    told: dict[str, Any],
) -> None:
    ticks = told["undisturbed"]["ticks"]
    assert ticks[0][:3] == ["runs", 0, RUNS]
    assert ["runs", RUNS, RUNS] in [tick[:3] for tick in ticks]
    assert any("toy/lama-spe-34: training" in tick[3] for tick in ticks)
    assert ticks[-1][0] == "tables"
    assert told["again"]["made"] == []
    assert told["again"]["skipped"] == told["undisturbed"]["made"]


def test_five_kills_leave_the_tables_identical(told: dict[str, Any], base: Path) -> None:
    done = [told[f"after kill {number}"] for number in range(5)]
    assert done == sorted(done)
    assert told["killed"]["failed"] == {}
    ended = told["killed"]["made"] + told["killed"]["skipped"]
    assert sorted(ended) == told["undisturbed"]["made"]
    for name in FILES:
        here = (base / "out/undisturbed" / name).read_bytes()
        there = (base / "out/killed" / name).read_bytes()
        assert here.replace(b"undisturbed", b"killed") == there, name


def test_ctrl_c_ends_the_workers_and_it_goes_on(told: dict[str, Any]) -> None:
    assert told["interrupted"]["error"].startswith("KeyboardInterrupt")
    assert told["resumed"] >= 1
    after = told["after Ctrl-C"]
    assert len(after["skipped"]) == told["resumed"]
    assert sorted(after["made"] + after["skipped"]) == told["two"]["made"]


def test_a_failing_run_is_told_in_the_tables_and_stops_no_other(
    told: dict[str, Any], base: Path
) -> None:
    failed = told["broken"]["failed"]
    assert list(failed) == ["toy/lama-ptuning-34"]
    assert "P36 has no usable dev facts" in failed["toy/lama-ptuning-34"]
    assert "toy/lama-manual-34" in told["broken"]["made"]
    page = (base / "out/broken/report.md").read_text()
    assert "| P-tuning |  | failed |" in page
    assert "toy/lama-ptuning-34 failed: relation P36 has no usable dev facts" in page


def test_two_workers_share_the_runs_and_one_that_dies_is_replaced(told: dict[str, Any]) -> None:
    assert told["two"]["failed"] == {}
    assert "toy/lama-ptuning-34" in told["two"]["made"]
    assert told["died once"]["failed"] == {}
    assert told["died once"]["made"] == told["two"]["made"]


def test_workers_that_always_die_end_it_with_a_sentence(told: dict[str, Any]) -> None:
    error = told["died always"]["error"]
    assert error.startswith("SympromptError: no run of the tables came to its end")
    assert "its worker died (signal 9)" in error
