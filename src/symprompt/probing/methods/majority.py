"""The majority baseline: each relation's training objects by how often they occur.

It reads no subject and asks no model, so what it gets right is what a method could get right by
knowing the relation alone. All tokens that never occur in training share one pseudo-count, so that
a gold object among them ties with the others instead of having no rank.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from symprompt.facts import Relation, Split
from symprompt.probing.methods.base import Method, Vectors
from symprompt.probing.problem import Sentences

if TYPE_CHECKING:
    from symprompt.probing.config import RunConfig
    from symprompt.probing.problem import Problem


class Majority(Method):
    """Answer every subject with the relation's most frequent training objects; final."""

    has_prompt: ClassVar[bool] = False

    def __init__(self, config: RunConfig, problem: Problem) -> None:
        super().__init__(config, problem)
        counted = problem.object_counts().to(self.backbone.device, torch.float64)
        smooth = counted + 1 / counted.shape[1]
        self._log_share = (smooth / smooth.sum(1, keepdim=True)).log()

    @classmethod
    def needed_splits(cls, config: RunConfig) -> tuple[Split, ...]:
        """Return train, which is counted, and test."""
        return ("train", "test")

    @classmethod
    def describe(cls, template: str, relation: Relation) -> str:
        """Return the most frequent training objects."""
        counts = Counter(fact.object for fact in relation.train).most_common(3)
        shown = ", ".join(f"{name} ({count})" for name, count in counts)
        return (
            f"no prompt: every subject is answered with the most frequent of {len(relation.train)} "
            f"training objects: {shown}"
        )

    def loss(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        """Return minus the log of the gold object's share, [b]; nothing is trained with it."""
        index = torch.from_numpy(rows).to(self.backbone.device)
        return -self._log_share[sentences.object_prompt.relation[index], sentences.gold[index]]

    def scores(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        """Return the log of every token's share of the training objects, [b, v], float32."""
        index = torch.from_numpy(rows).to(self.backbone.device)
        return self._log_share[sentences.object_prompt.relation[index]].float()
