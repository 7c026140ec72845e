"""Labelled examples of every kind, their labels, a split as it was read, and a data set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from symprompt.errors import DataError
from symprompt.files.reading import Source, first_row
from symprompt.runs.environment import derive_seed

T = TypeVar("T")

OUTSIDE = "O"
NULL = "NULL"
"""The class of spans, and of pairs of spans, that are of no interest."""
NO_LABEL = -100
CUT = (
    "sentences that were not read or learned whole, as a word is too long for the model, or no "
    "window shows a span or relation whole"
)
"""What ``Features.cut`` counts, for a note."""
Span = tuple[str, int, int]  # type, first word, word after the last


@dataclass(frozen=True)
class Unseen:
    """A label of another split that the training split does not have."""

    split: str
    label: str
    count: int
    path: str
    line: int

    def describe(self) -> str:
        """Return where it stands, for a message."""
        return f"{self.label!r} ({self.path}, line {self.line}; {self.count} in {self.split})"


@dataclass(frozen=True)
class LabelSet:
    """The labels that a head scores, in its order; final."""

    names: tuple[str, ...]

    @classmethod
    def of_tags(cls, tags: Iterable[str]) -> LabelSet:
        """Return O and, for each type that occurs, sorted, B- and I-.

        Both are there for every type, as one more word in a phrase is no new type.
        """
        types = sorted({tag[2:] for tag in set(tags) if tag != OUTSIDE})
        return cls((OUTSIDE, *(f"{mark}-{name}" for name in types for mark in "BI")))

    @classmethod
    def of_spans(cls, types: Iterable[str]) -> LabelSet:
        """Return NULL and the types of spans, or relations, that occur, sorted."""
        return cls((NULL, *sorted(set(types) - {NULL})))

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, label: str) -> bool:
        return label in self.index

    @cached_property
    def index(self) -> dict[str, int]:
        """Each label's place."""
        return {name: place for place, name in enumerate(self.names)}


def to_iob2(tags: Sequence[str]) -> tuple[str, ...]:
    """Return tags in IOB2, where every phrase starts with B-; IOB1 and IOB2 are both read right.

    In IOB1 a phrase starts with I-, and with B- only right after another one of its type. A tag
    I-X that does not go on with a phrase of type X starts one, in both.
    """
    converted: list[str] = []
    previous = OUTSIDE
    for tag in tags:
        goes_on = tag[:2] == "I-" and previous != OUTSIDE and previous[2:] == tag[2:]
        converted.append("B-" + tag[2:] if tag[:2] == "I-" and not goes_on else tag)
        previous = tag
    return tuple(converted)


def spans_of(tags: Sequence[str]) -> list[Span]:
    """Return the phrases of a sentence's tags, as conlleval reads them."""
    found: list[Span] = []
    start, kind = 0, ""
    for place, tag in enumerate((*to_iob2(tags), OUTSIDE)):
        if kind and tag[:2] != "I-":
            found.append((kind, start, place))
            kind = ""
        if tag[:2] == "B-":
            start, kind = place, tag[2:]
    return found


@dataclass(frozen=True)
class Example:
    """One example; abstract."""

    id: str

    @property
    def text(self) -> str:
        """What is asked about, for a reader."""
        return ""

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that are known, one for each word where words have them."""
        return ()

    @property
    def group(self) -> object:
        """What examples share that must not be parted between training and another split."""
        return self.id


@dataclass(frozen=True)
class TextExample(Example):
    """One text or two, and their class; a label of None is not known."""

    texts: tuple[str, ...]
    label: str | None = None

    @property
    def text(self) -> str:
        """The text, or both."""
        return " | ".join(self.texts)

    @property
    def labels(self) -> tuple[str, ...]:
        """The class."""
        return () if self.label is None else (self.label,)


@dataclass(frozen=True)
class TaggedExample(Example):
    """A sentence in words with a tag for each: of entities, of roles of one predicate, or any.

    Attributes:
        tags: of spans in IOB2 ("B-PER", "I-PER", "O"), others as they are ("NOUN"); None if they
            are not known.
        predicate: the place of the predicate among the words, where tags are its roles.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    predicate: int | None = None

    @property
    def text(self) -> str:
        """The words."""
        return " ".join(self.words)

    @property
    def labels(self) -> tuple[str, ...]:
        """The tags."""
        return self.tags or ()

    @property
    def group(self) -> object:
        """The sentence, if it has a predicate: its predicates stay together."""
        return self.id if self.predicate is None else self.words


