"""OptiPrompt (Zhong et al., 2021, "Factual Probing Is [MASK]"): vectors that are free parameters.

The vectors stand between the blanks and nothing makes them: "[X] <5> [Y] ." with random vectors, or
one vector for each token of the relation's manual template, starting at that token's embedding.

Deviations from the authors' code: random vectors have the standard deviation of the model's own
word embeddings, not 0.02; Adam corrects its moments from the first step on; facts are shuffled;
dev is asked once an epoch instead of three times; the softmax runs over the model's vocabulary,
which has no new tokens; manual templates may be longer than ten tokens.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from symprompt.models import LanguageModel
from symprompt.probing.methods.base import Method, Sentences, Vectors, forth_asks, object_loss
from symprompt.probing.queries import Asks
from symprompt.prompts import FreeVectors


class OptiPrompt(Method):
    """Learn free vectors so that the gold object fills its blank (section 3.2); final."""

    def __init__(self, backbone: LanguageModel, vectors: FreeVectors) -> None:
        super().__init__(backbone, {"forth": vectors})

    def loss(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        """Return the cross-entropy of the gold object over the full vocabulary, [b]."""
        return object_loss(self.backbone, sentences, rows, vectors)

    def asks(self, sentences: Sentences, rows: np.ndarray) -> list[Asks] | None:
        """Return the sentences that ask for the objects."""
        return forth_asks(sentences, rows)
