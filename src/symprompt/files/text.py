"""Running text: documents read one at a time in bounded memory, and sentences cut by rule."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from symprompt.errors import DataError
from symprompt.files.progress import Tick, silent
from symprompt.files.reading import parse_row, refuse_pipe, shorten


def split_sentences(line: str) -> list[str]:
    """Return a line's sentences, stripped; joined with spaces they give the line's words again.

    A rule without a model: a sentence ends at ``. ! ?`` (or their like in other scripts), closing
    quotes included, before a space and anything but a small letter. Titles, initials, numbered
    items and decimals do not end one; abbreviations that may (Inc., U.S.) do so only before a
    word that commonly opens a sentence.
    """
    sentences: list[str] = []
    begin = 0
    for match in _END.finditer(line):
        if _ends_sentence(line, begin, match):
            sentences.append(line[begin : match.end()].strip())
            begin = match.end()
    last = line[begin:].strip()
    if last:
        sentences.append(last)
    return sentences


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# In scripts that write no spaces a full stop ends the sentence wherever it stands.
_END = re.compile(r"""[.!?…؟۔।]+["'”’»)\]]*(?=\s)|[。！？]+[」』”’）]*""")
_WORD_BEFORE = re.compile(r"[^\s(\[\"“‘«]*\Z")
_OPENING = "\"'“‘«([¿¡"
_NUMBERED = re.compile(r"\(?[0-9]{1,3}|[a-zA-Z]|[ivxIVX]+")

# Always followed by more: titles before names, Latin short forms.
_NEVER = _words(
    "mr mrs ms dr prof rev hon gen col lt maj capt cmdr adm sgt cpl gov sen rep pres mt "
    "messrs mme mlle vs v cf e.g i.e viz approx"
)
# Followed by more when that is a number; some are also words that end a sentence.
_BEFORE_NUMBERS = _words(
    "no nos fig figs eq eqs art sec ch chap vol vols p pp ca c b d r fl jan feb mar apr jun jul "
    "aug sep sept oct nov dec"
)
# May stand inside a sentence or close one.
_MAYBE = _words(
    "st inc ltd co corp dept univ bros jr sr esq al etc ft ph.d m.d b.a m.a d.c a.m p.m u.s u.k "
    "u.n u.s.a u.s.s.r b.c a.d b.c.e c.e e.u"
)
_OPENERS = _words(
    "The A An In On At It Its He She They We You I This That These Those There His Her Their "
    "Our My Your As After Before During When While Although Though However But And Or So For "
    "From By With Since Until Because If Then Thus Also Other Some Many Most All Both Each One "
    "Two According Despite What Who Where Why How Not No"
)
_OPENER = re.compile(r"([A-Z][a-z]*)(?=[\s,])")


def _ends_sentence(line: str, begin: int, match: re.Match[str]) -> bool:
    mark = match.group()
    after = line[match.end() : match.end() + 40].lstrip()
    if mark[0] in "。！？":
        return True
    first = after.lstrip(_OPENING)[:1] or after[:1]
    # The end of the line ends the sentence anyway.
    if not after or first.islower():
        return False
    if mark[0] != "." or mark.startswith(".."):
        return True
    # Only the last characters are looked at: a long line must not be copied at every period.
    return _period_ends(line[max(begin, match.start() - 40) : match.start()], mark, after)


def _period_ends(before: str, mark: str, after: str) -> bool:
    """Return whether a single period, with what stands on both sides of it, ends a sentence."""
    found = _WORD_BEFORE.search(before)
    word = found.group() if found else ""
    small = word.lower()
    if _NUMBERED.fullmatch(before.strip()):
        return False
    if len(mark) > 1:
        return True  # A closing quote or bracket followed the period.
    never = small in _NEVER and not (word.isupper() and len(word) > 1)
    if never or (small in _BEFORE_NUMBERS and after[:1].isdigit()):
        return False
    initial = len(word) == 1 and word.isalpha() and word.isupper()
    dotted = "." in word and all(len(part) <= 1 for part in word.split("."))
    if initial or dotted or small in _MAYBE:
        opener = _OPENER.match(after.lstrip(_OPENING))
        return opener is not None and opener.group(1) in _OPENERS
    return True


_OPENED_BY: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".xz": lzma.open,
    ".bz2": bz2.open,
}
TEXT_SUFFIXES = ("", ".txt", ".text", ".jsonl")
# Bounds on what is held at once; longer lines and documents are handed on in parts.
LONGEST_LINE = 1 << 20
LARGEST_DOCUMENT = 1 << 22
LONGEST_JSON = 1 << 26

# Text shrinks to a third or a tenth; what unpacks to so many times its size is to fill memory.
_RATIO = 200
_UNPACKED = 1 << 24

_SOURCE = re.compile(r"([A-Za-z][A-Za-z0-9_-]{0,31})=(.+)", re.DOTALL)
_TICK_LINES = 1 << 13
Report = Callable[[int], None]
_SURROGATE = re.compile("[\ud800-\udfff]")
T = TypeVar("T")


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


