"""What a run on a labelled task states of itself, and its predictions, as tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from textwrap import shorten
from typing import Any

from symprompt.errors import counted
from symprompt.files.grid import DASH, Grid, Grids
from symprompt.tasks.data.examples import CUT

# Names that a note lists.
_NAMED = 5
_TEXT = 60
"""Most characters of a text beside its prediction; of a pair, of each of its texts."""
# So many predictions are shown.
_SHOWN = 20


def run_summary(metrics: Mapping[str, Any]) -> Grids:
    """Return a finished run's figures, a column for each split, and what was left out of them.

    Args:
        metrics: as ``TaskRun.metrics`` has them; of a mixture each task has a table.
    """
    if "tasks" in metrics:
        inner = [run_summary(own) for own in metrics["tasks"].values()]
        grids = [grid for own in inner for grid in own.grids]
        return Grids(dict(metrics), grids, [note for own in inner for note in own.notes])
    if "pattern" in metrics:
        # Means over seeds.
        means = {"dev": metrics["dev"], metrics["split"]: metrics["metrics"]}
        splits = {
            split: {name: figure["value"] for name, figure in own.items()}
            for split, own in means.items()
        }
    else:
        splits = metrics["splits"]
    rows = tuple(
        (name, *(f"{own[name]:.2f}" if name in own else DASH for own in splits.values()))
        for name in dict.fromkeys(name for own in splits.values() for name in own)
    )
    title = f"{metrics['task']}: {metrics['method']} on {metrics['model']}"
    return Grids(dict(metrics), [Grid(title, ("metric", *splits), (rows,))], run_notes(metrics))


def run_notes(metrics: Mapping[str, Any]) -> list[str]:
    """Return what was left out of a run on a labelled task or is out of its reach."""
    cut, unseen = metrics.get("cut", {}), metrics.get("unseen", [])
    if "pattern" in metrics:
        what = "examples too long, the ends of their longest fields left out"
        cuts = [
            f"{own['examples']} of {split} ({counted(own['tokens'], 'token')})"
            for split, own in cut.items()
            if own["examples"]
        ]
    else:
        what, cuts = CUT, [f"{count} of {split}" for split, count in cut.items()]
    long = metrics.get("spans_too_long", {})
    more = f" and {len(unseen) - _NAMED} more" if len(unseen) > _NAMED else ""
    listed = {
        "spans longer than span.length are never found": ", ".join(
            f"{count} of {split}" for split, count in long.items()
        ),
        what: ", ".join(cuts),
        "labels that training does not have are never predicted": ", ".join(unseen[:_NAMED]) + more,
    }
    dropped = metrics.get("dropped", {})
    notes = [f"left out: {count} ({why})" for why, count in dropped.items()]
    return notes + [f"{what}: {own}" for what, own in listed.items() if own]


def prediction_tables(found: Mapping[str, Any]) -> Grids:
    """Return the first predictions, and figures and notes below them.

    Args:
        found: "rows", "metrics" and "notes", as an ``Outcome`` has them.
    """
    rows = found["rows"]
    more = len(rows) - _SHOWN
    notes = [f"and {more} more."] if more > 0 else []
    notes += [f"{name}: {value:.2f}" for name, value in found["metrics"].items()]
    notes += [f"note: {note}." for note in found["notes"]]
    return Grids(dict(found), [prediction_grid(rows[:_SHOWN])] if rows else [], notes)


def prediction_grid(rows: Sequence[Mapping[str, Any]]) -> Grid:
    """Return predictions as a table: the text, what was predicted, and how surely.

    Tags stand beside the words they are of.
    """
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "id": lambda row: str(row["id"]),
        "text": lambda row: " | ".join(
            shorten(part, _TEXT, placeholder=" ...") for part in row["text"].split(" | ", 1)
        ),
        "prediction": _shown,
        "probability": lambda row: f"{row['probability']:.3f}",
        "probabilities": lambda row: _shares(row["probabilities"]),
    }
    kept = [name for name in columns if all(name in row for row in rows)]
    if "probabilities" in kept:
        kept.remove("probability")
    if "text" in kept and all(map(_tagged, rows)):
        kept.remove("text")
    cells = tuple(tuple(columns[name](row) for name in kept) for row in rows)
    header = ("example", *kept[1:])
    folded = tuple(at for at, name in enumerate(kept) if name != "probability")
    return Grid("", header, (cells,), folded=folded)


def _shares(shares: Mapping[str, float]) -> str:
    ordered = sorted(shares.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{label} {share:.3f}" for label, share in ordered)


def _shown(row: Mapping[str, Any]) -> str:
    value = row["prediction"]
    if not isinstance(value, list):
        return str(value)
    if "texts" not in row:
        return " ".join(_tagged(row) or map(str, value))
    texts = row["texts"]
    spans = [f"{text} ({kind})" for (kind, _, _), text in zip(value, texts, strict=True)]
    pairs = [f"{name}: {texts[one]} > {texts[two]}" for name, one, two in row.get("relations", [])]
    return "; ".join([*([", ".join(spans)] if spans else []), *pairs]) or "no span"


def _tagged(row: Mapping[str, Any]) -> list[str]:
    """Return words with their predicted tags, O left out; nothing where it is not one a word."""
    tags, words = row["prediction"], str(row.get("text", "")).split()
    if not isinstance(tags, list) or "texts" in row or len(tags) != len(words):
        return []
    return [word if tag == "O" else f"{word}/{tag}" for word, tag in zip(words, tags, strict=True)]
