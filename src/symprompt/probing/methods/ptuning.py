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

from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from torch import Tensor

from symprompt.errors import ConfigError
from symprompt.models import LanguageModel
from symprompt.probing.methods.base import (
    Method,
    Sentences,
    Vectors,
    exact_dtype,
    object_loss,
    one_token_queries,
)
from symprompt.probing.queries import OBJECT_PART, Queries
from symprompt.probing.templates import manual_template, words_to_vectors
from symprompt.prompts import BiLSTMEncoder, FreeVectors, MLPEncoder, PromptEncoder

if TYPE_CHECKING:
    from symprompt.probing.config import RunConfig
    from symprompt.probing.prepare import Problem


class PTuning(Method):
    """Learn the template's vectors so that the gold object fills its blank (equation 3); final."""

    def __init__(self, backbone: LanguageModel, encoder: PromptEncoder) -> None:
        super().__init__(backbone, {OBJECT_PART: encoder})

    @classmethod
    def from_config(cls, config: RunConfig, problem: Problem) -> Self:
        """Build the method with the encoder that the config names."""
        return cls(problem.backbone, make_encoder(config, problem, OBJECT_PART))

    def loss(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        """Return the cross-entropy of the gold object over the full vocabulary, [b]."""
        return object_loss(self.backbone, sentences, rows, vectors)

    def queries(self, sentences: Sentences, rows: np.ndarray) -> list[Queries] | None:
        """Return the queries of the objects."""
        return one_token_queries(sentences, rows)


def make_encoder(config: RunConfig, problem: Problem, part: str) -> PromptEncoder:
    """Build one part's prompt encoder on the model's device, in float32 (float64 for float64).

    Raises:
        ConfigError: no template has a vector, or an LSTM is to read templates of several lengths.
    """
    backbone, prompt = problem.backbone, config.prompt
    count = count_vectors(config, problem)
    names, width, seed = problem.relations, backbone.width, (config.seed, part)
    encoder: PromptEncoder
    if prompt.encoder == "bilstm":
        if {template.vectors for template in problem.templates} != {count}:
            raise ConfigError(
                'prompt.encoder = "bilstm" reads the vectors as one sequence, so every template '
                'must have as many; use "free" or "mlp" with templates of different lengths.'
            )
        hidden = width if prompt.lstm_hidden == -1 else prompt.lstm_hidden or None
        encoder = BiLSTMEncoder(names, count, width, seed=seed, lstm_hidden=hidden)
    elif prompt.encoder == "mlp":
        encoder = MLPEncoder(names, count, width, seed=seed)
    elif prompt.start == "random":
        # As the model reads them: Gemma's kind multiplies the rows of its table.
        every = torch.arange(backbone.vocabulary_size, device=backbone.device)
        scale = float(backbone.embed(every).detach().float().std())
        encoder = FreeVectors(names, count, width, seed=seed, scale=scale)
    else:
        start = torch.zeros(len(names), count, width)
        for index, tokens in enumerate(manual_tokens(problem)):
            words = backbone.embed(torch.tensor(tokens, dtype=torch.long, device=backbone.device))
            start[index, : len(tokens)] = words.detach().float().cpu()
        encoder = FreeVectors(names, count, width, seed=seed, start=start)
    return encoder.to(device=backbone.device, dtype=exact_dtype(backbone))


def count_vectors(config: RunConfig, problem: Problem) -> int:
    """Return how many vectors the longest template has, refusing templates without."""
    count = max(template.vectors for template in problem.templates)
    if count == 0:
        raise ConfigError(
            f"template {config.prompt.template!r} has no learned vector, so {config.method.name} "
            'has nothing to train; write some, as in "<3> [X] <3> [Y] <3>".'
        )
    return count


def manual_tokens(problem: Problem) -> list[list[int]]:
    """Return the tokens of the words of each relation's manual template."""
    vocabulary = problem.backbone.vocabulary
    manual = [manual_template(vocabulary, relation) for relation in problem.facts.relations]
    return [words_to_vectors(vocabulary, template)[1] for template in manual]
