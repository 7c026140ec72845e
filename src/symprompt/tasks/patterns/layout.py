"""Examples through a pattern as tensors: token ids around the answer, fields cut to fit.

A split is tensors of fixed shape, made once: sentences, and which positions of them are queried.

How answers are scored. An answer of one token is a token's log-likelihood at the answer's place,
and all such answers share one sentence. An answer of several tokens is the sum (or mean) of its
tokens' log-likelihoods:

- causal models: the chain rule, each token given what precedes it; answers that differ in the
  last token alone share a sentence;
- masked models, "together" (as PET trains): as many masks as the answer has tokens, all read in
  one pass, each token independent of the others;
- masked models, "one" (pseudo-likelihood): each token masked alone, the answer's others in sight,
  one sentence for each token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from symprompt.errors import DataError, TemplateError
from symprompt.models import Vocabulary
from symprompt.runs.environment import send
from symprompt.tasks.patterns.data import VerbalExample
from symprompt.tasks.patterns.pattern import Pattern, change

VECTOR = -1
"""Stands for a learned vector in a written example; the n-th of them is the n-th vector."""


@dataclass(frozen=True, slots=True)
class Written:
    """One example's tokens before and after its answer, and each answer's tokens; final.

    Attributes:
        cut: how many tokens of its fields were left out so that it fits.
    """

    before: list[int]
    after: list[int]
    answers: tuple[list[int], ...]
    cut: int


class Writer:
    """Writes examples through one pattern; final.

    A text too long for the model loses the last tokens of its longest field, token by token, so
    that fields are cut to the same length at most and short ones stay whole; ``Written.cut`` counts
    them. Room is left for the longest of the example's answers, so that all of them see the same
    text.

    Args:
        pattern: as written; for a causal model what follows the answer is left out.
        words: the labels' words; empty where examples bring their own answers; None where no answer
            is written at all, for a head.
        max_length: most tokens, special ones included.

    Raises:
        TemplateError: the pattern does not serve the model.
    """

    def __init__(
        self,
        pattern: Pattern,
        vocabulary: Vocabulary,
        words: Sequence[str] | None,
        *,
        max_length: int,
    ) -> None:
        self.vocabulary = vocabulary
        self.pattern = pattern.up_to_answer() if vocabulary.causal else pattern
        self.max_length = max_length
        self._answer = self.pattern.pieces[self.pattern.answer]
        self._glued: dict[tuple[str, str], list[int]] = {}
        self._literal = {
            at: self._write_literal(at)
            for at, piece in enumerate(self.pattern.pieces)
            if piece.kind in ("words", "vectors", "break")
        }
        self._words: tuple[list[int], ...] = ([],)
        if words is not None:
            place = self.pattern.answer
            self._words = tuple(self._write_text(word, place) for word in words)
        for word, tokens in zip(words or (), self._words, strict=words is not None):
            if not tokens or vocabulary.unknown_id in tokens:
                raise TemplateError(
                    f"the verbalizer's word {word!r} is unknown to the model; take another word."
                )

    def write(self, example: VerbalExample) -> Written:
        """Return an example's tokens.

        Raises:
            TemplateError: words, vectors and answers alone are longer than the model takes.
        """
        pieces = self.pattern.pieces
        answers = self._words or tuple(
            self._write_text(change(text, self._answer.changes), self.pattern.answer)
            for text in example.choices
        )
        fields = {
            at: self._write_text(change(example.fields[piece.text], piece.changes), at)
            for at, piece in enumerate(pieces)
            if piece.kind == "field"
        }
        frame = len(self.vocabulary.prefix) + len(self.vocabulary.suffix)
        longest = max(len(answer) for answer in answers)
        rest = sum(map(len, self._literal.values())) + longest + frame
        room = self.max_length - rest
        if room < 0:
            raise TemplateError(
                f"pattern {str(self.pattern)!r} takes {rest} tokens without any field, and "
                f"{self.max_length} are allowed; take a shorter one."
            )
        kept = fit({at: len(tokens) for at, tokens in fields.items()}, room)
        cut = sum(len(fields[at]) - kept[at] for at in fields)
        parts = [
            fields[at][: kept[at]] if at in fields else self._literal.get(at, [])
            for at in range(len(pieces))
        ]
        place = self.pattern.answer
        before = [*self.vocabulary.prefix, *(token for part in parts[:place] for token in part)]
        after = [*(token for part in parts[place:] for token in part), *self.vocabulary.suffix]
        return Written(before, after, answers, cut)

    def _write_literal(self, at: int) -> list[int]:
        piece = self.pattern.pieces[at]
        if piece.kind == "vectors":
            return [VECTOR] * piece.count
        if piece.kind == "words":
            return self._write_text(piece.text, at)
        if self.vocabulary.causal:
            return self.vocabulary.encode(["\n"])[0]
        separator = self.vocabulary.tokenizer.sep_token_id
        return [] if separator is None else [int(separator)]

    def _write_text(self, text: str, at: int) -> list[int]:
        """Return a text's tokens as it reads in the place of a piece."""
        if not text:
            return []
        if at == 0:
            return self.vocabulary.encode_names([text], [False])[0]
        if self.pattern.pieces[at].space:
            return self.vocabulary.encode_words([text])[0]
        before = self.pattern.pieces[at - 1]
        # A word after a quotation mark begins a word; after another word it goes on with it.
        return self._write_glued(before.text[-1] if before.kind == "words" else "x", text)

    def _write_glued(self, host: str, text: str) -> list[int]:
        if (host, text) not in self._glued:
            alone, whole = self.vocabulary.encode([host, host + text])
            goes_on = whole[: len(alone)] == alone
            found = whole[len(alone) :] if goes_on else self.vocabulary.encode([text])[0]
            self._glued[host, text] = found
        return list(self._glued[host, text])


