"""What readers share: the files of a known data set, and a split as it was read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from symprompt.errors import DataError
from symprompt.files.reading import TABLES, load_rows, shorten, text_in
from symprompt.runs.environment import derive_seed
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


IN_COLUMNS = (".conll", ".txt", ".bio", ".iob", ".iob2", ".ner")
"""Endings of files with a word to a line."""
_ENDINGS = (*TABLES, *IN_COLUMNS, ".json")
_SPLIT_FILES = {
    "train": ("train",),
    "dev": ("dev", "val", "valid", "validation", "devel"),
    "test": ("test",),
}
_SPLIT_OF = {name: split for split, names in _SPLIT_FILES.items() for name in names}


@dataclass(frozen=True)
class Columns:
    """What the columns of your files are called; in a .conll file words and tags are numbers.

    Attributes:
        text: of a text (kind sequence).
        first, second: of the two texts of a pair.
        label: of the class.
        words, tags: of a sentence's words and their tags (kinds tagging, roles).
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


ReadFile = Callable[[Path, str, bool | None], Read]
"""Reads one file as a split; labels are needed, or taken where they are (None)."""


def read_own(path: Path, read: ReadFile, split_column: str, seed: int) -> dict[str, Read]:
    """Read a user's data: a folder with train, dev and test files, or one file.

    One file is parted by its split column, or else 80/10/10 by the seed. The test split may have
    no labels.
    """
    if not path.is_dir():
        return _parted(path, read, split_column, seed)
    return {
        split: read(file, split, split != "test" or None)
        for split, file in _split_files(path).items()
    }


def _split_files(folder: Path) -> dict[str, Path]:
    """Return the file of each split in a folder."""
    files: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        split = _SPLIT_OF.get(path.stem.lower())
        if split is None or path.suffix.lower() not in _ENDINGS or not path.is_file():
            continue
        if split in files:
            raise DataError(
                f"{folder} has two files for {split}, {files[split].name} and {path.name}; keep "
                "one of them."
            )
        files[split] = path
    if "train" not in files:
        raise DataError(
            f"{folder} has no file for train; it needs train.jsonl (or .csv, .tsv, .conll), and "
            "dev and test beside it."
        )
    return {split: files[split] for split in _SPLIT_FILES if split in files}


def _parted(path: Path, read: ReadFile, split_column: str, seed: int) -> dict[str, Read]:
    """Read one file and part it into splits, by its split column or by the seed."""
    whole = read(path, "row", True)
    chosen = _split_column(path, split_column)
    name = (lambda line: chosen[line]) if chosen else _drawn(whole, seed)
    parts = {split: Read(in_columns=whole.in_columns) for split in _SPLIT_FILES}
    for example, (where, line) in zip(whole.examples, whole.places, strict=True):
        parts[name(line)].add(example, where, line)
    parts["train"].dropped = whole.dropped
    return {split: part for split, part in parts.items() if part.examples}


def _split_column(path: Path, column: str) -> dict[int, str]:
    """Return the split of each line of a table with a split column, or nothing."""
    if path.suffix.lower() not in TABLES:
        return {}
    found: dict[int, str] = {}
    for number, row in load_rows(path):
        if column not in row and not found:
            return {}
        text = text_in(row, (column,), path, number)
        if text.lower() not in _SPLIT_OF:
            raise DataError(
                f"{path}, line {number}: the split is {shorten(text)}, but only train, dev (or "
                "valid, validation, val) and test are allowed; correct it."
            )
        found[number] = _SPLIT_OF[text.lower()]
    return found


def _drawn(whole: Read, seed: int) -> Callable[[int], str]:
    """Return each line's split, drawn by the seed: a tenth is dev and a tenth is test."""
    lines = list(dict.fromkeys(line for _, line in whole.places))
    order = np.random.default_rng(derive_seed(seed, "splits")).permutation(len(lines))
    tenth = max(1, len(lines) // 10)
    if len(lines) < 3:
        path, line = whole.places[0]
        raise DataError(
            f"{path}, line {line}: {len(lines)} line(s) cannot be parted into train, dev and test; "
            "add examples or give files for the splits."
        )
    split = {lines[index]: "train" for index in order}
    split |= {lines[index]: "dev" for index in order[:tenth]}
    split |= {lines[index]: "test" for index in order[tenth : 2 * tenth]}
    return split.__getitem__
