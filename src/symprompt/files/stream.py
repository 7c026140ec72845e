"""Long tables in, long tables out: block after block, gone on with after a kill.

A block is so many rows of what is read, good and bad, wherever a run was broken; so what is
computed for it never depends on that. What was written is sure once the state beside it says so;
the state is renewed every few seconds, and what was written after it is cut off and made again.
"""

from __future__ import annotations

import csv
import gc
import io
import json
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from symprompt.errors import ConfigError, DataError, RunError
from symprompt.files.atomic import (
    part_of,
    read_json,
    reason,
    replacing,
    to_json_lines,
    write_json,
)
from symprompt.files.progress import Tick, silent
from symprompt.files.reading import (
    TABLES,
    TEXT_TABLES,
    Row,
    check_names,
    make_row,
    parse_row,
    refuse_pipe,
    split_cells,
)

try:
    import fcntl
except ImportError:  # no POSIX
    fcntl = None  # type: ignore[assignment]

BLOCK = 4096
"""Rows of a block."""
EVERY = 2.0
"""Seconds between two states."""
LONGEST = 1 << 20
"""Most bytes in a line."""
ENDINGS = (".jsonl", ".csv", ".parquet")
"""What is written, by the file's ending."""
_AT_ONCE = 1 << 16
_NOT_BLANK = re.compile(rb"[!-~]")
_CELL = rb'(?:[^",\r\n]*|"(?:[^"]|"")*")'
_QUOTED = re.compile(_CELL + rb"(?:," + _CELL + rb")*\r?\n")
"""A line of cells in which every quote is closed."""
_SHARDS = 64
_MOST_BLOCKS = 64
Bad = tuple[int, str]
"""A line and what is wrong with it."""


@dataclass(frozen=True)
class Place:
    """Where a reader stands: bytes and lines read, and the check sum of the bytes."""

    bytes: int = 0
    lines: int = 0
    crc: int = 0


@dataclass(frozen=True)
class Block:
    """Some consecutive rows; final.

    Attributes:
        rows: line and row of each that can be read.
        bad: line of each that cannot, and why.
        place: where the reader stands after them.
    """

    rows: list[tuple[int, Row]]
    bad: list[Bad]
    place: Place


@dataclass(frozen=True)
class Shard:
    """Some consecutive blocks of a file, which are made apart from the others; final.

    Attributes:
        start: where the reader stands before them.
        end: where it stands after them.
        rows: how many there are, good and bad.
        block: rows of a block.
    """

    start: Place
    end: Place
    rows: int
    block: int


