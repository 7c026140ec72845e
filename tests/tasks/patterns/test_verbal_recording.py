"""Recorded passes without a GPU: rehearsals leave no trace and never read beyond a pass's width."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from symprompt.accel.compiling import Recorder
from symprompt.models import LanguageModel
from symprompt.tasks.patterns import train as patterns
from symprompt.tasks.patterns.model import VerbalModel
from symprompt.tasks.patterns.train import Recipe, tuning
from tiny.tasks import LEARNING, make_problem


def pretend(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let functions be rehearsed on a CPU as on a GPU; return how many are recorded."""
    made: list[int] = []

    def capture(
        self: Recorder, work: Callable[[], None], state: Sequence[Tensor] = ()
    ) -> Callable[[], None]:
        before, random = [value.clone() for value in state], torch.get_rng_state()
        for _ in range(2):
            work()
        with torch.no_grad():
            for value, old in zip(state, before, strict=True):
                value.copy_(old)
        torch.set_rng_state(random)
        made.append(1)
        return work

    monkeypatch.setattr(Recorder, "capture", capture)
    return made


def train(backbone: LanguageModel) -> dict[str, Tensor]:
    with tuning(make_problem(backbone), replace(LEARNING, micro_batch=3)) as training:
        training.run(1)
        training.run(2)
        return {name: own.detach().clone() for name, own in training.parameters.items()}


def test_recorded_steps_end_with_the_same_bits(
    bert: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = train(bert)
    made = pretend(monkeypatch)
    found = train(bert)
    # Passes of three and of one example, and the update; both seeds use the same.
    assert len(made) == 3
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_rehearsals_never_ask_beyond_the_width(
    bert: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch)
    monkeypatch.setattr(patterns, "_GRAIN", 1)
    problem = make_problem(bert)
    layout = problem.layouts["train"]
    asked: list[bool] = []
    loss = VerbalModel.loss

    def watched(self: VerbalModel, layout: Any, rows: Tensor, width: int) -> Tensor:
        asked.append(bool((layout.lengths[rows] <= width).all()))
        return loss(self, layout, rows, width)

    monkeypatch.setattr(VerbalModel, "loss", watched)
    # The first example is not the shortest: a pass as wide as the shortest cannot hold it.
    layout.widths[0] += 1
    layout.lengths[0] += 1
    assert int(layout.widths.argmin()) != 0
    with tuning(problem, LEARNING) as training:
        asked.clear()
        training.begin(Recipe(1, 1e-3, 1))
        for number in range(len(layout)):
            training.step(number)
    assert asked
    assert all(asked)
