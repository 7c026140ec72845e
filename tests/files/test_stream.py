"""Streams: constant memory, bad rows by line, and the same bytes after any kill."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symprompt.errors import ConfigError, DataError, RunError
from symprompt.files import stream as streaming
from symprompt.files.atomic import part_of
from symprompt.files.stream import Block, Format, Made, Reader, Streamed, side_file, stream

FORM = Format({"line": int, "text": str, "length": float})


def answer(block: Block) -> Callable[[], Made]:
    rows = [
        {"line": line, "text": row["text"], "length": len(str(row["text"])) / 2}
        for line, row in block.rows
        if row["text"] != "refuse me"
    ]
    bad = [(line, "refused") for line, row in block.rows if row["text"] == "refuse me"]
    return lambda: Made(rows, bad)


def run(path: Path, out: Path, *, block: int = 7, **options: Any) -> Streamed:
    about = {"top": 1}
    return stream(Reader(path, block=block), out, answer, form=FORM, about=about, **options)


def write(path: Path, lines: Iterable[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines))
    return path


def read(path: Path) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write(tmp_path / "texts.csv", ["text", *(f"text {number}" for number in range(50))])


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.txt"])
def test_every_kind_of_file_is_read_with_its_lines(tmp_path: Path, name: str) -> None:
    lines = {
        "a.csv": ["Text", "one", "", '"two, and"', '"three', 'lines"', "four"],
        "a.tsv": ["Text", "one", "", "two, and", "three", "", "four"],
        "a.jsonl": ['{"Text": "one"}', "", '{"text": "two, and"}', *['{"text": "three"}'] * 2],
        "a.txt": ["one", "", " two, and ", "three", "", "four"],
    }[name]
    rows = [
        pair
        for block in Reader(write(tmp_path / name, lines), block=2).blocks()
        for pair in block.rows
    ]
    first = 1 if name in ("a.jsonl", "a.txt") else 2
    assert rows[:2] == [(first, {"text": "one"}), (first + 2, {"text": "two, and"})]
    assert rows[2][0] == first + 3
    assert rows[3][0] == first + (4 if name == "a.jsonl" else 5)


def test_blocks_from_any_place_are_those_of_a_whole_reading(tmp_path: Path) -> None:
    lines = ["\ufefftext,n", *(f'"a\nb{number}",{number}' for number in range(20)), "", "x"]
    path = write(tmp_path / "a.csv", lines)
    whole = list(Reader(path, block=3).blocks())
    for number, block in enumerate(whole):
        assert list(Reader(path, block=3).blocks(block.place)) == whole[number + 1 :]
    assert whole[-1].bad == [
        (
            43,
            f"{path}, line 43: got 1 cell(s), but the header has 2; every line needs as many, and "
            "cells of a .csv file that hold a comma need quotes.",
        )
    ]


def test_malformed_rows_are_listed_by_line_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b'{"text": "one"}\n{"text": \n[1]\n\xff\xfe\n{"text": "a\x00b"}\n'
        + b'{"text": "'
        + b"x" * streaming.LONGEST
        + b'"}\n'
        + b'{"text": "refuse me"}\n{"text": "last"}'
    )
    done = run(path, tmp_path / "out.jsonl", block=3)
    assert [row["text"] for row in read(tmp_path / "out.jsonl")] == ["one", "last"]
    assert (done.rows, done.bad) == (2, 6)
    bad = read(Path(done.bad_file))
    assert [row["line"] for row in bad] == [2, 3, 4, 5, 6, 7]
    for row, why in zip(
        bad,
        ("not valid JSON", "JSON list", "UTF-8", "zero bytes", "more than", "refused"),
        strict=True,
    ):
        assert why in row["why"]


def test_an_open_quote_costs_no_more_than_it_holds(tmp_path: Path) -> None:
    rows = [f"text {number}" for number in range(30_000)]
    path = write(tmp_path / "a.csv", ["text", "one", '"open', *rows])
    done = run(path, tmp_path / "out.jsonl", block=1000)
    found = read(tmp_path / "out.jsonl")
    assert found[0]["text"] == "one"
    assert found[-1]["text"] == rows[-1]
    assert done.bad == 1
    assert read(Path(done.bad_file))[0]["line"] == 3
    assert done.rows > len(rows) - 131_072 / len("text 1\n")


class _Counting(Reader):
    """Counts the rows that are alive."""

    alive = 0
    most = 0

    def blocks(self, place: Any = None, until: Any = None) -> Any:
        for block in super().blocks(place, until):
            rows = [(line, _Row(row)) for line, row in block.rows]
            yield Block(rows, block.bad, block.place)


class _Row(dict[str, object]):
    def __init__(self, row: Mapping[str, object]) -> None:
        super().__init__(row)
        _Counting.alive += 1
        _Counting.most = max(_Counting.most, _Counting.alive)

    def __del__(self) -> None:
        _Counting.alive -= 1


def test_no_more_than_three_blocks_are_held_however_long_the_file_is(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", (f"text {number}" for number in range(5000)))
    done = stream(_Counting(path, block=10), tmp_path / "o.jsonl", answer, form=FORM, about={})
    assert done.rows == 5000
    assert 10 <= _Counting.most <= 30


def test_what_was_broken_goes_on_and_gives_the_same_bytes(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "EVERY", 0.0)
    write(texts, [*texts.read_text().splitlines(), "a,b", "refuse me", "end"])
    whole = run(texts, tmp_path / "whole.csv")
    assert whole.bad == 2
    for broken in range(1, 8):
        out, count = tmp_path / f"out{broken}.csv", 0

        def fail(block: Block, broken: int = broken) -> Callable[[], Made]:
            nonlocal count
            count += 1
            if count == broken:
                raise KeyboardInterrupt
            return answer(block)

        with pytest.raises(KeyboardInterrupt):
            stream(Reader(texts, block=7), out, fail, form=FORM, about={"top": 1})
        assert not out.exists()
        # Nothing is left where nothing is sure.
        assert part_of(out).exists() == (broken > 2)
        if broken > 2:
            with part_of(out).open("ab") as half:
                half.write(b"half a li")
        done = run(texts, out)
        assert done.resumed == 7 * max(0, broken - 2)
        assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()
        assert side_file(out).read_bytes() == side_file(tmp_path / "whole.csv").read_bytes()
        assert sorted(path.name for path in tmp_path.glob(f"out{broken}*")) == [
            out.name,
            side_file(out).name,
        ]


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = {paths!r}
from symprompt.files import stream as streaming
from files.test_stream import FORM, answer
streaming.EVERY = 0.0
count = 0
place = streaming.Path.replace
def start(block):
    global count
    count += 1
    if count == {at}:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer(block)
def replace(path, target):
    found = place(path, target)
    if {at} == 0 and str(target).endswith({ending!r}):
        os.kill(os.getpid(), signal.SIGKILL)
    return found
streaming.Path.replace = replace
streaming.stream(streaming.Reader(Path({path!r}), block=7), Path({out!r}), start, form=FORM,
                 about={{"top": 1}})
"""


