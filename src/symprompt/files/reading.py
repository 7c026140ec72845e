"""Rows of JSON lines, CSV, TSV, Parquet, CoNLL files; what is garbled is refused by file, line."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeGuard

from symprompt.errors import ConfigError, DataError, SympromptError
from symprompt.files.parquet import COLUMNAR, is_dataset, load_columnar

Row = Mapping[str, object]

TEXT_TABLES = (".jsonl", ".csv", ".tsv")
TABLES = (*TEXT_TABLES, *COLUMNAR)
Split = Literal["train", "dev", "test"]
SPLIT_NAMES: dict[str, Split] = {
    "train": "train",
    "dev": "dev",
    "val": "dev",
    "valid": "dev",
    "validation": "dev",
    "devel": "dev",
    "test": "test",
}
"""What splits are called in columns and in names of files."""

_SURROGATE = re.compile(r"[\ud800-\udfff]")
_ODD_IN_LINE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
"""Half characters and control characters."""
_DOCUMENT = "-DOCSTART-"
_SPACES = re.compile(r"[ \t]+")
_BREAKS = ("#doc", "#begin", "#end")
_SHOWN = 20
"""So many bad rows are shown."""


@dataclass(frozen=True)
class GivenRows:
    """Rows that a program has at hand, read as those of a file are; final.

    Attributes:
        lines: the line of each, where they are some of a file's; without them rows are counted.
        name: what they are called.
    """

    rows: Sequence[Row]
    lines: Sequence[int] = ()
    name: str = "what was given"

    def __str__(self) -> str:
        return self.name


Source = Path | GivenRows
"""Where rows are read from."""


def source_of(given: Source | Iterable[object], names: Sequence[str]) -> Source:
    """Return a file as it is, and plain values as rows.

    Args:
        given: texts, lists of words, tuples of what the columns hold, or rows by column; one text
            or one row too.
        names: the columns that a value which is no row fills, in order.

    Raises:
        DataError: a value does not fill the columns.
    """
    if isinstance(given, Path | GivenRows):
        return given
    rows: list[Row] = []
    for number, entry in enumerate([given] if isinstance(given, str | Mapping) else given, 1):
        if isinstance(entry, Mapping):
            rows.append(entry)
            continue
        parts = (entry,) if len(names) == 1 else entry
        if not isinstance(parts, tuple | list) or len(parts) != len(names):
            raise DataError(
                f"{GivenRows(())}, line {number}: {shorten(entry)} is not {' and '.join(names)}; "
                "give a tuple of these, or a dictionary."
            )
        rows.append(dict(zip(names, parts, strict=True)))
    return GivenRows(rows)


def ends_in(path: Source, *endings: str) -> TypeGuard[Path]:
    """Return whether rows are read from a file with one of these endings, in any case.

    A folder of the datasets library is as one of its files.
    """
    if COLUMNAR[0] in endings and is_dataset(path):
        return True
    return isinstance(path, Path) and path.suffix.lower() in endings


def refuse_pipe(path: Path, kind: type[SympromptError] = DataError) -> None:
    """Refuse what may never come to an end: a pipe, a socket or a device."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise kind(f"{path} is a pipe or a device; give a file on disk.")


def load_text(path: Path) -> str:
    """Return a file's text; a missing, unreadable, binary or empty file is refused."""
    try:
        refuse_pipe(path)
        data = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; give the path of an existing file.") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DataError(f"{path} cannot be read ({reason}); give a readable text file.") from None
    return decode_text(data, path)


def decode_text(data: bytes, path: object) -> str:
    """Return the text of bytes; what is binary or empty is refused.

    Args:
        path: where they are from.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}, line {line}: the bytes are not UTF-8 text; save the file as UTF-8."
        ) from None
    if "\x00" in text:
        raise DataError(f"{path} holds zero bytes, so it is binary; give a UTF-8 text file.")
    if not text.strip():
        raise DataError(f"{path} is empty; give a file with at least one entry.")
    return text


def load_lines(path: Path) -> list[str]:
    """Return a text file's lines without their ends; only line feeds end a line."""
    # str.splitlines would also cut at separators that are allowed inside JSON text.
    return [line.rstrip("\r") for line in load_text(path).split("\n")]


