"""AutoPrompt (Shin et al., 2020): a prompt of words, found by a search that the gradient guides.

The vectors of the template are the embeddings of words (triggers). One step of the search changes
at most one word of each relation's prompt: the gradient of the loss at a random place, times every
word's embedding, says to first order how the loss would change with that word there (HotFlip);
the best candidates are tried on other facts, and the best of them is taken if it lowers the loss.
The steps are in ``symprompt.probing.search``; what a word may be, and the two formulas, are here.

As in the authors' code: the template "[X] <n> [Y] .", prompts that start as masks, one random place
a step, ten candidates, batches of 56 facts drawn afresh for the gradient and for the candidates,
no special tokens, capitalised words or training objects of the relation, and prompts that still
hold a mask giving way to any candidate and never being the best on dev.

Deviations: five words (their example has three), 100 epochs of 5 steps instead of 1,000 steps; dev
is asked once an epoch instead of after each change, and the best prompt has the highest dev P@1
instead of the lowest dev loss (``learning.select``), ties taking the later; the word that stands at
the place is not among the candidates; single capital letters, capitals after a continuation mark
and objects without the space before them are left out too; objects are single tokens. Causal
models, which have no mask, start with their padding token. The authors search one relation and try
one candidate at a time; here all relations and candidates share passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from symprompt.errors import ConfigError
from symprompt.models import Inputs, LanguageModel, Vocabulary
from symprompt.probing.methods.base import (
    Method,
    Sentences,
    Vectors,
    exact_dtype,
    object_loss,
)
from symprompt.probing.methods.ptuning import count_vectors, manual_tokens
from symprompt.probing.queries import OBJECT_PART
from symprompt.prompts import Layout, Template, TriggerTokens, packed_question

if TYPE_CHECKING:
    from symprompt.probing.config import RunConfig, SearchConfig
    from symprompt.probing.prepare import Problem


class AutoPrompt(Method):
    """Ask through words that a search found; final.

    Args:
        triggers: each relation's words.
        templates: one per relation; a search fills their vectors.
        relations: the relations' names.
        objects: each relation's training objects, which no prompt may give away.
        config: how many candidates, and whether words are filtered.
        max_tokens: most tokens in one pass that tries candidates.
    """

    learner: ClassVar[str] = "symprompt.probing.search:WordSearch"

    def __init__(
        self,
        backbone: LanguageModel,
        triggers: TriggerTokens,
        templates: Sequence[Template],
        relations: Sequence[str],
        objects: Sequence[Sequence[str]],
        config: SearchConfig,
        *,
        max_tokens: int,
    ) -> None:
        super().__init__(backbone, {OBJECT_PART: triggers})
        self.triggers = triggers
        self.config = config
        self.max_tokens = max_tokens
        self.counts = np.array([template.vectors for template in templates])
        self._templates = tuple(templates)
        self._relations = tuple(relations)
        self._objects = [list(names) for names in objects]

    @classmethod
    def from_config(cls, config: RunConfig, problem: Problem) -> Self:
        """Build the method, its words masks at first or those of the manual templates."""
        backbone = problem.backbone
        start = torch.full(
            (len(problem.relations), count_vectors(config, problem)),
            placeholder(backbone.vocabulary),
        )
        if config.prompt.start == "manual":
            for index, tokens in enumerate(manual_tokens(problem)):
                start[index, : len(tokens)] = torch.tensor(tokens, dtype=torch.long)
        triggers = TriggerTokens(start, backbone.embed, dtype=exact_dtype(backbone))
        return cls(
            backbone,
            triggers.to(backbone.device),
            problem.templates,
            problem.relations,
            [sorted({fact.object for fact in own.train}) for own in problem.facts.relations],
            config.search,
            max_tokens=config.max_tokens or backbone.token_budget(),
        )

    def check_learning(self, config: RunConfig) -> None:
        """Refuse a search with too few steps or words."""
        self.require_steps(config.learning.epochs * config.search.steps)
        if config.learning.epochs:
            self.require_candidates()

    def loss(self, sentences: Sentences, rows: np.ndarray, vectors: Vectors) -> Tensor:
        """Return the cross-entropy of the gold object over the full vocabulary, [b]."""
        return object_loss(self.backbone, sentences, rows, vectors)

    def trial_losses(self, sentences: Sentences, rows: np.ndarray, tokens: Tensor) -> Tensor:
        """Return the loss of each row with each of its relation's trial prompts, [b, c].

        Args:
            tokens: [relation, c, n].
        """
        backbone, layout = self.backbone, sentences.object_prompt
        count = tokens.shape[1]
        each = torch.from_numpy(rows).to(backbone.device).repeat_interleave(count)
        trial = torch.arange(count, device=backbone.device).repeat(len(rows))
        inputs, at = self._trial_inputs(layout, rows, each, tokens, trial)
        logits = backbone.logits_at(inputs, at)
        loss = functional.cross_entropy(logits, sentences.gold[each], reduction="none")
        return loss.reshape(len(rows), count)

    def _trial_inputs(
        self, layout: Layout, rows: np.ndarray, each: Tensor, tokens: Tensor, trial: Tensor
    ) -> tuple[Inputs, Tensor]:
        """Return what the model reads, and where it is asked, of rows in all their trials."""
        backbone, mask_id = self.backbone, self.backbone.vocabulary.mask_id
        at, lengths = layout.object_at[each], layout.lengths[rows]
        if mask_id is not None and int(lengths.max()) <= backbone.longest_packed:
            packed = packed_question(
                layout,
                each,
                at,
                tokens=int(lengths.sum()) * tokens.shape[1],
                longest=int(lengths.max()),
                mask_id=mask_id,
            )
            words = tokens[packed.relation, trial][packed.owner, packed.slots.clamp(min=0)]
            ids = torch.where(packed.slots >= 0, words, packed.ids)
            return Inputs(backbone.embed(ids)[None], None, packing=packed.packing), packed.at
        question = layout.question(each, at, width=layout.width(rows), mask_id=mask_id)
        words = tokens[question.relation, trial].gather(1, question.slots.clamp(min=0))
        ids = torch.where(question.slots >= 0, words, question.ids)
        return Inputs(backbone.embed(ids), question.mask), question.at

    def unfilled(self) -> Tensor:
        """Say of each relation whether its prompt still holds what it started with, [relation]."""
        return self._empty().any(1)

    def unfilled_relations(self) -> list[str]:
        """Return the relations whose prompts have a place without a word."""
        bad = self.unfilled().tolist()
        return [name for name, empty in zip(self._relations, bad, strict=True) if empty]

    def _empty(self) -> Tensor:
        """Say of each place of each prompt whether no word stands there yet, [relation, n]."""
        tokens = self.triggers.tokens
        count = torch.from_numpy(self.counts).to(tokens.device)
        places = torch.arange(tokens.shape[1], device=tokens.device)
        empty = tokens == placeholder(self.backbone.vocabulary)
        return empty & (places[None, :] < count[:, None])

    def found_prompts(self) -> list[dict[str, Any]]:
        """Return each relation's words as the vocabulary has them, and the prompt they make."""
        found = []
        for tokens, template in zip(self.triggers.tokens.tolist(), self._templates, strict=True):
            words = self.backbone.vocabulary.written(tokens[: template.vectors])
            left = iter(words)
            prompt = "".join(
                (" " if piece.space else "")
                + (" ".join(next(left) for _ in range(piece.count)) or str(piece))
                for piece in template.pieces
            )
            found.append({"words": words, "prompt": prompt})
        return found

    @cached_property
    def usable(self) -> Tensor:
        """The words that each relation's prompt may take, [relation, v] bool, on the device."""
        backbone = self.backbone
        usable = usable_words(
            backbone.vocabulary,
            backbone.vocabulary_size,
            self._objects,
            filters=self.config.filters,
        )
        return usable.to(backbone.device)

    def require_candidates(self) -> None:
        """Refuse a search in which some relation has too few words to try.

        Raises:
            ConfigError: naming the relation, and how many words are left.
        """
        left = self.usable.sum(1)
        fewest, row = int(left.min()), int(left.argmin())
        # One of them may stand at the place already.
        if fewest <= self.config.candidates:
            raise ConfigError(
                f"search.candidates is {self.config.candidates}, but relation "
                f"{self._relations[row]} may take only {fewest} words of the vocabulary; lower it "
                f"below {fewest}, or drop the filters with search.filters = false."
                if fewest > 1
                else f"relation {self._relations[row]} has no words to try: only {fewest} of the "
                "vocabulary may be taken; drop the filters with search.filters = false."
            )

    def require_steps(self, steps: int) -> None:
        """Refuse a search that cannot give every place a word, whichever places are drawn.

        A step changes one word of a prompt. A search that is long enough may still miss a place,
        as places are drawn at random: ``unfilled_relations`` returns what is left.

        Args:
            steps: how many steps the whole search makes.

        Raises:
            ConfigError: naming the relation, and how many places of its prompt have no word.
        """
        empty = self._empty().sum(1)
        most, row = int(empty.max()), int(empty.argmax())
        if steps < most:
            raise ConfigError(
                f"learning.epochs x search.steps is {steps}, a word each, but the prompt of "
                f"relation {self._relations[row]} has {most} places without a word; raise "
                f"learning.epochs until there are many more steps than {most}, or start from the "
                'words of the manual templates with prompt.start = "manual".'
            )


