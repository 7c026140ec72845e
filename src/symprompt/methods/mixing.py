"""Mixtures of several prompts' answers, and the weights that make the training objects likeliest.

Two ways to average: log-probabilities, whose weighted sum is normalised again, and probabilities.
In both the training loss is a convex function of weights that are not negative and sum to one, so
what is found is the best there is, up to a bound that is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Mixture = Literal["log", "probability"]
Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]

_STEPS = 500


def probability_loss(likelihood: Tensor) -> Evaluate:
    """Return weights -> (mean of -log of the mixed probability, its gradient).

    Args:
        likelihood: [n, p] log-probability of each fact's gold object under each prompt.
    """

    def evaluate(weights: Tensor) -> tuple[Tensor, Tensor]:
        mixed = torch.logsumexp(likelihood + weights.log(), dim=1)
        gradient = -(likelihood - mixed[:, None]).exp().mean(0)
        return -mixed.mean(), gradient

    return evaluate


def log_loss(table: Tensor, gold: Tensor) -> Evaluate:
    """Return weights -> (mean of -log softmax of the mixed log-probabilities at gold, gradient).

    Args:
        table: [n, p, c] log-probabilities of c answers under each prompt.
        gold: [n] the true answer's place among them.
    """
    right = table.gather(2, gold[:, None, None].expand(-1, table.shape[1], 1))[:, :, 0]

    def evaluate(weights: Tensor) -> tuple[Tensor, Tensor]:
        mixed = torch.einsum("npc,p->nc", table, weights)
        total = torch.logsumexp(mixed, dim=1)
        share = (mixed - total[:, None]).exp()
        expected = torch.einsum("npc,nc->p", table, share) / len(table)
        return (total - right @ weights).mean(), expected - right.mean(0)

    return evaluate


def optimise_weights(
    evaluate: Evaluate, count: int, *, like: Tensor, tolerance: float = 1e-4, steps: int = _STEPS
) -> Tensor:
    """Return the weights [count] that make a convex loss smallest, starting from equal ones.

    Exponentiated gradient with a step that grows and shrinks (mirror descent on the simplex): no
    step makes the loss larger. It ends when the loss is within ``tolerance`` of the smallest one,
    which the gradient bounds, or after ``steps``.

    Args:
        evaluate: weights -> (loss, gradient).
        like: a tensor of the device and dtype to work in.
    """
    weights = torch.full_like(like.new_empty(count), 1 / count)
    loss, gradient = evaluate(weights)
    rate = 1.0
    for _ in range(steps):
        if float(weights @ gradient - gradient.min()) <= tolerance:
            break
        while True:
            # The smallest weight stays above zero, whose logarithm would not be finite.
            moved = torch.softmax(weights.log() - rate * gradient, dim=0).clamp(min=1e-30)
            moved = moved / moved.sum()
            new_loss, new_gradient = evaluate(moved)
            divergence = (moved * (moved.log() - weights.log())).sum()
            if new_loss <= loss + gradient @ (moved - weights) + divergence / rate:
                break
            rate /= 2
            if rate < 1e-12:
                return weights
        if new_loss > loss:
            return weights
        weights, loss, gradient = moved, new_loss, new_gradient
        rate *= 2
    return weights


class Mixer:
    """Add up prompts' log-probabilities of a batch, one prompt after the other; final.

    Args:
        size: (b, v).
        like: a tensor of the device and dtype of the scores.
    """

    def __init__(self, size: tuple[int, int], mixture: Mixture, *, like: Tensor) -> None:
        self.mixture = mixture
        start = 0.0 if mixture == "log" else -torch.inf
        self._total = torch.full(size, start, dtype=like.dtype, device=like.device)

    def add(self, rows: Tensor, scores: Tensor, weights: Tensor) -> None:
        """Add one prompt's log-probabilities [m, v] to some rows [m], each with its weight [m]."""
        if self.mixture == "log":
            self._total[rows] += weights[:, None] * scores
        else:
            self._total[rows] = torch.logaddexp(self._total[rows], weights.log()[:, None] + scores)

    def result(self) -> Tensor:
        """Return the log-probabilities of the mixture, [b, v]."""
        return torch.log_softmax(self._total, dim=-1)