def load_rows(
    path: Source, *, any_case: bool = False, header: bool = True, bad: list[str] | None = None
) -> Iterator[tuple[int, Row]]:
    """Yield every row of a .jsonl, .csv, .tsv or .parquet file with its line number.

    Folders of the datasets library are read too; their splits are a column "split".

    The first line of a .csv or .tsv file names the columns. Cells of a .csv file may be quoted;
    in a .tsv file a quote is a character like any other, as in GLUE. Blank lines are passed by.

    Args:
        any_case: give all names of columns in lower case.
        header: whether the first line of a .csv or .tsv file names the columns; if not, they are
            called by their numbers, from 0 on.
        bad: takes what is wrong with lines that are no rows; without it the first one is refused.
    """
    if isinstance(path, GivenRows):
        yield from zip(path.lines or range(1, len(path.rows) + 1), path.rows, strict=True)
        return
    kind = path.suffix.lower()
    if ends_in(path, *COLUMNAR):
        for number, row in enumerate(load_columnar(path), start=1):
            yield number, {key.lower(): own for key, own in row.items()} if any_case else row
        return
    if kind not in TABLES:
        load_text(path)  # refuses a file that is missing as such
        raise DataError(
            f"{path} ends in {path.suffix!r}, but a table must end in {', '.join(TABLES)}; "
            "rename or convert it."
        )
    if kind == ".jsonl":
        for number, line in enumerate(load_lines(path), start=1):
            if line.strip():
                with collect_bad(bad):
                    yield number, parse_row(path, number, line, any_case=any_case)
        return
    names: list[str] = []
    for number, cells in _csv_cells(path) if kind == ".csv" else _tsv_cells(path):
        # A blank line has one cell at most; a line of several empty cells is a broken row.
        if len(cells) <= 1 and not "".join(cells).strip():
            continue
        if not names and header:
            names = check_names(path, number, cells, any_case=any_case)
            continue
        names = names or [str(place) for place in range(len(cells))]
        with collect_bad(bad):
            yield number, make_row(path, number, names, cells, header=header)


def check_names(path: Path, number: int, cells: Sequence[str], *, any_case: bool) -> list[str]:
    """Return the names of columns that a table's first line has; a repeated one is refused."""
    names = [cell.strip().lower() if any_case else cell.strip() for cell in cells]
    if len(set(names)) < len(names):
        raise DataError(
            f"{path}, line {number}: a column name is repeated in {shorten(names)}; name each "
            "column once."
        )
    return names


def make_row(
    path: Path, number: int, names: Sequence[str], cells: Sequence[str], *, header: bool
) -> Row:
    """Return cells by the names of their columns; too few or too many are refused."""
    if len(cells) != len(names):
        raise DataError(
            f"{path}, line {number}: got {len(cells)} cell(s), but the "
            f"{'header' if header else 'first line'} has {len(names)}; every line needs as many, "
            f"and cells of a .csv file that hold a comma need quotes{likely_cause(names)}."
        )
    return dict(zip(names, cells, strict=True))


def first_row(path: Source, *, header: bool = True) -> Row:
    """Return the first row of a table, which is empty if there is none."""
    return next(iter(load_rows(path, header=header)), (0, {}))[1]


@contextmanager
def collect_bad(bad: list[str] | None) -> Iterator[None]:
    """Add what is wrong with a row to a list instead of raising it, if there is a list."""
    try:
        yield
    except DataError as error:
        if bad is None:
            raise
        bad.append(str(error))


def refuse_bad(bad: Sequence[str], path: Source) -> None:
    """Refuse a file or folder for its bad rows, all at once.

    Args:
        bad: what is wrong with each; none of them is no reason.

    Raises:
        DataError: with the first of them, and how many there are.
    """
    advice = "leave such rows out with --bad-rows skip"
    if len(bad) == 1:
        raise DataError(f"{bad[0].removesuffix('.')}, or {advice}.")
    if bad:
        shown = [line.removeprefix(f"{path}, ") for line in bad[:_SHOWN]]
        more = [f"and {len(bad) - _SHOWN:,} more."] if len(bad) > _SHOWN else []
        raise DataError(
            f"{path}: {len(bad):,} rows cannot be used; correct them, or {advice}:\n  "
            + "\n  ".join([*shown, *more])
        )


