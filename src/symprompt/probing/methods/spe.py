"""Symmetrical Prompt Enhancement (SPE), equations 3 to 10.

The object prompt asks for the object; the subject prompt asks how likely the subject is given an
object, with the blanks exchanged and the vectors where they were (equation 4). Both are trained
(equation 7); the top K objects are re-ranked by both (equations 8 to 10).

Options beyond the paper, whose values are the defaults: separate vectors for the subject prompt;
blanks kept; the subject masked whole, or each of its tokens together with those after it: the chain
rule, where no token is given away by what follows it, so that it needs the object more; the log of
the mean likelihood ("average of pseudo likelihoods", read literally) or the sum of log-likelihoods
instead of their mean; a second subject prompt that masks the subject in another way, whose score is
weighed beside the first one's; wrong objects that the subject prompt learns to tell from the true
one (``probing/negatives.py``); the re-ranking weight chosen on dev, or fitted there together with a
weight of the object's frequency.
Causal models, which the paper does not treat, are our extension: in the subject prompt the object
stands first and the subject last, and the subject's likelihood follows from the chain rule in one
pass, each token given the object and the tokens before it; no pseudo-likelihood, hence no masking.
Not stated in the paper, hence assumed: learning rate, schedule, epochs, early stopping.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from symprompt.errors import ConfigError
from symprompt.models import LanguageModel
from symprompt.probing.methods.base import (
    Method,
    Vectors,
    make_encoder,
    one_token_queries,
)
from symprompt.probing.negatives import (
    Negatives,
    draw,
    find_wrong,
    listwise_losses,
    with_negatives,
    wrong_candidates,
)
from symprompt.probing.problem import Sentences
from symprompt.probing.queries import (
    OBJECT_PART,
    SECOND_PART,
    SUBJECT_PART,
    Masking,
    Queries,
    TokenLikelihoods,
    score_subjects,
    subject_likelihoods,
    subject_queries,
    subject_token_likelihoods,
)

if TYPE_CHECKING:
    from symprompt.probing.config import RunConfig
    from symprompt.probing.problem import Problem


class SPE(Method):
    """Learn an object prompt and a subject prompt, and re-rank by both; final."""

    has_subject_prompt: ClassVar[bool] = True

    def __init__(self, config: RunConfig, problem: Problem) -> None:
        separate = config.method.vectors == "separate"
        parts = [OBJECT_PART, SUBJECT_PART] if separate else [OBJECT_PART]
        self.has_second = config.method.second != "none"
        if self.has_second:
            parts.append(SECOND_PART)
        encoders = {part: make_encoder(config, problem, part) for part in parts}
        super().__init__(config, problem, encoders)
        self.config = config.method
        self._seed, self._problem = config.seed, problem
        self._negatives: Negatives | None = None

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
        if config.method.second != "none":
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
            np.ones_like(rows) if self._one_sentence(masking) else lengths
            for _, masking in self._ways
        )
        total: np.ndarray = first + back + self.config.negatives
        return total

    @property
    def _ways(self) -> list[tuple[str, Masking]]:
        """Each subject prompt's part, whose vectors it has, and how it masks."""
        first = SUBJECT_PART if SUBJECT_PART in self.encoders else OBJECT_PART
        ways: list[tuple[str, Masking]] = [(first, self.config.masking)]
        if self.config.second != "none":
            ways.append((SECOND_PART, self.config.second))
        return ways

    def _one_sentence(self, masking: Masking) -> bool:
        """Whether one sentence asks for all tokens of a subject."""
        return masking == "whole" or self.backbone.causal

    def begin_epoch(self, sentences: Sentences, epoch: int) -> None:
        """Draw the wrong objects that the epoch's facts are told apart from, if there are any."""
        if not self.config.negatives:
            return
        found = self.epoch_state
        due = epoch % self.config.negatives_every == 0
        # A run that goes on within an epoch has what was found before it.
        if not found or (due and int(found["found at"]) != epoch):
            wrong = find_wrong(
                self,
                sentences,
                self._problem.allowed,
                k=self.config.k,
                max_tokens=self._problem.max_tokens,
            )
            self.epoch_state = found = {"wrong": wrong, "found at": torch.tensor(epoch)}
        self._negatives = draw(
            found["wrong"].cpu().numpy(),
            sentences,
            self._problem.relations,
            count=self.config.negatives,
            seed=self._seed,
            epoch=epoch,
        )

    def loss(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        """Return CE(object) + lambda * CE(subject), the latter a mean over tokens (equation 7).

        In an epoch with wrong objects their listwise loss is added, and with a second subject
        prompt its own CE(subject).
        """
        loss, weight = super().loss(sentences, rows, vectors), self.config.train_weight
        tokens = [self._subject_tokens(sentences, rows, vectors, way) for way in self._ways]
        for own in tokens:
            loss = loss + weight * -own.mean_log()
        if self._negatives is None:
            return loss
        negatives = self._negatives.take(rows)
        listwise = self._listwise(sentences, rows, vectors, tokens[0], negatives)
        return loss + self.config.negatives_weight * listwise

    def queries(self, sentences: Sentences, rows: np.ndarray) -> list[Queries] | None:
        """Return the queries of all prompts, unless one sentence asks for a whole subject.

        Nor are wrong objects of several tokens such queries.
        """
        first = one_token_queries(sentences, rows)
        if first is None or any(self._one_sentence(masking) for _, masking in self._ways):
            return None
        if self.config.negatives and sentences.spelling is not None:
            return None
        layout, weight = sentences.subject_prompt, self.config.train_weight
        back = [
            subject_queries(layout, rows, part=part, weight=weight, chain=masking == "chain")
            for part, masking in self._ways
        ]
        if self._negatives is not None:
            back[0] = with_negatives(
                back[0], rows, self._negatives.take(rows), weight=self.config.negatives_weight
            )
        return [*first, *back]

    def dev_losses(
        self, sentences: Sentences, rows: np.ndarray, vectors: Vectors
    ) -> dict[str, Tensor]:
        """Return the subject's losses, by which separate vectors choose their best epoch.

        Wrong objects are here the best ones of the present object prompt, and of a subject's tokens
        its first is asked about, so that epochs do not differ by what was drawn.
        """
        if SUBJECT_PART not in self.encoders:
            return {}
        ways = self._ways
        tokens = self._subject_tokens(sentences, rows, vectors, ways[0])
        loss, count = -tokens.mean_log(), self.config.negatives
        if count:
            index = torch.from_numpy(rows).to(self.backbone.device)
            scores = self.scores(sentences, rows, vectors)
            scores = sentences.permitted(scores, rows, self._problem.allowed)
            wrong = wrong_candidates(scores, sentences.known[index], self.config.k)
            order = (wrong < 0).to(torch.uint8).argsort(dim=1, stable=True)[:, :count]
            negatives = Negatives(wrong.gather(1, order).cpu().numpy(), np.zeros_like(rows))
            listwise = self._listwise(sentences, rows, vectors, tokens, negatives)
            loss = self.config.train_weight * loss + self.config.negatives_weight * listwise
        others = {
            way[0]: -self._subject_tokens(sentences, rows, vectors, way).mean_log()
            for way in ways[1:]
        }
        return {SUBJECT_PART: loss, **others}

    def _listwise(
        self,
        sentences: Sentences,
        rows: np.ndarray,
        vectors: Vectors,
        tokens: TokenLikelihoods,
        negatives: Negatives,
    ) -> Tensor:
        """Return the listwise loss of each row, [b].

        Args:
            tokens: likelihoods of the subject's tokens given the true object.
            negatives: of the rows.
        """
        layout, device = sentences.subject_prompt, self.backbone.device
        part, masking = self._ways[0]
        if self._one_sentence(masking):
            right = tokens.mean_log()
        else:
            lengths = layout.subject_lengths[rows]
            asked = np.cumsum(lengths) - lengths + negatives.offset
            right = tokens.log_likelihood[torch.from_numpy(asked).to(device)]
        fact, place = np.nonzero(negatives.objects >= 0)
        if not len(fact):
            return torch.zeros_like(right)
        chosen, here = negatives.objects[fact, place], rows[fact]
        objects: Tensor | None = torch.from_numpy(chosen).to(device)
        if sentences.spelling is not None:
            names = sentences.spelling.names
            layout = layout.filled(here, names.tokens[objects], names.lengths[chosen])
            here, objects = np.arange(len(here)), None
        wrong = subject_token_likelihoods(
            self.backbone,
            layout,
            here,
            negatives.offset[fact],
            vectors[part],
            masking=masking,
            objects=objects,
        )
        whose, which = (torch.from_numpy(own).to(device) for own in (fact, place))
        return listwise_losses(right, wrong, whose, which)

    def _subject_tokens(
        self, sentences: Sentences, rows: np.ndarray, vectors: Vectors, way: tuple[str, Masking]
    ) -> TokenLikelihoods:
        part, masking = way
        return subject_likelihoods(
            self.backbone, sentences.subject_prompt, rows, vectors[part], masking=masking
        )

    def subject_scores(
        self,
        sentences: Sentences,
        rows: np.ndarray,
        candidates: Tensor,
        vectors: Vectors,
        *,
        max_tokens: int,
        second: bool = False,
    ) -> Tensor:
        """Return log P(subject | candidate), averaged as configured, [b, k] (equations 9, 10).

        Args:
            second: by the second subject prompt.
        """
        part, masking = self._ways[second]
        return score_subjects(
            self.backbone,
            sentences.subject_prompt,
            rows,
            candidates,
            vectors[part],
            masking=masking,
            average=self.config.average,
            max_tokens=max_tokens,
            names=sentences.spelling.names if sentences.spelling else None,
        )
