"""What readers share: the files of a known data set, and a split as it was read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from symprompt.errors import DataError
from symprompt.files.reading import load_rows
from symprompt.tasks.data.examples import Example, LabelSet, Unseen


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


def show_labels(labels: LabelSet) -> str:
    """Return labels as a sentence lists them, the first ones of many."""
    return ", ".join(labels.names[:12]) + (" ..." if len(labels) > 12 else "")


def find_unseen(split: str, part: Read, labels: LabelSet) -> Iterator[Unseen]:
    """Yield the labels of a split that are not known, each with its first place and its count."""
    first: dict[str, Place] = {}
    counts: dict[str, int] = {}
    for example, (path, line) in zip(part.examples, part.places, strict=True):
        for offset, label in enumerate(example.labels):
            if label not in labels:
                first.setdefault(label, (path, line + offset * part.in_columns))
                counts[label] = counts.get(label, 0) + 1
    for label, (path, line) in first.items():
        yield Unseen(split, label, counts[label], str(path), line)


def has_column(path: Path, column: str, *, but_not: str) -> bool:
    """Return whether a table's first row has one column and not another."""
    first = next(iter(load_rows(path)), (0, {}))[1]
    return column in first and but_not not in first
