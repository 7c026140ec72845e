"""Recorded steps without a GPU: what is put back after rehearsals, and what happens if it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from test_tasks_training import Lines, trainer_of

from symprompt.tasks.config import LearningConfig
from symprompt.tasks.passes import Step
from symprompt.tasks.training import TaskTrainer

CONFIG = LearningConfig(rate=0.05, batch=8, epochs=2, weight_decay=0.01)


class FakeGraph:
    """Replays by running the step it was made for."""

    def __init__(self) -> None:
        self.work: Callable[[], None] = lambda: None

    def replay(self) -> None:
        self.work()


class FakeStream:
    device = torch.device("cpu")

    def wait_stream(self, other: object) -> None:
        pass


def pretend(monkeypatch: pytest.MonkeyPatch, *, fails: bool = False) -> list[tuple[str, int]]:
    """Replace what CUDA does by its effect; return the shapes that get recorded."""
    recorded: list[tuple[str, int]] = []
    current: list[Step] = []
    record = TaskTrainer._record

    def noting(self: TaskTrainer, step: Step) -> None:
        current[:] = [step]
        recorded.append((step.task, step.width))
        record(self, step)

    @contextmanager
    def capture(graph: FakeGraph, pool: Any = None) -> Iterator[None]:
        step = current[0]
        graph.work = lambda: trainers[0]._step(step)
        yield
        if fails:
            raise RuntimeError("operation not permitted\nwhen stream is capturing")

    trainers: list[TaskTrainer] = []

    def remember(self: TaskTrainer, step: Step) -> None:
        trainers[:] = [self]
        noting(self, step)

    monkeypatch.setattr(TaskTrainer, "_record", remember)
    for name, value in {
        "CUDAGraph": FakeGraph,
        "graph": capture,
        "Stream": lambda device: FakeStream(),
        "stream": lambda stream: nullcontext(),
        "current_stream": lambda device: FakeStream(),
        "synchronize": lambda device: None,
        "graph_pool_handle": lambda: (0, 1),
        "get_rng_state": lambda device: torch.get_rng_state(),
        "set_rng_state": lambda state, device: torch.set_rng_state(state),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return recorded


def train(recording: bool) -> tuple[Lines, TaskTrainer]:
    model = Lines()
    trainer = trainer_of(model, CONFIG)
    trainer.recording = recording
    trainer.run(lambda: (float(len(trainer.progress.history)), {}))
    return model, trainer


def test_recorded_steps_end_with_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = train(False)
    recorded = pretend(monkeypatch)
    model, trainer = train(True)
    assert torch.equal(model.body, plain.body)
    assert torch.equal(model.head, plain.head)
    assert len(recorded) == len(set(recorded)) >= 2
    assert trainer.recording
    assert not trainer._graphs


def test_a_model_that_cannot_be_recorded_runs_without(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = train(False)
    recorded = pretend(monkeypatch, fails=True)
    model, trainer = train(True)
    assert torch.equal(model.body, plain.body)
    assert len(recorded) == 1
    assert not trainer.recording
    notes = [entry for entry in trainer.progress.history if "not recorded" in entry]
    assert notes == [{"epoch": 1, "not recorded": "operation not permitted"}]


def test_memory_that_runs_out_is_no_reason_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)

    def full(self: TaskTrainer, step: Step) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(TaskTrainer, "_step", full)
    with pytest.raises(torch.OutOfMemoryError):
        train(True)
