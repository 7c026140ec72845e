"""How forward score, backward score and an object's frequency are weighed: a fit on dev facts.

The way back says how likely the subject is given an object; by Bayes' rule the object's own
frequency belongs beside it: log P(object | subject) = log P(subject | object) + log P(object) +
constant. So candidates are ranked by

    forward + w_r * (backward + c_r * log P(object)),

with P(object) from the relation's training facts, and w_r, c_r of each relation r fitted by
likelihood on dev: the candidates' softmax is to give the true object. What relations differ by is
penalised, because dev facts are few. The paper has one weight and no frequencies (equation 10).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from symprompt.predictions import Predictions

_PENALTY = 0.01
"""Of a relation's squared distance from the shared numbers; the best of 3e-4 to 3e-2 on dev."""
_FACTS = 10
"""So many facts' worth is the penalty of the shared numbers' distance from where they start, and
that of a relation's where there are less than a thousand facts: a few may not move them far."""
_START = (1.0, 0.1, 0.0)
_UNSEEN = 0.5
"""Added to every count, so that objects not seen in training have a frequency."""
_LEAST = 1e-6
_FORWARD = 0.2
"""A forward score that weighs less is noise of few facts."""


@dataclass(frozen=True, eq=False)
class Combination:
    """Fitted weights.

    Attributes:
        weights: [relation] float64, w of the backward score.
        shares: [relation] float64, c of log P(object) within the backward score.
    """

    weights: Tensor
    shares: Tensor


def log_frequencies(counts: Tensor) -> Tensor:
    """Return log P(object) [relation, v] from how often each is a training object."""
    smoothed = counts + _UNSEEN
    return (smoothed / smoothed.sum(1, keepdim=True)).log()


def fit_combination(predictions: Predictions, frequencies: Tensor, relations: int) -> Combination:
    """Fit the weights on facts whose true object is among the candidates.

    Every relation counts the same, however many facts it has. A relation that asking back does not
    help gets the weight 0, and its frequencies count nothing either.

    Args:
        predictions: of dev facts, asked back.
        frequencies: [relation, v], see ``log_frequencies``.
        relations: how many relations there are.
    """
    is_gold = predictions.candidates == predictions.gold[:, None]
    rows = is_gold.any(1).nonzero()[:, 0]
    if not len(rows):
        nothing = torch.zeros(relations, dtype=torch.float64)
        return Combination(nothing, nothing)
    found = predictions.take(rows)
    features = torch.stack(
        [
            _centred(found.forward),
            _centred(found.backward),
            _centred(_of_candidates(found, frequencies)),
        ],
        dim=-1,
    )
    theta = _fit(features, is_gold[rows].int().argmax(1), found.relation, relations)
    helps = theta[:, 1] > _LEAST * theta[:, 0]
    nothing = torch.zeros(relations, dtype=torch.float64)
    weights = torch.where(helps, theta[:, 1] / theta[:, 0], nothing)
    shares = torch.where(helps, theta[:, 2] / theta[:, 1], nothing)
    return Combination(weights, shares)


def add_frequencies(predictions: Predictions, frequencies: Tensor, shares: Tensor) -> Predictions:
    """Return predictions whose backward scores hold the candidates' frequencies, c * log P."""
    added = shares[predictions.relation, None] * _of_candidates(predictions, frequencies)
    backward = predictions.backward + added.to(predictions.backward.dtype)
    return replace(predictions, backward=backward)


def _of_candidates(predictions: Predictions, frequencies: Tensor) -> Tensor:
    found: Tensor = frequencies[predictions.relation[:, None], predictions.candidates]
    return found


def _centred(scores: Tensor) -> Tensor:
    """Return float64 scores less each fact's mean, which its softmax does not see."""
    wide = scores.double()
    # Candidates that a relation does not allow have no score, and no chance.
    wide = wide.masked_fill(wide.isinf(), float(wide[wide.isfinite()].min()) - 1.0)
    return wide - wide.mean(1, keepdim=True)


def _fit(features: Tensor, gold: Tensor, relation: Tensor, relations: int) -> Tensor:
    """Return the numbers [relation, 3] of greatest penalised likelihood; the first is positive."""
    start = torch.tensor(_START, dtype=torch.float64)
    shared = start.clone().requires_grad_()
    own = torch.zeros(relations, 3, dtype=torch.float64, requires_grad=True)
    count = torch.bincount(relation, minlength=relations).double()
    weight = (1 / count.clamp(min=1))[relation] / int((count > 0).sum())
    few = _FACTS / len(gold)
    optimizer = torch.optim.LBFGS(
        [shared, own], max_iter=200, tolerance_grad=1e-9, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        scores = (features * (shared + own)[relation, None]).sum(-1)
        losses = functional.cross_entropy(scores, gold, reduction="none")
        total = (losses * weight).sum() + max(_PENALTY, few) * own.square().sum()
        total = total + few * (shared - start).square().sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    step: Callable[[Callable[[], Tensor]], object] = optimizer.step
    step(loss)
    with torch.no_grad():
        theta = shared + own
        theta = torch.where(theta[:, :1] > _FORWARD, theta, shared.expand_as(theta))
        # Where even the shared numbers leave the forward score aside, nothing is learned.
        if float(shared[0]) > _FORWARD:
            return theta
        return torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64).expand_as(theta)
