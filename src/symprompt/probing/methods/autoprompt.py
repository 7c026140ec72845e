"""AutoPrompt (Shin et al., 2020): a prompt of words, found by a search that the gradient guides.

The vectors of the template are the embeddings of words (triggers). One step of the search changes
at most one word of each relation's prompt: the gradient of the loss at a random place, times every
word's embedding, says to first order how the loss would change with that word there (HotFlip);
the best candidates are tried on other facts, and the best of them is taken if it lowers the loss.
The steps are those of ``WordSearch``.

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

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from symprompt.engine.batches import make_batches
from symprompt.errors import ConfigError
from symprompt.models import Vocabulary
from symprompt.probing.config import RunConfig
from symprompt.probing.methods.base import (
    Method,
    count_vectors,
    manual_tokens,
)
from symprompt.probing.problem import Problem, Sentences
from symprompt.probing.queries import OBJECT_PART, exact_dtype
from symprompt.probing.train import FactTraining
from symprompt.prompts import PackedQuestion, Question, TriggerTokens, packed_question
from symprompt.runs.environment import derive_seed


class AutoPrompt(Method):
    """Ask through words that a search found; final.

    The words are masks at first, or those of the manual templates.

    Attributes:
        triggers: each relation's words.
        counts: [relation] how many words each prompt has.
        max_tokens: most tokens in one pass that tries candidates.
    """

    def __init__(self, config: RunConfig, problem: Problem) -> None:
        backbone = problem.backbone
        start = torch.full(
            (len(problem.relations), count_vectors(config, problem)),
            placeholder(backbone.vocabulary),
        )
        if config.prompt.start == "manual":
            for index, tokens in enumerate(manual_tokens(problem)):
                start[index, : len(tokens)] = torch.tensor(tokens, dtype=torch.long)
        self.triggers = TriggerTokens(start, backbone.embed, dtype=exact_dtype(backbone))
        self.triggers.to(backbone.device)
        super().__init__(config, problem, {OBJECT_PART: self.triggers})
        self.config = config.search
        self.max_tokens = problem.max_tokens
        self.counts = np.array([template.vectors for template in problem.templates])
        self._relations, self._templates = problem.relations, problem.templates
        self._objects = [
            sorted({fact.object for fact in own.train}) for own in problem.facts.relations
        ]

    def trainable(self, config: RunConfig, problem: Problem) -> WordSearch:
        """Return the search."""
        return WordSearch(config, problem, self)

    def check_learning(self, config: RunConfig) -> None:
        """Refuse a search with too few words, or too few steps to give every place a word.

        A step changes one word of a prompt. A search that is long enough may still miss a place,
        as places are drawn at random: ``unfilled_relations`` returns what is left.

        Raises:
            ConfigError: naming the relation, and how many places or words there are.
        """
        empty = self._empty().sum(1)
        most, row = int(empty.max()), int(empty.argmax())
        steps = config.learning.epochs * config.search.steps
        if steps < most:
            raise ConfigError(
                f"learning.epochs x search.steps is {steps}, a word each, but the prompt of "
                f"relation {self._relations[row]} has {most} places without a word; raise "
                f"learning.epochs until there are many more steps than {most}, or start from the "
                'words of the manual templates with prompt.start = "manual".'
            )
        if not config.learning.epochs:
            return
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

    def trial_losses(self, sentences: Sentences, rows: np.ndarray, tokens: Tensor) -> Tensor:
        """Return the loss of each row with each of its relation's trial prompts, [b, c].

        Args:
            tokens: [relation, c, n].
        """
        backbone, layout = self.backbone, sentences.object_prompt
        count, mask_id = tokens.shape[1], backbone.vocabulary.mask_id
        each = torch.from_numpy(rows).to(backbone.device).repeat_interleave(count)
        trial = torch.arange(count, device=backbone.device).repeat(len(rows))
        at, lengths = layout.object_at[each], layout.lengths[rows]
        question: Question | PackedQuestion
        if mask_id is not None and int(lengths.max()) <= backbone.longest_packed:
            question = packed = packed_question(
                layout,
                each,
                at,
                tokens=int(lengths.sum()) * count,
                longest=int(lengths.max()),
                mask_id=mask_id,
            )
            words = tokens[packed.relation, trial][packed.owner, packed.slots.clamp(min=0)]
        else:
            question = layout.question(each, at, width=layout.width(rows), mask_id=mask_id)
            words = tokens[question.relation, trial].gather(1, question.slots.clamp(min=0))
        ids = torch.where(question.slots >= 0, words, question.ids)
        inputs = question.inputs(backbone, None, backbone.embed(ids))
        logits = backbone.logits_at(inputs, question.at)
        loss = functional.cross_entropy(logits, sentences.gold[each], reduction="none")
        return loss.reshape(len(rows), count)

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
        size, filters = backbone.vocabulary_size, self.config.filters
        words = usable_words(backbone.vocabulary, size, self._objects, filters=filters)
        return words.to(backbone.device)


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


class WordSearch(FactTraining):
    """Searches the words of stacked relations' prompts; final.

    A step changes one relation's prompt by that relation's facts and random numbers alone, so
    searching R relations stacked equals searching each alone, up to the order of summation.
    """

    stage = "searching"
    advice = " of the search; use dtype float32."

    def __init__(self, config: RunConfig, problem: Problem, method: AutoPrompt) -> None:
        super().__init__(config, problem, method)
        self.words = method
        self.epoch_steps = method.config.steps
        every = torch.arange(method.backbone.vocabulary_size, device=self.device)
        # As the model reads them: Gemma's kind multiplies the rows of its table.
        exact = method.vectors()[OBJECT_PART].dtype
        self._embeddings = method.backbone.embed(every).detach().to(exact)
        self.losses = torch.zeros(
            self.epoch_steps, len(self.relations), dtype=exact, device=self.device
        )

    def step(self, number: int) -> None:
        """Try candidates at one place of each prompt, and take the best where it is better."""
        self.epoch, place = divmod(number, self.epoch_steps)
        gradient, batches, at_word, active = self._draw(number)
        tokens = self.words.triggers.tokens
        found = self.candidates(gradient, at_word)
        trials = tokens[:, None, :].repeat(1, 1 + found.shape[1], 1)
        at = at_word[:, None, None].expand(-1, found.shape[1], 1)
        trials[:, 1:].scatter_(2, at, found[:, :, None])
        losses = self.trial_means(batches, trials)
        least, best = losses[:, 1:].min(1)
        # As the authors' code has it, a prompt that holds a mask is worth nothing.
        taken = ((least < losses[:, 0]) | self.words.unfilled()) & active
        choice = torch.where(taken, best + 1, torch.zeros_like(best))
        tokens.copy_(trials[torch.arange(len(trials), device=self.device), choice])
        self.losses[place] = torch.where(taken, least, losses[:, 0])

    def _take(self, scores: Mapping[str, np.ndarray], epoch: int) -> None:
        """Take dev scores; a prompt that is not all words yet loses to every one that is."""
        unfilled = self.words.unfilled().cpu().numpy()
        worst = {part: np.where(unfilled, -np.inf, value) for part, value in scores.items()}
        super()._take(worst, epoch)

    def _draw(self, step: int) -> tuple[list[np.ndarray], list[np.ndarray], Tensor, Tensor]:
        """Draw each running relation's facts and place from its own random numbers.

        Returns:
            Facts for the gradient and for the trials; [relation] which word is to be replaced;
            [relation] bool, who has not stopped.
        """
        gradient, trials = [], []
        place = np.zeros(len(self.relations), dtype=np.int64)
        running = self._running()
        for index in running:
            name, rows = self.relations[index], self.rows[index]
            random = np.random.default_rng(derive_seed(self.seed, "search", name, step))
            size = min(self.config.batch, len(rows))
            gradient.append(random.choice(rows, size, replace=False))
            trials.append(random.choice(rows, size, replace=False))
            place[index] = random.integers(self.words.counts[index])
        active = np.zeros(len(self.relations), dtype=bool)
        active[running] = True
        where, who = (torch.from_numpy(value).to(self.device) for value in (place, active))
        return gradient, trials, where, who

    def candidates(self, batches: Sequence[np.ndarray], place: Tensor) -> Tensor:
        """Return the words that promise the lowest loss at each relation's place, [r, c].

        Args:
            batches: facts of some relations; those of the others are not to be used.
            place: [relation].
        """
        tokens = self.words.triggers.tokens
        vectors = self.words.vectors()[OBJECT_PART].detach().requires_grad_()
        losses = torch.zeros(len(self.relations), device=self.device)
        self._mean_losses(batches, {OBJECT_PART: vectors}, losses)
        assert vectors.grad is not None
        each = torch.arange(len(place), device=self.device)
        scores = first_order(vectors.grad[each, place], self._embeddings)
        scores = scores.masked_fill(~self.words.usable, -torch.inf)
        # The word that stands there would be tried in vain.
        scores[each, tokens[each, place]] = -torch.inf
        return scores.topk(self.words.config.candidates).indices

    @torch.no_grad()
    def trial_means(self, batches: Sequence[np.ndarray], tokens: Tensor) -> Tensor:
        """Return the mean loss of each relation's batch with each of its trial prompts, [r, c].

        Args:
            batches: facts of some relations; the means of the others are zero.
            tokens: [relation, c, n].
        """
        rows = np.concatenate(batches)
        place = np.concatenate([np.arange(len(batch)) for batch in batches])
        lengths = self.sentences.object_prompt.lengths[rows]
        passes = list(make_batches(lengths, self.words.max_tokens, sequences=tokens.shape[1]))
        order = np.concatenate([batch.rows for batch in passes])
        found = torch.cat(
            [self.words.trial_losses(self.sentences, rows[batch.rows], tokens) for batch in passes]
        )
        rows, place = rows[order], place[order]
        # A table that is summed along an axis: adding by index has no fixed order on a GPU.
        table = found.new_zeros(len(tokens), max(map(len, batches)), tokens.shape[1])
        owner, column = (torch.from_numpy(x).to(self.device) for x in (self.owner[rows], place))
        table[owner, column] = found
        count = np.ones(len(tokens))
        count[[self.owner[batch[0]] for batch in batches]] = [len(batch) for batch in batches]
        return table.sum(1) / torch.from_numpy(count).to(table)[:, None]
