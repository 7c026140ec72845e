"""What the labelled tasks are about: one frozen class per kind of example, and a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np

from symprompt.errors import DataError
from symprompt.runtime import derive_seed
from symprompt.tasks.labels import LabelSet, Span, Unseen

TaskKind = Literal["sequence", "pair", "tagging", "roles", "question", "spans", "relations"]
KINDS: tuple[TaskKind, ...] = get_args(TaskKind)


@dataclass(frozen=True)
class TextExample:
    """One text and its class; a label of None is not known."""

    id: str
    text: str
    label: str | None = None


@dataclass(frozen=True)
class PairExample:
    """Two texts and the class of the two together."""

    id: str
    first: str
    second: str
    label: str | None = None


@dataclass(frozen=True)
class TaggedExample:
    """A sentence in words with a tag for each, in IOB2 ("B-PER", "I-PER", "O")."""

    id: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None


@dataclass(frozen=True)
class RolesExample:
    """A sentence in words, the place of one predicate in it, and the roles of that predicate.

    Attributes:
        tags: in IOB2 ("B-ARG0", "I-ARG0", "B-V", "O").
    """

    id: str
    words: tuple[str, ...]
    predicate_index: int
    tags: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Answer:
    """A part of a context: its text, and the character it starts at."""

    start: int
    text: str


@dataclass(frozen=True)
class QuestionExample:
    """A question about a context, whose answer is a part of that context, or nothing.

    Attributes:
        answers: all that count as right; the first one is trained on.
        impossible: whether the context does not answer the question; if it does and there are no
            answers, they are not known.
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] = ()
    impossible: bool = False


@dataclass(frozen=True)
class Relation:
    """How two spans of a sentence are related, by their places among its spans."""

    name: str
    one: int
    other: int


@dataclass(frozen=True)
class SpanExample:
    """A sentence in words and its spans, which may lie in one another.

    Attributes:
        spans: (type, first word, word after the last); None if they are not known.
        relations: between two of the spans; None if they are not known.
    """

    id: str
    words: tuple[str, ...]
    spans: tuple[Span, ...] | None = None
    relations: tuple[Relation, ...] | None = None


Example = TextExample | PairExample | TaggedExample | RolesExample | QuestionExample | SpanExample


@dataclass(frozen=True)
class TaskData:
    """A labelled data set; final.

    Attributes:
        kind: what the examples are, and so which head and metric they need.
        name: what to call it in reports.
        splits: examples by split; "train", "dev" and "test" where the source has them.
        labels: the classes or tags of the training split, and of no other; empty for questions.
        unseen: labels that other splits have and training has not. Nothing can predict them, so
            they count as errors.
        dropped: how many examples a reason left out ("train: no gold label": 3).
        relations: the relations between spans of the training split; empty for other kinds.
    """

    kind: TaskKind
    name: str
    splits: Mapping[str, Sequence[Example]]
    labels: LabelSet
    unseen: tuple[Unseen, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)
    relations: LabelSet = field(default_factory=lambda: LabelSet(()))

    def split(self, name: str) -> Sequence[Example]:
        """Return a split's examples, or refuse its name."""
        if name not in self.splits:
            raise DataError(
                f"{self.name} has no split {name!r}; it has {', '.join(self.splits) or 'none'}."
            )
        return self.splits[name]

    def counts(self) -> dict[str, int]:
        """Return the number of examples of each split."""
        return {name: len(examples) for name, examples in self.splits.items()}


def hold_out(
    data: TaskData, share: float, *, seed: int = 0, split: str = "dev", groups: bool = True
) -> TaskData:
    """Return the data with a part of train moved to another split, drawn by the seed.

    Args:
        share: of the training examples, between 0 and 1; at least one is moved and one stays.
        split: what the new split is called; it must not exist.
        groups: keep the questions of one context, and the predicates of one sentence, together.
    """
    train = data.split("train")
    if split in data.splits:
        raise DataError(f"{data.name} has a split {split!r} already; hold out another name.")
    if not 0 < share < 1 or len(train) < 2:
        raise DataError(
            f"cannot hold out a share of {share} of {len(train)} training example(s) of "
            f"{data.name}; a share between 0 and 1 of at least two is needed."
        )
    moved = _draw(train, share, np.random.default_rng(derive_seed(seed, "held out")), groups)
    splits = dict(data.splits)
    splits["train"] = [example for row, example in enumerate(train) if row not in moved]
    splits[split] = [example for row, example in enumerate(train) if row in moved]
    return replace(data, splits=splits)


def _draw(
    examples: Sequence[Example], share: float, random: np.random.Generator, groups: bool
) -> set[int]:
    """Return the rows that are moved, whole groups at a time."""
    keys: dict[object, list[int]] = {}
    for row, example in enumerate(examples):
        keys.setdefault(_group(example) if groups else row, []).append(row)
    if len(keys) < 2:
        keys = {row: [row] for row in range(len(examples))}
    listed = list(keys.values())
    wanted = max(1, round(share * len(examples)))
    moved: set[int] = set()
    for index in random.permutation(len(listed))[: len(listed) - 1]:
        if len(moved) >= wanted:
            break
        moved.update(listed[index])
    return moved


def _group(example: Example) -> object:
    if isinstance(example, QuestionExample):
        return example.context
    if isinstance(example, RolesExample):
        return example.words
    return example.id


def cut_words(kind: TaskKind) -> str:
    """Return what sentences are that were not read or learned whole, for a note."""
    long = "sentences with a word too long for the model, whose end was left out"
    if kind in ("spans", "relations"):
        return f"{long}, or with spans or relations that no window shows whole"
    return long