def fit(lengths: Mapping[int, int], room: int) -> dict[int, int]:
    """Return how many tokens of each field are kept when the longest always loses one.

    Of fields that are equally long, the first loses one first.
    """
    kept = dict(lengths)
    excess = sum(kept.values()) - room
    if excess <= 0:
        return kept
    # The level that the longest are cut to: all above it lose what is above.
    level = max(kept.values())
    while sum(max(0, own - level) for own in kept.values()) < excess:
        level -= 1
    over = sum(max(0, own - level) for own in kept.values()) - excess
    for at in reversed(list(kept)):
        if kept[at] > level:
            # Too much would be lost by cutting all to the level: the last of them keep one more.
            kept[at] = level + (over > 0)
            over -= over > 0
    return kept


Spans = Literal["together", "one"]
Average = Literal["sum", "mean"]
_GRAIN = 8


@dataclass(frozen=True, eq=False)
class VerbalLayout:
    """n examples of at most s sentences of at most t tokens, asked at most a times; final.

    Attributes:
        ids: [n, s, t] tokens; learned vectors and what lies beyond a sentence are padding.
        lengths: [n, s] tokens of each sentence, 1 at least.
        vectors: [n, s, k] places of the learned vectors, in order.
        sentence, at, target: [n, a], which sentence is asked at which position for which token; a
            masked model about the position itself, a causal one about the next.
        slot: [n, a], which answer the token is of.
        weight: [n, a], what its log-likelihood counts in the answer's score; 0 for padding.
        labels: [n] the right answers; -1 where it is not known.
        widths: [n] length of an example's longest sentence, on the host.
        answers: how many answers an example has.
        cut: how many examples lost tokens, and how many tokens in all.
    """

    ids: Tensor
    lengths: Tensor
    vectors: Tensor
    sentence: Tensor
    at: Tensor
    target: Tensor
    slot: Tensor
    weight: Tensor
    labels: Tensor
    widths: npt.NDArray[np.int64]
    answers: int
    cut: tuple[int, int]

    def __len__(self) -> int:
        return len(self.widths)

    def width_of(self, rows: npt.NDArray[np.int64], grain: int = _GRAIN) -> int:
        """Return the width of a pass over some examples, a multiple of the grain or the whole."""
        widest = int(self.widths[rows].max())
        return min(-(-widest // grain) * grain, int(self.ids.shape[2]))


@dataclass(frozen=True, slots=True)
class _Asked:
    """One example: its sentences, what is asked of them, and how many tokens were cut.

    A question is (sentence, position, token, answer, weight).
    """

    sentences: list[list[int]]
    asks: list[tuple[int, int, int, int, float]]
    cut: int


def tensorise(
    examples: Sequence[VerbalExample],
    writer: Writer,
    *,
    spans: Spans = "together",
    average: Average = "sum",
    device: torch.device | None = None,
) -> VerbalLayout:
    """Return examples as tensors on a device.

    Raises:
        DataError: there are none.
        TemplateError: the pattern does not fit.
    """
    written = [writer.write(example) for example in examples]
    asked = [_ask(one, writer.vocabulary, spans, average) for one in written]
    answers = max((len(one.answers) for one in written), default=0)
    return _stack(examples, asked, answers, writer.vocabulary.pad_id, device)


def tensorise_for_head(
    examples: Sequence[VerbalExample],
    writers: Sequence[Writer],
    *,
    answers: int,
    device: torch.device | None = None,
) -> VerbalLayout:
    """Return examples as tensors for a head on [CLS]: one sentence by each writer, one position.

    The place is the first token of a masked model and the last of a causal one. Several writers
    write an example's choices (COPA), one sentence each.

    Args:
        answers: how many answers an example has.
    """
    asked, vocabulary = [], writers[0].vocabulary
    for example in examples:
        written = [writer.write(example) for writer in writers]
        sentences = [[*one.before, *one.after] for one in written]
        asks = [
            (which, len(sentence) - 1 if vocabulary.causal else 0, 0, which, 1.0)
            for which, sentence in enumerate(sentences)
        ]
        asked.append(_Asked(sentences, asks, sum(one.cut for one in written)))
    return _stack(examples, asked, answers, vocabulary.pad_id, device)


def _ask(written: Written, vocabulary: Vocabulary, spans: Spans, average: Average) -> _Asked:
    """Return the distinct sentences that an example's answers need, and what is asked of each."""
    sentences: dict[tuple[int, ...], int] = {}
    asks: list[tuple[int, int, int, int, float]] = []
    start = len(written.before)

    def place(middle: Iterable[int]) -> int:
        key = (*written.before, *middle, *written.after)
        return sentences.setdefault(key, len(sentences))

    for slot, tokens in enumerate(written.answers):
        weight = 1 / len(tokens) if average == "mean" else 1.0
        for offset, token in enumerate(tokens):
            if vocabulary.mask_id is None:
                row, at = place(tokens[:-1]), start + offset - 1
            elif spans == "together":
                row, at = place([vocabulary.mask_id] * len(tokens)), start + offset
            else:
                middle = [*tokens[:offset], vocabulary.mask_id, *tokens[offset + 1 :]]
                row, at = place(middle), start + offset
            asks.append((row, at, token, slot, weight))
    return _Asked([list(sentence) for sentence in sentences], asks, written.cut)


def _stack(
    examples: Sequence[VerbalExample],
    asked: Sequence[_Asked],
    answers: int,
    pad: int,
    device: torch.device | None,
) -> VerbalLayout:
    if not examples:
        raise DataError("a split has no examples to query; give at least one.")
    count, device = len(asked), device or torch.device("cpu")
    labels = [-1 if example.label is None else example.label for example in examples]
    most = max(len(one.sentences) for one in asked)
    wide = max(len(sentence) for one in asked for sentence in one.sentences)
    questions = max(len(one.asks) for one in asked)
    vectors = asked[0].sentences[0].count(VECTOR)
    ids = np.full((count, most, wide), pad, dtype=np.int64)
    lengths = np.ones((count, most), dtype=np.int64)
    places = np.zeros((count, most, vectors), dtype=np.int64)
    numbers = np.zeros((4, count, questions), dtype=np.int64)
    weight = np.zeros((count, questions), dtype=np.float64)
    for row, one in enumerate(asked):
        for which in range(most):
            # Where an example has fewer sentences than others, its first fills the place.
            sentence = one.sentences[which if which < len(one.sentences) else 0]
            tokens = np.array(sentence, dtype=np.int64)
            learned = np.flatnonzero(tokens == VECTOR)
            tokens[learned] = pad
            ids[row, which, : len(tokens)] = tokens
            lengths[row, which] = len(tokens)
            places[row, which] = learned
        table = np.array(one.asks, dtype=np.float64).T
        numbers[:, row, : len(one.asks)] = table[:4]
        weight[row, : len(one.asks)] = table[4]
    sentence_of, at, target, slot = (send(entry, device) for entry in numbers)
    return VerbalLayout(
        ids=send(ids, device),
        lengths=send(lengths, device),
        vectors=send(places, device),
        sentence=sentence_of,
        at=at,
        target=target,
        slot=slot,
        weight=send(weight, device),
        labels=send(np.array(labels, dtype=np.int64), device),
        widths=lengths.max(axis=1),
        answers=answers,
        cut=(sum(one.cut > 0 for one in asked), sum(one.cut for one in asked)),
    )
