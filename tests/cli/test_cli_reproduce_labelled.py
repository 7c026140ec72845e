"""``reproduce ptuning`` and ``reproduce ptuning-v2`` from the command line, on tiny models."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from symprompt.cluster import executor
from symprompt.errors import SympromptError
from symprompt.papers import worker
from symprompt.tasks.config import TuneConfig
from tiny.labelled import write_labelled, write_long_model
from tiny.runs import Call, InlineExecutor


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    write_labelled(folder / "data")
    write_long_model(folder / "model")
    return folder


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run jobs in this process; worker processes are tested with the tables of facts."""
    monkeypatch.setattr(executor, "LocalExecutor", lambda *_, **__: InlineExecutor())


def flags(place: Path, out: Path) -> list[object]:
    words = ["--models", f"toy={place / 'model'}", "--data", place / "data", "--out", out]
    return [*words, "--devices", "cpu", "--epochs", 1]


def test_v2_makes_runs_tables_and_figures_and_skips_them_again(
    call: Call, place: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ["reproduce", "ptuning-v2", *flags(place, out), "--seeds", 1, 2]
    chosen = ["--tasks", "rte", "conll2003,conll2004", "mnli", "--methods", "ft", "pt2", "mpt2"]
    said = call(*words, *chosen).done
    assert "14 runs made, 0 there from before, 0 failed." in said
    text = (out / "report.md").read_text()
    assert "- MNLI-m: not measured (no files of it in data)." in text
    assert "| MNLI-m: PT-2 | not measured | 85.8 | 90.4 | – | – |" in text
    assert "A trial, not the papers' setting: 1 training epoch." in text
    results = json.loads((out / "results.json").read_text())
    mixed = {one["data"] for one in results["records"] if one["method"] == "mpt2"}
    assert mixed == {"conll2003", "conll2004"}
    found = [
        one["value"]
        for one in results["records"]
        if (one["data"], one["method"], one["metric"]) == ("rte", "ft", "accuracy")
    ]
    assert f"| RTE: FT | {mean(found):.2f} ± {stdev(found):.2f} | 70.4 |" in text
    assert {path.name for path in (out / "figures").iterdir()} == {
        "figure-1.png",
        "sizes.png",
        "tasks-toy.png",
    }

    again = call(*words, *chosen, "--dry-run").done
    assert "14 runs, 14 of them done" in again
    assert "mnli: not measured: no files of it in data" in again
    pages = {path: path.read_bytes() for path in out.glob("re*.*")}
    again = call(*words, *chosen).done
    assert "0 runs made, 14 there from before, 0 failed." in again
    assert pages == {path: path.read_bytes() for path in out.glob("re*.*")}

    said = call("table", out / "results.json").done
    assert "MPT-2" in said
    # The stored results give the same tables without the runs.
    assert call(
        "reproduce", "ptuning-v2", "--from-results", out / "results.json", "--out", tmp_path / "two"
    ).done
    tables = json.loads((tmp_path / "two/results.json").read_text())["tables"]
    assert [table["tables"] for table in tables] == [table["tables"] for table in results["tables"]]


def test_ptuning_makes_tables_of_32_examples_and_of_whole_sets(
    call: Call, place: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    methods = ["--methods", "zero-shot", "mp", "ptuning", "table6", "--seeds", "7"]
    said = call("reproduce", "ptuning", *flags(place, out), "--tasks", "rte", "cb", *methods).done
    assert "13 runs made, 0 there from before, 0 failed." in said
    text = (out / "report.md").read_text()
    assert "- CB: not measured (no files of it)." in text
    results = json.loads((out / "results.json").read_text())
    by_split = {(entry["data"], entry["split"]) for entry in results["records"]}
    assert by_split == {("rte", "val, 32"), ("rte", "val, full train"), ("cb", "val, 32")}
    agree = next(line for line in text.splitlines() if line.startswith("| Does [PRE] agree"))
    assert agree.endswith("| 57.16 | 53.12 |")
    assert "not measured" not in agree
    assert (out / "figures/figure-1.png").is_file()


def test_a_run_that_fails_ends_in_exit_code_1(
    call: Call, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = worker.tune

    def broken(config: TuneConfig, **options: Any) -> Any:
        if config.method == "ft":
            raise SympromptError("the loss is not finite.")
        return real(config, **options)

    monkeypatch.setattr(worker, "tune", broken)
    words = [*flags(place, tmp_path / "out"), "--tasks", "rte", "--seeds", "1", "--methods"]
    code, said, _ = call("reproduce", "ptuning-v2", *words, "ft", "pt2")
    assert code == 1
    assert "toy/rte-ft-1 failed: the loss is not finite." in said
    text = (tmp_path / "out/report.md").read_text()
    assert "| RTE: FT | failed | 70.4 |" in text
    assert "- toy/rte-ft-1: the loss is not finite." in text
    said = call(
        *("reproduce", "ptuning-v2", *flags(place, tmp_path / "none")),
        *("--tasks", "rte", "--methods", "ft", "--seeds", "1"),
    )
    assert "no run of the tables came to its end" in said.refusal


DATA = "--data is missing; name the LAMA folder (spe), BEAR's (bear) or the folder of the"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("spe --data HERE --jobs 0", "jobs is 0; it must be at least 1"),
        ("spe --data HERE --models /no/such", "/no/such is not a model folder"),
        ("ptuning --data HERE --seeds one", "seeds has 'one'; each must be of type int"),
        ("ptuning --data HERE --methods nonsense", "method 'nonsense' is not known; known are: "),
        ("ptuning-v2 --data HERE --tasks nonsense", "task 'nonsense' is not known; known are: "),
        ("ptuning-v2 --data HERE --limit -1", "limit is -1; it must be at least 0"),
        (
            "ptuning-v2 --data HERE --from-results x.json",
            "--data is about runs, and --from-results makes none",
        ),
        ("ptuning-v2 --from-results no.json", "no.json"),
        ("ptuning-v2", DATA),
    ],
)
def test_bad_flags_are_one_sentence(
    call: Call, place: Path, tmp_path: Path, words: str, message: str
) -> None:
    given = words.replace("HERE", str(place / "data")).split()
    said = call("reproduce", *given, "--out", tmp_path / "out")
    assert message in said.refusal
    assert len(said.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()
