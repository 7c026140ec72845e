"""What a run stores of every fact, and the ranks that follow from it for any K and weight.

How forward score, backward score and an object's frequency are weighed: a fit on dev facts.

The way back says how likely the subject is given an object; by Bayes' rule the object's own
frequency belongs beside it: log P(object | subject) = log P(subject | object) + log P(object) +
constant. So candidates are ranked by

    forward + w_r * (backward + c_r * log P(object)),

with P(object) from the relation's training facts, and w_r, c_r of each relation r fitted by
likelihood on dev: the candidates' softmax is to give the true object. What relations differ by is
penalised, because dev facts are few. The paper has one weight and no frequencies (equation 10).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from symprompt.errors import SympromptError
from symprompt.probing.rank import Ranks, rerank
from symprompt.runs.statistics import summarise

WEIGHTS: tuple[float, ...] = (
    *(round(0.05 * step, 2) for step in range(20)),
    *(round(1 + 0.1 * step, 1) for step in range(11)),
    *(2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0),
)
"""The re-ranking weights tried on dev."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """Per fact: the gold object's place in the forward order, and the top candidates' scores.

    CPU tensors of n facts: relation, gold [n] int64; gold_score [n] float32; better, equal and
    their filtered twins [n] int64 (see ``Ranks``); candidates [n, k] int64 and forward [n, k]
    float32, best first; backward [n, k] float32, NaN where the run does not ask back; known [n, k]
    bool, candidates that are other true objects of the same subject.
    """

    relation: Tensor
    gold: Tensor
    gold_score: Tensor
    better: Tensor
    equal: Tensor
    better_filtered: Tensor
    equal_filtered: Tensor
    candidates: Tensor
    forward: Tensor
    backward: Tensor
    known: Tensor

    def __len__(self) -> int:
        return len(self.gold)

    @property
    def asked_back(self) -> bool:
        """Whether backward scores are there."""
        return len(self) > 0 and not bool(self.backward.isnan().any())

    @classmethod
    def concatenate(cls, parts: Sequence[Predictions]) -> Predictions:
        """Return the facts of all parts, one after the other."""
        return cls(
            **{
                entry.name: torch.cat([getattr(part, entry.name) for part in parts])
                for entry in fields(cls)
            }
        )

    def take(self, rows: Tensor) -> Predictions:
        """Return some facts, in the order of ``rows``."""
        return replace(
            self, **{entry.name: getattr(self, entry.name)[rows] for entry in fields(self)}
        )

    def ranks(self, *, filtered: bool = False) -> Ranks:
        """Return the ranks in forward order."""
        if filtered:
            return Ranks(self.better_filtered, self.equal_filtered)
        return Ranks(self.better, self.equal)

    def reranked(
        self, weight: float | Tensor, *, k: int | None = None, filtered: bool = False
    ) -> Ranks:
        """Return the ranks after re-ranking the first k candidates (SPE, equation 10).

        The candidates come first by joint score, all others follow in forward order.

        Args:
            weight: of the backward score; a number, or one per fact [n].
            k: how many candidates are asked back; None takes all that are stored.
        """
        stored = self.candidates.shape[1]
        k = stored if k is None else k
        if not 1 <= k <= stored:
            raise SympromptError(f"k is {k}; {stored} candidates are stored, so 1 to {stored} go.")
        candidates, forward = self.candidates[:, :k], self.forward[:, :k]
        joint = rerank(forward, self.backward[:, :k], weight=weight)
        is_gold = candidates == self.gold[:, None]
        counted = ~is_gold & ~(self.known[:, :k] if filtered else torch.zeros_like(is_gold))
        gold_joint = joint.masked_fill(~is_gold, 0.0).sum(1, keepdim=True)
        before = self.ranks(filtered=filtered)
        # Candidates score at least as high as a gold outside, so those that tie with it now lead.
        level = (counted & (forward == self.gold_score[:, None])).sum(1)
        inside = is_gold.any(1)
        return Ranks(
            better=torch.where(
                inside, ((joint > gold_joint) & counted).sum(1), before.better + level
            ),
            equal=torch.where(
                inside, ((joint == gold_joint) & counted).sum(1), before.equal - level
            ),
        )

    def final(self, weights: Tensor | None, *, filtered: bool = False) -> Ranks:
        """Return the ranks the run stands for: re-ranked with its weight per relation, if any."""
        if weights is None or not self.asked_back:
            return self.ranks(filtered=filtered)
        return self.reranked(weights[self.relation].float(), filtered=filtered)


def choose_weights(predictions: Predictions, relations: int, *, per_relation: bool) -> Tensor:
    """Return the re-ranking weight [relation] with the best MRR (realistic ranks) on these facts.

    Ties take the smaller weight.
    """
    owner = predictions.relation.numpy()
    table = np.stack([1 / predictions.reranked(weight).realistic.numpy() for weight in WEIGHTS])
    if not per_relation:
        overall = [summarise(1 / row, owner)["mean over relations"].mrr for row in table]
        return torch.full((relations,), WEIGHTS[int(np.argmax(overall))], dtype=torch.float64)
    best = [
        WEIGHTS[int(np.argmax(table[:, owner == index].mean(1)))] if (owner == index).any() else 0.0
        for index in range(relations)
    ]
    return torch.tensor(best, dtype=torch.float64)


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
