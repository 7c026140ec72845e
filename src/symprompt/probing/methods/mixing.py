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
from torch.nn import functional

Mixture = Literal["log", "probability"]
Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]
Project = Callable[[Tensor, Tensor], Tensor]

_STEPS = 300
# Probabilities are added up times e^60, so that float32 holds them down to e^-147.
_LIFT = 60.0


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


def log_loss(states: Tensor, gold: Tensor, project: Project, *, rows: int = 1 << 30) -> Evaluate:
    """Return weights -> (mean of -log softmax of the mixed log-probabilities at gold, gradient).

    A sum of log-probabilities normalised again is a sum of logits normalised: what each prompt's
    own softmax divides by is the same for every token, and cancels.

    Args:
        states: [n, p, width], from which the logits follow linearly.
        gold: [n] the true tokens.
        project: (states [m, p, width], weights [p]) -> logits [m, v] of the weighted sum.
        rows: most facts whose logits are held at once.
    """

    def evaluate(weights: Tensor) -> tuple[Tensor, Tensor]:
        total, slope = weights.new_zeros(()), torch.zeros_like(weights)
        leaf = weights.detach().requires_grad_()
        for start in range(0, len(states), rows):
            here = slice(start, start + rows)
            with torch.enable_grad():
                logits = project(states[here], leaf)
                loss = functional.cross_entropy(logits, gold[here], reduction="sum")
                (gradient,) = torch.autograd.grad(loss, leaf)
            total, slope = total + loss.detach(), slope + gradient
        return total / len(states), slope / len(states)

    return evaluate


def optimise_weights(
    evaluate: Evaluate, count: int, *, like: Tensor, tolerance: float = 1e-3, steps: int = _STEPS
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


def mix_probabilities(scores: Tensor, owner: Tensor, weights: Tensor, size: int) -> Tensor:
    """Return the log of weighted sums of probabilities, [size, v].

    Args:
        scores: [m, v] log-probabilities.
        owner: [m] which sum each belongs to.
        weights: [m].
    """
    # A product instead of adding row by row, whose order would not be the same every time.
    which = scores.new_zeros(size, len(scores))
    which[owner, torch.arange(len(scores), device=scores.device)] = weights.to(scores)
    total = which @ (scores + _LIFT).exp()
    return total.clamp(min=torch.finfo(total.dtype).tiny).log() - _LIFT
