"""Rows of JSON lines, CSV and TSV files, and what may stand in their cells."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from symprompt.errors import DataError
from symprompt.files.reading import load_text, shorten

Row = Mapping[str, object]

TABLES = (".jsonl", ".csv", ".tsv")


def load_lines(path: Path) -> list[str]:
    """Return a text file's lines without their ends; only line feeds end a line."""
    return [line.rstrip("\r") for line in load_text(path).split("\n")]


def load_rows(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield every row of a .jsonl, .csv or .tsv file with its line number.

    The first line of a .csv or .tsv file names the columns. Cells of a .csv file may be quoted;
    in a .tsv file a quote is a character like any other, as in GLUE.
    """
    kind = path.suffix.lower()
    if kind == ".jsonl":
        yield from _json_rows(path)
    elif kind == ".csv":
        yield from _csv_rows(path)
    elif kind == ".tsv":
        lines = enumerate(load_lines(path), start=1)
        yield from _named(path, ((number, line.split("\t")) for number, line in lines if line))
    else:
        raise DataError(
            f"{path} ends in {path.suffix!r}, but a table must end in {', '.join(TABLES)}; "
            "rename or convert it."
        )


def find_column(row: Row, names: Sequence[str], path: Path, number: int) -> str:
    """Return which of several spellings of a column a row has, or refuse it."""
    found = next((name for name in names if name in row), None)
    if found is None:
        raise DataError(
            f"{path}, line {number}: there is no column {' or '.join(map(repr, names))}, only "
            f"{shorten(list(row), 200)}; name the column that holds it."
        )
    return found


def text_in(row: Row, names: Sequence[str], path: Path, number: int) -> str:
    """Return the text in a column; a missing or an empty one is refused."""
    column = find_column(row, names, path, number)
    value = row[column]
    if not isinstance(value, str) or not value.strip():
        raise DataError(
            f"{path}, line {number}: {column!r} is {shorten(value)}, but only text that is not "
            "empty is allowed; correct the line."
        )
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise DataError(
            f"{path}, line {number}: {column!r} is {shorten(value)}, which holds half a character "
            "(a surrogate); correct it."
        )
    return value.strip()


def label_in(row: Row, names: Sequence[str], path: Path, number: int) -> str:
    """Return the label in a column as text: true and false, numbers and words are allowed."""
    column = find_column(row, names, path, number)
    value = row[column]
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise DataError(
            f"{path}, line {number}: the label {column!r} is {shorten(value)}, but only a word or "
            "a whole number is allowed; correct the line."
        )
    return value.strip()


def words_in(row: Row, names: Sequence[str], path: Path, number: int) -> tuple[str, ...]:
    """Return a list of words, or the words of a text parted by spaces."""
    column = find_column(row, names, path, number)
    value = row[column]
    if isinstance(value, str):
        value = value.split()
    if not isinstance(value, list) or not value:
        raise DataError(
            f"{path}, line {number}: {column!r} is {shorten(value)}, but only a list of words that "
            "is not empty is allowed; correct the line."
        )
    for word in value:
        if not isinstance(word, str) or not word.strip():
            raise DataError(
                f"{path}, line {number}: {column!r} holds {shorten(word)}, but only words are "
                "allowed; correct the line."
            )
    return tuple(value)


def _json_rows(path: Path) -> Iterator[tuple[int, Row]]:
    for number, line in enumerate(load_lines(path), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise DataError(
                f"{path}, line {number}: {shorten(line)} is not valid JSON; write one JSON object "
                "per line."
            ) from None
        if not isinstance(value, dict):
            raise DataError(
                f"{path}, line {number}: got a JSON {type(value).__name__}, but only an object "
                'is allowed, such as {"text": "...", "label": "..."}; correct the line.'
            )
        yield number, value


def _csv_rows(path: Path) -> Iterator[tuple[int, Row]]:
    reader = csv.reader(io.StringIO(load_text(path), newline=""), strict=True)

    def cells() -> Iterator[tuple[int, list[str]]]:
        try:
            for entry in reader:
                if entry:
                    yield reader.line_num, entry
        except csv.Error as error:
            raise DataError(
                f"{path}, line {reader.line_num}: the cells cannot be read ({error}); write a "
                "quote inside a quoted cell twice."
            ) from None

    yield from _named(path, cells())


def _named(path: Path, rows: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, Row]]:
    header: list[str] = []
    for number, cells in rows:
        if not header:
            header = [cell.strip() for cell in cells]
            if len(set(header)) < len(header):
                raise DataError(
                    f"{path}, line {number}: a column name is repeated in {shorten(header)}; name "
                    "each column once."
                )
            continue
        if len(cells) != len(header):
            raise DataError(
                f"{path}, line {number}: got {len(cells)} cell(s), but the header has "
                f"{len(header)}; every line needs as many."
            )
        yield number, dict(zip(header, cells, strict=True))