def placeholder(vocabulary: Vocabulary) -> int:
    """Return the token that stands where no word was found yet: the mask, or padding."""
    return vocabulary.pad_id if vocabulary.mask_id is None else vocabulary.mask_id


def first_order(gradient: Tensor, embeddings: Tensor) -> Tensor:
    """Return how much each word would lower the loss, to first order and up to a constant, [r, v].

    Args:
        gradient: [r, width] of the loss with respect to the vector that the word would replace.
        embeddings: [v, width].
    """
    return -(gradient @ embeddings.mT)


def usable_words(
    vocabulary: Vocabulary, size: int, objects: Sequence[Sequence[str]], *, filters: bool
) -> Tensor:
    """Return which tokens may stand in each relation's prompt, [relation, size] bool.

    Args:
        size: rows of the model's embedding matrix, which may be more than there are tokens.
        objects: each relation's training objects, left out with or without a space before them.
        filters: without them only special tokens are left out.
    """
    words = torch.zeros(size, dtype=torch.bool)
    words[: len(vocabulary)] = True
    words[[*vocabulary.special_ids, placeholder(vocabulary)]] = False
    usable = words.repeat(len(objects), 1)
    if not filters:
        return usable
    texts = [vocabulary.text(token) for token in range(len(vocabulary))]
    usable[:, [token for token, text in enumerate(texts) if _capitalised(text)]] = False
    reading: dict[str, list[int]] = {}
    for token, text in enumerate(texts):
        reading.setdefault(text, []).append(token)
    for row, names in enumerate(objects):
        # As they read, and as they are encoded: a tokenizer may fold case.
        found = {token for name in names for token in reading.get(name, ())}
        for after_space in (True, False):
            encoded = vocabulary.single_tokens(names, after_space=after_space)
            found |= {token for token in encoded if token is not None}
        usable[row, sorted(found)] = False
    return usable


def _capitalised(text: str) -> bool:
    """Say whether a token's first letter is a capital, a lazy way to tell names."""
    return next((letter for letter in text if letter.isalpha()), "").isupper()
