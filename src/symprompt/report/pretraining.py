"""What pretraining prints: a finished run's losses and speed, and what prepared text holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from symprompt.report.grid import Grid, stack

if TYPE_CHECKING:
    from rich.console import Group


def pretrain_summary(training: Mapping[str, Any]) -> Group:
    """Return a run's losses, languages and speed.

    Args:
        training: what a model's run states, see ``load_training``.
    """
    model, corpus = training["model"], training["corpus"]
    validation = training["validation"] or {}
    losses = tuple(
        (part, f"{value:.3f}", f"{validation[part]:.3f}" if part in validation else "-")
        for part, value in training["loss"].items()
    )
    title = f"{model['type']}, {model['parameters']:,} weights"
    grids = [Grid(title, ("loss at the end", "training", "validation"), (losses,))]
    if len(corpus["languages"]) > 1:
        header = ("language", "there are", "share", "in a pass", "share in a pass")
        rows = tuple(
            (
                row["language"] or "-",
                f"{row['before']:,}",
                f"{100 * row['prior']:.1f} %",
                f"{row['after']:,}",
                f"{100 * row['share']:.1f} %",
            )
            for row in corpus["languages"]
        )
        grids.append(Grid("sequences of each language", header, (rows,)))
    notes = [
        f"text: {corpus['documents']:,} documents, {corpus['tokens']:,} tokens, "
        f"{corpus['sequences']:,} sequences",
        f"training: {training['steps']:,} steps, {training['tokens']:,} tokens, "
        f"{training['passes']:.2f} passes, {training['seconds']:,.0f} s, "
        f"{training['tokens_per_second']:,.0f} tokens/s",
        *_missing(training["vocabulary"]["broken"], corpus["empty_documents"]),
    ]
    return stack(*grids, *notes)


def prepared_summary(about: Mapping[str, Any]) -> Group:
    """Return what prepared text holds, language by language.

    Args:
        about: as `prepare_pretraining` returns it.
    """
    vocabulary = about["vocabulary"]
    names = ("documents", "sentences", "tokens")
    rows = tuple(
        (language or "-", *(f"{counts[name]:,}" for name in names))
        for language, counts in about["languages"].items()
    )
    notes = [
        f"held out: {about['held_out_documents']:,} of {about['documents']:,} documents",
        f"vocabulary: {vocabulary['size']:,} tokens",
        *_missing(vocabulary["broken"], about["empty_documents"]),
    ]
    return stack(Grid("text to train on", ("language", *names), (rows,)), *notes)


def _missing(broken: Sequence[str], empty: int) -> list[str]:
    """Return a note on listed words that are not one token, and one on documents left out."""
    notes = []
    if broken:
        shown = ", ".join(broken[:5]) + (", ..." if len(broken) > 5 else "")
        notes.append(f"vocabulary: {len(broken)} listed words are not one token: {shown}")
    if empty:
        notes.append(f"left out: {empty:,} documents without a token")
    return notes
