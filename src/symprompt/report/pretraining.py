"""A finished pretraining run on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text


def pretrain_summary(training: Mapping[str, Any]) -> RenderableType:
    """Return a run's losses, languages and speed.

    Args:
        training: a model folder's training.json.
    """
    model, corpus = training["model"], training["corpus"]
    title = Text(f"{model['type']}, {model['parameters']:,} weights")
    table = Table(title=title, title_justify="left")
    for name in ("loss at the end", "training", "validation"):
        table.add_column(name, justify="left" if name == "loss at the end" else "right")
    validation = training["validation"] or {}
    for part, value in training["loss"].items():
        held = f"{validation[part]:.3f}" if part in validation else "-"
        table.add_row(part, f"{value:.3f}", held)
    speed = f"{training['tokens_per_second']:,.0f} tokens/s"
    notes = [
        f"text: {corpus['documents']:,} documents, {corpus['tokens']:,} tokens, "
        f"{corpus['sequences']:,} sequences",
        f"training: {training['steps']:,} steps, {training['tokens']:,} tokens, "
        f"{training['passes']:.2f} passes, {training['seconds']:,.0f} s, {speed}",
    ]
    parts: list[RenderableType] = [table]
    if len(corpus["languages"]) > 1:
        parts.append(_languages(corpus["languages"]))
    notes += _missing(training["vocabulary"]["broken"], corpus["empty_documents"])
    return Group(*parts, *(Text(note) for note in notes))


def prepared_summary(about: Mapping[str, Any]) -> RenderableType:
    """Return what prepared text holds, language by language.

    Args:
        about: as `prepare_pretraining` tells it.
    """
    vocabulary = about["vocabulary"]
    table = Table(title="text to train on", title_justify="left")
    table.add_column("language")
    for name in ("documents", "sentences", "tokens"):
        table.add_column(name, justify="right")
    for language, counts in about["languages"].items():
        numbers = (f"{counts[name]:,}" for name in ("documents", "sentences", "tokens"))
        table.add_row(Text(language or "-"), *numbers)
    notes = [
        f"held out: {about['held_out_documents']:,} of {about['documents']:,} documents",
        f"vocabulary: {vocabulary['size']:,} tokens",
        *_missing(vocabulary["broken"], about["empty_documents"]),
    ]
    return Group(table, *(Text(note) for note in notes))


def _missing(broken: Sequence[str], empty: int) -> list[str]:
    """Return a note on listed words that are not one token, and one on documents left out."""
    notes = []
    if broken:
        shown = ", ".join(broken[:5]) + (", ..." if len(broken) > 5 else "")
        notes.append(f"vocabulary: {len(broken)} listed words are not one token: {shown}")
    if empty:
        notes.append(f"left out: {empty:,} documents without a token")
    return notes


def _languages(rows: list[Mapping[str, Any]]) -> Table:
    table = Table(title="sequences of each language", title_justify="left")
    table.add_column("language")
    for name in ("there are", "share", "in a pass", "share in a pass"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            Text(row["language"] or "-"),
            f"{row['before']:,}",
            f"{100 * row['prior']:.1f} %",
            f"{row['after']:,}",
            f"{100 * row['share']:.1f} %",
        )
    return table
