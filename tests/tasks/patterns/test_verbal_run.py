"""Whole runs: the shipped configs through the command line, run folders, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from symprompt import cli
from symprompt.config import build, shipped_configs
from symprompt.errors import ConfigError, RunError
from symprompt.files.atomic import read_tensors
from symprompt.models import LanguageModel
from symprompt.report.records import load_runs
from symprompt.runs.folder import Folder
from symprompt.tasks.config import (
    PatternRunConfig,
    is_pattern_config,
    load_pattern_config,
)
from symprompt.tasks.folder import load_metrics
from symprompt.tasks.patterns.data import VerbalExample
from symprompt.tasks.patterns.model import measure
from symprompt.tasks.patterns.pattern import PTUNING, TASKS
from symprompt.tasks.prepare import Session
from symprompt.tasks.train import tune
from tiny.labelled import write_long_model, write_task

NAMES = [name for name in shipped_configs("tune") if is_pattern_config(name)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT that takes sentences as long as the published patterns spelled by letters."""
    folder = tmp_path_factory.mktemp("long")
    words = (
        "Rome",
        "Paris",
        "is",
        "old",
        "the",
        "Yes",
        "No",
        "Maybe",
        "?",
        ":",
        "*",
        "(",
        ")",
        "/",
    )
    return write_long_model(folder, (*words, '"'), positions=512)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for task in TASKS:
        write_task(tmp_path / "data" / TASKS[task].folder, task)
    return tmp_path / "data"


def config_of(model: Path, data: Path, out: Path, **sections: Any) -> PatternRunConfig:
    table: dict[str, Any] = {
        "model": str(model),
        "data": str(data),
        "out": str(out),
        "device": "cpu",
        "seeds": [1, 2],
        "learning": {"steps": 2, "evaluate_every": 1, "batches": [2]},
    }
    for key, value in sections.items():
        table[key] = {**table.get(key, {}), **value} if isinstance(value, dict) else value
    return build(PatternRunConfig, table)


def test_every_task_has_a_config_with_its_papers_pattern() -> None:
    assert {f"fewglue-{task}" for task in TASKS} <= set(NAMES)
    for task in TASKS:
        assert load_pattern_config(f"fewglue-{task}").pattern.template == PTUNING[task].text


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_config_runs_from_the_command_line(
    name: str, model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    place = ["--model", str(model), "--data", str(data), "--out", str(out), "--device", "cpu"]
    short = ["--seeds", "1", "2", "--epochs", "0", "--steps", "2", "--evaluate-every", "2"]
    cli.main(["tune", name, *place, *short, "--rates", "1e-3", "--batches", "4"])
    assert f"run folder: {out}" in capsys.readouterr().out
    metrics = load_metrics(Folder(out))
    task = TASKS[metrics["task"]]
    assert list(metrics["metrics"]) == list(task.metrics)
    assert metrics["seeds"] == [1, 2]
    assert all(len(entry["values"]) == 2 for entry in metrics["metrics"].values())
    assert "accuracy" in load_runs([str(out)]).tables().to_markdown()
    rows = [json.loads(line) for line in (out / "predictions/1.jsonl").read_text().splitlines()]
    assert len(rows) == metrics["counts"]["val"]["examples"]
    assert all(row["prediction"] in task.labels for row in rows)
    if metrics["method"] == "ptuning":
        tensors, card = read_tensors(out / "prompts/1.safetensors")
        assert tensors["vectors"].shape[1] == 16
        assert card["pattern"] == metrics["pattern"]
    assert not (out / "state.safetensors").exists()


@pytest.mark.parametrize("task", list(TASKS))
@pytest.mark.parametrize("method", ["zero-shot", "mp", "cls"])
def test_baselines_answer_every_task(
    task: str, method: str, model: Path, data: Path, tmp_path: Path
) -> None:
    config = config_of(model, data, tmp_path / "run", pattern={"task": task, "method": method})
    metrics = tune(config).metrics
    assert metrics["seeds"] == ([1] if method == "zero-shot" else [1, 2])
    assert set(metrics["cut"]) == {"train", "dev", "val"}
    assert not (tmp_path / "run" / "prompts").exists()


def test_a_run_is_gone_on_with_and_seeds_are_added(model: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    session = Session()
    both = tune(config_of(model, data, tmp_path / "both"), session=session).metrics
    one = config_of(model, data, out, seeds=[1])
    tune(one, session=session)
    stored = (out / "seeds/1.json").read_bytes()
    # A finished run is returned as it is.
    assert tune(one, session=session).metrics["seeds"] == [1]
    ticks: list[Sequence[object]] = []
    found = tune(
        config_of(model, data, out),
        resume=True,
        session=session,
        tick=lambda *told: ticks.append(told),
    ).metrics
    assert (out / "seeds/1.json").read_bytes() == stored
    assert [told[1:3] for told in ticks if told[0] == "seeds"] == [(1, 2), (2, 2)]
    assert found["metrics"] == both["metrics"]
    other = config_of(model, data, out, learning={"rates": [2e-5]})
    with pytest.raises(RunError, match=r"another learning.rates"):
        tune(other, resume=True, session=session)


def test_trained_models_are_stored_where_asked_for(model: Path, data: Path, tmp_path: Path) -> None:
    config = config_of(model, data, tmp_path / "run", seeds=[1], save_model=True)
    tune(replace(config, pattern=replace(config.pattern, method="mp")))
    stored = LanguageModel.load(str(tmp_path / "run/models/1"), device="cpu")
    first = LanguageModel.load(str(model), device="cpu")
    pairs = zip(stored.model.parameters(), first.model.parameters(), strict=True)
    assert any(not torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ({"template": "pet-99"}, "published ones: pet-0"),
        ({"template": "{premise} [MASK]"}, "with vectors"),
        ({"template": "{premise} <1> [MASK]", "method": "mp"}, "without vectors"),
        ({"words": ["Yes"]}, "takes 2, for not_entailment, entailment"),
        ({"task": "copa", "words": ["Yes"]}, "bring their answers"),
    ],
)
def test_a_pattern_that_does_not_serve_is_refused(
    pattern: dict[str, Any], message: str, model: Path, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        tune(config_of(model, data, tmp_path / "run", pattern=pattern))


def test_a_run_needs_a_folder_of_its_own(model: Path, data: Path, tmp_path: Path) -> None:
    config = config_of(model, data, tmp_path / "run")
    with pytest.raises(ConfigError, match="--out"):
        tune(replace(config, out=""))
    with pytest.raises(ConfigError, match="--data is missing; name the folder of rte's files"):
        tune(replace(config, data=""))
    with pytest.raises(RunError, match="is not a run folder"):
        tune(replace(config, out=str(data)))


def test_metrics_are_superglues() -> None:
    def example(group: str, label: int) -> VerbalExample:
        return VerbalExample(group + str(label), {}, label, group=group)

    multirc = [example("a", 1), example("a", 0), example("b", 1), example("b", 1)]
    found = measure(TASKS["multirc"], multirc, [1, 0, 1, 0])
    assert found == pytest.approx({"em": 50.0, "f1a": 80.0, "accuracy": 75.0})
    # By hand: F1 of 0 is 2/3, of 1 is 1/2, of 2 is 0.
    cb = [example("", label) for label in (0, 0, 1, 2)]
    found = measure(TASKS["cb"], cb, [0, 1, 1, 1])
    assert found == pytest.approx({"accuracy": 50.0, "macro_f1": 100 * (2 / 3 + 1 / 2) / 3})
