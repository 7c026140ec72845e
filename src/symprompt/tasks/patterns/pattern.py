"""Patterns: where an example's fields, words, learned vectors and the answer stand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from symprompt.errors import TemplateError
from symprompt.tasks.patterns.superglue import VerbalTask

PieceKind = Literal["field", "words", "vectors", "break", "answer"]
_TOKEN = re.compile(r"(\{[^{}]*\}|<\d+>|\[MASK(?::[a-z,]*)?\]|\[SEP\])")
_CHANGES = ("bare", "small")
_MOST_VECTORS = 1000
_FINAL = ".,;:!?"


@dataclass(frozen=True, slots=True)
class PatternPiece:
    """One part of a pattern; final.

    Attributes:
        space: whether white space stands before it.
        text: words as they are, or a field's name.
        count: how many vectors.
        changes: what is done to a field's or an answer's text: "bare" takes its final punctuation
            away, "small" writes its first letter small.
    """

    kind: PieceKind
    space: bool
    text: str = ""
    count: int = 0
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pattern:
    """A sentence in which the answer is missing; final.

    ``{name}`` is a field of the example, ``<n>`` are n learned vectors, ``[MASK]`` is where the
    answer stands, ``[SEP]`` the model's separator (a line break for causal models), all else are
    words: anchors, as the P-tuning paper calls them beside vectors. ``{name:bare,small}`` and
    ``[MASK:bare,small]`` change a text as ``PatternPiece`` says. A causal model reads a pattern up
    to the answer, so no field or vector may follow it.

    Example:
        >>> pattern = Pattern.parse("{premise} Question: {hypothesis}? <1> Answer: [MASK].")
        >>> pattern.vectors, pattern.answer_last
        (1, True)
    """

    pieces: tuple[PatternPiece, ...]

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Read a pattern text.

        Raises:
            TemplateError: there is not exactly one [MASK], or a part of it cannot be read.
        """
        pieces: list[PatternPiece] = []
        space = False
        for part in _TOKEN.split(text):
            if not part:
                continue
            special = _TOKEN.fullmatch(part) is not None
            if not special:
                words = " ".join(part.split())
                if words:
                    pieces.append(PatternPiece("words", space or part[0].isspace(), words))
                space = part[-1].isspace()
                continue
            pieces.append(_special(part, space, text))
            space = False
        answers = sum(piece.kind == "answer" for piece in pieces)
        if answers != 1:
            raise TemplateError(
                f"pattern {text!r} has {answers} [MASK]; write exactly one, where the answer "
                "stands."
            )
        return cls(tuple(pieces))

    def __str__(self) -> str:
        shown = ""
        for piece in self.pieces:
            shown += " " * (piece.space and bool(shown)) + _written(piece)
        return shown

    @property
    def vectors(self) -> int:
        """How many learned vectors there are."""
        return sum(piece.count for piece in self.pieces)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields, in order."""
        return tuple(piece.text for piece in self.pieces if piece.kind == "field")

    @property
    def answer(self) -> int:
        """Which piece the answer is."""
        return next(at for at, piece in enumerate(self.pieces) if piece.kind == "answer")

    @property
    def answer_last(self) -> bool:
        """Whether no field and no vector follow the answer."""
        after = self.pieces[self.answer + 1 :]
        return not any(piece.kind in ("field", "vectors") for piece in after)

    def up_to_answer(self) -> Pattern:
        """Return the pattern as a causal model reads it: nothing follows the answer.

        Raises:
            TemplateError: a field or a vector would be lost.
        """
        if not self.answer_last:
            raise TemplateError(
                f"pattern {str(self)!r} goes on with a field or a vector after [MASK], which a "
                "causal model never reads; take a pattern that ends with [MASK]."
            )
        return Pattern(self.pieces[: self.answer + 1])

    def check(self, task: VerbalTask) -> None:
        """Refuse a pattern that names a field which the task has not.

        Raises:
            TemplateError: naming the field and the task's.
        """
        for name in self.fields:
            if name not in task.fields:
                raise TemplateError(
                    f"pattern {str(self)!r} names the field {name!r}; {task.name} has: "
                    f"{', '.join(task.fields)}."
                )


def _special(part: str, space: bool, text: str) -> PatternPiece:
    if part == "[SEP]":
        return PatternPiece("break", space)
    if part[0] == "<":
        count = int(part[1:-1])
        if not 1 <= count <= _MOST_VECTORS:
            raise TemplateError(
                f"pattern {text!r} has {part}; the number of vectors is 1 to {_MOST_VECTORS}."
            )
        return PatternPiece("vectors", space, count=count)
    name, _, listed = part[1:-1].partition(":")
    changes = tuple(word for word in listed.split(",") if word)
    unknown = [word for word in changes if word not in _CHANGES]
    if unknown:
        raise TemplateError(
            f"pattern {text!r} has {part}; what can be done to a text is: {', '.join(_CHANGES)}."
        )
    if part[0] == "[":
        return PatternPiece("answer", space, changes=changes)
    if not name.isidentifier():
        raise TemplateError(f"pattern {text!r} has {part}; write a field as {{name}}.")
    return PatternPiece("field", space, name, changes=changes)


def _written(piece: PatternPiece) -> str:
    changes = ":" + ",".join(piece.changes) if piece.changes else ""
    shown = {
        "field": f"{{{piece.text}{changes}}}",
        "vectors": f"<{piece.count}>",
        "break": "[SEP]",
        "answer": f"[MASK{changes}]",
    }
    return shown.get(piece.kind, piece.text)


def change(text: str, changes: Sequence[str]) -> str:
    """Return a text with what a piece asks for done to it."""
    if "bare" in changes:
        text = text.rstrip().rstrip(_FINAL).rstrip() or text
    if "small" in changes:
        text = text[:1].lower() + text[1:]
    return text
