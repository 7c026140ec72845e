"""Read running text as documents, one at a time."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from symprompt.errors import DataError
from symprompt.facts.reading import shorten
from symprompt.pretrain.sentences import split_sentences
from symprompt.runtime import Tick, silent

__all__ = ["Document", "TextFile", "find_files", "read_documents", "split_sentences"]

COMPRESSED = (".gz", ".xz", ".bz2")
TEXT_SUFFIXES = ("", ".txt", ".text", ".jsonl")
# Bounds on what is held at once; longer lines and documents are handed on in parts.
LONGEST_LINE = 1 << 20
LARGEST_DOCUMENT = 1 << 22
LONGEST_JSON = 1 << 26

_SOURCE = re.compile(r"([A-Za-z][A-Za-z0-9_-]{0,31})=(.+)", re.DOTALL)
_TICK_LINES = 1 << 13
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Document:
    """One article, story or page.

    Attributes:
        language: the name given with its source; "" when none was given.
        lines: its lines in order, stripped, none empty; never none at all.
    """

    language: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class TextFile:
    """One file of a source: its path, its size on disk in bytes and its language."""

    path: Path
    size: int
    language: str

    @property
    def label(self) -> str:
        """The file as it is listed with a corpus: language, name and size."""
        name = f"{self.language}={self.path.name}" if self.language else self.path.name
        return f"{name} ({self.size} bytes)"

    @property
    def is_json(self) -> bool:
        """Whether every line is a JSON object with a "text"."""
        return _plain_suffix(self.path) == ".jsonl"


def read_documents(sources: Sequence[str | Path], tick: Tick = silent) -> Iterator[Document]:
    """Return every document of the sources in order, read one at a time in bounded memory.

    A source is a file or a folder (all text files within, sorted), and may carry its language in
    front: ``de=wiki.de.txt``. Files are UTF-8 text or JSON lines with a "text", plain or
    compressed (.gz, .xz, .bz2). A JSON line is one document. In text, blank lines separate
    documents; from the first ``<doc ...>`` line of a file on, ``<doc ...>`` and ``</doc>`` lines
    do, and blank lines do not. A document longer than 4 million characters is handed on in parts.

    Args:
        sources: files and folders.
        tick: told of the bytes read, stage "read".

    Raises:
        DataError: a source is missing, empty, binary, not UTF-8, damaged or garbled. Missing ones
            are refused at once, the rest when they are reached.
    """
    return _read_files(find_files(sources), tick)


def find_files(sources: Sequence[str | Path]) -> tuple[TextFile, ...]:
    """Return the files that sources stand for, in the order they are read.

    Raises:
        DataError: a source is missing or empty, or is a folder without text files.
    """
    if not sources:
        raise DataError("no text was given; name at least one text file or folder.")
    return tuple(file for source in sources for file in _find(source))


def _find(source: str | Path) -> list[TextFile]:
    language, path = _parse_source(source)
    if not path.exists():
        raise DataError(f"{path} does not exist; give an existing text file or folder.")
    if path.is_dir():
        found = [
            Path(folder, name)
            for folder, _, names in os.walk(path)
            for name in names
            if not name.startswith(".") and _plain_suffix(Path(name)) in TEXT_SUFFIXES
        ]
        if not found:
            raise DataError(
                f"{path} holds no text files; names must end in .txt, .text, .jsonl or have no "
                "ending, with or without .gz, .xz or .bz2."
            )
        paths = sorted(found)
    else:
        paths = [path]
    return [_check_file(entry, language) for entry in paths]


def _check_file(path: Path, language: str) -> TextFile:
    if not path.is_file():
        raise DataError(
            f"{path} is not a regular file; it is read more than once, so give a file on disk."
        )
    size = path.stat().st_size
    if not size:
        raise _empty(path)
    return TextFile(path, size, language)


def _parse_source(source: str | Path) -> tuple[str, Path]:
    """Return language and path; a path that exists as it stands is never taken apart."""
    match = _SOURCE.fullmatch(source) if isinstance(source, str) else None
    if match is None or Path(source).exists():
        return "", Path(source)
    return match.group(1), Path(match.group(2))


def _plain_suffix(path: Path) -> str:
    """Return a name's ending in lower case, the compression's left out."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in COMPRESSED else suffix


def _empty(path: Path) -> DataError:
    return DataError(f"{path} is empty; give a file with text in it, or leave it out.")


def _read_files(files: Sequence[TextFile], tick: Tick) -> Iterator[Document]:
    total = sum(file.size for file in files)
    before = 0
    for file in files:
        documents = _json_documents if file.is_json else _text_documents
        found = False
        for document in documents(file, _Progress(tick, before, total, file.path.name)):
            found = True
            yield document
        if not found:
            raise _empty(file.path)
        before += file.size
        tick("read", before, total, file.path.name)


