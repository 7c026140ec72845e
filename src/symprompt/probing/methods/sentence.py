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
sentence for each answer, a fourteenth of that. Batches are made by tokens, the head runs at the
tokens asked for alone, and on CUDA sentences are packed into rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from symprompt.engine.batches import make_batches
from symprompt.errors import ConfigError, DataError
from symprompt.facts import Relation, Split
from symprompt.models import Inputs, LanguageModel, pack
from symprompt.probing.methods.base import Method, Vectors
from symprompt.probing.queries import APART, tokens_of
from symprompt.prompts.layout import pad_rows

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
        texts = [_fill(parts[row], subjects[row], self.names.texts[own]) for row, own in pairs]
        found = self._score(texts)
        device = self.backbone.device
        shape = (len(rows), len(self.names))
        scores = torch.full(shape, -torch.inf, dtype=torch.float32, device=device)
        places = torch.from_numpy(np.stack((owner, name))).to(device)
        scores[places[0], places[1]] = found.float()
        return scores

    def _score(self, texts: list[str]) -> Tensor:
        """Return the score [s] of each text, float64."""
        vocabulary, device = self.backbone.vocabulary, self.backbone.device
        prefix, suffix = vocabulary.beginning, vocabulary.suffix
        read = vocabulary.encode_sentences(texts)
        framed = [[*prefix, *ids, *suffix] for ids, _ in read]
        # No word has the number -1, so that nothing but text is ever masked.
        marks = [[*[-1] * len(prefix), *own, *[-1] * len(suffix)] for _, own in read]
        ids, lengths = pad_rows(framed, vocabulary.pad_id)
        words, _ = pad_rows(marks, -1)
        if int(lengths.max()) > self.backbone.max_length:
            longest = texts[int(lengths.argmax())]
            raise DataError(
                f"the sentence {longest!r} has {int(lengths.max())} tokens and the model takes "
                f"{self.backbone.max_length}; leave its relation out with facts.relations."
            )
        table = torch.from_numpy(np.stack((ids, words))).to(device)
        # What begins a text is not scored; where nothing does, nothing precedes the first token.
        first = max(len(prefix), 1) if vocabulary.causal else len(prefix)
        counts = np.maximum(lengths - first - len(suffix), 0)
        total = torch.zeros(len(texts), dtype=torch.float64, device=device)
        ask = self._ask_causal if vocabulary.causal else self._ask_masked
        ask(table[0], table[1], lengths, counts, first, total)
        if self.config.object_average == "mean":
            total = total / torch.from_numpy(np.maximum(counts, 1)).to(device)
        return total

    def _ask_masked(
        self,
        ids: Tensor,
        words: Tensor,
        lengths: np.ndarray,
        counts: np.ndarray,
        first: int,
        total: Tensor,
    ) -> None:
        """Add up the log-likelihoods of every token, masked with the rest of its word.

        Args:
            ids, words: [s, t] tokens and the words they are of.
            lengths, counts: [s] tokens, and how many are asked for, from ``first`` on.
            total: [s] what is added to.
        """
        backbone, device = self.backbone, self.backbone.device
        owner, offset = tokens_of(counts)
        mask = torch.tensor(backbone.vocabulary.mask_id, device=device)
        packs = int(lengths.max()) <= backbone.longest_packed
        for part, width in make_batches(
            lengths[owner], self.max_tokens, width=_as_they_are, apart=APART, packed=packs
        ):
            both = torch.from_numpy(np.stack((owner[part], offset[part] + first))).to(device)
            sentence, at = both
            rows = ids[sentence, :width]
            target = rows.gather(1, at[:, None])
            hidden = torch.arange(width, device=device) == at[:, None]
            if self.config.object_masking == "word":
                own = words[sentence, :width]
                later = torch.arange(width, device=device) >= at[:, None]
                hidden = (own == own.gather(1, at[:, None])) & later
            rows = torch.where(hidden, mask, rows)
            sizes = lengths[owner[part]]
            if packs:
                length = torch.from_numpy(sizes).to(device)
                packing, which = pack(length, int(sizes.sum()), width)
                embeddings = backbone.embed(rows[which, packing.place])[None]
                at = packing.starts[:-1] + at
                inputs = Inputs(embeddings, None, packing=packing)
            else:
                inputs = Inputs(backbone.embed(rows), self._mask(sizes, width))
            total.index_add_(0, sentence, _likelihoods(backbone.logits_at(inputs, at), target))

    def _ask_causal(
        self,
        ids: Tensor,
        words: Tensor,
        lengths: np.ndarray,
        counts: np.ndarray,
        first: int,
        total: Tensor,
    ) -> None:
        """Add up the log-likelihoods of every token after those before it; see ``_ask_masked``."""
        backbone, device = self.backbone, self.backbone.device
        # Every token is asked for, and the budget is meant for one in four.
        for part, width in make_batches(
            lengths, max(1, self.max_tokens // 4), width=_as_they_are, apart=APART
        ):
            owner, offset = tokens_of(counts[part])
            row, at = torch.from_numpy(np.stack((owner, offset + first))).to(device)
            sentence = torch.from_numpy(part).to(device)
            rows = ids[sentence, :width]
            inputs = Inputs(backbone.embed(rows), self._mask(lengths[part], width))
            logits = backbone.logits_at(inputs, at - 1, row)
            total.index_add_(0, sentence[row], _likelihoods(logits, rows[row, at][:, None]))

    def _mask(self, lengths: np.ndarray, width: int) -> Tensor | None:
        """Return which tokens are real [b, t]; None where all are."""
        if int(lengths.min()) == width:
            return None
        length = torch.from_numpy(lengths).to(self.backbone.device)
        return torch.arange(width, device=length.device) < length[:, None]


def _fill(template: str, subject: str, answer: str) -> str:
    """Return the statement, its first letter written large."""
    # In one go: a name may hold what looks like a blank.
    before, _, after = template.partition("[X]")
    text = before.replace("[Y]", answer) + subject + after.replace("[Y]", answer)
    return text[:1].upper() + text[1:]


def _likelihoods(logits: Tensor, target: Tensor) -> Tensor:
    """Return the log-likelihood [n] of tokens [n, 1], float64."""
    return logits.gather(1, target)[:, 0].double() - logits.logsumexp(1).double()


def _as_they_are(lengths: np.ndarray) -> np.ndarray:
    return lengths
