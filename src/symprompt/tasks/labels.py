"""The labels of a task, known from its training split alone, and tags as spans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from symprompt.errors import DataError

OUTSIDE = "O"
NULL = "NULL"
"""The class of spans, and of pairs of spans, that are of no interest."""
NO_LABEL = -100
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
    def of_classes(cls, labels: Iterable[str]) -> LabelSet:
        """Return the classes that occur, sorted."""
        return cls(tuple(sorted(set(labels))))

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

    def find(self, label: str) -> int:
        """Return a label's place, or refuse it."""
        if label not in self.index:
            raise DataError(
                f"the label {label!r} does not occur in training, which has "
                f"{', '.join(self.names[:12])}{' ...' if len(self.names) > 12 else ''}; "
                "correct it or train with it."
            )
        return self.index[label]


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


def repaired(tags: Sequence[str]) -> tuple[str, ...]:
    """Return predicted tags as valid IOB2, read as conlleval does: a stray I-X starts a phrase."""
    return to_iob2(tags)


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


def is_tag(tag: str) -> bool:
    """Return whether a text is O, B-type or I-type."""
    return tag == OUTSIDE or (tag[:2] in ("B-", "I-") and len(tag) > 2)