@pytest.mark.parametrize(("at", "ending"), [(1, ""), (4, ""), (0, "out.jsonl"), (0, "bad.jsonl")])
def test_a_kill_loses_nothing_and_writes_nothing_twice(
    texts: Path, tmp_path: Path, at: int, ending: str
) -> None:
    write(texts, [*texts.read_text().splitlines(), "a,b"])
    run(texts, tmp_path / "whole.jsonl")
    out = tmp_path / "out.jsonl"
    script = KILLED.format(
        paths=[str(Path(__file__).parents[1])], path=str(texts), out=str(out), at=at, ending=ending
    )
    for _ in range(1 if at == 0 else 3):
        killed = subprocess.run([sys.executable, "-c", script], env=os.environ, timeout=100)
        assert killed.returncode in (-signal.SIGKILL, 0)
    done = run(texts, out, overwrite=True)
    assert (done.rows, done.bad) == (50, 1)
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert side_file(out).read_bytes() == side_file(tmp_path / "whole.jsonl").read_bytes()
    assert not list(tmp_path.glob("*.part")) + list(tmp_path.glob("*.state.json"))


def test_other_settings_or_another_file_are_not_gone_on_with(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "EVERY", 0.0)
    out = tmp_path / "out.jsonl"

    def fail(block: Block) -> Callable[[], Made]:
        if block.place.lines > 30:
            raise KeyboardInterrupt
        return answer(block)

    def go_on(top: int, **options: Any) -> Streamed:
        reader = Reader(texts, block=7)
        return stream(reader, out, answer, form=FORM, about={"top": top}, **options)

    with pytest.raises(KeyboardInterrupt):
        stream(Reader(texts, block=7), out, fail, form=FORM, about={"top": 1})
    with pytest.raises(ConfigError, match=r"begun with other settings \(top\)"):
        go_on(2)
    old = texts.read_text()
    texts.write_text(old.replace("text 3\n", "text X\n"))
    with pytest.raises(DataError, match="is not what it was when its first 22 lines were read"):
        go_on(1)
    texts.write_text(old)
    assert go_on(2, overwrite=True).resumed == 0
    with pytest.raises(ConfigError, match="exists; choose another --out"):
        go_on(1)