def likely_cause(header: Sequence[str]) -> str:
    """Return why a table has but one column, if its name tells; for the end of a sentence."""
    signs = {";": "semicolons", "\t": "tabs", "|": "vertical bars", ",": "commas"}
    for sign, name in signs.items():
        if len(header) == 1 and sign in str(header[0]):
            return (
                f"; this looks like {name} between the cells: save a .csv file with commas, a .tsv "
                "file with tabs"
            )
    return ""


def parse_row(path: Path, number: int, line: str, *, any_case: bool = False) -> Row:
    """Return one line's JSON object, or refuse the line by number."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise DataError(
            f"{path}, line {number}: {shorten(line)} is not valid JSON; write one JSON object per "
            "line."
        ) from None
    if not isinstance(value, dict):
        raise DataError(
            f"{path}, line {number}: got a JSON {type(value).__name__}, but only an object is "
            'allowed, such as {"text": "Some text."}; correct the line.'
        )
    if not any_case:
        return value
    row = {key.strip().lower(): entry for key, entry in value.items()}
    if len(row) < len(value):
        raise DataError(
            f"{path}, line {number}: two keys of {shorten(list(value))} differ only in case; "
            "keep one of them."
        )
    return row


def split_cells(lines: Iterable[str]) -> Any:
    """Return a reader of CSV, each row's cells; a quoted cell may hold line breaks."""
    return csv.reader(lines, strict=True)


def _csv_cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = split_cells(io.StringIO(load_text(path), newline=""))
    first = 1
    try:
        for cells in reader:
            yield first, cells
            first = reader.line_num + 1  # a quoted cell may hold line breaks
    except csv.Error as error:
        raise DataError(
            f"{path}, line {first}: the cells cannot be read ({error}); write a quote "
            "inside a quoted cell twice."
        ) from None


def _tsv_cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(load_lines(path), start=1):
        yield number, line.split("\t")


@dataclass(frozen=True)
class Sentence:
    """A sentence's cells, word by word, the line of its first word, and its document's number."""

    rows: list[list[str]]
    line: int
    document: int


def load_sentences(path: Path) -> Iterator[Sentence]:
    """Yield the sentences of a CoNLL file, whose columns are parted by tabs or else by spaces.

    Blank lines, lines that begin with #doc, #begin or #end, and -DOCSTART- lines part sentences.
    Other lines that begin with # and stand before a sentence's first word are comments if their
    number of columns is not that of the lines before them.
    """
    rows: list[list[str]] = []
    first, document, width = 0, 0, 0
    for number, line in enumerate(load_lines(path), start=1):
        bare = line.strip(" \t")
        # Other spaces, such as the one that does not break, may be part of a word.
        cells = line.split("\t") if "\t" in bare else _SPACES.split(bare)
        heading = line.startswith(_BREAKS) or cells[0] == _DOCUMENT
        if heading or not bare:
            if rows:
                yield Sentence(rows, first, document)
                rows = []
            document += heading
            continue
        if line.startswith("#") and not rows and len(cells) != width:
            continue
        if rows and len(cells) != len(rows[0]):
            raise DataError(
                f"{path}, line {number}: got {len(cells)} column(s), but the sentence began with "
                f"{len(rows[0])}, so words and tags are not aligned; every word needs as many."
            )
        if not rows:
            first, width = number, len(cells)
        rows.append([cell.strip(" ") for cell in cells])
    if rows:
        yield Sentence(rows, first, document)


def find_column(row: Row, names: Sequence[str], path: Source, number: int) -> str:
    """Return which of several spellings of a column a row has, or refuse it."""
    for name in names:
        if name in row:
            return name
    raise DataError(
        f"{path}, line {number}: there is no column {' or '.join(map(repr, names))}, only "
        f"{shorten(list(row), 200)}"
        f"{likely_cause(list(row)) or '; name the column that holds it with --columns'}."
    )


