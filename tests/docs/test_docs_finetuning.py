"""The commands of docs/finetuning.md run as they are printed, on a tiny model and tiny files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from symprompt.cli import main
from symprompt.runs.folder import Folder
from symprompt.tasks.data.load import load_task
from tiny.pages import ROOT, blocks

BLOCKS = blocks(ROOT / "docs/finetuning.md")
COMMANDS = [words for block in BLOCKS for words in block.commands()]


@pytest.fixture
def data(
    tmp_path: Path, family_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The example files that ship, as the page asks for them."""
    folder = tmp_path / "data"
    main(["examples", str(folder)])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MODEL", str(family_folder("bert")))
    monkeypatch.setenv("DATA", str(folder))
    return folder


def test_the_commands_run_as_printed(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(COMMANDS) >= 12
    for command in COMMANDS:
        words = [os.path.expandvars(word) for word in command]
        if words[0] == "tune":
            words += ["--device", "cpu", "--learning.epochs", "1", "--max-length", "40"]
            words += ["--stride", "4", "--train-limit", "24", "--dev-limit", "8"]
            words += ["--test-limit", "8"]
        elif words[0] == "predict":
            words += ["--device", "cpu"]
        main(words)
        assert capsys.readouterr().out
        if words[0] == "tune":
            assert Folder(data.parent / words[words.index("--out") + 1]).finished


def test_the_lines_of_json_are_read(tmp_path: Path) -> None:
    lines = [json.loads(block.text) for block in BLOCKS if block.language == "json"]
    assert len(lines) == 2
    for number, line in enumerate(lines):
        folder = tmp_path / str(number)
        folder.mkdir()
        for split in ("train", "dev"):
            (folder / f"{split}.jsonl").write_text(json.dumps(line) + "\n")
        kind = "relations" if "relations" in line else "spans"
        example = load_task(str(folder), kind=kind).split("dev")[0]  # type: ignore[arg-type]
        assert len(example.spans) == len(line["spans"])  # type: ignore[union-attr]
