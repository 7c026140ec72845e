"""Reading documents from files of every kind, refusing bad ones, and cutting sentences."""

from __future__ import annotations

import bz2
import gzip
import lzma
from functools import partial
from pathlib import Path

import pytest

from symprompt.errors import DataError
from symprompt.files import text
from symprompt.files.text import Document, find_files, read_documents, split_sentences

PLAIN = "One line.\nAnother line.\n\n\nA second document.\n"
WIKI = (
    '<doc id="12" title="A > B">\nTitle\n\nFirst.\n\nSecond.\n</doc>\n'
    '<doc id="13">\nThird.\n</doc>\n'
)
JSON = '{"text": "One.\\n\\nTwo."}\n{"text": "  "}\n{"text": "Three.", "id": 3}'
PACKED = {".gz": partial(gzip.compress, mtime=0), ".xz": lzma.compress, ".bz2": bz2.compress}


def write(path: Path, data: str | bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return str(path)


@pytest.mark.parametrize(
    ("name", "data", "documents"),
    [
        ("a.txt", PLAIN, [("One line.", "Another line."), ("A second document.",)]),
        # From the first mark on, blank lines separate nothing.
        ("wiki", WIKI, [("Title", "First.", "Second."), ("Third.",)]),
        ("a.txt", b"\xef\xbb\xbfOne.\r\n\r\nTwo.\r\n", [("One.",), ("Two.",)]),
        ("a.jsonl", JSON, [("One.", "Two."), ("Three.",)]),
        *(
            (f"a.jsonl{suffix}", pack(JSON.encode()), [("One.", "Two."), ("Three.",)])
            for suffix, pack in PACKED.items()
        ),
    ],
)
def test_documents_of_files(
    tmp_path: Path, name: str, data: str | bytes, documents: list[tuple[str, ...]]
) -> None:
    found = read_documents([write(tmp_path / name, data)])
    assert [document.lines for document in found] == documents


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        *(("a.txt", data, r"a\.txt is empty") for data in ("", "\n\n  \n", "<doc>\n</doc>\n")),
        ("a.jsonl", '{"text": ""}\n', r"a\.jsonl is empty"),
        ("a.txt", b"good\nba\x00d\n", "line 2, byte 7: a zero byte"),
        ("a.txt", b"good\nba\xffd\n", "line 2, byte 7: the bytes are not UTF-8"),
        ("a.txt", "text".encode("utf-16"), "line 1, byte"),
        ("a.jsonl", '{"text": "x"}\n{"body": "x"}', 'line 2: no text under "text" but keys'),
        ("a.jsonl", '{"text": "x"}\n{"text": 3}', "line 2: no text"),
        ("a.jsonl", '{"text": "x"}\n[1]', "line 2: got a JSON list"),
        ("a.jsonl", '{"text": "x"}\n{', "line 2: .* is not valid JSON"),
        ("a.jsonl", '{"text": "x"}\n{"text": "\\ud800"}', "line 2: .*surrogates"),
        *(
            (f"a.txt{suffix}", data, r"a\.txt.*cannot be read at line 1")
            for suffix, pack in PACKED.items()
            for data in (pack(b"word " * 5000)[:-30], b"no archive at all")
        ),
    ],
)
def test_garbled_files_are_refused_with_the_place(
    tmp_path: Path, name: str, data: str | bytes, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        list(read_documents([write(tmp_path / name, data)]))


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (["a.txt", "nowhere"], "nowhere does not exist"),
        ([], "no text was given"),
        (["bare"], "holds no text files"),
    ],
)
def test_missing_sources_are_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.txt", PLAIN)
    (tmp_path / "bare").mkdir()
    with pytest.raises(DataError, match=message):
        read_documents(sources)


def test_folders_give_their_text_files_in_order_and_languages_are_kept(tmp_path: Path) -> None:
    write(tmp_path / "de" / "b.txt", "Zwei.")
    write(tmp_path / "de" / "a" / "wiki_00", "Eins.")
    write(tmp_path / "de" / "notes.pdf", b"\x00")
    write(tmp_path / "de" / ".hidden.txt", b"\x00")
    sources = [f"de={tmp_path / 'de'}", write(tmp_path / "en.txt", "One.")]
    assert list(read_documents(sources)) == [
        Document("de", ("Eins.",)),
        Document("de", ("Zwei.",)),
        Document("", ("One.",)),
    ]
    assert [file.label for file in find_files(sources)] == [
        "de=wiki_00 (5 bytes)",
        "de=b.txt (5 bytes)",
        "en.txt (4 bytes)",
    ]


