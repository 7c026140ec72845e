"""The command reproduce with a real worker process, what it refuses; stored tables."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from tiny.runs import Call, unfinish, write_lama

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
    assert "about" not in said
    # What has no finished run beside it is counted.
    unfinish(out / "runs/toy/paraphrase-3")
    code, said, _ = call("reproduce", "spe", *flags, "--relations", "P36", "--dry-run")
    assert "no estimate for 1 run: no run of the row on its model is done." in said


@pytest.mark.parametrize("what", ["logs", ".png"])
def test_a_full_disk_is_one_sentence_and_no_success(
    call: Call,
    data: Path,
    family_folder: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    real = Path.open

    def full(path: Path, mode: str = "r", *rest: Any, **others: Any) -> Any:
        if mode != "r" and what in str(path.relative_to(path.anchor)):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return real(path, mode, *rest, **others)

    monkeypatch.setattr(Path, "open", full)
    flags = ("--models", f"toy={family_folder('bert')}", "--data", data, "--out", tmp_path / "out")
    code, _, said = call("reproduce", "spe", *flags, "--methods", "manual", "--relations", "P36")
    assert code == 2
    assert said.splitlines()[-1].startswith(f"symprompt: cannot write {tmp_path}/out/")
    assert said.endswith(": No space left on device.\n")


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
    assert "takes one of the commands spe, bear, ptuning, ptuning-v2, got ptuning-v3" in error


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


_OF_A_SEED = ("value", "seeds", "n")


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_committed_results_print_again(call: Call, path: Path) -> None:
    stored = json.loads(path.read_text())
    code, said, error = call("table", path, "--format", "markdown")
    assert code == 0, error
    groups: dict[str, list[float]] = {}
    for record in stored["records"]:
        if record.get("label"):
            assert record["label"] in said
        published = "published" in record.get("settings", {})
        if record["metric"] in ("accuracy", "f1", "exact", "P@1", "MRR") and not published:
            about = {key: one for key, one in record.items() if key not in _OF_A_SEED}
            groups.setdefault(str(about), []).append(record["value"])
    for values in groups.values():
        assert f"{mean(values):+z.2f}"[1:] in said
    code, said, _ = call("table", path, "--json")
    assert json.loads(said)["records"] == stored["records"]


@pytest.mark.parametrize(
    ("paper", "name"),
    [("ptuning-v2", "ptuning-v2"), ("ptuning", "fewglue"), ("ptuning", "superglue-rte")],
)
def test_committed_results_give_the_papers_tables(
    call: Call, tmp_path: Path, paper: str, name: str
) -> None:
    path, out = RESULTS / f"{name}.json", tmp_path / "tables"
    code, _, error = call("reproduce", paper, "--from-results", path, "--out", out)
    assert code == 0, error
    assert (out / "report.md").is_file()


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
    assert "holds no results (no list of records)" in error
