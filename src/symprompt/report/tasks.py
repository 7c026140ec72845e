"""Runs on labelled tasks as tables: from their folders, or from results stored as JSON.

Stored results are a table with a list "tasks"; an entry is one method on one task over its seeds:
task, method, model, split, seeds, metrics (name -> value and deviation, in percent), and perhaps
trainable_parameters, seconds, label, settings and published (who -> number).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from symprompt.config import incidental_keys
from symprompt.errors import ConfigError
from symprompt.report.grid import Grid, Grids
from symprompt.tasks.config import TuneConfig
from symprompt.tasks.data.examples import CUT
from symprompt.tasks.folder import TaskFolder
from symprompt.tasks.patterns.folder import PatternFolder, is_pattern_run

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
# Labels that a note names.
_TOLD = 5
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

    Runs of one method that differ in more are rows of their own, named by their folders; the note
    says in what.

    Args:
        paths: run folders.
        split: which split's numbers; empty takes what each run reports.

    Raises:
        RunError: a folder holds no finished run, or its files are damaged.
        ConfigError: a run was not asked about the split.
    """
    rows: dict[tuple[str, ...], dict[str, list[_Read]]] = {}
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
        key = (metrics["task"], metrics["method"], metrics["model"], wanted)
        read = _Read(path, metrics, _settings(folder.load_config()))
        rows.setdefault(key, {}).setdefault(json.dumps(read.settings), []).append(read)
    entries, notes = [], []
    for (_, method, _, wanted), recipes in rows.items():
        names = _names(list(recipes.values()))
        for name, runs in zip(names, recipes.values(), strict=True):
            entry = summarise([run.metrics for run in runs], wanted)
            if len(recipes) > 1:
                own = _differing(runs[0], [others[0] for others in recipes.values()])
                entry |= {"label": f"{_LABELS.get(method, method)} {name}", "settings": own}
                told = ", ".join(f"{setting} {value}" for setting, value in own.items())
                notes.append(f"{name}: {told}")
            entries.append(entry)
    return TaskResults({"note": "; ".join(notes), "tasks": [*entries, *_told_apart(worded)]})


@dataclass(frozen=True)
class _Read:
    """A run that was read: where it lies, its numbers, and what made them."""

    path: str
    metrics: dict[str, Any]
    settings: dict[str, Any]


def _settings(config: TuneConfig) -> dict[str, Any]:
    """Return what may make a run's numbers another than a neighbour's, the seed left out."""
    found: dict[str, Any] = {}
    for name, value in asdict(config).items():
        inner = value if isinstance(value, dict) else {"": value}
        found |= {f"{name}.{key}".rstrip("."): own for key, own in inner.items()}
    # A known task is the same wherever its files lie; which run a start was taken from goes with
    # the seed.
    left_out = {
        *incidental_keys(TuneConfig),
        "seed",
        "model",
        "method",
        *(["data"] if config.task.name else []),
    }
    found["start_from"] = bool(config.start_from)
    return {name: value for name, value in found.items() if name not in left_out}


def _differing(run: _Read, others: Sequence[_Read]) -> dict[str, Any]:
    """Return a run's settings that are not the same in all of the others."""
    return {
        name: value
        for name, value in run.settings.items()
        if any(other.settings[name] != value for other in others)
    }


def _names(recipes: Sequence[Sequence[_Read]]) -> list[str]:
    """Return a name for each recipe: its folder's, or what the folders of its seeds share."""
    names = []
    for runs in recipes:
        folders = [Path(run.path).name for run in runs]
        shared = folders[0]
        while not all(folder.startswith(shared) for folder in folders):
            shared = shared[:-1]
        shared = shared.rstrip("-_.0123456789")
        names.append(folders[0] if len(runs) == 1 else shared or ", ".join(folders))
    if len(set(names)) == len(names):
        return names
    return [", ".join(run.path for run in runs) for runs in recipes]


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
