"""Recording steps stands apart from training in a run's seconds, also of a resumed run."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import symprompt
from symprompt.probing import recorded as captured
from symprompt.probing import train as experiment
from symprompt.probing import trainer
from symprompt.probing.config import RunConfig
from symprompt.probing.recorded import CapturedPart
from symprompt.probing.trainer import Trainer
from symprompt.runs.folder import Folder
from tiny.models import make_facts, run_config
from tiny.runs import SEPARATE, Make, unfinish, write_csv

RECORDING = 100.0
"""Seconds that a part's first recording takes by the clock of these tests."""


class Killed(BaseException):
    """Stands for a kill: nothing on the way catches it."""


def kill(stage: str, done: int, total: int, note: str) -> None:
    """Die in the third epoch."""
    if note == "epoch 3":
        raise Killed


@pytest.fixture
def make(
    family_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Make:
    """Configs of runs whose steps are recorded, by a clock that recording moves."""
    data = write_csv(make_facts().select(["capital", "in"]), tmp_path / "facts.csv")
    passed = [0.0]
    record = CapturedPart.record

    def slow(self: CapturedPart, *rest: Any) -> None:
        passed[0] += RECORDING if self._ends is None else 0.0
        record(self, *rest)

    clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + passed[0])
    monkeypatch.setattr(CapturedPart, "record", slow)
    monkeypatch.setattr(captured, "time", clock)
    monkeypatch.setattr(experiment, "time", clock)
    monkeypatch.setattr(trainer, "Trainer", partial(Trainer, capture=True))

    def config(out: Path, **sections: Any) -> RunConfig:
        place = {"model": str(family_folder("bert")), "data": str(data), "out": str(out)}
        more = {"learning": {"epochs": 4}, "dtype": "float32", "checkpoint_seconds": 0.0}
        return run_config(**(place | more | sections))

    return config


@pytest.mark.parametrize(
    ("method", "parts"), [({"name": "ptuning"}, 1), ({"name": "spe", **SEPARATE}, 2)]
)
def test_recording_is_told_apart_from_training(
    make: Make, tmp_path: Path, method: dict[str, Any], parts: int
) -> None:
    run = symprompt.train(make(tmp_path / "run", method=method))
    seconds, history = run.metrics["seconds"], run.folder.read_json("history.json")
    assert seconds["recording"] == history["recording"] == pytest.approx(parts * RECORDING, abs=9)
    assert 0 < seconds["training"] < RECORDING
    assert history["seconds"] == pytest.approx(seconds["recording"] + seconds["training"])


def test_what_every_process_recorded_adds_up(make: Make, tmp_path: Path) -> None:
    config = make(tmp_path / "run", method={"name": "ptuning"})

    with pytest.raises(Killed):
        symprompt.train(config, tick=kill)
    folder = Folder(config.out)
    assert folder.read_tensors("state.safetensors")[1]["recording"] == pytest.approx(100, abs=9)
    run = symprompt.train(config, resume=True)
    assert run.metrics["seconds"]["recording"] == pytest.approx(2 * RECORDING, abs=9)
    assert 0 < run.metrics["seconds"]["training"] < RECORDING
    # Killed after training: both times are still known.
    unfinish(folder.path)
    again = symprompt.train(config, resume=True).metrics["seconds"]
    for stage in ("recording", "training"):
        assert again[stage] == run.metrics["seconds"][stage]
