"""The seven SuperGLUE tasks that are asked through patterns, and their patterns.

A pattern says where an example's fields, words, learned vectors and the answer stand. ReCoRD is
left out, as in the P-tuning paper (section 4.2): it has no prompts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from symprompt.errors import DataError, TemplateError

TaskKind = Literal["labels", "choices", "span"]


@dataclass(frozen=True)
class VerbalTask:
    """One task; final.

    Attributes:
        name: as in configs, small letters.
        folder: as SuperGLUE names its folder.
        kind: "labels": every example has the same answers, said by a verbalizer; "choices": each
            example brings its own answers; "span": the answer is a part of the text that the model
            has to write (WSC), and the label says whether a given part is the right one.
        labels: the answers as the data files write them, in the order of their numbers.
        fields: what a pattern may name.
        metrics: what is measured, the main one first.
    """

    name: str
    folder: str
    kind: TaskKind
    labels: tuple[str, ...]
    fields: tuple[str, ...]
    metrics: tuple[str, ...] = ("accuracy",)


_TRUTH = ("false", "true")
TASKS: dict[str, VerbalTask] = {
    task.name: task
    for task in (
        VerbalTask("boolq", "BoolQ", "labels", _TRUTH, ("passage", "question")),
        VerbalTask(
            "cb",
            "CB",
            "labels",
            ("entailment", "contradiction", "neutral"),
            ("premise", "hypothesis"),
            ("accuracy", "macro_f1"),
        ),
        VerbalTask("wic", "WiC", "labels", _TRUTH, ("word", "sentence1", "sentence2")),
        VerbalTask(
            "rte", "RTE", "labels", ("not_entailment", "entailment"), ("premise", "hypothesis")
        ),
        VerbalTask(
            "multirc",
            "MultiRC",
            "labels",
            ("0", "1"),
            ("passage", "question", "answer"),
            ("em", "f1a", "accuracy"),
        ),
        VerbalTask("wsc", "WSC", "span", _TRUTH, ("text", "pronoun", "span")),
        VerbalTask(
            "copa", "COPA", "choices", ("0", "1"), ("premise", "choice1", "choice2", "link")
        ),
    )
}


def find_task(name: str) -> VerbalTask:
    """Return a task by its name, however its letters are.

    Raises:
        DataError: there is no such task.
    """
    task = TASKS.get(name.lower())
    if task is None:
        raise DataError(
            f"task {name!r} has no patterns; tasks with patterns are: {', '.join(TASKS)}."
        )
    return task


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


@dataclass(frozen=True, slots=True)
class Worded:
    """A pattern, the words that say the labels in it, and its name; final.

    Attributes:
        words: one text for each label; empty where examples bring their own answers.
    """

    name: str
    text: str
    words: tuple[str, ...] = ()

    @property
    def pattern(self) -> Pattern:
        """The pattern, read."""
        return Pattern.parse(self.text)


_NO_YES = ("No", "Yes")
_FALSE_TRUE = ("False", "True")
_ENTAILED = ("Yes", "No", "Maybe")
_QUESTION = "{passage} Question: {question:bare}?"


def _nli(pair: tuple[str, ...], truth: tuple[str, ...]) -> tuple[Worded, ...]:
    """Return what CB and RTE share."""
    return (
        Worded("pet-0", '"{hypothesis:bare}"? [SEP] [MASK], "{premise:bare}"', pair),
        Worded("pet-1", "{hypothesis:bare}? [SEP] [MASK], {premise}", pair),
        Worded("pet-2", '"{hypothesis:bare}"? [SEP] [MASK]. "{premise:bare}"', pair),
        Worded("pet-3", "{hypothesis:bare}? [SEP] [MASK]. {premise}", pair),
        Worded("pet-4", "{premise} question: {hypothesis} true or false? answer: [MASK]", truth),
    )


def _agree(pair: tuple[str, ...]) -> tuple[Worded, ...]:
    """Return the patterns of P-tuning's Table 6, and P-tuning's with its prompt left out."""
    return (
        Worded("agree-1", "Does {premise:bare} agree with {hypothesis:bare}? [MASK].", pair),
        Worded("agree-2", "Does {hypothesis:bare} agree with {premise:bare}? [MASK].", pair),
        Worded("named", "Premise: {premise} Hypothesis: {hypothesis} Answer: [MASK].", pair),
        Worded(
            "truth", "{premise} question: {hypothesis:bare}. true or false? answer: [MASK].", pair
        ),
    )


_BASED = "{passage} Based on the previous passage, {question:bare}?"
MANUAL: dict[str, tuple[Worded, ...]] = {
    "boolq": (
        Worded("pet-0", f"{_QUESTION} Answer: [MASK].", _NO_YES),
        Worded("pet-1", f"{_QUESTION} Answer: [MASK].", _FALSE_TRUE),
        Worded("pet-2", f"{_BASED} [MASK].", _NO_YES),
        Worded("pet-3", f"{_BASED} [MASK].", _FALSE_TRUE),
        Worded(
            "pet-4",
            "Based on the following passage, {question:bare}? [MASK]. {passage}",
            _NO_YES,
        ),
        Worded(
            "pet-5",
            "Based on the following passage, {question:bare}? [MASK]. {passage}",
            _FALSE_TRUE,
        ),
    ),
    "cb": (
        *_nli(_ENTAILED, ("true", "false", "neither")),
        Worded("ptuning", "{premise} [SEP] {hypothesis:bare}? answer: [MASK]", _ENTAILED),
        *_agree(_ENTAILED),
    ),
    "wic": (
        Worded(
            "pet-0", '"{sentence1}" / "{sentence2}" Similar sense of "{word}"? [MASK].', _NO_YES
        ),
        Worded(
            "pet-1",
            "{sentence1} {sentence2} Does {word} have the same meaning in both sentences? [MASK]",
            _NO_YES,
        ),
        Worded("pet-2", '{word}. Sense (1) (a) "{sentence1}" ([MASK]) "{sentence2}"', ("2", "b")),
        Worded("ptuning", "{sentence1} [SEP] {sentence2} * {word} *? [MASK]", _NO_YES),
    ),
    "rte": (
        *_nli(_NO_YES, ("false", "true")),
        Worded("ptuning", "{premise} Question: {hypothesis:bare}? Answer: [MASK].", _NO_YES),
        *_agree(_NO_YES),
    ),
    "multirc": (
        Worded("pet-0", f"{_QUESTION} Is it {{answer:bare}}? [MASK].", _NO_YES),
        Worded("pet-1", f'{_QUESTION} Is the correct answer "{{answer:bare}}"? [MASK].', _NO_YES),
        Worded("pet-2", f'{_BASED} Is the correct answer "{{answer:bare}}"? [MASK].', _NO_YES),
    ),
    "wsc": (
        Worded("pet-0", "{text} The pronoun '*{pronoun}*' refers to [MASK]."),
        Worded(
            "pet-1", "{text} In the previous sentence, the pronoun '*{pronoun}*' refers to [MASK]."
        ),
        Worded(
            "pet-2",
            "{text} In the passage above, what does the pronoun '*{pronoun}*' refer to? Answer: "
            "[MASK].",
        ),
    ),
    "copa": (
        Worded(
            "pet-0",
            '"{choice1:bare,small}" or "{choice2:bare,small}"? {premise:bare}, {link} '
            "[MASK:bare,small].",
        ),
        Worded(
            "pet-1",
            "{choice1:bare,small} or {choice2:bare,small}? {premise:bare}, {link} "
            "[MASK:bare,small].",
        ),
        Worded("plain", "{premise:bare} {link} [MASK:bare,small]."),
    ),
}
"""By task: patterns without vectors."""

PTUNING: dict[str, Worded] = {
    "boolq": Worded(
        "ptuning", "{passage} . <1> Question: {question:bare}? Answer: [MASK].", _NO_YES
    ),
    "cb": Worded("ptuning", "{premise} [SEP] {hypothesis:bare}? <1> answer: [MASK]", _ENTAILED),
    "wic": Worded("ptuning", "{sentence1} [SEP] {sentence2} <1> * {word} *? [MASK]", _NO_YES),
    "rte": Worded("ptuning", "{premise} Question: {hypothesis:bare}? <1> Answer: [MASK].", _NO_YES),
    "multirc": Worded("ptuning", f"{_QUESTION} Is it {{answer:bare}}? <1> [MASK].", _NO_YES),
    "wsc": Worded("ptuning", "<1> {text} <1> pronoun '*{pronoun}*' refers to [MASK]."),
    "copa": Worded(
        "ptuning",
        "{choice1:bare,small} or {choice2:bare,small}? {premise:bare} {link} <1> "
        "[MASK:bare,small].",
    ),
}
"""By task: the pattern of P-tuning's few-shot code."""

