"""Figures as libraries of the field count them, to hold ours against."""

from __future__ import annotations

from collections.abc import Sequence

from seqeval import metrics


def seqeval_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Return F1, precision and recall of entities and the share of right tags."""
    tags = [list(entry) for entry in gold], [list(entry) for entry in predicted]
    return {
        "f1": float(metrics.f1_score(*tags, zero_division=0)),
        "precision": float(metrics.precision_score(*tags, zero_division=0)),
        "recall": float(metrics.recall_score(*tags, zero_division=0)),
        "word_accuracy": float(metrics.accuracy_score(*tags)),
    }
