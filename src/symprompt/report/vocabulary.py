"""What data vocabulary prints: each model's words, and the facts they leave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text


def vocabulary_table(report: Mapping[str, Any]) -> Table:
    """Return the counts of a shared vocabulary, one row a model and one for what they share."""
    table = Table(title="words that are one token", title_justify="left", box=box.SIMPLE)
    table.add_column("model")
    splits = list(report["total"])
    for name in ("tokens", "words", *(f"{split} facts" for split in splits)):
        table.add_column(name, justify="right")
    for name, model in report["models"].items():
        left = (str(model["facts"][split]) for split in splits)
        table.add_row(Text(name), str(model["tokens"]), str(model["words"]), *left)
    table.add_section()
    shared = (f"{report['facts'][split]} of {report['total'][split]}" for split in splits)
    table.add_row("all of them", "", str(len(report["words"])), *shared)
    return table