def test_a_file_is_written_by_one_process_at_a_time(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    code = (
        "import fcntl, sys; f = open(sys.argv[1], 'ab'); fcntl.lockf(f, fcntl.LOCK_EX); "
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(part_of(out))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(RunError, match="another process is writing"):
            run(texts, out)
        other.communicate()
    assert run(texts, out).rows == 50


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "", "is empty"),
        ("a.csv", "text\n", "is empty"),
        ("a.csv", "text,text\n", "a column name is repeated"),
        ("no.csv", None, "does not exist"),
    ],
)
def test_a_file_without_rows_is_refused_and_nothing_is_left(
    tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        run(tmp_path / name, tmp_path / "out/out.jsonl")
    assert not list(tmp_path.glob("out/*"))


def test_csv_and_parquet_hold_the_same(texts: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ends in '.xml', but only .jsonl, .csv, .parquet"):
        streaming.check_target(tmp_path / "out.xml")
    run(texts, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert rows[0] == {"line": "2", "text": "text 0", "length": "3.0"}
    assert len(rows) == 50
    parquet = pytest.importorskip("pyarrow.parquet")
    run(texts, tmp_path / "out.parquet")
    found = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [{key: str(value) for key, value in row.items()} for row in found] == rows


def test_parquet_without_pyarrow_is_refused_in_a_sentence(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match="Parquet needs pyarrow"):
        run(texts, tmp_path / "out.parquet")


_LINES = (
    b"a,b",
    b"a,b\r",
    b"",
    b"  \t",
    b"\xe3\x80\x80",
    b"\xff,x",
    b"a\x00,b",
    b'"a, b",c',
    b'"a ""b""",c',
    b'"a',
    b'b",c',
    b'a"b,"c',
    b'a"b,c',
    b"a\rb,c",
    b'{"subject": "a"}',
    b"[1]",
    "é, \u00a0".encode(),
)


@given(
    lines=st.lists(st.sampled_from(_LINES), max_size=24),
    ending=st.sampled_from([".csv", ".tsv", ".jsonl", ".txt"]),
    ended=st.booleans(),
)
def test_shards_end_where_blocks_that_are_read_end(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], ending: str, ended: bool
) -> None:
    path = tmp_path_factory.mktemp("cut") / f"rows{ending}"
    path.write_bytes(b"\n".join([b"subject,relation", *lines]) + b"\n" * ended)
    reader = Reader(path, block=3)
    read = [(block.place, len(block.rows) + len(block.bad)) for block in reader.blocks()]
    shards = Reader(path, block=3).cut()
    assert [(shard.end, shard.rows) for shard in shards] == read
