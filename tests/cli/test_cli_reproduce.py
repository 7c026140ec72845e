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
    flags += ("--relations", "P36")
    code, said, progress = call("reproduce", "spe", *flags, "--draws", 20)
    assert code == 0, progress
    assert "4 runs made, 0 there from before, 0 failed." in said
    assert "runs: 4/4 toy/paraphrase-3: done" in progress
    assert f"{out}/report.html" in said
    assert (out / "figures/methods-toy.png").is_file()
    said = call("table", out / "results.json").done
    assert "toy: manual prompts" in said
    assert "relations P36" in said
    said = call("reproduce", "spe", *flags, "--dry-run").done
    assert "4 runs, 4 of them done" in said
    assert "about" not in said
    # What has no finished run beside it is counted.
    unfinish(out / "runs/toy/paraphrase-3")
    said = call("reproduce", "spe", *flags, "--dry-run").done
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
    told = call("reproduce", "spe", *flags, "--methods", "manual", "--relations", "P36").refusal
    assert told.startswith(f"symprompt: cannot write {tmp_path}/out/")
    assert told.endswith(": No space left on device.")


def test_the_plan_of_a_dry_run_makes_nothing(call: Call, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = call(
        "reproduce", "spe", "--data", data, "--out", out, "--seeds", "1,2", "--dry-run"
    ).done
    for name in ("shipped/lama-manual-1", "shipped/lama-spe-2", "shipped/lama-spe-k30-1"):
        assert name in said
    assert not out.exists()


_OF_A_SEED = ("value", "seeds", "n")


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_committed_results_print_again(call: Call, path: Path) -> None:
    stored = json.loads(path.read_text())
    said = call("table", path, "--format", "markdown").done
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
    assert json.loads(call("table", path, "--json").done)["records"] == stored["records"]


@pytest.mark.parametrize(
    ("paper", "name"),
    [("ptuning-v2", "ptuning-v2"), ("ptuning", "fewglue"), ("ptuning", "superglue-rte")],
)
def test_committed_results_give_the_papers_tables(
    call: Call, tmp_path: Path, paper: str, name: str
) -> None:
    path, out = RESULTS / f"{name}.json", tmp_path / "tables"
    assert call("reproduce", paper, "--from-results", path, "--out", out).done
    assert (out / "report.md").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("STORED --k 5", "--k needs run folders"),
        ("STORED --by relation", "--by needs run folders"),
        ("STORED --split dev", "--split needs run folders"),
        ("STORED --filtered", "--filtered needs run folders"),
        ("STORED .", "is no JSON file"),
        ("odd.json", "holds no results (no list of records)"),
    ],
)
def test_stored_results_cannot_be_ranked_anew(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd.json").write_text('{"note": "nothing"}')
    given = words.replace("STORED", str(RESULTS / "lama34k.json")).split()
    assert message in call("table", *given).refusal
