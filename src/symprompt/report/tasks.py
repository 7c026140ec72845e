"""What is shown of runs on labelled tasks beside their figures: notes and predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from symprompt.report.grid import Grid
from symprompt.tasks.data.examples import CUT

# Labels that a note names.
_TOLD = 5


def run_notes(metrics: Mapping[str, Any]) -> list[str]:
    """Return what was left out of a run or is out of its reach, a sentence each."""
    notes = [f"left out: {count} ({why})" for why, count in metrics.get("dropped", {}).items()]
    long = metrics.get("spans_too_long", {})
    if long:
        told = ", ".join(f"{count} of {split}" for split, count in long.items())
        notes.append(f"spans longer than span.length are never found: {told}")
    cut = metrics.get("cut", {})
    if cut:
        told = ", ".join(f"{count} of {split}" for split, count in cut.items())
        notes.append(f"{CUT}: {told}")
    unseen = metrics.get("unseen", [])
    if unseen:
        more = f" and {len(unseen) - _TOLD} more" if len(unseen) > _TOLD else ""
        told = ", ".join(unseen[:_TOLD]) + more
        notes.append(f"labels that training does not have are never predicted: {told}")
    return notes


def pattern_notes(metrics: Mapping[str, Any]) -> list[str]:
    """Return what was left out of a run through a pattern, a sentence each."""
    cut = {split: own for split, own in metrics.get("cut", {}).items() if own["examples"]}
    if not cut:
        return []
    told = ", ".join(
        f"{own['examples']} of {split} ({own['tokens']} tokens)" for split, own in cut.items()
    )
    return [f"examples too long, the ends of their longest fields left out: {told}"]


def prediction_grid(rows: Sequence[Mapping[str, Any]]) -> Grid:
    """Return predictions as a table: each one's number, what was predicted, and how surely."""
    header = ["example", "prediction"]
    cells = [[str(row["id"]), _shown(row)] for row in rows]
    if all("probability" in row for row in rows):
        header.append("probability")
        for line, row in zip(cells, rows, strict=True):
            line.append(f"{row['probability']:.3f}")
    return Grid("", tuple(header), (tuple(map(tuple, cells)),), folded=(1,))


def _shown(row: Mapping[str, Any]) -> str:
    value = row["prediction"]
    if not isinstance(value, list):
        return str(value)
    if "texts" not in row:
        return " ".join(map(str, value))
    texts = row["texts"]
    spans = [f"{text} ({kind})" for (kind, _, _), text in zip(value, texts, strict=True)]
    pairs = [f"{name}: {texts[one]} > {texts[two]}" for name, one, two in row.get("relations", [])]
    return "; ".join([*([", ".join(spans)] if spans else []), *pairs]) or "no span"
