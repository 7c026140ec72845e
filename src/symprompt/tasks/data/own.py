"""Your own labelled files: JSON lines, CSV, TSV, or words in columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from symprompt.errors import ConfigError, DataError
from symprompt.files.reading import (
    TABLES,
    find_column,
    load_lines,
    load_rows,
    shorten,
    text_in,
    words_in,
)
from symprompt.runs.environment import derive_seed
from symprompt.tasks.data.build import Read, UnseenLabels, make_task
from symprompt.tasks.data.classes import ClassTable, read_classes
from symprompt.tasks.data.columns import check_tags, read_tagged
from symprompt.tasks.data.examples import (
    KINDS,
    RolesExample,
    TaggedExample,
    TaskData,
    TaskKind,
    TextExample,
)
from symprompt.tasks.data.questions import read_flat, read_paragraphs
from symprompt.tasks.data.roles import predicate_in, read_propbank
from symprompt.tasks.data.spans import read_spans, with_spans

_IN_COLUMNS = (".conll", ".txt", ".bio", ".iob", ".iob2", ".ner")
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


def load_own(
    path: Path,
    kind: TaskKind,
    columns: Columns,
    *,
    name: str = "",
    seed: int = 0,
    unseen: UnseenLabels = "refuse",
) -> TaskData:
    """Load your own data: a folder with train, dev and test files, or one file.

    One file is parted by its split column, or else 80/10/10 by the seed. The test split may have
    no labels.
    """
    check_kind(kind)
    if path.is_dir():
        parts = {
            split: read_own(file, kind, columns, split, labelled=split != "test" or None)
            for split, file in _split_files(path).items()
        }
    else:
        parts = _parted(path, kind, columns, seed)
    return make_task(kind, name or path.stem, parts, unseen=unseen)


def check_kind(kind: str) -> None:
    """Refuse a kind of task that there is not."""
    if kind not in KINDS:
        raise ConfigError(f"the kind of task is {kind!r}, but only {', '.join(KINDS)} are allowed.")


def read_own(
    path: Path, kind: TaskKind, columns: Columns, split: str, *, labelled: bool | None
) -> Read:
    """Read one file of examples of a kind.

    Args:
        labelled: whether every example must have its label; None takes what is there.
    """
    ending = path.suffix.lower()
    if kind in ("sequence", "pair"):
        if kind == "sequence" and ending == ".txt" and not labelled:
            return _read_plain(path, split)
        texts = (columns.text,) if kind == "sequence" else (columns.first, columns.second)
        table = ClassTable(tuple((text,) for text in texts), (columns.label,), (columns.id,))
        return read_classes(path, table, split, labelled=labelled)
    if kind == "question":
        return _read_questions(path, columns, split, labelled)
    if kind == "tagging" and ending in _IN_COLUMNS:
        return _read_columns(path, columns, split, labelled)
    if kind == "spans" and ending in _IN_COLUMNS:
        return with_spans(_read_columns(path, columns, split, labelled))
    if kind == "spans" and _has(path, columns.tags, but_not=columns.spans):
        return with_spans(_read_words(path, "tagging", columns, split, labelled))
    if kind in ("spans", "relations"):
        return read_spans(
            path,
            split,
            words=columns.words,
            spans=columns.spans,
            relations=columns.relations if kind == "relations" else None,
            identity=columns.id,
            labelled=labelled,
        )
    if kind == "roles" and _has(path, "frames", but_not=columns.predicate):
        return read_propbank(path, split)
    return _read_words(path, kind, columns, split, labelled)


def _read_plain(path: Path, split: str) -> Read:
    """Read one text per line, without labels."""
    read = Read()
    for number, line in enumerate(load_lines(path), start=1):
        if line.strip():
            read.add(TextExample(f"{split}-{number}", line.strip()), path, number)
    return read


def _read_questions(path: Path, columns: Columns, split: str, labelled: bool | None) -> Read:
    if path.suffix.lower() == ".json":
        read = read_paragraphs(path, split)
    else:
        first = next(iter(load_rows(path)), (0, {}))[1]
        read = (
            read_paragraphs(path, split)
            if "qas" in first
            else read_flat(
                path,
                split,
                question=columns.question,
                context=columns.context,
                answers=columns.answers,
                identity=columns.id,
            )
        )
    unknown = [
        place
        for example, place in zip(read.examples, read.places, strict=True)
        if not getattr(example, "answers", ()) and not getattr(example, "impossible", False)
    ]
    if labelled and unknown:
        where, line = unknown[0]
        raise DataError(
            f"{where}, line {line}: there is no column {columns.answers!r} for the answers of this "
            "question; name the column that holds them, with an empty list for no answer."
        )
    return read


def _read_columns(path: Path, columns: Columns, split: str, labelled: bool | None) -> Read:
    if labelled:
        return read_tagged(path, split, word=columns.word_column, tag=columns.tag_column)[0]
    # A file to predict has one column, of words; one with tags keeps them.
    cells = next((line.split() for line in load_lines(path) if line.strip()), [])
    tag = columns.tag_column if len(cells) > 1 else None
    return read_tagged(path, split, word=columns.word_column, tag=tag)[0]


def _read_words(
    path: Path, kind: TaskKind, columns: Columns, split: str, labelled: bool | None
) -> Read:
    """Read a table with a sentence's words, and its tags, in each row."""
    read = Read()
    for number, row in load_rows(path):
        words = words_in(row, (columns.words,), path, number)
        name = str(row.get(columns.id, f"{split}-{number}"))
        tags = None
        if labelled or columns.tags in row:
            given = words_in(row, (columns.tags,), path, number)
            if len(given) != len(words):
                raise DataError(
                    f"{path}, line {number}: got {len(given)} tag(s) for {len(words)} word(s), so "
                    "they are not aligned; every word needs one."
                )
            tags = check_tags(list(given), path, number, in_columns=False)
        if kind == "tagging":
            read.add(TaggedExample(name, words, tags), path, number)
        else:
            column = find_column(row, (columns.predicate,), path, number)
            place = predicate_in(row[column], len(words), path, number)
            read.add(RolesExample(name, words, place, tags), path, number)
    return read


def _has(path: Path, column: str, *, but_not: str) -> bool:
    """Say whether a table's first row has one column and not another."""
    first = next(iter(load_rows(path)), (0, {}))[1]
    return column in first and but_not not in first


def _split_files(folder: Path) -> dict[str, Path]:
    """Return the file of each split in a folder."""
    endings = (*TABLES, *_IN_COLUMNS, ".json")
    files: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        split = _SPLIT_OF.get(path.stem.lower())
        if split is None or path.suffix.lower() not in endings or not path.is_file():
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


def _parted(path: Path, kind: TaskKind, columns: Columns, seed: int) -> dict[str, Read]:
    """Read one file and part it into splits, by its split column or by the seed."""
    whole = read_own(path, kind, columns, "row", labelled=True)
    chosen = _split_column(path, columns.split)
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
