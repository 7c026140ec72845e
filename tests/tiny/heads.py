"""Slow versions of what heads compute, one position at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from symprompt.tasks.kinds.base import Head

WIDTH = 8


def generator(seed: int = 0) -> torch.Generator:
    """Return a generator of its own."""
    return torch.Generator().manual_seed(seed)


def make_states(rows: int = 3, tokens: int = 5) -> Tensor:
    """Return random hidden states in float64."""
    return torch.randn(rows, tokens, WIDTH, generator=generator(1), dtype=torch.float64)


def slow_logits(head: Head, state: Tensor) -> list[float]:
    """Return the scores of one state."""
    values = state
    if head.hidden is not None:
        values = torch.tanh(head.hidden.weight @ values + head.hidden.bias)
    return (head.output.weight @ values + head.output.bias).tolist()


def slow_loss(logits: list[float], label: int) -> float:
    """Return the cross-entropy of one label."""
    total = sum(math.exp(value) for value in logits if value > -math.inf)
    return math.log(total) - logits[label]
