"""Recorded steps without a GPU: rehearsals leave no trace, and what cannot be recorded runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from symprompt.models import LanguageModel
from symprompt.tasks.patterns import stepping
from symprompt.tasks.patterns.model import VerbalModel
from symprompt.tasks.patterns.stepping import Stepper
from symprompt.tasks.patterns.tuner import tuning
from tiny.pattern import LEARNING, make_problem


class FakeGraph:
    """Replays by doing the work again."""

    def __init__(self) -> None:
        self.work: Callable[[], None] = lambda: None

    def replay(self) -> None:
        self.work()


def pretend(monkeypatch: pytest.MonkeyPatch, *, fails: bool = False) -> list[FakeGraph]:
    """Let steps be recorded on a CPU; rehearsals really run, as they do on a GPU."""
    made: list[FakeGraph] = []
    record = Stepper._record

    @contextmanager
    def graph(entry: FakeGraph, pool: Any = None) -> Iterator[None]:
        if fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        made.append(entry)
        yield

    def remember(self: Stepper, work: Callable[[], None]) -> Callable[[], None]:
        replay = record(self, work)
        if not fails:
            made[-1].work = work
        return replay

    def rehearse(work: Callable[[], None], stream: None) -> None:
        for _ in range(2):
            work()

    monkeypatch.setattr(Stepper, "_record", remember)
    monkeypatch.setattr(stepping, "rehearse", rehearse)
    for name, value in {
        "CUDAGraph": FakeGraph,
        "Stream": lambda device: None,
        "graph": graph,
        "graph_pool_handle": lambda: None,
        "synchronize": lambda device: None,
        "get_rng_state": lambda device: torch.get_rng_state(),
        "set_rng_state": lambda state, device: torch.set_rng_state(state),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return made


def train(backbone: LanguageModel, capture: bool) -> tuple[dict[str, Tensor], bool]:
    learning = replace(LEARNING, micro_batch=3)
    with tuning(make_problem(backbone), learning, capture=capture) as tuner:
        tuner.run(1)
        tuner.run(2)
        values = tuner.stepper.parameters.items()
        return {name: value.detach().clone() for name, value in values}, tuner.stepper.capture


def test_recorded_steps_end_with_the_same_bits(
    bert: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, _ = train(bert, capture=False)
    made = pretend(monkeypatch)
    found, captured = train(bert, capture=True)
    assert captured
    # Passes of three and of one example, and the update; both seeds use the same.
    assert len(made) == 3
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_model_that_cannot_be_recorded_runs_without(
    bert: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, _ = train(bert, capture=False)
    pretend(monkeypatch, fails=True)
    found, captured = train(bert, capture=True)
    assert not captured
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_rehearsals_never_ask_beyond_the_width(
    bert: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch)
    monkeypatch.setattr(stepping, "_GRAIN", 1)
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
    shortest = int(layout.widths.argmin())
    assert shortest != 0
    with tuning(problem, LEARNING, capture=True) as tuner:
        asked.clear()
        tuner.stepper.step(np.array([shortest]), {"model": 1e-3, "extra": 1e-3})
    assert asked
    assert all(asked)