@dataclass(frozen=True)
class Answer:
    """A part of a context: its text, and the character it starts at."""

    start: int
    text: str


@dataclass(frozen=True)
class QuestionExample(Example):
    """A question about a context, whose answer is a part of that context, or nothing.

    Attributes:
        answers: all that count as right, the first of which is trained on; none if the context does
            not answer the question; None if they are not known.
    """

    question: str
    context: str
    answers: tuple[Answer, ...] | None = None

    @property
    def text(self) -> str:
        """The question."""
        return self.question

    @property
    def group(self) -> object:
        """The context: its questions stay together."""
        return self.context


@dataclass(frozen=True)
class Relation:
    """How two spans of a sentence are related, by their places among its spans."""

    name: str
    one: int
    other: int


@dataclass(frozen=True)
class SpanExample(Example):
    """A sentence in words and its spans, which may lie in one another.

    Attributes:
        spans: (type, first word, word after the last); None if they are not known.
        relations: between two of the spans; None if they are not known.
    """

    words: tuple[str, ...]
    spans: tuple[Span, ...] | None = None
    relations: tuple[Relation, ...] | None = None

    @property
    def text(self) -> str:
        """The words."""
        return " ".join(self.words)

    @property
    def labels(self) -> tuple[str, ...]:
        """The types of spans, then the names of relations."""
        types = (span[0] for span in self.spans or ())
        return (*types, *(entry.name for entry in self.relations or ()))


@dataclass(frozen=True)
class Columns:
    """What the columns of your files are called; in a .conll file words and tags are numbers.

    In a table without a header the columns of texts and labels are numbers too, as "0".

    Attributes:
        text: of a text (kind sequence).
        first, second: of the two texts of a pair.
        label: of the class.
        words, tags: of a sentence's words and their tags (kinds tagging, words, roles).
        spans, relations: of a sentence's spans, and of the relations between them.
        predicate: of the place of the predicate among the words, from 0 on (kind roles).
        question, context, answers: of a question (kind question).
        id: of a name for each row; rows are counted without it.
        split: of the split (train, dev, test), for one file that holds all.
        word_column, tag_column: in files with a word to a line; -1 is the last.
    """

    text: str = "text"
    first: str = "first"
    second: str = "second"
    label: str = "label"
    words: str = "words"
    tags: str = "tags"
    spans: str = "spans"
    relations: str = "relations"
    predicate: str = "predicate"
    question: str = "question"
    context: str = "context"
    answers: str = "answers"
    id: str = "id"
    split: str = "split"
    word_column: int = 0
    tag_column: int = -1

    @property
    def numbered(self) -> bool:
        """Whether texts are named by the numbers of their columns, as a table has no header."""
        return any(name.isdigit() for name in (self.text, self.first, self.second))

    def known_in(self, there: Iterable[str], *, labels: bool = True) -> Columns:
        """Return the columns with well-known names for those that a table has not.

        A column that was named by the user stays as it is, and none is taken twice.

        Args:
            there: the table's own names.
            labels: whether other names of labels and tags are taken too.
        """
        usual = vars(USUAL)
        # Rows that a program gives may have keys of any kind.
        listed = [name for name in there if isinstance(name, str)]
        spelled = {name.lower().replace(" ", "_"): name for name in reversed(listed)}
        own = {role: name for role, name in vars(self).items() if name != usual[role]}
        found: dict[str, Any] = {}
        for role, names in SPELLINGS.items():
            if role in own or usual[role] in listed or (role in _LABELS and not labels):
                continue
            # The two texts of a pair are two columns.
            taken = {None, *own.values(), *([found.get("first")] if role == "second" else [])}
            every = (spelled.get(name) for name in (role, *names))
            name = next((name for name in every if name not in taken), None)
            if name is not None:
                found[role] = name
        return replace(self, **found)


USUAL = Columns()
SPELLINGS = {
    "text": ("sentence", "review", "tweet", "content"),
    "first": (
        *("sentence1", "premise", "text1", "text_a", "sentence_a", "question1", "sent1"),
        *("#1_string", "question", "context"),
    ),
    "second": (
        *("sentence2", "hypothesis", "text2", "text_b", "sentence_b", "question2", "sent2"),
        *("#2_string", "response", "passage", "context", "sentence"),
    ),
    "label": (
        *("gold_label", "labels", "class", "category", "is_duplicate", "same", "quality"),
        *("target", "score", "similarity"),
    ),
    "words": ("tokens",),
    "tags": ("pos", "upos", "xpos", "pos_tags", "ner_tags", "ner"),
    "id": ("idx", "index", "pairid", "guid"),
}
"""Other names of columns that are known, in lower case, the likeliest first."""
_LABELS = ("label", "tags")


