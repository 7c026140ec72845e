"""The site's made pages: every command, flag, config and public name, and the stored figures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import symprompt
from symprompt.cli import COMMANDS, load_attribute
from symprompt.cli.parsing import help_text
from symprompt.config import TABLES, shipped_configs
from tiny.pages import ROOT


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that makes pages."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    import generate

    return generate


def test_every_command_has_a_page_with_all_that_help_prints(made: Any) -> None:
    pages = made.command_pages()
    assert len(pages) == len(COMMANDS) + 1
    for name, command in COMMANDS.items():
        page = pages[f"commands/{name.replace(' ', '-')}.md"]
        assert f"({name.replace(' ', '-')}.md)" in pages["commands/index.md"]
        flags = load_attribute(command.flags)
        for kind in [load_attribute(own)() for own in command.configs] or [None]:
            told = set(re.findall(r"^  (--[\w.-]+)", help_text(name, flags, kind), re.M))
            assert told <= set(re.findall(r"^`(--[\w.-]+)", page, re.M)), name


def test_every_config_and_public_name_is_there(made: Any) -> None:
    pages = made.config_pages()
    for command in TABLES:
        for name in shipped_configs(command):
            assert f"## {name}\n" in pages[f"configs/{command}.md"]
    api = made.api_page()
    for name in symprompt.__all__:
        assert f":: symprompt.{name}\n" in api


def test_results_are_the_records_and_the_papers_stand_apart(made: Any, tmp_path: Path) -> None:
    pages = made.result_pages(tmp_path)
    for path in made.RECORDS.glob("*.json"):
        assert f"results/{path.stem}-records.md" in pages
    facts = pages["results/facts.md"]
    (row,) = re.findall(r"<tr><td>SPE</td>.*?</tr>", facts.split("Mean over facts")[0])
    (stored,) = (
        record
        for record in made.load_stored(str(made.RECORDS / "lama34k-ask-back.json")).records
        if (record.label, record.metric, record.versus) == (made.SPE, "p1", "")
        and record.settings["mean"] == "mean over relations"
    )
    assert f"<td>{stored.value:.2f}<br>({stored.low:.2f} to {stored.high:.2f})</td>" in row
    assert '<td class="theirs">50.3 / 80.5 / 60.9 [S]</td>' in row
    for name in ("facts", "ptuning", "ptuning-v2"):
        page = pages[f"results/{name}.md"]
        assert "its pretraining text included LAMA evidence sentences" in page
        assert 'class="theirs"' in page
        for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page):
            assert (tmp_path / "results" / picture).is_file()
    written = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    pictures = re.findall(r"!\[[^\]]*\]\(generated/([^)]+)\)", written)
    assert pictures
    for picture in pictures:
        assert (tmp_path / picture).stat().st_size < 400_000, picture


def test_every_table_has_a_line_whether_its_claim_holds(made: Any, tmp_path: Path) -> None:
    pages = made.result_pages(tmp_path)
    told = 0
    for name in ("facts", "ptuning", "ptuning-v2", "chapter"):
        page = pages[f"results/{name}.md"]
        sections = page.split("\n## ")[1:]
        tables = [own for own in sections if not own.startswith(("Tables without", "Not measured"))]
        for table in tables:
            (line,) = re.findall(r"^\*\*Does it hold here\?\*\* (.+)$", table, re.MULTILINE)
            told += 1
            for figure in re.findall(r"\d+\.\d+", line):
                assert re.search(rf"\b{figure}\b", table.replace(line, "")), (table[:40], figure)
    assert told == len(made.HOLDS)


def test_a_report_of_reproduce_is_shown_with_its_tables(made: Any, tmp_path: Path) -> None:
    table = {"title": "m, mean", "header": ["method", "P@1", "published:\nBERT-base"]}
    section = {"title": "SPE, Table 1", "tables": [{**table, "rows": [["SPE", "1.00", "50.3"]]}]}
    record = {"metric": "p1", "value": 1.0, "label": "m: SPE", "method": "lama-spe"}
    path = tmp_path / "lama-m.json"
    values = {"about": {"note": "Models: <m>."}, "records": [record]}
    path.write_text(json.dumps(values | {"tables": [section | {"notes": ["one note"]}]}))
    page = made.records_page(path)
    assert "# lama-m\n" in page
    assert "Models: \\<m\\>." in page
    assert "## SPE, Table 1" in page
    assert '<td>1.00</td><td class="theirs">50.3</td>' in page
    assert "- one note" in page
    assert "prototype" not in page