class Reader:
    """Reads a .jsonl, .csv or .tsv table or the lines of a text file, one block at a time; final.

    No more than a block is in memory, and no line longer than ``LONGEST``.

    Args:
        path: the file.
        lines_as: the column that a line of a text file, with any other ending, is.
        any_case: give all names of columns in lower case.
        header: whether the first line of a .csv or .tsv file names the columns; else they are
            called by their numbers.
        block: rows of a block.

    Raises:
        DataError: the file cannot be read, or its first line does not name columns.
    """

    def __init__(
        self,
        path: Path,
        *,
        lines_as: str = "text",
        any_case: bool = True,
        header: bool = True,
        block: int = BLOCK,
    ) -> None:
        self.path, self.block = path, block
        self._kind = path.suffix.lower() if path.suffix.lower() in TABLES else ""
        if self._kind not in ("", *TEXT_TABLES):
            raise DataError(
                f"{path} ends in {self._kind}, and only text is read one block at a time; give "
                f"{', '.join(TEXT_TABLES)} or lines of text."
            )
        self._lines_as, self._any_case = lines_as, any_case
        self._header = header and self._kind in (".csv", ".tsv")
        self._names: list[str] = []
        refuse_pipe(path)
        try:
            self.size = path.stat().st_size
            path.open("rb").close()
        except FileNotFoundError:
            raise DataError(f"{path} does not exist; give the path of an existing file.") from None
        except OSError as error:
            raise DataError(f"{path} cannot be read ({reason(error)}).") from None

    def blocks(self, place: Place | None = None, until: Place | None = None) -> Iterator[Block]:
        """Yield the blocks from a place on.

        Args:
            until: the place to stop at; then it is checked in the end, and not what stands before.

        Raises:
            DataError: what stands before a place is not what it was.
        """
        place = place or Place()
        try:
            with self.path.open("rb") as stream:
                self._skip(stream, place, check=until is None)
                for block in self._read(_Lines(self.path, stream, place)):
                    if until is not None and block.place.bytes > until.bytes:
                        break
                    place = block.place
                    yield block
                    if place == until:
                        return
        except OSError as error:
            raise DataError(f"{self.path} cannot be read ({reason(error)}).") from None
        if until is not None and place != until:
            self._refuse(until)

    def cut(self) -> list[Shard]:
        """Return the file as shards of a block each, or of more so that there are not too many.

        How many there are depends on the file alone.
        """
        ends, rows = [Place()], 0
        for place, more in self._ends():
            ends.append(place)
            rows += more
        count = len(ends) - 1
        each = min(_MOST_BLOCKS, max(1, count // _SHARDS))
        starts = range(0, count, each)
        return [
            Shard(
                ends[at],
                ends[min(at + each, count)],
                min(rows, (at + each) * self.block) - at * self.block,
                self.block,
            )
            for at in starts
        ]

    def _ends(self) -> Iterator[tuple[Place, int]]:
        """Yield where each block ends, and how many rows it has.

        Blocks of which every line is surely a row are passed by; others are read.
        """
        place = Place()
        try:
            with self.path.open("rb") as stream:
                while place.bytes < self.size:
                    lines = list(islice(iter(partial(stream.readline, LONGEST), b""), self.block))
                    data = b"".join(lines)
                    if place.bytes and all(map(self._is_row, lines)):
                        crc = zlib.crc32(data, place.crc)
                        place = Place(place.bytes + len(data), place.lines + len(lines), crc)
                        yield place, len(lines)
                        continue
                    self._skip(stream, place, check=False)
                    block = next(self._read(_Lines(self.path, stream, place)), None)
                    if block is None:
                        return
                    place = block.place
                    stream.seek(place.bytes)
                    yield place, len(block.rows) + len(block.bad)
        except OSError as error:
            raise DataError(f"{self.path} cannot be read ({reason(error)}).") from None

    def _is_row(self, line: bytes) -> bool:
        """Return whether a line is surely one row, good or bad."""
        if not _NOT_BLANK.search(line) or not line.endswith(b"\n"):
            return False
        return self._kind != ".csv" or b'"' not in line or bool(_QUOTED.fullmatch(line))

    def _refuse(self, place: Place) -> NoReturn:
        raise DataError(
            f"{self.path} is not what it was when its first {place.lines:,} lines were read; "
            "give the file of then, or start anew with --overwrite."
        )

    def _skip(self, stream: BinaryIO, place: Place, *, check: bool) -> None:
        """Go to a place; the names of columns are read again, and what stands before checked."""
        self._names = []
        stream.seek(0)
        if place.bytes and self._kind in (".csv", ".tsv"):
            # The first line that is not blank names the columns, or says how many there are.
            next(self._entries(_Lines(self.path, stream, Place())), None)
            stream.seek(0)
        if not check:
            stream.seek(place.bytes)
            return
        left, crc = place.bytes, 0
        while left:
            piece = stream.read(min(left, _AT_ONCE))
            if not piece:
                break
            left, crc = left - len(piece), zlib.crc32(piece, crc)
        if left or crc != place.crc:
            self._refuse(place)

    def _read(self, lines: _Lines) -> Iterator[Block]:
        rows: list[tuple[int, Row]] = []
        bad: list[Bad] = []
        for number, entry in self._entries(lines):
            if isinstance(entry, str):
                bad.append((number, entry))
            else:
                rows.append((number, entry))
            if len(rows) + len(bad) == self.block:
                yield Block(rows, bad, lines.place)
                rows, bad = [], []
        if rows or bad:
            yield Block(rows, bad, lines.place)

    def _entries(self, lines: _Lines) -> Iterator[tuple[int, Row | str]]:
        """Yield each row, or what is wrong with it, and its line; blank lines are passed by."""
        cells = split_cells(lines) if self._kind == ".csv" else None
        while True:
            number = lines.count + 1
            try:
                if cells is not None:
                    found = next(cells)
                    # A blank line has one cell at most.
                    if len(found) <= 1 and not "".join(found).strip():
                        continue
                    row = self._named(found, number)
                else:
                    line = next(lines).rstrip("\r\n")
                    if not line.strip():
                        continue
                    row = self._row(line, number)
            except StopIteration:
                return
            except DataError as error:
                if self._header and not self._names:
                    raise
                yield number, str(error)
                continue
            except csv.Error as error:
                yield (
                    number,
                    f"{self.path}, line {number}: the cells cannot be read ({error}); write a "
                    "quote inside a quoted cell twice.",
                )
                continue
            if row is not None:
                yield number, row

    def _row(self, line: str, number: int) -> Row | None:
        if self._kind == ".jsonl":
            return parse_row(self.path, number, line, any_case=self._any_case)
        if self._kind == ".tsv":
            return self._named(line.split("\t"), number)
        return {self._lines_as: line.strip()}

    def _named(self, cells: list[str], number: int) -> Row | None:
        """Return the cells as a row; none for the line that names the columns."""
        if not self._names and self._header:
            self._names = check_names(self.path, number, cells, any_case=self._any_case)
            return None
        self._names = self._names or [str(place) for place in range(len(cells))]
        return make_row(self.path, number, self._names, cells, header=self._header)


class _Lines:
    """The lines of a file as text, counted."""

    def __init__(self, path: Path, stream: BinaryIO, place: Place) -> None:
        self._path, self._stream = path, stream
        self._bytes, self.count, self._crc = place.bytes, place.lines, place.crc

    @property
    def place(self) -> Place:
        return Place(self._bytes, self.count, self._crc)

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._stream.readline(LONGEST)
        if not line:
            raise StopIteration
        first = not self._bytes
        self.count += 1
        self._take(line)
        if len(line) == LONGEST and not line.endswith(b"\n"):
            while line and not line.endswith(b"\n"):
                line = self._stream.readline(LONGEST)
                self._take(line)
            raise DataError(
                f"{self._path}, line {self.count}: it has more than {LONGEST:,} bytes; give a "
                "table with a row in each line."
            )
        try:
            text = line.decode("utf-8-sig" if first else "utf-8")
        except UnicodeDecodeError:
            raise DataError(
                f"{self._path}, line {self.count}: the bytes are not UTF-8 text; save the file as "
                "UTF-8."
            ) from None
        if "\x00" in text:
            raise DataError(
                f"{self._path}, line {self.count}: it holds zero bytes; give UTF-8 text."
            )
        return text

    def _take(self, line: bytes) -> None:
        self._bytes += len(line)
        self._crc = zlib.crc32(line, self._crc)


@dataclass(frozen=True)
class Made:
    """What was made of a block: rows to write, and further rows that cannot be used; final.

    Attributes:
        rows: by column, or as JSON, each one line without its end.
        tally: what is counted over all blocks, by name.
    """

    rows: Sequence[Mapping[str, Any]] | Sequence[str]
    bad: Sequence[Bad] = ()
    tally: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Streamed:
    """What came of a stream; final.

    Attributes:
        out: the file that was written.
        rows: how many rows were answered, and ``bad`` how many could not be.
        bad_file: where these are listed by line; empty if there are none.
        resumed: how many rows had been answered by an earlier, broken run.
        seconds: how long this run took.
        tally: see ``Made``.
    """

    out: str
    rows: int = 0
    bad: int = 0
    bad_file: str = ""
    resumed: int = 0
    seconds: float = 0.0
    tally: Mapping[str, int] = field(default_factory=dict)


@dataclass
class _State:
    """What is sure: the reader's place, the bytes written, the rows counted, and what it is of."""

    about: dict[str, Any]
    place: Place = field(default_factory=Place)
    written: int = 0
    bad_written: int = 0
    rows: int = 0
    bad: int = 0
    tally: dict[str, int] = field(default_factory=dict)
    done: bool = False


@dataclass(frozen=True)
class Format:
    """How rows are written; final.

    Attributes:
        columns: of .csv and .parquet, with their types: int, float or str.
        flatten: gives the lines of such a file that a row is; without it a row is a line.
    """

    columns: Mapping[str, type]
    flatten: Callable[[Mapping[str, Any]], Iterable[Mapping[str, Any]]] | None = None

    def lines(self, rows: Iterable[Mapping[str, Any] | str]) -> Iterator[dict[str, Any]]:
        """Yield the flat lines that rows are; what is no text or number is written as JSON."""
        for given in rows:
            row = json.loads(given) if isinstance(given, str) else given
            for line in [row] if self.flatten is None else self.flatten(row):
                yield {
                    name: json.dumps(value, ensure_ascii=False)
                    if isinstance(value, list | dict | tuple)
                    else value
                    for name in self.columns
                    for value in [line.get(name)]
                }


def side_file(target: Path) -> Path:
    """Return where the rows that could not be used are listed."""
    return target.with_name(target.name + ".bad.jsonl")


def check_target(target: Path) -> None:
    """Refuse a file to write of a kind that is not known."""
    if target.suffix.lower() not in ENDINGS:
        raise ConfigError(
            f"--out {target} ends in {target.suffix!r}, but only {', '.join(ENDINGS)} are allowed."
        )
    require_parquet(target)


def require_parquet(target: Path) -> None:
    """Refuse to write Parquet where it cannot be."""
    if target.suffix.lower() == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise ConfigError(
                "Parquet needs pyarrow, which is not installed: pip install pyarrow, or write "
                ".jsonl or .csv."
            ) from None


def stream(
    reader: Reader,
    target: Path,
    start: Callable[[Block], Callable[[], Made]],
    *,
    form: Format,
    about: Mapping[str, Any],
    overwrite: bool = False,
    shard: Shard | None = None,
    stage: str = "asking",
    tick: Tick = silent,
) -> Streamed:
    """Make rows of a file's rows, block by block, and write them; go on where a run was broken.

    A file that ends in neither .csv nor .parquet is written as JSON lines.

    The file is the same, to the byte, however often it was broken. While a block is computed the
    one before it is written and the next one read, so two are in memory.

    Args:
        start: begins a block, and returns what waits for its rows.
        form: how they are written.
        about: all that the rows depend on; a run with other settings is not gone on with.
        overwrite: write the file even if it is there, and start anew where settings differ.
        shard: make this one alone, as a piece of a file that ``join`` writes.

    Raises:
        ConfigError: the file is there, or a broken run had other settings.
        DataError: there are no rows, or those read are not what they were.
        RunError: it cannot be written, or another process is writing it.
    """
    require_parquet(target)
    begun = time.monotonic()
    until = None
    if shard is not None:
        reader.block, until = shard.block, shard.end
    elif shards_of(target).exists():
        raise ConfigError(
            f"{target} was begun with several jobs; go on with --jobs or --on, or delete "
            f"{shards_of(target)} to start anew."
        )
    about = {**about, "block": reader.block}
    with (
        _old_objects_left_alone(),
        _Writer(target, form, about, overwrite=overwrite, shard=shard) as writer,
    ):
        state, resumed = writer.state, writer.state.rows
        pending: tuple[Block, Callable[[], Made]] | None = None
        saved = begun
        if not state.done:
            for block in reader.blocks(state.place, until) if state.place != until else ():
                ahead = block, start(block)
                if pending is not None:
                    saved = _write(writer, *pending, saved)
                    _show(tick, stage, state, reader, shard)
                pending = ahead
            if pending is not None:
                _write(writer, *pending, saved)
            if not state.rows and not state.bad:
                raise DataError(f"{reader.path} is empty; give a file with at least one entry.")
            tick(stage, state.rows + state.bad, state.rows + state.bad, _note(state))
        writer.finish()
        return Streamed(
            str(target),
            state.rows,
            state.bad,
            str(side_file(target)) if state.bad else "",
            resumed,
            time.monotonic() - begun,
            state.tally,
        )


@contextmanager
def _old_objects_left_alone() -> Iterator[None]:
    """Keep the garbage collector from going through all that was there before, again and again.

    Every row makes objects, and a model's libraries have made a million: going through those takes
    a third of the time of a stream.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _write(writer: _Writer, block: Block, wait: Callable[[], Made], saved: float) -> float:
    """Write a block; return when the state was renewed last."""
    made = wait()
    for name, count in made.tally.items():
        writer.state.tally[name] = writer.state.tally.get(name, 0) + count
    writer.add(made.rows, sorted([*block.bad, *made.bad]), block.place)
    now = time.monotonic()
    if now - saved < EVERY:
        return saved
    writer.save()
    return now


def _show(tick: Tick, stage: str, state: _State, reader: Reader, shard: Shard | None) -> None:
    done = state.rows + state.bad
    if shard is not None:
        tick(stage, done, shard.rows, _note(state))
        return
    # How many there are is known at the end alone; the bytes say about how many.
    total = max(done + 1, round(done * reader.size / max(1, state.place.bytes)))
    tick(stage, done, total, _note(state))


def _note(state: _State) -> str:
    return f"({state.bad:,} bad)" if state.bad else ""


class _Writer:
    """Appends rows to a file that is not in its place yet, and those that are bad to another."""

    def __init__(
        self,
        target: Path,
        form: Format,
        about: Mapping[str, Any],
        *,
        overwrite: bool,
        shard: Shard | None = None,
    ) -> None:
        self.target, self.form, self.overwrite = target, form, overwrite
        self.kind, self.whole = target.suffix.lower(), shard is None
        self.paths = part_of(target), part_of(side_file(target))
        self._state_path = _state_of(target)
        self.state = _State({**about, "written": self.kind})
        if shard is not None:
            self.state.about["start"] = shard.start.bytes
            self.state.place = shard.start
        self._streams: list[BinaryIO] = []

    def __enter__(self) -> _Writer:
        with self._refusing():
            self.target.parent.mkdir(parents=True, exist_ok=True)
            for path in self.paths:
                if path.is_symlink():
                    path.unlink()  # nothing is written to where a link leads
                self._streams.append(path.open("a+b"))
            self._hold(self._streams[0])
        try:
            with self._refusing():
                self._open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _open(self) -> None:
        """Go to what is sure, or to the beginning."""
        old = self._load() if self._state_path.exists() else None
        if old is None and self.target.exists() and not self.overwrite:
            raise ConfigError(f"{self.target} exists; choose another --out, or give --overwrite.")
        if old is not None and old.about != self.state.about:
            keys = {**old.about, **self.state.about}
            differ = [key for key in keys if old.about.get(key) != self.state.about.get(key)]
            if not self.overwrite:
                raise ConfigError(
                    f"{self.target} was begun with other settings ({', '.join(differ)}); give "
                    "those to go on, or --overwrite to start anew."
                )
            old = None
        self.state = old or self.state
        if self.state.done and not self.paths[0].stat().st_size and self.target.exists():
            return  # killed when all was in its place
        sure = self.state.written, self.state.bad_written
        for path, opened, size in zip(self.paths, self._streams, sure, strict=True):
            if path.stat().st_size < size:
                raise RunError(
                    f"{path} is shorter than {self._state_path.name} says; delete both to start "
                    "anew."
                )
            opened.truncate(size)
        if not self.state.written and self.kind == ".csv" and self.whole:
            self._append(0, _header(self.form))

    def __exit__(self, *_: object) -> None:
        for opened in self._streams:
            opened.close()
        # Where nothing is sure, nothing is left.
        if not self._state_path.exists():
            for path in self.paths:
                path.unlink(missing_ok=True)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(
                f"cannot write {self.target}: {reason(error)}; once it can be written, the same "
                "command goes on where it was."
            ) from error

    def _hold(self, opened: BinaryIO) -> None:
        """Keep other processes from writing here."""
        if fcntl is None:
            return
        try:
            fcntl.lockf(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            for each in self._streams:
                each.close()
            raise RunError(
                f"another process is writing {self.target}; wait for it, or choose another --out."
            ) from None
        except OSError:
            pass  # a file system without locks

    def _load(self) -> _State:
        found = read_json(self._state_path)
        try:
            return _State(**{**found, "place": Place(**found["place"])})
        except (TypeError, KeyError) as error:
            raise RunError(
                f"{self._state_path} is damaged ({error}); delete it to start anew."
            ) from error

    def add(
        self,
        rows: Sequence[Mapping[str, Any]] | Sequence[str],
        bad: Sequence[Bad],
        place: Place,
    ) -> None:
        """Append what came of a block."""
        if self.kind == ".csv":
            content = _csv_lines(self.form.lines(rows))
        else:
            content = to_json_lines(self.form.lines(rows) if self.kind == ".parquet" else rows)
        with self._refusing():
            self._append(0, content)
            self._append(1, to_json_lines({"line": line, "why": why} for line, why in bad))
        self.state.place = place
        self.state.rows += len(rows)
        self.state.bad += len(bad)

    def _append(self, which: int, content: bytes) -> None:
        self._streams[which].write(content)
        if which == 0:
            self.state.written += len(content)
        else:
            self.state.bad_written += len(content)

    def save(self) -> None:
        """Bring all to the disk, and say so."""
        with self._refusing():
            for opened in self._streams:
                opened.flush()
                os.fsync(opened.fileno())
        write_json(self._state_path, asdict(self.state))

    def finish(self) -> None:
        """Put the files in their places."""
        if not self.state.done:
            self.state.done = True
            self.save()
        part, bad_part = self.paths
        with self._refusing():
            if part.stat().st_size or not self.state.written or not self.target.exists():
                if self.kind == ".parquet" and self.whole:
                    _to_parquet([part], self.target, self.form.columns)
                    part.unlink()
                else:
                    part.replace(self.target)
            if self.state.bad and bad_part.stat().st_size:
                bad_part.replace(side_file(self.target))
            elif not self.state.bad:
                side_file(self.target).unlink(missing_ok=True)
            self._state_path.unlink()


def _csv_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(row.values() for row in rows)
    return text.getvalue().encode()


def _header(form: Format) -> bytes:
    return _csv_lines([{name: name for name in form.columns}])


def _state_of(target: Path) -> Path:
    return target.with_name(target.name + ".state.json")


def forget(target: Path) -> None:
    """Delete what a broken run in one go has left of a file."""
    for path in (_state_of(target), part_of(target), part_of(side_file(target))):
        path.unlink(missing_ok=True)


def shards_of(target: Path) -> Path:
    """Return where the pieces of a file stand that several jobs make."""
    return target.with_name(target.name + ".shards")


def join(pieces: Sequence[Path], target: Path, form: Format) -> None:
    """Write a file of its shards, to the byte as one that was made in one go.

    Raises:
        RunError: it cannot be written.
    """
    kind = target.suffix.lower()
    if kind == ".parquet":
        _to_parquet(pieces, target, form.columns)
    else:
        _concatenate(pieces, target, _header(form) if kind == ".csv" else b"")
    bad = [path for path in map(side_file, pieces) if path.exists()]
    if bad:
        _concatenate(bad, side_file(target), b"")
    else:
        side_file(target).unlink(missing_ok=True)


def _concatenate(pieces: Sequence[Path], target: Path, head: bytes) -> None:
    with replacing(target) as path, path.open("wb") as whole:
        whole.write(head)
        for piece in pieces:
            with piece.open("rb") as opened:
                shutil.copyfileobj(opened, whole)


def _to_parquet(parts: Iterable[Path], target: Path, columns: Mapping[str, type]) -> None:
    """Turn JSON lines into Parquet, some at a time."""
    import pyarrow as arrow
    from pyarrow import parquet

    types = {int: arrow.int64(), float: arrow.float64(), str: arrow.string()}
    schema = arrow.schema([(name, types[own]) for name, own in columns.items()])
    with (
        replacing(target) as path,
        parquet.ParquetWriter(path, schema) as writer,
    ):
        some: list[dict[str, Any]] = []
        for line in _lines_of(parts):
            some.append(json.loads(line))
            if len(some) == _AT_ONCE:
                writer.write_table(arrow.Table.from_pylist(some, schema))
                some = []
        writer.write_table(arrow.Table.from_pylist(some, schema))


def _lines_of(parts: Iterable[Path]) -> Iterator[str]:
    for part in parts:
        with part.open(encoding="utf-8") as lines:
            yield from lines