Place = tuple[Source, int]


@dataclass
class Read:
    """One split as a loader has read it: examples, the file and line of each, and what is left out.

    Attributes:
        places: for a sentence in columns the line of its first word, the others follow it.
        in_columns: whether a sentence's words stand on lines of their own.
        documents: the document of each sentence in columns.
    """

    examples: list[Any] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    in_columns: bool = False
    documents: list[int] = field(default_factory=list)

    def add(self, example: Example, path: Source, line: int) -> None:
        """Take one more example."""
        self.examples.append(example)
        self.places.append((path, line))

    def wrong(self, what: str) -> DataError:
        """Return an error about all that was read, which names where it begins."""
        path, line = self.places[0]
        return DataError(f"{path}, line {line}: {what}")

    def unseen(self, split: str, labels: LabelSet) -> Iterator[Unseen]:
        """Yield the labels that are not known, each with its first place and its count."""
        first: dict[str, Place] = {}
        counts: Counter[str] = Counter()
        for example, (path, line) in zip(self.examples, self.places, strict=True):
            for offset, label in enumerate(example.labels):
                if label not in labels:
                    first.setdefault(label, (path, line + offset * self.in_columns))
                    counts[label] += 1
        for label, (path, line) in first.items():
            yield Unseen(split, label, counts[label], str(path), line)


def has_column(path: Source, column: str, *, but_not: str) -> bool:
    """Return whether a table's first row has one column and not another."""
    first = first_row(path)
    return column in first and but_not not in first


@dataclass(frozen=True)
class StandardSet:
    """Where the files of a standard data set lie, and how they are read.

    Attributes:
        files: glob patterns of each split's files, the preferred one first.
        readers: reads the files of a split, by the kind of task; the first one is the usual one.
        find: looks for files first where patterns of names cannot say which they are.
        by_document: one file, whose documents are parted into train, dev and test.
        columns: what its columns of labels are called, if not as usual.
    """

    files: Mapping[str, Sequence[str]]
    readers: Mapping[str, Callable[[Sequence[Path], str], Read]]
    find: Callable[[Path], dict[str, list[Path]]] | None = None
    by_document: bool = False
    columns: Mapping[str, str] = field(default_factory=dict)


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
        columns: the names of columns that are not the usual ones and were known.
    """

    kind: str
    name: str
    splits: Mapping[str, Sequence[Example]]
    labels: LabelSet
    unseen: tuple[Unseen, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)
    relations: LabelSet = field(default_factory=lambda: LabelSet(()))
    columns: Mapping[str, str] = field(default_factory=dict)

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


def hold_out(data: TaskData, share: float, *, seed: int = 0, split: str = "dev") -> TaskData:
    """Return the data with a part of train moved to another split, drawn by the seed.

    The questions of one context, and the predicates of one sentence, stay together.

    Args:
        share: of the training examples, between 0 and 1; at least one is moved and one stays.
        split: what the new split is called.
    """
    train = data.split("train")
    if not 0 < share < 1 or len(train) < 2:
        raise DataError(
            f"cannot hold out a share of {share} of {len(train)} training example(s) of "
            f"{data.name}; a share between 0 and 1 of at least two is needed."
        )
    groups: dict[object, list[int]] = {}
    for row, example in enumerate(train):
        groups.setdefault(example.group, []).append(row)
    listed = list(groups.values())
    if len(listed) < 2:
        listed = [[row] for row in range(len(train))]
    wanted, moved = max(1, round(share * len(train))), set[int]()
    random = np.random.default_rng(derive_seed(seed, "held out"))
    for index in random.permutation(len(listed))[:-1]:
        if len(moved) < wanted:
            moved.update(listed[index])
    kept = [example for row, example in enumerate(train) if row not in moved]
    held = [example for row, example in enumerate(train) if row in moved]
    return replace(data, splits={**data.splits, "train": kept, split: held})


def draw_limited(examples: Sequence[T], limit: int, seed: tuple[object, ...]) -> Sequence[T]:
    """Return at most so many examples, drawn by the seed and in their order; 0 returns all."""
    if not limit or len(examples) <= limit:
        return examples
    random = np.random.default_rng(derive_seed(*seed, "limit"))
    return [examples[row] for row in np.sort(random.permutation(len(examples))[:limit])]
