"""P-tuning (Liu et al., 2021, "GPT Understands, Too", section 3), for masked and causal models.

Deviations, each an option: the blanks stand in the order the paper prints (the authors' LAMA code
puts the object first: template "<3> [Y] <3> [X] <3>"); the language model's dropout is off unless
``model_dropout``; the best epoch is chosen by dev MRR unless ``select`` is another metric.

OptiPrompt (Zhong et al., 2021, "Factual Probing Is [MASK]", section 3.2) is the same with vectors
that are free parameters: "[X] <5> [Y] ." with random vectors, or one vector for each token of the
relation's manual template, starting at that token's embedding. Deviations from its authors' code:
random vectors have the standard deviation of the model's own word embeddings, not 0.02; Adam
corrects its moments from the first step on; facts are shuffled; dev is asked once an epoch instead
of three times; the softmax runs over the model's vocabulary, which has no new tokens; manual
templates may be longer than ten tokens.
"""

from __future__ import annotations

import numpy as np

from symprompt.probing.config import RunConfig
from symprompt.probing.methods.base import (
    Method,
    make_encoder,
    one_token_queries,
)
from symprompt.probing.problem import Problem, Sentences
from symprompt.probing.queries import Queries, object_parts


class PTuning(Method):
    """Learn the template's vectors so that the gold object fills its blank (equation 3); final."""

    def __init__(self, config: RunConfig, problem: Problem) -> None:
        self.object_parts = object_parts(config.method.object_prompts)
        encoders = {part: make_encoder(config, problem, part) for part in self.object_parts}
        super().__init__(config, problem, encoders)

    def queries(self, sentences: Sentences, rows: np.ndarray) -> list[Queries] | None:
        """Return the queries of the objects."""
        return one_token_queries(sentences, rows, self.object_parts)
