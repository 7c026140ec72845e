"""Recording steps stands apart from training in a run's seconds, also of a resumed run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import symprompt
from symprompt.engine.loop import Loop
from symprompt.probing.train import PromptTraining
from symprompt.runs.folder import Folder
from tiny.models import make_facts, run_config
from tiny.runs import unfinish, write_csv

RECORDING = 100.0
"""Seconds that recording takes by the clock of this test."""


class Killed(BaseException):
    """Stands for a kill: nothing on the way catches it."""


def test_what_every_process_recorded_adds_up(
    family_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_csv(make_facts().select(["capital", "in"]), tmp_path / "facts.csv")
    place = {"model": str(family_folder("bert")), "data": str(data), "out": str(tmp_path / "run")}
    more = {"learning": {"epochs": 4}, "dtype": "float32", "checkpoint_seconds": 0.0}
    config = run_config(**place, **more, method={"name": "ptuning"})
    count, begin = Loop._count_seconds, PromptTraining._begin

    def recorded(self: PromptTraining) -> object:
        if self._planned is None:
            self.recorder.seconds += RECORDING
        return begin(self)

    def counted(self: Loop) -> None:
        count(self)
        self.progress.seconds += self.trainable.recorder.seconds

    def kill(stage: str, done: int, total: int, note: str) -> None:
        if note == "epoch 3":
            raise Killed

    monkeypatch.setattr(PromptTraining, "_begin", recorded)
    monkeypatch.setattr(Loop, "_count_seconds", counted)
    with pytest.raises(Killed):
        symprompt.train(config, tick=kill)
    folder = Folder(config.out)
    progress = folder.read_tensors("state.safetensors")[1]["progress"]
    assert progress["recording"] == RECORDING
    assert RECORDING < progress["seconds"] < 2 * RECORDING
    run = symprompt.train(config, resume=True)
    assert run.metrics["seconds"]["recording"] == 2 * RECORDING
    assert 0 < run.metrics["seconds"]["training"] < RECORDING
    # Killed after training: both times are still known.
    unfinish(folder.path)
    again = symprompt.train(config, resume=True).metrics["seconds"]
    for stage in ("recording", "training"):
        assert again[stage] == run.metrics["seconds"][stage]
