"""Facts and where they come from: Fact -> Relation -> FactSet."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from symprompt.errors import DataError
from symprompt.files.reading import shorten

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")


@dataclass(frozen=True, slots=True)
class Fact:
    """One triple: the relation's name, the subject's text and the object's text."""

    relation: str
    subject: str
    object: str


@dataclass(frozen=True)
class Relation:
    """One relation with its facts by split.

    Args:
        name: the identifier used everywhere ("P36").
        label: what people call it ("capital"); may be empty.
        template: a manual template with [X] for the subject and [Y] for the object; may be empty.
    """

    name: str
    train: tuple[Fact, ...] = ()
    dev: tuple[Fact, ...] = ()
    test: tuple[Fact, ...] = ()
    label: str = ""
    template: str = ""

    def split(self, name: Split) -> tuple[Fact, ...]:
        """Return the facts of one split."""
        facts: tuple[Fact, ...] = getattr(self, name)
        return facts

    def all(self) -> tuple[Fact, ...]:
        """Return train, dev and test facts, in that order."""
        return self.train + self.dev + self.test


@dataclass(frozen=True)
class Dropped:
    """How many facts were left out of one relation's split, and why."""

    relation: str
    split: Split
    reason: str
    count: int


@dataclass(frozen=True)
class FactSet:
    """Relations with their facts, and the count of every fact that was left out on the way."""

    relations: tuple[Relation, ...]
    source: str
    layout: str
    dropped: tuple[Dropped, ...] = field(default=())

    @property
    def names(self) -> tuple[str, ...]:
        """The relations' names, in order."""
        return tuple(relation.name for relation in self.relations)

    def __getitem__(self, name: str) -> Relation:
        for relation in self.relations:
            if relation.name == name:
                return relation
        raise DataError(
            f"relation {name!r} is not in {self.source}; it has: {', '.join(self.names)}."
        )

    def facts(self, split: Split) -> list[Fact]:
        """Return one split's facts, relation after relation."""
        return [fact for relation in self.relations for fact in relation.split(split)]

    def select(self, names: Iterable[str]) -> FactSet:
        """Return the set with only the named relations, in the order of the set."""
        wanted = list(names)
        for name in wanted:
            self[name]
        kept = tuple(relation for relation in self.relations if relation.name in wanted)
        dropped = tuple(entry for entry in self.dropped if entry.relation in wanted)
        return replace(self, relations=kept, dropped=dropped)

    def keep(
        self, wanted: Callable[[Fact], bool], reason: str, splits: Sequence[Split] = SPLITS
    ) -> FactSet:
        """Return the set without the facts that ``wanted`` refuses, counted under ``reason``.

        Args:
            splits: where to look; other splits are kept as they are.
        """
        relations: list[Relation] = []
        dropped: list[Dropped] = list(self.dropped)
        for relation in self.relations:
            kept: dict[str, tuple[Fact, ...]] = {}
            for split in SPLITS:
                before = relation.split(split)
                after = before
                if split in splits:
                    after = tuple(fact for fact in before if wanted(fact))
                kept[split] = after
                if len(after) < len(before):
                    lost = len(before) - len(after)
                    dropped.append(Dropped(relation.name, split, reason, lost))
            relations.append(
                replace(relation, train=kept["train"], dev=kept["dev"], test=kept["test"])
            )
        return replace(self, relations=tuple(relations), dropped=tuple(dropped))

    def dropped_by_reason(self) -> dict[str, int]:
        """Return how many facts each reason cost, over all relations and splits."""
        counts: Counter[str] = Counter()
        for entry in self.dropped:
            counts[entry.reason] += entry.count
        return dict(counts)

    def true_objects(self) -> dict[tuple[str, str], set[str]]:
        """Return every true object of each (relation, subject), over all splits."""
        answers: dict[tuple[str, str], set[str]] = {}
        for relation in self.relations:
            for fact in relation.all():
                answers.setdefault((fact.relation, fact.subject), set()).add(fact.object)
        return answers

    def fingerprint(self) -> str:
        """Return a digest of every fact, its place and the templates; equal for equal sets."""
        digest = hashlib.sha256()
        for relation in self.relations:
            digest.update(f"{relation.name}\t{relation.template}\n".encode())
            for split in SPLITS:
                for fact in relation.split(split):
                    line = "\t".join((relation.name, split, fact.subject, fact.object))
                    digest.update(line.encode() + b"\n")
        return digest.hexdigest()


def natural_key(name: str) -> tuple[tuple[int, int, str, str], ...]:
    """Return a sort key that puts P17 before P101 before P1001."""
    # Numbers are compared by length, then digit by digit: int() refuses very long ones.
    key: list[tuple[int, int, str, str]] = []
    for part in re.findall(r"[0-9]+|[^0-9]+", name):
        digits = part.lstrip("0")
        key.append((0, len(digits), digits, part) if part[0] in "0123456789" else (1, 0, "", part))
    return tuple(key)


def choose_names(available: Iterable[str], wanted: Sequence[str], source: str) -> tuple[str, ...]:
    """Return the wanted relation names in natural order, or all when none is named."""
    names = sorted(set(available), key=natural_key)
    for name in wanted:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "it has: "
            listed = "" if close else shorten(", ".join(names), 200) + "."
            raise DataError(f"relation {name!r} is not in {source}; {hint}{listed}")
    return tuple(name for name in names if not wanted or name in wanted)
