"""Read text and JSON lines from disk, and refuse what is garbled with its file and line number."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from symprompt.errors import DataError

Row = Mapping[str, object]

# The label spellings come first: Google-RE lines hold machine identifiers under "sub" and "obj"
# and the text under "sub_label" and "obj_label".
SUBJECT_KEYS = ("sub_label", "subject", "sub")
OBJECT_KEYS = ("obj_label", "object", "obj")

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def load_text(path: Path) -> str:
    """Return a file's text; a missing, unreadable, binary or empty file is refused."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; give the path of an existing file.") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DataError(f"{path} cannot be read ({reason}); give a readable text file.") from None
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
        raise DataError(f"{path} is empty; give a file with at least one fact or entry.")
    return text


def parse_json_line(path: Path, number: int, line: str) -> Row:
    """Return one JSON object with its keys in lower case, or refuse the line by number."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise DataError(
            f"{path}, line {number}: {shorten(line)} is not valid JSON; "
            "write one JSON object per line."
        ) from None
    if not isinstance(value, dict):
        raise DataError(
            f"{path}, line {number}: got a JSON {type(value).__name__}, but only an object is "
            'allowed, such as {"sub": "France", "obj": "Paris"}.'
        )
    row = {key.strip().lower(): entry for key, entry in value.items()}
    if len(row) < len(value):
        raise DataError(
            f"{path}, line {number}: two keys of {shorten(list(value))} differ only in case; "
            "keep one of them."
        )
    return row


def load_json_lines(path: Path) -> list[tuple[int, Row]]:
    """Return every line's number and JSON object, keys in lower case; blank lines are passed by."""
    # Only "\n" ends a line: str.splitlines would also cut at separators allowed inside JSON text.
    lines = load_text(path).split("\n")
    return [
        (number, parse_json_line(path, number, line))
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]


def text_at(row: Row, keys: Sequence[str], path: Path, number: int) -> str:
    """Return the text under the first of ``keys`` the row has; anything but clean text is refused.

    Args:
        row: one line's values by lower-case key.
        keys: accepted spellings of the key, the preferred one first.
        path: the file the row comes from, for the message.
        number: the row's line number, for the message.
    """
    key = next((key for key in keys if key in row), None)
    if key is None:
        raise DataError(
            f"{path}, line {number}: no key {' or '.join(map(repr, keys))} among "
            f"{shorten(list(row))}; add one."
        )
    value = row[key]
    if not isinstance(value, str):
        raise DataError(
            f"{path}, line {number}: {key!r} is {shorten(value)}, "
            "but only text is allowed; put it in quotes."
        )
    if not value.strip():
        raise DataError(f"{path}, line {number}: {key!r} is empty; fill it in or remove the line.")
    # Surrogates cannot be written back as UTF-8, and tabs or line breaks cannot be told apart
    # from the separators of a result file.
    if _CONTROL.search(value) or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise DataError(
            f"{path}, line {number}: {key!r} is {shorten(value)}, "
            "but tabs, line breaks and other control characters are not allowed; remove them."
        )
    return value.strip()


def shorten(value: object, limit: int = 80) -> str:
    """Return how a value is written in Python, cut to ``limit`` characters."""
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


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
