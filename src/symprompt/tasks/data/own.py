"""Your own labelled files: JSON lines, CSV, TSV, or words in columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from symprompt.errors import DataError
from symprompt.files.reading import TABLES, load_rows, shorten, text_in
from symprompt.runs.environment import derive_seed
from symprompt.tasks.data.build import Read

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
