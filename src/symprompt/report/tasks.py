"""Runs on labelled tasks as tables: from their folders, or from results stored as JSON.

Stored results are a table with a list "tasks"; an entry is one method on one task over its seeds:
task, method, model, split, seeds, metrics (name -> value and deviation, in percent), and perhaps
trainable_parameters, seconds and published (who -> number).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from symprompt.errors import ConfigError
from symprompt.report.grid import Grid, Grids
from symprompt.tasks.folder import TaskFolder
from symprompt.tasks.verbal.folder import PatternFolder, is_pattern_run

_LABELS = {
    "ft": "FT",
    "pt": "PT",
    "pt2": "PT-2",
    "lora": "LoRA",
    "mpt2": "MPT-2",
}
# Figures of some of the questions, and numbers that are no share: stored, and in --json, but a
# table of them all would not fit a terminal.
_PARTS = ("answerable_", "unanswerable_")
_NO_SHARE = "_threshold"
_PATTERN_LABELS = {
    "ptuning": "P-tuning",
    "pt2": "PT-2, verbalizer",
    "mp": "MP fine-tuning",
    "zero-shot": "MP zero-shot",
    "cls": "[CLS] fine-tuning",
}


@dataclass(frozen=True)
class TaskResults(Grids):
    """Results on labelled tasks; final.

    Attributes:
        values: as they are stored, see above.
    """

    values: dict[str, Any]

    def grids(self) -> list[Grid]:
        """Return one table for each task and model, a row for each method."""
        groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
        for entry in self.values["tasks"]:
            key = (entry["task"], str(entry.get("model", "")), str(entry.get("split", "")))
            groups.setdefault(key, []).append(entry)
        return [_grid(*key, entries) for key, entries in groups.items()]


def load_task_runs(paths: Sequence[str], split: str = "") -> TaskResults:
    """Read finished runs as results, runs that differ in the seed alone together.

    Args:
        split: which split's numbers; empty takes what each run reports.

    Raises:
        RunError: a folder holds no finished run, or its files are damaged.
        ConfigError: a run was not asked about the split.
    """
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    worded = []
    for path in paths:
        if is_pattern_run(path):
            worded.append(_load_pattern_run(path, split))
            continue
        folder = TaskFolder(path)
        folder.require_finished()
        metrics = folder.load_metrics()
        wanted = split or str(metrics.get("reported", "test"))
        if wanted not in metrics["splits"]:
            raise _no_split(path, wanted, list(metrics["splits"]))
        recipe = str(metrics.get("recipe", ""))
        key = (metrics["task"], metrics["method"], metrics["model"], wanted, recipe)
        groups.setdefault(key, []).append(metrics)
    entries = [summarise(runs, key[3]) for key, runs in groups.items()]
    return TaskResults({"tasks": [*entries, *_told_apart(worded)]})


def _load_pattern_run(path: str, split: str) -> dict[str, Any]:
    """Read a run through a pattern, all its seeds, as one entry.

    Of dev, which chooses, there is the accuracy alone.
    """
    folder = PatternFolder(path)
    folder.require_finished()
    metrics = folder.load_metrics()
    if split not in ("", "dev", metrics["split"]):
        raise _no_split(path, split, ["dev", metrics["split"]])
    label = _PATTERN_LABELS.get(metrics["method"], metrics["method"])
    if metrics["method"] == "ptuning" and not metrics.get("model_trained", True):
        label += ", frozen model"
    entry = {**metrics, "label": label}
    return entry | {"split": split, "metrics": metrics["dev"]} if split == "dev" else entry


def _told_apart(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return entries whose labels have their pattern where a method is there with several."""
    keys = [(entry["task"], entry["model"], entry["label"]) for entry in entries]
    found = []
    for key, entry in zip(keys, entries, strict=True):
        several = keys.count(key) > 1
        found.append({**entry, "label": f"{key[2]}: {entry['pattern']}"} if several else entry)
    return found


def _no_split(path: str, split: str, known: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"{path} was not asked about {split!r}; --split may be one of: {', '.join(known)}, or left "
        "out."
    )


def summarise(runs: Sequence[Mapping[str, Any]], split: str) -> dict[str, Any]:
    """Return runs of one method on one task as one entry: means and deviations over seeds."""
    numbers: dict[str, list[float]] = {}
    for run in runs:
        for name, value in run["splits"].get(split, {}).items():
            numbers.setdefault(name, []).append(float(value))
    first = runs[0]
    return {
        "task": first["task"],
        "method": first["method"],
        "model": first["model"],
        "split": split,
        "seeds": [run["seed"] for run in runs],
        "metrics": {
            name: {"value": _mean(values), "deviation": _deviation(values), "values": values}
            for name, values in numbers.items()
        },
        "trainable_parameters": first["trainable_parameters"],
        "model_parameters": first.get("model_parameters"),
        "seconds": _mean([float(run["seconds"].get("training", 0.0)) for run in runs]),
    }


def prediction_grid(rows: Sequence[Mapping[str, Any]]) -> Grid:
    """Return predictions as a table: each one's number, what was predicted, and how surely."""
    header = ["example", "prediction"]
    cells = [[str(row["id"]), _shown(row["prediction"])] for row in rows]
    if all("probability" in row for row in rows):
        header.append("probability")
        for line, row in zip(cells, rows, strict=True):
            line.append(f"{row['probability']:.3f}")
    return Grid("", tuple(header), (tuple(map(tuple, cells)),))


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _grid(task: str, model: str, split: str, entries: Sequence[Mapping[str, Any]]) -> Grid:
    every = dict.fromkeys(name for entry in entries for name in entry["metrics"])
    names = [name for name in every if not name.startswith(_PARTS) and not name.endswith(_NO_SHARE)]
    published = list(dict.fromkeys(name for e in entries for name in e.get("published", {})))
    rows = []
    for entry in entries:
        cells = [_cell(entry["metrics"].get(name)) for name in names]
        trained = entry.get("trainable_parameters")
        seconds = entry.get("seconds")
        rows.append(
            (
                str(entry.get("label") or _LABELS.get(entry["method"], entry["method"])),
                str(len(entry.get("seeds", [])) or ""),
                *cells,
                "" if trained is None else f"{trained:,}",
                "" if seconds is None else f"{seconds:.1f}",
                *(_number(entry.get("published", {}).get(name)) for name in published),
            )
        )
    about = ", ".join(part for part in (task, split, model) if part)
    header = ("method", "seeds", *names, "trained", "seconds", *published)
    marked = tuple(range(len(header) - len(published), len(header)))
    return Grid(about, header, (tuple(rows),), marked)


def _cell(value: Mapping[str, float] | None) -> str:
    if value is None:
        return ""
    deviation = value.get("deviation")
    return f"{value['value']:.2f}" + (f" ± {deviation:.2f}" if deviation else "")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _deviation(values: Sequence[float]) -> float:
    """Return the deviation over seeds, with n - 1 below; 0 for one seed."""
    if len(values) < 2:
        return 0.0
    middle = _mean(values)
    return float((sum((value - middle) ** 2 for value in values) / (len(values) - 1)) ** 0.5)
