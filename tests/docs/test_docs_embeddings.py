"""The commands of the pages about word vectors run as they are printed, on a tiny model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from transformers import AutoModelForMaskedLM, BertConfig

from symprompt.cli import main
from tiny.models import SMALL, make_wordpiece
from tiny.pages import ROOT, blocks
from tiny.wordnet import write_semcor, write_test_set, write_wordnet

DOCS = ROOT / "docs"
PAGES = ("embeddings", "similarity", "senses", "senses-map")


def commands(page: str) -> list[list[str]]:
    """Return a page's commands."""
    return [words for block in blocks(DOCS / f"{page}.md") for words in block.commands()]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the pages talk about, and a model of four layers."""
    tokenizer = make_wordpiece()
    config = BertConfig(**{**SMALL, "num_hidden_layers": 4}, vocab_size=len(tokenizer))
    AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    lines = [f"The old river bank {letter} of Peru .\n\nThe banks" for letter in "abcdefgh"]
    for name in ("text", "passages"):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(lines) + "\n")
    pairs = "sentence1\tsentence2\tsame\nThe old river .\tThe river .\tyes\n"
    (tmp_path / "paraphrase.tsv").write_text(pairs)
    write_semcor(tmp_path / "semcor")
    write_test_set(tmp_path / "wsd", "semeval2007")
    wordnet = write_wordnet(tmp_path / "wordnet")
    monkeypatch.setattr("symprompt.embeddings.wordnet._PLACES", (str(wordnet),))
    monkeypatch.delenv("WNSEARCHDIR", raising=False)
    monkeypatch.delenv("WNHOME", raising=False)
    monkeypatch.setattr("symprompt.models.loading.FOLDER", tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(words: list[str], workplace: Path) -> None:
    known = {"$DATA": str(workplace), "$MODEL": str(workplace / "model")}
    for name, value in known.items():
        words = [word.replace(name, value) for word in words]
    main(words)


def test_the_commands_run_as_printed(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for page in PAGES:
        found = commands(page)
        assert found
        for words in found:
            run(words, workplace)
            assert capsys.readouterr().out.strip()


def test_the_python_example_runs_as_printed(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = (
        block.text for block in blocks(DOCS / "embeddings.md") if block.language == "python"
    )
    exec(compile(example, "embeddings.md", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) == 15


def test_the_commands_for_two_languages_run_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["examples", "data"])
    found = commands("multilingual")
    assert [words[0] for words in found] == ["pretrain"] * 3 + ["senses"]
    for words in found:
        capsys.readouterr()
        if words[0] == "pretrain":
            words += ["--device", "cpu", "--shape.layers", "1", "--shape.hidden", "16"]
            words += ["--learning.steps", "2"]
        main([word.replace("$DATA", "data") for word in words])
        said = capsys.readouterr().out
    assert "108 occurrences" in said
    assert "by chance 32.7 %" in said
    assert (tmp_path / "die.html").exists()


def test_every_picture_is_there() -> None:
    for page in (*PAGES, "multilingual"):
        text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
        for name in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text):
            assert (DOCS / name).stat().st_size < 200_000