def read_columns(
    given: Mapping[str, str] | Sequence[str], roles: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Return what a table calls its columns, role -> name in lower case.

    Args:
        given: such a mapping, or pairs such as subject=company.
        roles: what a column can be, and the names that it goes by.

    Raises:
        ConfigError: a pair is no pair, or names no role.
    """
    if isinstance(given, Mapping):
        given = [f"{role}={column}" for role, column in given.items()]
    found: dict[str, str] = {}
    for pair in given:
        role, equals, column = pair.partition("=")
        if not equals or role not in roles or not column.strip():
            raise ConfigError(
                f"columns has {pair!r}; give role=column, such as {next(iter(roles))}=name; roles "
                f"are: {', '.join(roles)}."
            )
        found[role] = column.strip().lower()
    return found


def rename(
    row: Row,
    called: Mapping[str, str],
    roles: Mapping[str, Sequence[str]],
    path: Source,
    number: int,
) -> Row:
    """Return a row under the names of its columns' roles."""
    named = {role: row[find_column(row, (own,), path, number)] for role, own in called.items()}
    hidden = {*called.values(), *(key for role in called for key in roles[role])}
    return {key: value for key, value in row.items() if key not in hidden} | named


def text_in(
    row: Row, names: Sequence[str], path: Source, number: int, *, one_line: bool = False
) -> str:
    """Return the text in a column; a missing or an empty one is refused.

    Args:
        names: accepted spellings of the column's name, the preferred one first.
        one_line: refuse tabs, line breaks and other control characters too: they cannot be told
            apart from the separators of a result file.
    """
    column = find_column(row, names, path, number)
    value = row[column]
    if not isinstance(value, str):
        raise DataError(
            f"{path}, line {number}: {column!r} is {shorten(value)}, but only text is allowed; "
            "put it in quotes."
        )
    text = value.strip()
    if not text:
        raise DataError(
            f"{path}, line {number}: {column!r} is empty; fill it in or remove the line."
        )
    # Nothing odd is printable, and that is quick to see.
    if value.isprintable() or not (_ODD_IN_LINE if one_line else _SURROGATE).search(value):
        return text
    if _SURROGATE.search(value):
        raise DataError(
            f"{path}, line {number}: {column!r} is {shorten(value)}, which holds half a character "
            "(a surrogate); correct it."
        )
    raise DataError(
        f"{path}, line {number}: {column!r} is {shorten(value)}, but tabs, line breaks and other "
        "control characters are not allowed; remove them."
    )


def number_in(row: Row, column: str, path: Source, number: int) -> float:
    """Return the finite number in a column."""
    value = row[find_column(row, (column,), path, number)]
    try:
        found = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        found = math.nan
    if isinstance(value, bool) or not math.isfinite(found):
        raise DataError(
            f"{path}, line {number}: {column!r} is {shorten(value)}, but only a finite number is "
            "allowed; correct it."
        )
    return found


def split_in(row: Row, column: str, path: Source, number: int) -> Split:
    """Return the split in a column."""
    text = text_in(row, (column,), path, number)
    if text.lower() not in SPLIT_NAMES:
        raise DataError(
            f"{path}, line {number}: the split is {shorten(text)}, but only train, dev (or valid, "
            "validation, val) and test are allowed; correct it."
        )
    return SPLIT_NAMES[text.lower()]


def label_in(row: Row, names: Sequence[str], path: Source, number: int) -> str:
    """Return the label in a column as text: true and false, numbers and words are allowed.

    A whole number is the same label with and without a point.
    """
    column = find_column(row, names, path, number)
    value = row[column]
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value) if value.is_integer() else value)
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise DataError(
            f"{path}, line {number}: the label {column!r} is {shorten(value)}, but only a word or "
            "a number is allowed; correct the line."
        )
    return value.strip()


def words_in(row: Row, names: Sequence[str], path: Source, number: int) -> tuple[str, ...]:
    """Return a list of words, or the words of a text parted by spaces."""
    column = find_column(row, names, path, number)
    value = row[column]
    if isinstance(value, str):
        value = value.split()
    if not isinstance(value, list | tuple) or not value:
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


def shorten(value: object, limit: int = 80) -> str:
    """Return how a value is written in Python, cut to ``limit`` characters."""
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