def test_path_with_an_equals_sign_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "de=a.txt", "Text.")
    assert list(read_documents(["de=a.txt"])) == [Document("", ("Text.",))]


@pytest.mark.parametrize("letter", ["a", "é", "語", "𝄞"])
def test_long_lines_and_documents_come_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, letter: str
) -> None:
    monkeypatch.setattr(text, "LONGEST_LINE", 16)
    monkeypatch.setattr(text, "LARGEST_DOCUMENT", 20)
    source = write(tmp_path / "a.txt", letter * 50 + "\n" + "ab cd " * 9 + "\nend")
    found = list(read_documents([source]))
    lines = [line for document in found for line in document.lines]
    assert "".join(lines).replace(" ", "") == letter * 50 + "abcd" * 9 + "end"
    assert max(len(line.encode()) for line in lines) <= 16
    assert len(found) > 3


@pytest.mark.parametrize("ending", PACKED)
def test_what_unpacks_to_far_more_than_text_does_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr(text, "_UNPACKED", 1 << 16)
    source = write(tmp_path / f"a.txt{ending}", PACKED[ending](b"blow up\n" * (1 << 18)))
    with pytest.raises(
        DataError, match=rf"a\.txt\{ending} unpacks to more than 200 times its size"
    ):
        list(read_documents([source]))


def test_reading_is_lazy_and_tells_of_bytes(tmp_path: Path) -> None:
    # The damage at the end is not seen until the reader gets there.
    source = write(tmp_path / "a.txt", b"text\n\n" * 20000 + b"\x00")
    seen: list[tuple[str, int, int]] = []
    documents = read_documents(
        [source], lambda stage, done, all_, _: seen.append((stage, done, all_))
    )
    for _ in range(15000):
        next(documents)
    assert seen
    assert all(stage == "reading" and 0 < done <= total == 120 for stage, done, total in seen)
    with pytest.raises(DataError, match="line 40001"):
        list(documents)


@pytest.mark.parametrize(
    ("line", "sentences"),
    [
        ("It rained. We left.", ["It rained.", "We left."]),
        ("Dr. No met Mr. Bond. He fled!", ["Dr. No met Mr. Bond.", "He fled!"]),
        ("George W. Bush spoke. Then he left.", ["George W. Bush spoke.", "Then he left."]),
        ("J. R. R. Tolkien wrote it.", ["J. R. R. Tolkien wrote it."]),
        ("It costs 3.5 euros. Or 2.", ["It costs 3.5 euros.", "Or 2."]),
        ("In the U.S. Senate it failed.", ["In the U.S. Senate it failed."]),
        ("He moved to the U.S. The war ended.", ["He moved to the U.S.", "The war ended."]),
        ("He loved art. Few did.", ["He loved art.", "Few did."]),
        ("See Fig. 3 and no. 7. Then stop.", ["See Fig. 3 and no. 7.", "Then stop."]),
        ("He said no. She said yes.", ["He said no.", "She said yes."]),
        ("Fruit, e.g. Apples. Good.", ["Fruit, e.g. Apples.", "Good."]),
        ("World War I. The end.", ["World War I.", "The end."]),
        ("Why? Because! Well... Yes.", ["Why?", "Because!", "Well...", "Yes."]),
        ("It is big... but slow.", ["It is big... but slow."]),
        ('"Go." She went. (He stayed.) So.', ['"Go."', "She went.", "(He stayed.)", "So."]),
        ("1. First item. 2. Second.", ["1. First item.", "2. Second."]),
        ("Apple Inc. CEO Cook spoke.", ["Apple Inc. CEO Cook spoke."]),
        ("これは文です。次の文です。", ["これは文です。", "次の文です。"]),
        ("यह है। वह है।", ["यह है।", "वह है।"]),
        ("no end", ["no end"]),
        ("  ", []),
    ],
)
def test_sentences(line: str, sentences: list[str]) -> None:
    assert split_sentences(line) == sentences


def test_sentences_keep_every_word() -> None:
    line = 'Mr. A. met B. at 5 p.m. in St. Louis, Mo. "Hi!" he said... Then? No. 5. The end'
    assert " ".join(split_sentences(line)).split() == line.split()


def test_long_line_without_sentence_ends_is_cut_fast() -> None:
    assert len(split_sentences("Mr. " * 100_000)) == 1
