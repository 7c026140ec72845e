"""The site's pages: commands and Python run as printed on a tiny model, all of them are parsed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from symprompt.cli import main
from tiny.pages import ROOT, blocks, check_words

DOCS = ROOT / "docs"
WRITTEN = sorted(
    path
    for path in DOCS.rglob("*.md")
    if not {"generated", "adr", "_build"} & set(path.relative_to(DOCS).parts)
)
# These have tests of their own, with the data that they need; the log tells what once was run.
APART = {"embeddings", "similarity", "senses", "senses-map", "multilingual", "finetuning", "log"}
RUN = [
    path
    for path in [*WRITTEN, ROOT / "README.md"]
    if path.stem not in APART
    and any(block.commands() or block.language == "python" for block in blocks(path))
]
# Pages that take runs for granted.
NEED_RUNS = {"numbers", "export", "hub", "many", "measures", "page", "versions"}
# What makes a command short on the tiny model.
SHORT = {"tune": ["--learning.epochs", "1", "--max-length", "40", "--stride", "4"]}
SHORT["tune"] += ["--train-limit", "24", "--dev-limit", "8", "--test-limit", "8"]
PLACES = {
    "$DATA": "lama",
    "$NER": "ner",
    "$PARAREL": "pararel",
    "$MODEL": "bert-base-cased",
    # The facts that ship hold no name of the tiny vocabulary.
    "data/facts.csv": "my_facts.csv",
}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def run(words: list[str]) -> None:
    main([PLACES.get(word, word) for word in words] + SHORT.get(words[0], []))


@pytest.mark.parametrize("path", RUN, ids=name_of)
def test_commands_and_python_run_as_printed(
    path: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if path.stem in NEED_RUNS:
        for method in ("manual", "ptuning", "spe"):
            run(["train", f"lama-{method}", "--data", "$DATA", "--out", f"runs/{method}"])
    for block in blocks(path):
        if block.parsed:
            continue
        for words in block.commands():
            capsys.readouterr()
            run(words)
            assert capsys.readouterr().out.strip(), words
        if block.language == "python":
            capsys.readouterr()
            exec(compile(block.text, name_of(path), "exec"), {"__name__": "__main__"})
            assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    "path",
    [*WRITTEN, ROOT / "README.md", ROOT / "experiments/plan.md", ROOT / "experiments/models.md"],
    ids=name_of,
)
def test_every_command_is_known_to_the_parser(path: Path) -> None:
    for block in blocks(path):
        for words in block.commands():
            check_words(words)


def test_the_marks_are_before_blocks() -> None:
    for path in [*WRITTEN, ROOT / "README.md"]:
        marks = path.read_text(encoding="utf-8").count("<!-- parsed: ")
        assert marks == sum(block.parsed for block in blocks(path)), path


def test_every_picture_is_there_and_small() -> None:
    for path in [*WRITTEN, ROOT / "README.md"]:
        for name in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
            # test_site.py looks at the pictures that are made.
            if not name.startswith("generated/"):
                assert (path.parent / name).stat().st_size < 400_000, name


def test_prose_is_at_most_100_characters_wide() -> None:
    for path in [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "experiments").glob("*.md")]:
        if {"generated", "_build"} & set(path.parts):
            continue
        text = re.sub(r"^ *```.*?^ *```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
        # What cannot be wrapped: headings, rows of tables, a link or code of that length.
        wide = [
            line
            for line in text.splitlines()
            if len(line) > 100 and line.lstrip()[0] not in "#|" and len(line.split()) > 3
        ]
        assert wide == [], path


def test_pages_ask_no_other_server() -> None:
    for path in (DOCS / "conf.py", DOCS / "_static" / "site.css"):
        assert "http" not in path.read_text(encoding="utf-8")