def gather(items: Iterable[T], size_of: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Yield items some at a time, as soon as they are of ``most`` together."""
    held: list[T] = []
    size = 0
    for item in items:
        held.append(item)
        size += size_of(item)
        if size >= most:
            yield held
            held, size = [], 0
    if held:
        yield held


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, read in parts.

    Raises:
        DataError: it cannot be read.
    """
    refuse_pipe(path)
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; give a readable file.") from None


def read_documents(
    sources: Sequence[str | Path], tick: Tick = silent, stage: str = "reading"
) -> Iterator[Document]:
    """Return every document of the sources in order, read one at a time in bounded memory.

    A source is a file or a folder (all text files within, sorted), and may carry its language in
    front: ``de=wiki.de.txt``. Files are UTF-8 text or JSON lines with a "text", plain or
    compressed (.gz, .xz, .bz2). A JSON line is one document. In text, blank lines separate
    documents; from the first ``<doc ...>`` line of a file on, ``<doc ...>`` and ``</doc>`` lines
    do, and blank lines do not. A document longer than 4 million characters is handed on in parts.

    Args:
        sources: files and folders.
        tick: called with the kB read.
        stage: what the progress is reported under.

    Raises:
        DataError: a source is missing, empty, binary, not UTF-8, damaged or garbled. Missing ones
            are refused at once, the rest when they are reached.
    """
    return _read_files(find_files(sources), tick, stage)


def find_files(sources: Sequence[str | Path]) -> tuple[TextFile, ...]:
    """Return the files that sources stand for, in the order they are read.

    Raises:
        DataError: a source is missing or empty, or is a folder without text files.
    """
    if not sources:
        raise DataError("no text was given; name at least one text file or folder.")
    return tuple(file for source in sources for file in _find(source))


def _find(source: str | Path) -> Iterator[TextFile]:
    language, path = "", Path(source)
    match = _SOURCE.fullmatch(source) if isinstance(source, str) else None
    # A path that exists as it stands is never taken apart.
    if match is not None and not path.exists():
        language, path = match.group(1), Path(match.group(2))
    if not path.exists():
        raise DataError(f"{path} does not exist; give an existing text file or folder.")
    paths = [path]
    if path.is_dir():
        paths = sorted(
            Path(folder, name)
            for folder, _, names in os.walk(path)
            for name in names
            if not name.startswith(".") and _plain_suffix(Path(name)) in TEXT_SUFFIXES
        )
    if not paths:
        raise DataError(
            f"{path} holds no text files; names must end in .txt, .text, .jsonl or have no "
            "ending, with or without .gz, .xz or .bz2."
        )
    for entry in paths:
        if not entry.is_file():
            raise DataError(
                f"{entry} is not a regular file; it is read more than once, so give a file on disk."
            )
        size = entry.stat().st_size
        if not size:
            raise _empty(entry)
        yield TextFile(entry, size, language)


def _plain_suffix(path: Path) -> str:
    """Return a name's ending in lower case, the compression's left out."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in _OPENED_BY else suffix


def _empty(path: Path) -> DataError:
    return DataError(f"{path} is empty; give a file with text in it, or leave it out.")


def _read_files(files: Sequence[TextFile], tick: Tick, stage: str) -> Iterator[Document]:
    total = sum(file.size for file in files)
    before = 0
    for file in files:

        def report(position: int, before: int = before, name: str = file.path.name) -> None:
            tick(stage, min(before + position, total) // 1000, total // 1000, f"kB, {name}")

        lines = _json_lines if _plain_suffix(file.path) == ".jsonl" else _text_lines
        found = False
        for document in _documents(file.language, lines(file.path, report)):
            found = True
            yield document
        if not found:
            raise _empty(file.path)
        before += file.size
        report(0, before)


def _documents(language: str, lines: Iterable[str | None]) -> Iterator[Document]:
    """Yield documents of lines; None ends one, and so does a line too many for the limit."""
    held: list[str] = []
    size = 0
    for line in lines:
        if held and (line is None or size + len(line) > LARGEST_DOCUMENT):
            yield Document(language, tuple(held))
            held, size = [], 0
        if line:
            held.append(line)
            size += len(line)
    if held:
        yield Document(language, tuple(held))


def _text_lines(path: Path, report: Report) -> Iterator[str | None]:
    """Yield the lines of a text file, None where a document ends."""
    marked = False
    for _, line in _lines(path, report, longest=LONGEST_LINE):
        tag = line == "</doc>" or (line.startswith(("<doc ", "<doc>")) and line.endswith(">"))
        marked = marked or tag
        yield None if tag or not (line or marked) else line


def _json_lines(path: Path, report: Report) -> Iterator[str | None]:
    """Yield the lines of every JSON line's text, None after each text."""
    for number, line in _lines(path, report, longest=None):
        if not line:
            continue
        row = parse_row(path, number, line)
        text = row.get("text")
        if not isinstance(text, str):
            raise DataError(
                f'{path}, line {number}: no text under "text" but keys {shorten(list(row))}; '
                'every line must be an object such as {"text": "Some text."}.'
            )
        if "\x00" in text or _SURROGATE.search(text):
            raise DataError(
                f'{path}, line {number}: "text" holds zero characters or half characters '
                "(surrogates), so it is not text; remove them."
            )
        yield from (part.strip() for part in text.split("\n"))
        yield None


def _lines(path: Path, report: Report, longest: int | None) -> Iterator[tuple[int, str]]:
    """Yield line numbers and stripped lines; a line over ``longest`` bytes comes in parts."""
    limit = LONGEST_JSON if longest is None else longest
    number, offset, rest = 1, 0, b""
    open_stream = _OPENED_BY.get(path.suffix.lower(), nullcontext)
    try:
        most = max(_UNPACKED, _RATIO * path.stat().st_size)
        with path.open("rb") as raw, open_stream(raw) as stream:
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
                if offset > most:
                    raise DataError(
                        f"{path} unpacks to more than {_RATIO} times its size, as no ordinary text "
                        "does; unpack it and look, then give the unpacked file."
                    )
                if number % _TICK_LINES == 0:
                    report(raw.tell())
            if rest:
                yield number, _decode(path, number, offset, rest)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DataError(
            f"{path} cannot be read at line {number} ({reason}); give a whole, readable file."
        ) from None


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
