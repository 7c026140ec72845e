"""The weights of the joint score, chosen on dev facts: from a list, or fitted.

The subject prompt scores how likely the subject is given an object; by Bayes' rule the object's own
frequency belongs beside it: log P(object | subject) = log P(subject | object) + log P(object) +
constant. So candidates are ranked by

    object_score + w_r * (subject_score + c_r * log P(object)),

with P(object) from the relation's training facts, and w_r, c_r of each relation r fitted by
likelihood on dev: the candidates' softmax is to give the true object. What relations differ by is
penalised, because dev facts are few. The paper has one weight and no frequencies (equation 10).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from symprompt.probing.predictions import Array, Predictions
from symprompt.runs.statistics import summarise

FREQUENCY = "frequency"
"""The name of the further term that holds a candidate's weighed frequency."""
WEIGHTS: tuple[float, ...] = (
    *(round(0.05 * step, 2) for step in range(20)),
    *(round(1 + 0.1 * step, 1) for step in range(11)),
    *(2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0),
)
"""The re-ranking weights tried on dev."""


def choose_weights(predictions: Predictions, relations: int, *, per_relation: bool) -> Array:
    """Return the re-ranking weight [relation] with the best MRR (realistic ranks) on these facts.

    Ties take the smaller weight.
    """
    owner = predictions.relation
    table = np.stack([1 / predictions.reranked(weight).realistic for weight in WEIGHTS])
    if not per_relation:
        overall = [summarise(1 / row, owner)["mean over relations"].mrr for row in table]
        return np.full(relations, WEIGHTS[int(np.argmax(overall))])
    best = [
        WEIGHTS[int(np.argmax(table[:, owner == index].mean(1)))] if (owner == index).any() else 0.0
        for index in range(relations)
    ]
    return np.array(best, dtype=np.float64)


_PENALTY = 0.01
"""Of a relation's squared distance from the shared weights; the best of 3e-4 to 3e-2 on dev."""
_FACTS = 10
"""So many facts' worth is the penalty of the shared weights' distance from where they start, and
that of a relation's where there are less than a thousand facts: a few may not move them far."""
_START = (1.0, 0.1, 0.0)
_UNSEEN = 0.5
"""Added to every count, so that objects not seen in training have a frequency."""
_LEAST = 1e-6
_FORWARD = 0.2
"""An object score that weighs less is noise of few facts."""


@dataclass(frozen=True, eq=False)
class Combination:
    """Fitted weights.

    Attributes:
        weights: [relation] float64, w of the subject score.
        shares: [relation] float64, c of log P(object) beside the subject score.
    """

    weights: Array
    shares: Array


def log_frequencies(counts: Tensor) -> Tensor:
    """Return log P(object) [relation, v] from how often each is a training object."""
    smoothed = counts + _UNSEEN
    return (smoothed / smoothed.sum(1, keepdim=True)).log()


def fit_combination(predictions: Predictions, frequencies: Tensor, relations: int) -> Combination:
    """Fit the weights on facts whose true object is among the candidates.

    Every relation counts the same, however many facts it has. A relation that the subject
    prompt does not help gets the weight 0, and its frequencies count nothing either.

    Args:
        predictions: of dev facts, with subject scores.
        frequencies: [relation, v], see ``log_frequencies``.
        relations: how many relations there are.
    """
    is_gold = predictions.candidates == predictions.gold[:, None]
    rows = is_gold.any(1).nonzero()[0]
    if not len(rows):
        return Combination(np.zeros(relations), np.zeros(relations))
    found = predictions.take(rows)
    features = torch.stack(
        [
            _centred(torch.from_numpy(found.object_score)),
            _centred(torch.from_numpy(found.subject_score)),
            _centred(_of_candidates(found, frequencies)),
        ],
        dim=-1,
    )
    gold = torch.from_numpy(is_gold[rows].argmax(1))
    theta = _fit(features, gold, torch.from_numpy(found.relation), relations)
    helps = theta[:, 1] > _LEAST * theta[:, 0]
    nothing = torch.zeros(relations, dtype=torch.float64)
    weights = torch.where(helps, theta[:, 1] / theta[:, 0], nothing)
    shares = torch.where(helps, theta[:, 2] / theta[:, 1], nothing)
    return Combination(weights.numpy(), shares.numpy())


def add_frequencies(predictions: Predictions, frequencies: Tensor, shares: Array) -> Predictions:
    """Return predictions with a further term: the candidates' frequencies, c * log P."""
    each = torch.from_numpy(shares[predictions.relation, None])
    term = (each * _of_candidates(predictions, frequencies)).float().numpy()
    return replace(predictions, terms={**predictions.terms, FREQUENCY: term})


def _of_candidates(predictions: Predictions, frequencies: Tensor) -> Tensor:
    relation = torch.from_numpy(predictions.relation[:, None])
    found: Tensor = frequencies[relation, torch.from_numpy(predictions.candidates)]
    return found


def _centred(scores: Tensor) -> Tensor:
    """Return float64 scores less each fact's mean, which its softmax does not see."""
    wide = scores.double()
    # Candidates that a relation does not allow have no score, and no chance.
    wide = wide.masked_fill(wide.isinf(), float(wide[wide.isfinite()].min()) - 1.0)
    return wide - wide.mean(1, keepdim=True)


def _fit(features: Tensor, gold: Tensor, relation: Tensor, relations: int) -> Tensor:
    """Return the weights [relation, 3] of greatest penalised likelihood; the first is positive."""
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
        # Where even the shared weights leave the object score aside, nothing is learned.
        if float(shared[0]) > _FORWARD:
            return theta
        return torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64).expand_as(theta)
