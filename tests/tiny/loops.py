"""What probing methods compute, by loops over full forwards: one sentence and one token at a time.

Nothing of the package is used but the model, its embeddings and the tokenizer's ids: every sentence
is a Python list of token ids and vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from symprompt.facts import Fact
from symprompt.models import LanguageModel
from symprompt.probing.methods.base import Method
from symprompt.probing.problem import Problem

Item = int | Tensor


def randomise(method: Method) -> None:
    """Make a method's vectors wide and random, so that an order mistaken anywhere shows."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for encoder in method.encoders.values():
            for value in encoder.parameters():
                value.copy_(torch.randn(value.shape, generator=generator, dtype=value.dtype))


def answer_text(backbone: LanguageModel, template: str, fact: Fact, model: Any = None) -> Tensor:
    """The logits of a fact's object where a written sentence has its mask or goes on."""
    tokenizer, model = backbone.vocabulary.tokenizer, model or backbone.model
    text = template.replace("[X]", fact.subject)
    if backbone.causal:
        ids = torch.tensor([tokenizer(text.partition("[Y]")[0].rstrip())["input_ids"]])
        return model(input_ids=ids).logits[0, -1]  # type: ignore[no-any-return]
    ids = torch.tensor([tokenizer(text.replace("[Y]", tokenizer.mask_token))["input_ids"]])
    at = int((ids[0] == tokenizer.mask_token_id).nonzero())
    logits: Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    return logits[0, at]


@dataclass
class Loops:
    """Scores for the template "<2> [X] <1> [Y] <2>", of causal models without the last vectors."""

    backbone: LanguageModel
    vectors: dict[str, Tensor]
    relations: tuple[str, ...]
    object_masking: str = "name"
    object_average: str = "mean"
    masking: str = "one"
    blanks: str = "swapped"
    average: str = "log"

    @classmethod
    def of(cls, problem: Problem, method: Method, **options: str) -> Loops:
        vectors = {part: value.detach() for part, value in method.vectors().items()}
        return cls(problem.backbone, vectors, problem.relations, **options)

    def tokens(self, name: str) -> list[int]:
        """A name as it stands inside a sentence."""
        tokenizer = self.backbone.vocabulary.tokenizer
        host, whole = (
            tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("in", "in " + name)
        )
        return list(whole[len(host) :])

    def _ask(self, part: str, fact: Fact, first: list[int], second: list[int]) -> Tensor:
        """Log-probabilities at every position after v0 v1 first v2 second v3 v4, framed."""
        vocabulary = self.backbone.vocabulary
        v: list[Item] = list(self.vectors[part][self.relations.index(fact.relation)])
        items = [*vocabulary.prefix, v[0], v[1], *first, v[2], *second, *v[3:], *vocabulary.suffix]
        rows = [
            self.backbone.embed(torch.tensor([item]))[0] if isinstance(item, int) else item
            for item in items
        ]
        mask = torch.ones(1, len(rows), dtype=torch.long)
        with torch.no_grad():
            output = self.backbone.model(inputs_embeds=torch.stack(rows)[None], attention_mask=mask)
        found: Tensor = output.logits[0].double().log_softmax(1)
        return found

    def _start(self, before: int) -> int:
        """Where the second blank begins, or for a causal model the token before it."""
        return len(self.backbone.vocabulary.prefix) + 3 + before - self.backbone.causal

    def objects(self, fact: Fact) -> Tensor:
        """Equation 5: log P(object = v) for every token v."""
        subject, mask = self.tokens(fact.subject), self.backbone.vocabulary.mask_id
        table = self._ask("forth", fact, subject, [] if mask is None else [mask])
        return table[self._start(len(subject))]

    def _word_starts(self, tokens: list[int]) -> list[bool]:
        """Which tokens begin a word, told by the marks in the tokens' own texts."""
        texts = self.backbone.vocabulary.tokenizer.convert_ids_to_tokens(tokens)
        pieces = any(text.startswith("##") for text in texts) or not any(
            text[0] in "Ġ▁" for text in texts
        )
        return [
            not text.startswith("##") if pieces else step == 0 or text[0] in "Ġ▁"
            for step, text in enumerate(texts)
        ]

    def forth(self, fact: Fact, name: str) -> float:
        """How likely a name of any number of tokens is as the object."""
        subject, tokens = self.tokens(fact.subject), self.tokens(name)
        start, mask = self._start(len(subject)), self.backbone.vocabulary.mask_id
        starts, scores = self._word_starts(tokens), []
        for index, token in enumerate(tokens):
            shown = list(tokens)
            if mask is not None:
                shown[index] = mask
                after = index + 1
                while after < len(tokens) and (
                    self.object_masking == "name"
                    or (self.object_masking == "word" and not starts[after])
                ):
                    shown[after] = mask
                    after += 1
            scores.append(float(self._ask("forth", fact, subject, shown)[start + index, token]))
        return sum(scores) / (len(scores) if self.object_average == "mean" else 1)

    def back(self, fact: Fact, candidate: str | int) -> float:
        """Equations 6, 9 and 10: how likely the subject is, a candidate object in its place."""
        subject, mask = self.tokens(fact.subject), self.backbone.vocabulary.mask_id
        given = [candidate] if isinstance(candidate, int) else self.tokens(candidate)
        part = "back" if "back" in self.vectors else "forth"
        swapped = self.blanks == "swapped"
        # Without a swap the subject stands right after v0 and v1.
        start = self._start(len(given)) if swapped else self._start(0) - 1
        found = []
        for index, token in enumerate(subject):
            shown = list(subject)
            if mask is not None:
                hidden = {
                    "one": range(index, index + 1),
                    "chain": range(index, len(subject)),
                    "whole": range(len(subject)),
                }[self.masking]
                shown = [mask if at in hidden else own for at, own in enumerate(subject)]
            table = self._ask(part, fact, *((given, shown) if swapped else (shown, given)))
            found.append(table[start + index, token])
        logs = torch.stack(found)
        how = {"log": logs.mean(), "sum": logs.sum(), "probability": logs.exp().mean().log()}
        return float(how[self.average])


def slow_score(backbone: LanguageModel, text: str, *, words: bool, given: str = "") -> float:
    """The sum over a text's tokens, each in a pass of its own, in float64.

    Args:
        words: whether a token is masked with those after it in its word.
        given: what stands before the text and is not scored.
    """
    vocabulary, tokenizer = backbone.vocabulary, backbone.vocabulary.tokenizer
    read = tokenizer(given + text, add_special_tokens=False)
    tokens, word = list(read["input_ids"]), read.word_ids()
    start = vocabulary.prefix or [
        own for own in (tokenizer.bos_token_id,) if backbone.causal and own is not None
    ]
    total = 0.0
    for place, token in enumerate(tokens):
        if read.token_to_chars(place).end <= len(given):
            continue
        if backbone.causal:
            before = [*start, *tokens[:place]]
            if not before:
                continue
            at = len(before) - 1
        else:
            end = place + 1
            while words and end < len(tokens) and word[end] == word[place]:
                end += 1
            hidden = [vocabulary.mask_id] * (end - place)
            before = [*start, *tokens[:place], *hidden, *tokens[end:], *vocabulary.suffix]
            at = len(start) + place
        with torch.no_grad():
            output = backbone.model(
                inputs_embeds=backbone.embed(torch.tensor([before])),
                attention_mask=torch.ones(1, len(before), dtype=torch.long),
            )
        total += float(output.logits[0, at].double().log_softmax(0)[token])
    return total
