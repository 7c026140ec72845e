"""Find the files of a known data set in or below a folder.

From what loaders have read to a data set: labels of train, and what others have besides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from symprompt.errors import DataError
from symprompt.tasks.data.examples import (
    Example,
    LabelSet,
    PairExample,
    QuestionExample,
    RolesExample,
    SpanExample,
    TaggedExample,
    TaskData,
    TaskKind,
    TextExample,
    Unseen,
)


def find_files(
    folder: Path, patterns: Mapping[str, Sequence[str]], name: str
) -> dict[str, list[Path]]:
    """Return the files of each split that is there.

    Args:
        folder: the folder that holds them, directly or deeper down, but all of one set.
        patterns: glob patterns of each split's files, the preferred one first; the first pattern
            that matches anything gives that split's files.
        name: of the data set, for messages.
    """
    if not folder.is_dir():
        got = "is a file" if folder.exists() else "does not exist"
        raise DataError(f"{folder} {got}, but {name} needs the folder that holds its files.")
    homes = [folder, *sorted(path for path in folder.rglob("*") if path.is_dir())]
    found = [(home, _matches(home, patterns)) for home in homes]
    found = [(home, files) for home, files in found if files]
    if not found:
        wanted = "; ".join(f"{split}: {' or '.join(each)}" for split, each in patterns.items())
        raise DataError(f"{folder} holds no files of {name}; it needs {wanted}.")
    if len(found) > 1:
        listed = ", ".join(str(home) for home, _ in found[:4])
        raise DataError(
            f"{folder} holds {len(found)} folders with files of {name} ({listed}), and only one "
            "can be read; give that one."
        )
    return found[0][1]


def _matches(home: Path, patterns: Mapping[str, Sequence[str]]) -> dict[str, list[Path]]:
    files: dict[str, list[Path]] = {}
    for split, each in patterns.items():
        for pattern in each:
            here = sorted(path for path in home.glob(pattern) if path.is_file())
            if here:
                files[split] = here
                break
    return files


UnseenLabels = Literal["refuse", "keep"]
Place = tuple[Path, int]


@dataclass
class Read:
    """One split as a loader has read it: examples, the file and line of each, and what is left out.

    Attributes:
        places: for a sentence in columns the line of its first word, the others follow it.
        in_columns: whether a sentence's words stand on lines of their own.
    """

    examples: list[Example] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    in_columns: bool = False

    def add(self, example: Example, path: Path, line: int) -> None:
        """Take one more example."""
        self.examples.append(example)
        self.places.append((path, line))

    def drop(self, reason: str) -> None:
        """Count an example that is left out."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def extend(self, other: Read) -> None:
        """Take over all of another file of the same split."""
        self.examples += other.examples
        self.places += other.places
        for reason, count in other.dropped.items():
            self.dropped[reason] = self.dropped.get(reason, 0) + count
        self.in_columns = other.in_columns


def make_task(
    kind: TaskKind, name: str, parts: Mapping[str, Read], *, unseen: UnseenLabels
) -> TaskData:
    """Make a data set of its splits; the labels are those of train.

    Args:
        unseen: what happens to labels that training does not have: "refuse" names the first one's
            file and line, "keep" records them all, as the standard sets have some.
    """
    if kind != "question" and "train" not in parts:
        raise DataError(
            f"{name} has no training examples, only {', '.join(parts) or 'nothing'}, so its labels "
            "are not known; add a file for train."
        )
    for split, part in parts.items():
        if not part.examples:
            raise DataError(f"the split {split!r} of {name} has no examples; add some.")
    labels = _labels_of(kind, parts.get("train"))
    relations = _relations_of(kind, parts.get("train"))
    both = LabelSet((*labels.names, *relations.names))
    found = tuple(
        entry for split, part in parts.items() for entry in find_unseen(split, part, both)
    )
    if kind == "question":
        found = ()
    if found and unseen == "refuse":
        first = found[0]
        more = f" and {len(found) - 1} other(s)" if len(found) > 1 else ""
        raise DataError(
            f"{first.path}, line {first.line}: the label {first.label!r} of {first.split}{more} "
            f"does not occur in training, which has {show_labels(labels)}; correct it or add "
            "training examples."
        )
    return TaskData(
        kind=kind,
        name=name,
        splits={split: part.examples for split, part in parts.items()},
        labels=labels,
        unseen=found,
        dropped={
            f"{split}: {reason}": count
            for split, part in parts.items()
            for reason, count in part.dropped.items()
        },
        relations=relations,
    )


def labels_in(example: Example) -> tuple[str, ...]:
    """Return the labels of an example, one for each word where words have them."""
    if isinstance(example, QuestionExample):
        return ()
    if isinstance(example, TaggedExample | RolesExample):
        return example.tags or ()
    if isinstance(example, SpanExample):
        return tuple(span[0] for span in example.spans or ()) + relations_in(example)
    return () if example.label is None else (example.label,)


def relations_in(example: Example) -> tuple[str, ...]:
    """Return the names of an example's relations."""
    if not isinstance(example, SpanExample):
        return ()
    return tuple(entry.name for entry in example.relations or ())


def _relations_of(kind: TaskKind, train: Read | None) -> LabelSet:
    if kind != "relations" or train is None:
        return LabelSet(())
    found = LabelSet.of_spans(name for entry in train.examples for name in relations_in(entry))
    if len(found) < 2:
        path, line = train.places[0]
        raise DataError(
            f"{path}, line {line}: no training example has a relation between its spans; add some, "
            "or read the file as spans."
        )
    return found


def _labels_of(kind: TaskKind, train: Read | None) -> LabelSet:
    if kind == "question" or train is None:
        return LabelSet(())
    if kind in ("spans", "relations"):
        spans = (entry.spans or () for entry in train.examples if isinstance(entry, SpanExample))
        types = LabelSet.of_spans(span[0] for own in spans for span in own)
        if len(types) < 2:
            path, line = train.places[0]
            raise DataError(f"{path}, line {line}: no training example has a span; add some.")
        return types
    found = (label for example in train.examples for label in labels_in(example))
    labels = LabelSet.of_tags(found) if kind in ("tagging", "roles") else LabelSet.of_classes(found)
    path, line = train.places[0]
    missing = sum(
        isinstance(example, TextExample | PairExample) and example.label is None
        for example in train.examples
    )
    if missing or len(labels) < 2:
        raise DataError(
            f"{path}, line {line}: training needs a label for every example and at least two "
            f"different ones, but {missing} have none and {len(labels)} occur; correct the file."
        )
    return labels


def show_labels(labels: LabelSet) -> str:
    """Return labels as a sentence lists them, the first ones of many."""
    return ", ".join(labels.names[:12]) + (" ..." if len(labels) > 12 else "")


def find_unseen(split: str, part: Read, labels: LabelSet) -> Iterator[Unseen]:
    """Yield the labels of a split that are not known, each with its first place and its count."""
    first: dict[str, Place] = {}
    counts: dict[str, int] = {}
    for example, (path, line) in zip(part.examples, part.places, strict=True):
        for offset, label in enumerate(labels_in(example)):
            if label not in labels:
                first.setdefault(label, (path, line + offset * part.in_columns))
                counts[label] = counts.get(label, 0) + 1
    for label, (path, line) in first.items():
        yield Unseen(split, label, counts[label], str(path), line)
