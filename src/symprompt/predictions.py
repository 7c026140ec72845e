"""What a run stores of every fact, and the ranks that follow from it for any K and weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from symprompt.averages import summarise
from symprompt.errors import SympromptError
from symprompt.ranking import Ranks, rerank

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