@dataclass(frozen=True)
class _Progress:
    tick: Tick
    before: int
    total: int
    name: str

    def at(self, position: int) -> None:
        self.tick("read", min(self.before + position, self.total), self.total, self.name)


def _text_documents(file: TextFile, progress: _Progress) -> Iterator[Document]:
    lines: list[str] = []
    size = 0
    marked = False
    for _, line in _lines(file.path, progress, longest=LONGEST_LINE):
        tag = line == "</doc>" or (line.startswith(("<doc ", "<doc>")) and line.endswith(">"))
        marked = marked or tag
        ends = tag or (not line and not marked) or size + len(line) > LARGEST_DOCUMENT
        if ends and lines:
            yield Document(file.language, tuple(lines))
            lines, size = [], 0
        if line and not tag:
            lines.append(line)
            size += len(line)
    if lines:
        yield Document(file.language, tuple(lines))


def _json_documents(file: TextFile, progress: _Progress) -> Iterator[Document]:
    for number, line in _lines(file.path, progress, longest=None):
        if not line:
            continue
        text = _json_text(file.path, number, line)
        # A text of blanks only is a document without words: nothing is lost with it.
        lines: list[str] = []
        size = 0
        for part in (part.strip() for part in text.split("\n")):
            if lines and size + len(part) > LARGEST_DOCUMENT:
                yield Document(file.language, tuple(lines))
                lines, size = [], 0
            if part:
                lines.append(part)
                size += len(part)
        if lines:
            yield Document(file.language, tuple(lines))


def _json_text(path: Path, number: int, line: str) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise DataError(
            f"{path}, line {number}: {shorten(line)} is not valid JSON; "
            'write one object per line, such as {"text": "Some text."}.'
        ) from None
    text = row.get("text") if isinstance(row, dict) else None
    if not isinstance(text, str):
        got = f"keys {shorten(list(row))}" if isinstance(row, dict) else shorten(row)
        raise DataError(
            f'{path}, line {number}: no text under "text" but {got}; '
            'every line must be an object such as {"text": "Some text."}.'
        )
    if "\x00" in text or _SURROGATE.search(text):
        raise DataError(
            f'{path}, line {number}: "text" holds zero characters or half characters '
            "(surrogates), so it is not text; remove them."
        )
    return text


def _lines(path: Path, progress: _Progress, longest: int | None) -> Iterator[tuple[int, str]]:
    """Yield line numbers and stripped lines; a line over ``longest`` bytes comes in parts."""
    limit = LONGEST_JSON if longest is None else longest
    number, offset, rest = 1, 0, b""
    try:
        with path.open("rb") as raw, _decompressed(path, raw) as stream:
            while data := stream.readline(limit - len(rest)):
                data = rest + data
                whole = data.endswith(b"\n") or len(data) < limit
                if not whole and longest is None:
                    raise DataError(
                        f"{path}, line {number} is longer than {LONGEST_JSON >> 20} MiB; "
                        "write one document per line."
                    )
                data, rest = (data, b"") if whole else _cut(data)
                yield number, _decode(path, number, offset, data)
                offset += len(data)
                number += whole
                if number % _TICK_LINES == 0:
                    progress.at(raw.tell())
            if rest:
                yield number, _decode(path, number, offset, rest)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DataError(
            f"{path} cannot be read at line {number} ({reason}); give a whole, readable file."
        ) from None


def _decompressed(path: Path, raw: BinaryIO) -> BinaryIO:
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    if suffix == ".xz":
        return cast(BinaryIO, lzma.LZMAFile(raw))
    if suffix == ".bz2":
        return cast(BinaryIO, bz2.BZ2File(raw))
    return raw


def _cut(data: bytes) -> tuple[bytes, bytes]:
    """Cut an overlong line after its last space, or else before a character's first byte."""
    at = data.rfind(b" ") + 1
    if not at:
        at = len(data)
        while at > 1 and data[at - 1] & 0xC0 == 0x80:
            at -= 1
        at = at - 1 if at > 1 and data[at - 1] >= 0xC0 else at
    return data[:at], data[at:]


def _decode(path: Path, number: int, offset: int, data: bytes) -> str:
    if b"\x00" in data:
        at = offset + data.index(b"\x00")
        raise DataError(
            f"{path}, line {number}, byte {at}: a zero byte, so the file is binary; "
            "give a UTF-8 text file."
        )
    try:
        return data.decode("utf-8-sig" if offset == 0 else "utf-8").strip()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, line {number}, byte {offset + error.start}: the bytes are not UTF-8 text; "
            "save the file as UTF-8."
        ) from None
