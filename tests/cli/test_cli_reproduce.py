"""The command reproduce with a real worker process, what it refuses; stored tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tiny.calling import Call
from tiny.lama import write_lama

RESULTS = Path(__file__).parents[2] / "experiments/results"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lama(tmp_path_factory.mktemp("data") / "lama")


def test_the_command_makes_runs_tables_and_figures(
    call: Call, data: Path, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    out, model = tmp_path / "out", f"toy={family_folder('bert')}"
    flags = ("--models", model, "--data", data, "--out", out, "--methods", "manual")
    code, said, progress = call("reproduce", "spe", *flags, "--relations", "P36", "--draws", 20)
    assert code == 0, progress
    assert "4 runs made, 0 there from before, 0 failed." in said
    assert "runs: 4/4 toy/paraphrase-3: done" in progress
    assert f"{out}/report.html" in said
    assert (out / "figures/methods-toy.png").is_file()
    code, said, _ = call("table", out / "results.json")
    assert code == 0
    assert "toy: manual prompts" in said
    assert "relations P36" in said
    code, said, _ = call("reproduce", "spe", *flags, "--relations", "P36", "--dry-run")
    assert "4 runs, 4 of them done" in said


def test_an_interrupted_command_says_how_to_go_on(
    call: Call, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("symprompt.cli.reproduce.reproduce", interrupt)
    code, _, said = call("reproduce", "spe", "--data", data, "--out", "my folder")
    assert code == 130
    assert f"goes on where it was: symprompt reproduce spe --data {data} --out 'my folder'" in said


def test_a_paper_that_is_not_known_is_told_all_that_are(call: Call) -> None:
    code, _, error = call("reproduce", "ptuning-v3", "--data", "x")
    assert code == 2
    assert "takes one of the commands spe, ptuning, ptuning-v2, got ptuning-v3" in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--seeds", "one"), "seeds has 'one'; each must be of type int"),
        (("--methods", "nonsense"), "method 'nonsense' is not known; the methods are: majority"),
        (("--models", "/no/such"), "/no/such is not a model folder"),
        (("--models", "shipped,shipped"), "two models of the name shipped"),
        (("--relations", "P9"), "P9"),
        (("--jobs", "0"), "jobs is 0; it must be at least 1"),
    ],
)
def test_bad_flags_are_one_sentence(
    call: Call, data: Path, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    out = tmp_path / "out"
    code, said, error = call("reproduce", "spe", "--data", data, "--out", out, *words)
    assert code == 2
    assert said == ""
    assert message in error
    assert len(error.splitlines()) == 1
    assert not out.exists()


def test_the_plan_of_a_dry_run_makes_nothing(call: Call, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, said, _ = call(
        "reproduce", "spe", "--data", data, "--out", out, "--seeds", "1,2", "--dry-run"
    )
    assert code == 0
    for name in ("shipped/lama-manual-1", "shipped/lama-spe-2", "shipped/lama-spe-k30-1"):
        assert name in said
    assert not out.exists()


def test_help_teaches(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, said, _ = call("reproduce", "spe", "--help")
    assert code == 0
    for word in ("--models", "--data", "--memory-gib", "--prompts", "--dry-run", "Stop it"):
        assert word in said, word


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_committed_results_print_again(call: Call, path: Path, tmp_path: Path) -> None:
    stored = json.loads(path.read_text())
    if isinstance(stored.get("tasks"), list):
        _check_labelled(call, path, tmp_path)
        return
    if isinstance(stored.get("tables"), list):
        code, said, _ = call("table", path, "--markdown")
        assert code == 0
        assert all(" | ".join(row) in said for table in stored["tables"] for row in table["rows"])
        return
    methods = [name for name, entry in stored.items() if "metrics" in str(entry)]
    code, said, _ = call("table", path, "--markdown")
    assert code == 0
    for name in methods:
        value = stored[name]["metrics"]["mean over relations"]["p1"]["value"]
        assert f"| {name} | {len(stored[name]['seeds'])} | {value:.2f} (" in said
    code, said, _ = call("table", path, "--json")
    assert json.loads(said) == stored
    code, said, _ = call("table", path)
    assert "Mean over relations" in said


def _check_labelled(call: Call, path: Path, out: Path) -> None:
    """Results on labelled tasks print, and give the papers' tables unless they are of a search."""
    stored = json.loads(path.read_text())
    code, said, _ = call("table", path, "--markdown")
    assert code == 0
    for entry in stored["tasks"]:
        for value in entry["metrics"].values():
            assert f"| {value['value']:.2f}" in said
    # Neither settings that were searched nor variants of one method are rows of the papers.
    other = ("settings", "variant")
    shown = [entry for entry in stored["tasks"] if not any(map(entry.get, other))]
    if shown:
        paper = "ptuning" if str(shown[0].get("split", "")).startswith("val, ") else "ptuning-v2"
        code, _, error = call("reproduce", paper, "--from-results", path, "--out", out / "tables")
        assert code == 0, error


def test_labelled_results_would_print_again_too(call: Call, tmp_path: Path) -> None:
    value = {"value": 50.0, "deviation": 1.0, "values": [49.0, 51.0]}
    entry = {"task": "rte", "method": "pt2", "model": "m", "split": "dev"}
    path = tmp_path / "ptuning-v2.json"
    path.write_text(json.dumps({"tasks": [entry | {"metrics": {"accuracy": value}}]}))
    _check_labelled(call, path, tmp_path)


def test_stored_results_cannot_be_ranked_anew(call: Call, tmp_path: Path) -> None:
    path = RESULTS / "lama34k.json"
    for flags in (("--k", "5"), ("--by", "relation"), ("--split", "dev"), ("--filtered",)):
        code, _, error = call("table", path, *flags)
        assert code == 2
        assert "needs run folders" in error
    code, _, error = call("table", path, tmp_path)
    assert code == 2
    assert "is no JSON file" in error
    (tmp_path / "odd.json").write_text('{"note": "nothing"}')
    code, _, error = call("table", tmp_path / "odd.json")
    assert code == 2
    assert "holds no results (no entry has metrics)" in error
    (tmp_path / "odd.json").write_text('{"a": {"metrics": {}}}')
    code, _, error = call("table", tmp_path / "odd.json")
    assert "holds no results" in error
