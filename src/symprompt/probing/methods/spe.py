"""Symmetrical Prompt Enhancement (SPE), equations 3 to 10.

The object prompt asks for the object; the subject prompt asks how likely the subject is given an
object, with the blanks exchanged and the vectors where they were (equation 4). Both are trained
(equation 7); the top K objects are re-ranked by both (equations 8 to 10).

Options beyond the paper, whose values are the defaults: separate vectors for the subject prompt;
blanks kept; the subject masked whole, or each of its tokens together with those after it: the chain
rule, where no token is given away by what follows it, so that it needs the object more; the log of
the mean likelihood ("average of pseudo likelihoods", read literally) or the sum of log-likelihoods
instead of their mean; further subject prompts that mask the subject in other ways, whose scores are
weighed beside the first one's; the re-ranking weight chosen on dev, or fitted there together with a
weight of the object's frequency.
Causal models, which the paper does not treat, are our extension: in the subject prompt the object
stands first and the subject last, and the subject's likelihood follows from the chain rule in one
pass, each token given the object and the tokens before it; no pseudo-likelihood, hence no masking.
Not stated in the paper, hence assumed: learning rate, schedule, epochs, early stopping.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from torch import Tensor

from symprompt.errors import ConfigError
from symprompt.models import LanguageModel
from symprompt.probing.asked_once import AskedBack, score_subjects
from symprompt.probing.methods.base import (
    Method,
    Vectors,
    make_encoder,
    one_token_queries,
)
from symprompt.probing.problem import Sentences
from symprompt.probing.queries import (
    FURTHER_PARTS,
    OBJECT_PART,
    SUBJECT_PART,
    Masking,
    Queries,
    object_parts,
    one_sentence,
    subject_likelihoods,
    subject_queries,
)
from symprompt.probing.results import SUBJECT, SUBJECTS

if TYPE_CHECKING:
    from symprompt.probing.config import RunConfig
    from symprompt.probing.problem import Problem


class SPE(Method):
    """Learn an object prompt and a subject prompt, and re-rank by both; final."""

    has_subject_prompt: ClassVar[bool] = True

    def __init__(self, config: RunConfig, problem: Problem) -> None:
        separate = config.method.vectors == "separate"
        self.object_parts = object_parts(config.method.object_prompts)
        parts = [*self.object_parts, *((SUBJECT_PART,) if separate else ())]
        parts += FURTHER_PARTS[: len(config.method.further)]
        self.subject_terms = SUBJECTS[: 1 + len(config.method.further)]
        encoders = {part: make_encoder(config, problem, part) for part in parts}
        super().__init__(config, problem, encoders)
        self.config = config.method

    @classmethod
    def check_model(cls, config: RunConfig, backbone: LanguageModel) -> None:
        """Refuse subject prompts that need a model which sees both sides, for one that does not."""
        if not backbone.causal:
            return
        if config.method.blanks == "kept":
            raise ConfigError(
                'method.blanks = "kept" leaves the subject before the object, where a causal model '
                'cannot see the object; use "swapped".'
            )
        if config.method.further:
            raise ConfigError(
                f'method.second = "{config.method.second}" masks the subject in another way than '
                "the first subject prompt, and a causal model masks nothing; drop it."
            )
        if config.method.masking == "whole":
            raise ConfigError(
                'method.masking = "whole" hides a subject\'s tokens from each other, and a causal '
                'model masks nothing: each token follows from those before it; use "chain".'
            )

    def sentences_per_fact(self, sentences: Sentences, rows: np.ndarray) -> np.ndarray:
        """Return the sentences of the object prompt and those of the subject prompt."""
        first: np.ndarray = super().sentences_per_fact(sentences, rows)
        lengths = sentences.subject_prompt.subject_lengths[rows]
        back = sum(
            np.ones_like(rows) if one_sentence(self.backbone, masking) else lengths
            for _, masking in self._ways
        )
        total: np.ndarray = first + back
        return total

    @property
    def _ways(self) -> list[tuple[str, Masking]]:
        """Each subject prompt's part, whose vectors it has, and how it masks."""
        first = SUBJECT_PART if SUBJECT_PART in self.encoders else OBJECT_PART
        ways: list[tuple[str, Masking]] = [(first, self.config.masking)]
        ways += zip(FURTHER_PARTS, self.config.further, strict=False)
        return ways

    def loss(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        """Return CE(object) + lambda * CE(subject), the latter a mean over tokens (equation 7).

        Further subject prompts add a CE(subject) of their own each.
        """
        loss = super().loss(sentences, rows, vectors)
        for own in self._subject_losses(sentences, rows, vectors).values():
            loss = loss + self.config.train_weight * own
        return loss

    def queries(self, sentences: Sentences, rows: np.ndarray) -> list[Queries] | None:
        """Return the queries of all prompts, unless the model is causal."""
        first = one_token_queries(sentences, rows, self.object_parts)
        if first is None or self.backbone.causal:
            return None
        layout, weight = sentences.subject_prompt, self.config.train_weight
        back = [
            subject_queries(layout, rows, part=part, weight=weight, masking=masking)
            for part, masking in self._ways
        ]
        return [*first, *back]

    def dev_losses(
        self, sentences: Sentences, rows: np.ndarray, vectors: Vectors
    ) -> dict[str, Tensor]:
        """Return the subject's losses, by which separate vectors choose their best epoch."""
        if SUBJECT_PART not in self.encoders:
            return {}
        return self._subject_losses(sentences, rows, vectors)

    def _subject_losses(
        self, sentences: Sentences, rows: np.ndarray, vectors: Vectors
    ) -> dict[str, Tensor]:
        """Return each subject prompt's cross-entropy, a mean over tokens, [b], by part."""
        return {
            part: -subject_likelihoods(
                self.backbone, sentences.subject_prompt, rows, vectors[part], masking=masking
            ).mean_log()
            for part, masking in self._ways
        }

    def subject_scores(
        self,
        sentences: Sentences,
        rows: np.ndarray,
        candidates: Tensor,
        vectors: Vectors,
        *,
        max_tokens: int,
        prompts: Sequence[str] = (SUBJECT,),
        done: Callable[[float], None] | None = None,
    ) -> dict[str, Tensor]:
        """Return log P(subject | candidate), averaged as configured, [b, k] (equations 9, 10)."""
        asked = AskedBack.fetch(sentences.subject_prompt, rows, candidates)
        ways = dict(zip(self.subject_terms, self._ways, strict=True))
        found: dict[str, Tensor] = {}
        for place, name in enumerate(prompts):
            part, masking = ways[name]

            def report(share: float, place: int = place) -> None:
                if done is not None:
                    done((place + share) / len(prompts))

            found[name] = score_subjects(
                self.backbone,
                asked,
                vectors[part],
                masking=masking,
                average=self.config.average,
                max_tokens=max_tokens,
                names=sentences.spelling.names if sentences.spelling else None,
                done=report,
            )
        return found
