"""Symmetrical Prompt Enhancement (SPE), equations 3 to 10.

The way forth asks for the object; the way back asks how likely the subject is given an object, with
the blanks exchanged and the vectors where they were (equation 4). Both are trained (equation 7);
the top K objects are re-ranked by both (equations 8 to 10).

Options beyond the paper, whose values are the defaults: separate vectors for the way back; blanks
kept; the subject masked whole; the log of the mean likelihood ("average of pseudo likelihoods",
read literally) or the sum of log-likelihoods instead of their mean; the re-ranking weight chosen
on dev, or fitted there together with a weight of the object's frequency (combining.py).
Causal models, which the paper does not treat, are our extension: on the way back the object
stands first and the subject last, and the subject's likelihood follows from the chain rule in one
pass, each token given the object and the tokens before it; no pseudo-likelihood, hence no masking.
Not stated in the paper, hence assumed: learning rate, schedule, epochs, early stopping.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from torch import Tensor

from symprompt.errors import ConfigError
from symprompt.models import LanguageModel
from symprompt.probing.methods.base import Method, Sentences, Vectors, forth_asks, object_loss
from symprompt.probing.methods.ptuning import make_encoder
from symprompt.probing.queries import Asks, ask_subject, score_subjects, subject_asks
from symprompt.prompts import PromptEncoder

if TYPE_CHECKING:
    from symprompt.probing.config import MethodConfig, RunConfig
    from symprompt.probing.prepare import Problem


class SPE(Method):
    """Learn both directions and ask back; final.

    Args:
        forth: vectors of the way forth.
        back: vectors of the way back; None shares those of the way forth (the paper).
    """

    asks_back: ClassVar[bool] = True

    def __init__(
        self,
        backbone: LanguageModel,
        forth: PromptEncoder,
        back: PromptEncoder | None,
        config: MethodConfig,
    ) -> None:
        super().__init__(backbone, {"forth": forth} | ({"back": back} if back else {}))
        self.config = config

    @classmethod
    def from_config(cls, config: RunConfig, problem: Problem) -> Self:
        """Build the method with an encoder for each set of vectors."""
        forth = make_encoder(config, problem, "forth")
        separate = config.method.vectors == "separate"
        back = make_encoder(config, problem, "back") if separate else None
        return cls(problem.backbone, forth, back, config.method)

    @classmethod
    def check_model(cls, config: RunConfig, backbone: LanguageModel) -> None:
        """Refuse ways back that need a model which sees both sides, for one that does not."""
        if not backbone.causal:
            return
        if config.method.blanks == "kept":
            raise ConfigError(
                'method.blanks = "kept" leaves the subject before the object, where a causal model '
                'cannot see the object; use "swapped".'
            )
        if config.method.masking == "whole":
            raise ConfigError(
                'method.masking = "whole" hides a subject\'s tokens from each other, and a causal '
                'model masks nothing: each token follows from those before it; use "one".'
            )

    def sentences_per_fact(self, sentences: Sentences, rows: np.ndarray) -> np.ndarray:
        """Return the sentences forth and those of the way back."""
        forth: np.ndarray = super().sentences_per_fact(sentences, rows)
        one_each = self.config.masking == "whole" or self.backbone.causal
        back = np.ones_like(rows) if one_each else sentences.back.subject_lengths[rows]
        total: np.ndarray = forth + back
        return total

    def loss(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        """Return CE(object) + lambda * CE(subject), the latter a mean over tokens (equation 7)."""
        forth = object_loss(self.backbone, sentences, rows, vectors)
        return forth + self.config.train_weight * self._subject_loss(sentences, rows, vectors)

    def asks(self, sentences: Sentences, rows: np.ndarray) -> list[Asks] | None:
        """Return the sentences of both ways, unless one sentence asks for a whole subject."""
        forth = forth_asks(sentences, rows)
        if self.config.masking == "whole" or self.backbone.causal or forth is None:
            return None
        part = "back" if "back" in self.encoders else "forth"
        weight = self.config.train_weight
        return [*forth, subject_asks(sentences.back, rows, part=part, weight=weight)]

    def dev_losses(
        self, sentences: Sentences, rows: np.ndarray, vectors: Vectors
    ) -> dict[str, Tensor]:
        """Return the subject's loss, by which separate vectors choose their best epoch."""
        if "back" not in self.encoders:
            return {}
        return {"back": self._subject_loss(sentences, rows, vectors)}

    def _subject_loss(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        tokens = ask_subject(
            self.backbone,
            sentences.back,
            rows,
            vectors.get("back", vectors["forth"]),
            masking=self.config.masking,
        )
        return -tokens.mean_log()

    def subject_scores(
        self,
        sentences: Sentences,
        rows: np.ndarray,
        candidates: Tensor,
        vectors: Vectors,
        *,
        max_tokens: int,
    ) -> Tensor:
        """Return log P(subject | candidate), averaged as configured, [b, k] (equations 9, 10)."""
        return score_subjects(
            self.backbone,
            sentences.back,
            rows,
            candidates,
            vectors.get("back", vectors["forth"]),
            masking=self.config.masking,
            average=self.config.average,
            max_tokens=max_tokens,
            names=sentences.spelling.names if sentences.spelling else None,
        )
