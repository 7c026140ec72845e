"""The README: short, in its order, with the figures that are stored and the answers one gets."""

from __future__ import annotations

import re
import sys

import pytest

from symprompt.cli import main
from tiny.pages import ROOT, blocks

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_is_short() -> None:
    lines = README.splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 100] == []


def test_its_parts_stand_in_their_order() -> None:
    assert re.findall(r"^#+ (.+)$", README, re.M) == [
        *("symprompt", "Start", "The page", "Measured", "What it can do", "From Python"),
        *("Beside others", "Links"),
    ]
    (able,) = re.findall(r"## What it can do\n\n(.*?)\n\n", README, re.S)
    assert len(able.splitlines()) == 8
    (code,) = (block.text for block in blocks(ROOT / "README.md") if block.language == "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 10


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README):
        assert (ROOT / target).exists(), target


def test_its_tables_are_those_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    monkeypatch.delitem(sys.modules, "generate", raising=False)
    from generate import with_tables

    assert with_tables(README) == README, "run: python docs/generate.py"


def test_the_first_command_answers_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    first, shown = (block for block in blocks(ROOT / "README.md") if block.language != "python")
    main([*first.commands()[0], "--device", "cpu"])
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    for line in shown.text.splitlines():
        rank, answer, *_ = line.split()
        assert any(words[:2] == [rank, answer] for words in said), line
