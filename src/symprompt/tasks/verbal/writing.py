"""Examples written out through a pattern: token ids around the answer, fields cut to fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from symprompt.backbone import Vocabulary
from symprompt.errors import TemplateError
from symprompt.tasks.verbal.patterns import Pattern, change
from symprompt.tasks.verbal.superglue import VerbalExample

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
