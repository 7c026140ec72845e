"""What the cells of experiments/fewglue.py come to: an entry for each method on each task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from symprompt.papers.labelled.entries import LABELS
from symprompt.tasks.patterns.published import MANUAL
from symprompt.tasks.patterns.superglue import TASKS
from symprompt.tasks.patterns.train import summarise_seeds

# P-tuning, Table 5, 32 dev examples, albert-xxlarge-v2; main metric of each task.
PAPER = "paper, ALBERT-xxlarge"
PUBLISHED = {
    "boolq": {"PET mean": 73.2, "PET best": 75.1, "P-tuning": 77.8},
    "cb": {"PET mean": 82.9, "PET best": 86.9, "P-tuning": 92.9},
    "wic": {"PET mean": 51.8, "PET best": 52.6, "P-tuning": 56.3},
    "rte": {"PET mean": 62.1, "PET best": 65.7, "P-tuning": 76.5},
    "multirc": {"PET mean": 33.6, "PET best": 35.2, "P-tuning": 36.1},
    "wsc": {"PET mean": 79.8, "PET best": 80.4, "P-tuning": 84.6},
    "copa": {"PET mean": 85.3, "PET best": 83.3, "P-tuning": 87.0},
}
Cell = dict[str, Any]


def entries_of(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Return the stored entries: one for each method on each task and model."""
    groups: dict[tuple[str, str, bool], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell["model"], cell["task"], cell["full"]), []).append(cell)
    order = list(TASKS)
    entries = []
    for (model, task, full), own in sorted(
        groups.items(), key=lambda entry: (entry[0][0], entry[0][2], order.index(entry[0][1]))
    ):
        about = {"task": task, "model": model, "split": "val, full train" if full else "val, 32"}
        entries += [{**about, **entry} for entry in _entries(task, full, own)]
    return entries


def _entries(task: str, full: bool, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    published = {} if full else PUBLISHED[task]
    by_row: dict[tuple[str, str], list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: cell["seed"]):
        by_row.setdefault((cell["row"], cell["pattern"]), []).append(cell)
    entries = []
    for row in ("zero-shot", "cls", "mp", "ptuning", "frozen", "pt2-verbalizer"):
        for (name, pattern), own in by_row.items():
            if name == row:
                entry = _entry(LABELS[row], row, pattern, own)
                if LABELS[row] in published:
                    entry["published"] = {PAPER: published[LABELS[row]]}
                entries.append(entry)
    entries += [
        _entry(f"pattern {pattern}", row, pattern, own)
        for (row, pattern), own in by_row.items()
        if row in ("pet", "table6")
    ]
    return [*entries, *_pet(task, by_row, published), *_difference(by_row)]


def _entry(label: str, row: str, pattern: str, cells: Sequence[Cell]) -> dict[str, Any]:
    tried = [entry for cell in cells for entry in cell["tried"]]
    return {
        "label": label,
        "method": row,
        "pattern": cells[0]["text"],
        "pattern_name": pattern,
        "words": cells[0]["words"],
        "seeds": [cell["seed"] for cell in cells],
        "metrics": summarise_seeds([cell["val"] for cell in cells]),
        "dev": summarise_seeds([{"accuracy": cell["dev"]["accuracy"]} for cell in cells]),
        "chosen": [[cell["rate"], cell["batch"], cell["dev"]["step"]] for cell in cells],
        "steps": sum(entry["steps"] for entry in tried) / max(1, len(cells)),
        "seconds": round(sum(cell["wall"] for cell in cells) / len(cells), 2),
        "cut": cells[0]["cut"],
    }


def _pet(
    task: str, by_row: Mapping[tuple[str, str], list[Cell]], published: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Return PET's mean and deviation over its patterns' means, and its best pattern.

    The best is chosen on dev32; the paper's is chosen on the validation set, which is given apart.
    """
    trained = {
        pattern: summarise_seeds([cell["val"] for cell in own])
        for (row, pattern), own in by_row.items()
        if row in ("mp", "pet") and pattern.startswith("pet-")
    }
    known = [one.name for one in MANUAL[task] if one.name.startswith("pet-")]
    if len(trained) < 2:
        return []
    dev = {
        pattern: sum(cell["dev"]["accuracy"] for cell in own) / len(own)
        for (row, pattern), own in by_row.items()
        if row in ("mp", "pet") and pattern in trained
    }
    main = next(iter(next(iter(trained.values()))))
    means = [
        {name: entry["value"] for name, entry in summary.items()} for summary in trained.values()
    ]
    best = max(trained, key=lambda pattern: dev[pattern])
    oracle = max(trained, key=lambda pattern: trained[pattern][main]["value"])
    rows = (
        (
            "PET mean",
            f"PET mean of {len(trained)} of {len(known)} patterns",
            summarise_seeds(means),
        ),
        ("", f"PET best on dev32 ({best})", trained[best]),
        ("PET best", f"PET best on val, an oracle ({oracle})", trained[oracle]),
    )
    return [
        {"label": label, "method": "pet", "patterns": sorted(trained), "metrics": metrics}
        | ({"published": {PAPER: published[name]}} if name in published else {})
        for name, label, metrics in rows
    ]


def _difference(by_row: Mapping[tuple[str, str], list[Cell]]) -> list[dict[str, Any]]:
    """Return P-tuning minus the manual pattern, seed by seed."""
    own = {row: cells for (row, _), cells in by_row.items() if row in ("mp", "ptuning")}
    if len(own) < 2:
        return []
    manual = {cell["seed"]: cell["val"] for cell in own["mp"]}
    pairs = [cell for cell in own["ptuning"] if cell["seed"] in manual]
    if not pairs:
        return []
    rows = [
        {name: value - manual[cell["seed"]][name] for name, value in cell["val"].items()}
        for cell in pairs
    ]
    return [
        {
            "label": "P-tuning minus MP, by seed",
            "method": "difference",
            "seeds": [cell["seed"] for cell in pairs],
            "metrics": summarise_seeds(rows),
        }
    ]
