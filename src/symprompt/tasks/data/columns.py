"""Sentences with tags: one word to a line, as the CoNLL shared tasks write them, or in rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from symprompt.errors import DataError
from symprompt.files.reading import (
    Row,
    Sentence,
    load_lines,
    load_rows,
    load_sentences,
    shorten,
    words_in,
)
from symprompt.tasks.data.build import Read
from symprompt.tasks.data.examples import OUTSIDE, Example, TaggedExample, is_tag, to_iob2
from symprompt.tasks.data.own import Columns

# CoNLL-2004 repeats the type at the end, "*A1)"; entities of one word may have no star.
_CELL = re.compile(r"((?:\([^()*\s]+)*)(\*?)((?:[^()*\s]*\))*)")


def tags_of_brackets(cells: Sequence[str]) -> tuple[tuple[str, ...] | None, int, str]:
    """Return IOB2 tags of one bracketed column, or None with the place and what is wrong there.

    Of phrases inside each other the outer one is taken, as a word has one tag.
    """
    tags: list[str] = []
    opened: list[str] = []
    for place, cell in enumerate(cells):
        match = _CELL.fullmatch(cell)
        if match is None or not cell:
            return None, place, f"{cell!r} is no bracketed tag"
        names = match[1].split("(")[1:]
        outer = opened[0] if opened else None
        opened += names
        if outer is not None:
            tags.append(f"I-{outer}")
        else:
            tags.append(f"B-{opened[0]}" if opened else OUTSIDE)
        closed = match[3].count(")")
        if closed > len(opened):
            return None, place, f"{cell!r} closes a bracket that was not opened"
        del opened[len(opened) - closed :]
    if opened:
        return None, len(cells) - 1, f"the bracket of {opened[0]!r} is never closed"
    return tuple(tags), 0, ""


# IOBES and BILOU say more about where phrases end than IOB2, which is all that is kept.
_MARKS = {"S": "B", "U": "B", "E": "I", "L": "I"}


def read_tagged(
    path: Path, split: str, *, word: int = 0, tag: int | None = -1
) -> tuple[Read, list[int]]:
    """Read tagged sentences in columns, and the document of each; IOB1 becomes IOB2.

    Args:
        word: the column of words, from 0 on; a negative one counts from the last.
        tag: the column of tags; None if there is none.
    """
    read = Read(in_columns=True)
    documents = []
    for number, sentence in enumerate(load_sentences(path)):
        words = tuple(_column(sentence, word, path, "words"))
        tags = None
        if tag is not None:
            cells = _column(sentence, tag, path, "tags")
            tags = check_tags(cells, path, sentence.line, in_columns=True)
        read.add(TaggedExample(f"{split}-{number}", words, tags), path, sentence.line)
        documents.append(sentence.document)
    return read, documents


def check_tags(tags: list[str], path: Path, line: int, *, in_columns: bool) -> tuple[str, ...]:
    """Return tags in IOB2, or refuse the first that is none with its line."""
    found = []
    for offset, tag in enumerate(tags):
        mark = _MARKS.get(tag[:1], tag[:1])
        entry = mark + tag[1:] if tag[1:2] == "-" else tag
        if not is_tag(entry):
            raise DataError(
                f"{path}, line {line + offset * in_columns}: {shorten(tag)} is no tag; allowed are "
                "O, and B- or I- before a type, such as B-PER."
            )
        found.append(entry)
    return to_iob2(found)


def _column(sentence: Sentence, column: int, path: Path, what: str) -> list[str]:
    width = len(sentence.rows[0])
    if not -width <= column < width:
        raise DataError(
            f"{path}, line {sentence.line}: there are {width} column(s), so the {what} cannot be "
            f"column {column}; give another column or correct the file."
        )
    cells = [row[column] for row in sentence.rows]
    if "" in cells:
        raise DataError(
            f"{path}, line {sentence.line + cells.index('')}: the column of {what} is empty, so "
            "words and tags are not aligned; fill it in."
        )
    return cells


def read_own_columns(path: Path, columns: Columns, split: str, labelled: bool | None) -> Read:
    """Read a user's file with a word to a line; one to predict may have words alone."""
    tag: int | None = columns.tag_column
    if not labelled:
        cells = next((line.split() for line in load_lines(path) if line.strip()), [])
        tag = tag if len(cells) > 1 else None
    return read_tagged(path, split, word=columns.word_column, tag=tag)[0]


MakeExample = Callable[[str, tuple[str, ...], tuple[str, ...] | None, Row, int], Example]


def _tagged(
    name: str, words: tuple[str, ...], tags: tuple[str, ...] | None, row: Row, line: int
) -> Example:
    return TaggedExample(name, words, tags)


def read_rows_of_words(
    path: Path,
    columns: Columns,
    split: str,
    labelled: bool | None,
    make: MakeExample = _tagged,
) -> Read:
    """Read a table with a sentence's words, and its tags, in each row.

    Args:
        labelled: whether every row must have its tags; None takes what is there.
        make: makes an example of a name, words, tags, the row and its line.
    """
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
        read.add(make(name, words, tags, row, number), path, number)
    return read
