"""The loop on a toy: steps, evaluations, checkpoints at any step, signals, what is not finite."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from symprompt.accel.compiling import Recorder
from symprompt.engine.loop import EarlyStopping, Loop, State, fill
from symprompt.engine.processes import ProcessGroup
from symprompt.errors import RunError, TrainingError
from symprompt.runs.folder import PROGRESS


class Walk:
    """A random walk that is evaluated after every third of ten steps; nearest to 0 is best."""

    stage = "walking"
    steps = 10
    device = torch.device("cpu")

    def __init__(self, patience: int = 0, broken_at: int = -1) -> None:
        self.recorder = Recorder(self.device)
        self.place = torch.zeros(1)
        self.stopping = EarlyStopping({"place": self.place}, patience=patience)
        self.broken_at = broken_at
        self.on = False
        self.note = ""

    @property
    def stopped(self) -> bool:
        return bool(self.stopping.stopped.all())

    @contextmanager
    def training(self) -> Iterator[None]:
        self.on = True
        yield
        self.on = False

    def step(self, number: int) -> None:
        assert self.on
        torch.manual_seed(number)
        self.place += torch.randn(1)
        if number == self.broken_at:
            self.place += torch.nan
        self.note = f"at {number}"

    def evaluates_after(self, done: int) -> bool:
        return done % 3 == 0 or done == self.steps

    def evaluate(self, done: int) -> dict[str, Any] | None:
        assert not self.on
        self.stopping.update(-self.place.abs().numpy(), done, {"place": self.place})
        return {"step": done, "place": float(self.place)} if done else None

    def failure(self) -> str:
        return "" if bool(self.place.isfinite().all()) else "the place is not finite; stay."

    def state_dict(self) -> State:
        return {"place": self.place, **self.stopping.state_dict()}, {}

    def load_state_dict(self, tensors: Mapping[str, Tensor], note: Mapping[str, Any]) -> None:
        fill(self.place, tensors["place"])
        self.stopping.load_state_dict(tensors)

    def load_best(self) -> None:
        self.stopping.load_best({"place": self.place})


class EndedError(Exception):
    """A training that was ended from outside."""


def test_steps_evaluations_and_ticks_come_in_order() -> None:
    walk, told = Walk(), []
    random = torch.get_rng_state()
    progress = Loop(walk, tick=lambda *words: told.append(words)).run()
    assert torch.equal(torch.get_rng_state(), random)
    assert [row["step"] for row in progress.history] == [3, 6, 9, 10]
    assert told == [
        ("walking", 0, 10, ""),
        *(("walking", done, 10, f"at {done - 1}") for done in range(1, 11)),
    ]
    # The start competes too, as it is nearest to zero.
    assert walk.place.item() == 0
    assert progress.seconds > 0
    assert progress.recording == 0


def test_a_training_notes_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("symprompt.engine.loop.TELL_SECONDS", 0.0)
    Loop(Walk(), checkpoint=tmp_path / "state.safetensors").run()
    noted = json.loads((tmp_path / PROGRESS).read_text())
    assert (noted["done"], noted["total"], noted["stage"]) == (10, 10, "walking")
    assert [row["step"] for row in noted["history"]] == [3, 6, 9]
    # A note that cannot be written stops no training.
    Loop(Walk(), checkpoint=tmp_path / PROGRESS / "state.safetensors").run()


@pytest.mark.parametrize("killed", range(2, 11))
def test_a_training_goes_on_from_any_step(killed: int, tmp_path: Path) -> None:
    whole = Walk()
    history = Loop(whole).run().history
    state = tmp_path / "state.safetensors"

    def kill(stage: str, done: int, total: int, note: str) -> None:
        if done == killed:
            raise EndedError

    with pytest.raises(EndedError):
        Loop(Walk(), checkpoint=state, checkpoint_seconds=0, tick=kill).run()
    first: list[int] = []
    walk = Walk()
    loop = Loop(walk, checkpoint=state, tick=lambda _, done, *rest: first.append(done))
    assert loop.run().history == history
    assert first[0] == killed - 1
    assert torch.equal(walk.place, whole.place)


@pytest.mark.parametrize(
    ("wanted", "cost", "saved"),
    [(2, 0, [2, 4, 6, 8, 10]), (2, 0.375, [2, 6, 10]), (2, 5, [2]), (0, 5, list(range(1, 11)))],
)
def test_checkpoints_that_take_long_are_written_less_often(
    wanted: float, cost: float, saved: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now, done = 0.0, []

    def step(stage: str, number: int, total: int, note: str) -> None:
        nonlocal now
        now += number > 0

    def write(path: Path, tensors: object, about: dict[str, Any]) -> None:
        nonlocal now
        now += cost
        done.append(about["progress"]["done"])

    monkeypatch.setattr("symprompt.engine.loop.time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr("symprompt.engine.loop.write_tensors", write)
    state = tmp_path / "state.safetensors"
    Loop(Walk(), checkpoint=state, checkpoint_seconds=wanted, tick=step).run()
    assert done == saved


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_after_a_checkpoint(number: signal.Signals, tmp_path: Path) -> None:
    state = tmp_path / "state.safetensors"
    before = signal.getsignal(number)

    def stop(stage: str, done: int, total: int, note: str) -> None:
        if done == 4:
            os.kill(os.getpid(), number)

    with pytest.raises(KeyboardInterrupt):
        Loop(Walk(), checkpoint=state, checkpoint_seconds=1e9, tick=stop).run()
    assert signal.getsignal(number) is before
    loop = Loop(Walk(), checkpoint=state)
    assert loop._resume().done == 4


def test_a_second_interruption_stops_at_once(tmp_path: Path) -> None:
    state = tmp_path / "state.safetensors"

    def stop(stage: str, done: int, total: int, note: str) -> None:
        for _ in range(2 * (done == 4)):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        Loop(Walk(), checkpoint=state, checkpoint_seconds=1e9, tick=stop).run()
    assert not state.exists()


def test_a_process_that_ignores_interruptions_goes_on_ignoring_them() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        Loop(Walk(), tick=lambda *_: os.kill(os.getpid(), signal.SIGINT)).run()
    finally:
        signal.signal(signal.SIGINT, before)


def test_patience_ends_a_training() -> None:
    progress = Loop(Walk(patience=3)).run()
    assert progress.done == 3


def test_what_is_not_finite_is_refused_and_the_checkpoint_kept(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"^the place is not finite; stay\.$"):
        Loop(Walk(broken_at=1)).run()
    state = tmp_path / "state.safetensors"
    loop = Loop(Walk(broken_at=5), checkpoint=state, checkpoint_seconds=0)
    with pytest.raises(TrainingError, match=r"stay\. The checkpoint of step 5 is kept\."):
        loop.run()
    assert Loop(Walk(), checkpoint=state)._resume().done == 5


def test_other_checkpoints_are_left_alone_or_refused(tmp_path: Path) -> None:
    state = tmp_path / "state.safetensors"
    loop = Loop(Walk(), checkpoint=state, key={"seed": 1})
    loop.run()
    loop.save()
    assert Loop(Walk(), checkpoint=state, key={"seed": 1})._resume().done == 10
    assert Loop(Walk(), checkpoint=state, key={"seed": 2})._resume().done == 0
    other = Walk()
    other.place = torch.zeros(2)
    with pytest.raises(RunError, match="damaged or of another training"):
        Loop(other, checkpoint=state, key={"seed": 1}).run()
    state.write_bytes(b"nothing")
    with pytest.raises(RunError, match="cannot read"):
        Loop(Walk(), checkpoint=state).run()


def test_processes_stop_together(tmp_path: Path) -> None:
    class Others(ProcessGroup):
        """Seen from the second of two processes, the first of which wants to stop."""

        def any(self, flag: bool) -> bool:
            return True

    state = tmp_path / "state.safetensors"
    told: list[object] = []
    walk = Walk()
    walk.steps = 30
    loop = Loop(
        walk, checkpoint=state, group=Others(1, 2, walk.device), tick=lambda *_: told.append(1)
    )
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    assert loop.progress.done == 10
    assert not state.exists()
    assert not told


def test_a_failed_recording_is_in_the_history() -> None:
    walk = Walk()
    walk.recorder.reason = "not permitted"
    rows = Loop(walk).run().history
    assert [row.get("not recorded") for row in rows] == ["not permitted", None, None, None]


# ------------------------------------------------------------------------------ early stopping


def test_each_relation_keeps_its_best_rows_and_stops_by_itself() -> None:
    values = {"v": torch.zeros(2, 3)}
    stopping = EarlyStopping(values, patience=2)
    table = [[1.0, 5.0], [3.0, 4.0], [2.0, 3.0], [3.0, 9.0]]
    for epoch, scores in enumerate(table):
        values["v"].fill_(epoch)
        stopping.update(np.array(scores), epoch, values)
    assert stopping.best.tolist() == [1, 0]
    assert stopping.stopped.tolist() == [True, True]
    stopping.load_best(values)
    assert values["v"][:, 0].tolist() == [1, 0]
    other = EarlyStopping(values, patience=2)
    other.load_state_dict(stopping.state_dict())
    assert other.best.tolist() == [1, 0]
    with pytest.raises(ValueError, match="has the shape"):
        EarlyStopping({"v": torch.zeros(3, 3)}, patience=2).load_state_dict(stopping.state_dict())


@pytest.mark.parametrize(("counts", "left"), [(True, [3, 3]), (False, [3, 1])])
def test_ties_are_chosen_by_what_is_given(counts: bool, left: list[int]) -> None:
    values = {"v": torch.zeros(1)}
    stopping = EarlyStopping(values, patience=0)
    for at, (score, tie) in enumerate([(1.0, 0.0), (2.0, 1.0), (2.0, 0.5), (2.0, 2.0)]):
        stopping.update(np.array([score]), at, values, tie=tie, tie_counts=counts)
    assert [int(stopping.best[0]), int(stopping.raised[0])] == left


def test_no_number_is_the_worst_score() -> None:
    values = {"v": torch.zeros(1)}
    stopping = EarlyStopping(values, patience=0)
    for at, score in enumerate([np.nan, -5.0, np.nan]):
        stopping.update(np.array([score]), at, values)
    assert stopping.best.tolist() == [1]