REFERENCE: dict[str, str] = {
    "boolq": "pet-0",
    "cb": "ptuning",
    "wic": "ptuning",
    "rte": "ptuning",
    "multirc": "pet-0",
    "wsc": "pet-0",
    "copa": "pet-1",
}
"""By task: the manual pattern whose words P-tuning's anchors are taken from (Tables 3 and 4)."""

PAIRS: dict[str, tuple[str, ...]] = {
    "boolq": ("{passage} [SEP] {question} [MASK]",),
    "cb": ("{premise} [SEP] {hypothesis} [MASK]",),
    "wic": ("{word}: {sentence1} [SEP] {sentence2} [MASK]",),
    "rte": ("{premise} [SEP] {hypothesis} [MASK]",),
    "multirc": ("{passage} [SEP] {question} {answer} [MASK]",),
    "wsc": ("{text} [SEP] {pronoun}: {span} [MASK]",),
    "copa": (
        "{premise} {link} [SEP] {choice1} [MASK]",
        "{premise} {link} [SEP] {choice2} [MASK]",
    ),
}
"""By task: how a head on [CLS] reads an example, without words; COPA's choices apart. The answer's
place is where a causal model's last token is read, and left out otherwise."""


def manual_patterns(task: VerbalTask, *, causal: bool) -> tuple[Worded, ...]:
    """Return a task's patterns without vectors that serve a kind of model."""
    return tuple(one for one in MANUAL[task.name] if one.pattern.answer_last or not causal)


def reference_pattern(task: VerbalTask) -> Worded:
    """Return the manual pattern whose words are P-tuning's anchors."""
    return next(one for one in MANUAL[task.name] if one.name == REFERENCE[task.name])
