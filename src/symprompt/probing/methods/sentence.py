"""BEAR's protocol (Wiland et al., 2024): rank answers by the score of the whole sentence.

Each answer of the relation's answer space stands in the manual template, and the statement that the
model finds likeliest is its answer; nothing is learned. A causal model's score is the sum of the
log-probabilities of all tokens, the first one after the token that begins a text. A masked model's
is the pseudo-log-likelihood: each token is masked in turn, with those after it in the same word
(PLL-word-l2r, Kauf and Ivanova, 2023), as in the authors' lm-pub-quiz; ``object_masking`` = "one"
masks the token alone (Salazar et al., 2020). ``object_average`` = "sum" is the protocol's, "mean"
divides by the number of tokens. Words are the tokenizer's own, punctuation apart, and a statement's
first letter is written large, both as in lm-pub-quiz. Its figure for a model is the P@1 over all
facts and all three templates (``facts.wording`` = 0, *mean over facts*).

A masked model reads facts x answers x tokens sentences: BEAR's 7,731 facts with 25 answers (60 in
one-to-one relations) and some 14 tokens make 2.8 million sentences for each template, 46 million
tokens; BEAR-big has fifteen times as many (the shipped model's tokenizer). A causal model reads one
sentence for each answer, a fourteenth of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from symprompt.errors import ConfigError
from symprompt.facts import Relation, Split
from symprompt.models import LanguageModel
from symprompt.probing.methods.base import Method, Vectors
from symprompt.probing.whole_texts import fill_template, score_texts

if TYPE_CHECKING:
    from symprompt.probing.config import RunConfig
    from symprompt.probing.problem import Problem, Sentences


class Sentence(Method):
    """Score every answer's whole sentence; final."""

    manual_templates: ClassVar[bool] = True
    several_prompts: ClassVar[bool] = True

    def __init__(self, config: RunConfig, problem: Problem) -> None:
        super().__init__(config, problem)
        if problem.spelling is None:
            raise TypeError("whole sentences are of names, and these answers are tokens")
        self.names = problem.spelling.names
        self.allowed = problem.spelling.allowed.cpu().numpy()
        self.templates = [str(own[0]) for own in problem.prompts]
        self.config = config.method
        self.max_tokens = problem.max_tokens

    @classmethod
    def needed_splits(cls, config: RunConfig) -> tuple[Split, ...]:
        """Return test alone."""
        return ("test",)

    @classmethod
    def check_model(cls, config: RunConfig, backbone: LanguageModel) -> None:
        """Refuse answers that are tokens, and masking by names."""
        if config.facts.objects != "any-length":
            raise ConfigError(
                'method.name = "sentence" ranks names by whole sentences, and facts.objects = '
                '"one-token" has tokens; use --objects any-length --vocabulary objects, or the '
                "config bear-sentence."
            )
        if config.method.object_masking == "name" and not backbone.causal:
            raise ConfigError(
                'method.object_masking = "name" is about one name, and method.name = "sentence" '
                'scores every word of a sentence; use "word" or "one".'
            )

    @classmethod
    def describe(cls, template: str, relation: Relation) -> str:
        """Return the template."""
        return f"whole sentences are scored, nothing learned: {relation.template}"

    def loss(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        """Return the cross-entropy [b] of the true answer among all; nothing is trained with it."""
        index = torch.from_numpy(rows).to(self.backbone.device)
        scores = self.scores(sentences, rows, vectors)
        return functional.cross_entropy(scores, sentences.gold[index], reduction="none")

    @torch.no_grad()
    def scores(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        """Return the score of the sentence with each name, [b, n] float32; -inf if not allowed.

        Raises:
            DataError: a sentence is longer than the model takes.
        """
        owner, name = np.nonzero(self.allowed[sentences.relations[rows]])
        parts = [self.templates[own] for own in sentences.relations[rows].tolist()]
        subjects = [sentences.subjects[row] for row in rows.tolist()]
        pairs = zip(owner.tolist(), name.tolist(), strict=True)
        texts = [
            fill_template(parts[row], subjects[row], self.names.texts[own]) for row, own in pairs
        ]
        read = score_texts(
            self.backbone,
            texts,
            masking="one" if self.config.object_masking == "one" else "word",
            max_tokens=self.max_tokens,
        )
        found = read.mean if self.config.object_average == "mean" else read.total
        device = self.backbone.device
        shape = (len(rows), len(self.names))
        scores = torch.full(shape, -torch.inf, dtype=torch.float32, device=device)
        places = torch.from_numpy(np.stack((owner, name))).to(device)
        scores[places[0], places[1]] = found.float()
        return scores
