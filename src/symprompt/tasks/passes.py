"""Which inputs each step of an epoch reads: shuffled, of similar length, in few shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from symprompt.engine.batches import few_widths
from symprompt.runs.environment import derive_seed

_NEAR = 32
"""Batches among whose inputs those of similar length are put together."""


@dataclass(frozen=True)
class Step:
    """One step: inputs of one task, padded to a width.

    Attributes:
        task: whose inputs.
        width: tokens; one of few, see ``few_widths``.
        rows: [up to the batch's size] which inputs.
    """

    task: str
    width: int
    rows: np.ndarray


def plan_epoch(
    lengths: Mapping[str, np.ndarray], *, batch: int, widest: Mapping[str, int], seed: int
) -> list[Step]:
    """Return an epoch's steps: every input of every task once, each step inputs of one task.

    So a step's task is drawn by size, without replacement.

    Args:
        lengths: task -> [n] tokens of each input.
        batch: inputs per step.
        widest: task -> the widest input there is.
        seed: of the order; another one for every epoch.
    """
    steps = []
    for task, length in lengths.items():
        random = np.random.default_rng(derive_seed(seed, "order", task))
        order = random.permutation(len(length))
        for start in range(0, len(order), _NEAR * batch):
            near = order[start : start + _NEAR * batch]
            near = near[np.argsort(length[near], kind="stable")]
            for first in range(0, len(near), batch):
                rows = near[first : first + batch]
                width = few_widths(length[rows].max(), widest[task])
                steps.append(Step(task, int(width), rows))
    shuffle = np.random.default_rng(derive_seed(seed, "steps"))
    return [steps[place] for place in shuffle.permutation(len(steps))]


def table_of(steps: list[Step], batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Return every step's rows [step, batch] and 1 for each, 0 where a batch is filled up."""
    rows = np.zeros((len(steps), batch), dtype=np.int64)
    real = np.zeros((len(steps), batch), dtype=np.float32)
    for place, step in enumerate(steps):
        rows[place] = step.rows[0]
        rows[place, : len(step.rows)] = step.rows
        real[place, : len(step.rows)] = 1
    return rows, real
