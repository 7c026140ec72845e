"""Results of any command as tables: from run folders, or from files of records.

A file of results is a JSON object: "about" (a note, how it was made) and a list "records", see
``symprompt.runs.folder.Record``. Neither torch nor the code that made a run is needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from symprompt.errors import ConfigError, RunError
from symprompt.files.atomic import read_json
from symprompt.report.grid import Grid, Grids
from symprompt.runs.folder import Folder, Manifest, Record, validated

TRAINED, SECONDS = "trained", "seconds"
"""Figures of every method: how many weights are trained, and how long that takes."""
_METRICS = {"p1": "P@1", "p10": "P@10", "mrr": "MRR"}
_METHODS = {"ft": "FT", "pt": "PT", "pt2": "PT-2", "lora": "LoRA", "mpt2": "MPT-2"}
_PATTERNS = {
    "ptuning": "P-tuning",
    "pt2": "PT-2, verbalizer",
    "mp": "MP fine-tuning",
    "zero-shot": "MP zero-shot",
    "cls": "[CLS] fine-tuning",
}
# Figures of some of the questions, and values that are no share: stored, and in --json, but a
# table of them all would not fit a terminal.
_PARTS = ("answerable_", "unanswerable_")
_NO_SHARE = "_threshold"


@dataclass(frozen=True)
class Results(Grids):
    """Records and what they are about; final."""

    records: tuple[Record, ...]
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, Any]:  # type: ignore[override]
        """Everything as plain values."""
        note = str(self.about.get("note", ""))
        return {"note": note, **plain_results(self.about, self.records)}

    def grids(self) -> list[Grid]:
        """Return a table for each task, split and model, a row for each method."""
        groups: dict[tuple[str, ...], list[Record]] = {}
        for record in self.records:
            table = str(record.settings.get("table", ""))
            mean = str(record.settings.get("mean", ""))
            about = (mean.capitalize(), record.data, record.split, record.model)
            key = (table,) if table else about
            groups.setdefault(key, []).append(record)
        return [_grid(", ".join(filter(None, key)), own) for key, own in groups.items()]


def plain_results(about: Mapping[str, Any], records: Iterable[Record]) -> dict[str, Any]:
    """Return what a file of results holds, as plain values."""
    listed = [record.model_dump(mode="json", exclude_defaults=True) for record in records]
    return {"about": dict(about), "records": listed}


def is_results(path: str) -> bool:
    """Return whether a path is a file of results and not a run folder."""
    return path.endswith(".json") and Path(path).is_file()


def load_results(path: str) -> Results:
    """Read a file of results.

    Raises:
        RunError: it holds none.
    """
    values = read_json(Path(path))
    if not isinstance(values, dict) or not isinstance(values.get("records"), list):
        raise RunError(
            f"{path} holds no results (no list of records); give a results.json written by "
            "reproduce, a file of experiments/results, or run folders."
        )
    records = validated(list[Record], values["records"], path)
    return Results(tuple(records), dict(values.get("about", {})))


# ------------------------------------------------------------------------------ run folders


@dataclass(frozen=True)
class _Run:
    """A run that was read: its folder, manifest, and what may make its figures differ."""

    folder: Folder
    manifest: Manifest
    settings: dict[str, Any]

    @property
    def recipe(self) -> str:
        """What it is a run of: the same for runs that differ in the seed alone."""
        own = self.manifest
        return json.dumps([own.command, own.data, own.method, own.model, self.settings])

    def label(self) -> str:
        """Return what to call the method."""
        details, method = self.manifest.details, self.manifest.method
        if "pattern" not in details:
            return _METHODS.get(method, method) or self.folder.name
        frozen = method == "ptuning" and not details["model_trained"]
        return _PATTERNS.get(method, method) + (", frozen model" if frozen else "")


def load_runs(paths: Sequence[str], split: str = "") -> Results:
    """Read finished runs of any command as records, runs that differ in the seed alone together.

    Runs of one method that differ in more are rows of their own, named by their folders; the note
    says in what.

    Args:
        paths: run folders; of a mixture of tasks each task is read.
        split: which split's figures; empty takes what each run reports.

    Raises:
        RunError: a folder holds no finished run, or its files are damaged.
        ConfigError: a run has no figures of the split.
    """
    groups: dict[tuple[str, ...], dict[str, list[_Run]]] = {}
    for run in _read(paths):
        own = run.manifest
        recipes = groups.setdefault((own.command, own.data, run.label(), own.model), {})
        recipes.setdefault(run.recipe, []).append(run)
    records: list[Record] = []
    notes = []
    for recipes in groups.values():
        names = _names(list(recipes.values()))
        for name, runs in zip(names, recipes.values(), strict=True):
            label, differing = runs[0].label(), {}
            if len(recipes) > 1:
                differing = _differing(runs[0], [others[0] for others in recipes.values()])
                label = f"{label} {name}"
                told = ", ".join(f"{setting} {value}" for setting, value in differing.items())
                notes.append(f"{name}: {told}")
            for run in runs:
                records += _records(run, split, label, differing)
    return Results(tuple(records), {"note": "; ".join(notes)})


def _read(paths: Sequence[str]) -> Iterator[_Run]:
    for path in paths:
        folder = Folder(path)
        manifest = folder.require_finished()
        inner = manifest.details.get("tasks")
        if inner:
            yield from _read([str(folder.path / name) for name in inner])
            continue
        found = folder.settings() if folder.has("config.toml") else {}
        # A known task is the same wherever its files lie; which run a start was taken from goes
        # with the seed.
        left_out = {"seed", "seeds", "model", "method", "pattern.method"}
        left_out |= {"data"} if manifest.data else set()
        found["start_from"] = bool(found.get("start_from"))
        yield _Run(folder, manifest, {k: v for k, v in found.items() if k not in left_out})


def _records(run: _Run, split: str, label: str, differing: Mapping[str, Any]) -> list[Record]:
    """Return a run's figures of a split, then what was trained and how long it took."""
    own, details = run.manifest, run.manifest.details
    splits = list(dict.fromkeys(record.split for record in own.records))
    reported = details.get("reported") or details.get("split") or "test"
    wanted = split or (reported if reported in splits else next(filter(None, splits), ""))
    if wanted and wanted not in splits:
        raise ConfigError(
            f"{run.folder.path} has no figures of {wanted!r}; --split may be one of: "
            f"{', '.join(splits)}, or left out."
        )
    found = [
        record
        for record in own.full_records()
        if record.split in (wanted, "") and record.settings.get("order", "raw") == "raw"
    ]
    whole: dict[str, Any] = {"metric": TRAINED, "split": wanted, "command": own.command}
    whole |= {"model": own.model, "data": own.data, "method": own.method, "seeds": own.seeds}
    if details.get("trainable_parameters") is not None:
        found.append(Record(**whole, value=details["trainable_parameters"]))
    if "training" in own.seconds:
        found.append(Record(**whole | {"metric": SECONDS}, value=own.seconds["training"]))
    return [
        record.model_copy(update={"label": label, "settings": {**record.settings, **differing}})
        for record in found
    ]


def _differing(run: _Run, others: Sequence[_Run]) -> dict[str, Any]:
    """Return a run's settings that are not the same in all of the others."""
    return {
        name: value
        for name, value in run.settings.items()
        if any(other.settings.get(name) != value for other in others)
    }


def _names(recipes: Sequence[Sequence[_Run]]) -> list[str]:
    """Return a name for each recipe: its folder's, or what the folders of its seeds share."""
    names = []
    for runs in recipes:
        folders = [run.folder.name for run in runs]
        shared = folders[0]
        while not all(folder.startswith(shared) for folder in folders):
            shared = shared[:-1]
        shared = shared.rstrip("-_.0123456789")
        names.append(folders[0] if len(runs) == 1 else shared or ", ".join(folders))
    if len(set(names)) == len(names):
        return names
    return [", ".join(str(run.folder.path) for run in runs) for runs in recipes]


# ------------------------------------------------------------------------------ tables


def _grid(title: str, records: Sequence[Record]) -> Grid:
    rows: dict[str, dict[str, list[Record]]] = {}
    changes: dict[str, dict[str, list[Record]]] = {}
    for record in records:
        name = record.label or _METHODS.get(record.method, record.method)
        where, row = rows, name
        if record.versus:
            where, row = changes, f"{name}\nminus {record.versus}"
        where.setdefault(row, {}).setdefault(_column(record), []).append(record)
    every = dict.fromkeys(_column(record) for record in records)
    last = [name for name in (TRAINED, SECONDS) if name in every]
    published = list(dict.fromkeys(_column(own) for own in records if _is_published(own)))
    first = [name for name in every if name not in last + published and _is_shown(name)]
    columns = [*first, *last, *published]
    digits = {name: _digits([own for own in records if _column(own) == name]) for name in columns}
    sections = tuple(
        tuple(
            (row, _seeds(own), *(_cell(own.get(name, []), digits[name]) for name in columns))
            for row, own in part.items()
        )
        for part in (rows, changes)
        if part
    )
    header = ("method", "seeds", *columns)
    if any(record.low is not None for record in records):
        title += ", in percent, with 95 % intervals"
    marked = tuple(range(len(header) - len(published), len(header)))
    return Grid(title, header, sections, marked)


def _is_published(record: Record) -> bool:
    return "published" in record.settings


def _column(record: Record) -> str:
    if _is_published(record):
        return str(record.settings["published"])
    return _METRICS.get(record.metric, record.metric)


def _is_shown(name: str) -> bool:
    return not name.startswith(_PARTS) and not name.endswith(_NO_SHARE)


def _seeds(row: Mapping[str, Sequence[Record]]) -> str:
    seeds = {seed for records in row.values() for record in records for seed in record.seeds}
    return str(len(seeds) or "")


def _digits(records: Sequence[Record]) -> int:
    """Return how many digits a column shows: three for shares and cosines, two for percents."""
    largest = max(abs(record.value) for record in records)
    return 3 if largest <= 1 else 2


def _cell(records: Sequence[Record], digits: int) -> str:
    """Return a figure: with its interval, or the mean over seeds and their deviation."""
    if not records:
        return ""
    first = records[0]
    if first.versus and first.p is not None:
        p = "p < 0.01" if first.p < 0.01 else f"p = {first.p:.2f}"
        return f"{first.value:+z.2f}\n({first.low:+z.2f} to {first.high:+z.2f})\n{p}"
    if first.low is not None:
        return f"{first.value:.2f}\n({first.low:.2f} to {first.high:.2f})"
    values = [record.value for record in records]
    middle = sum(values) / len(values)
    if first.metric == SECONDS:
        return f"{middle:.1f}"
    if _is_published(first):
        return f"{middle:g}"
    spread = deviation(values)
    return number(middle, digits) + (f" ± {spread:.{digits}f}" if spread else "")


def number(value: float, digits: int = 2) -> str:
    """Return a figure as a table shows it; large counts are whole."""
    if value == int(value) and abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}f}"


def deviation(values: Sequence[float]) -> float:
    """Return the deviation of a sample, with n - 1 below; 0 for one value."""
    if len(values) < 2:
        return 0.0
    middle = sum(values) / len(values)
    return float((sum((value - middle) ** 2 for value in values) / (len(values) - 1)) ** 0.5)


# ------------------------------------------------------------------------------ listing


def runs_below(folder: str) -> Iterable[Folder]:
    """Yield every run folder below a folder, itself too, in the order of their paths.

    Raises:
        RunError: there is no such folder.
    """
    place = Path(folder)
    if not place.is_dir():
        raise RunError(f"{place} is no folder; give one that holds runs.")
    for path in sorted(place.rglob("symprompt.json")):
        yield Folder(path.parent)


def list_runs(folder: str) -> list[dict[str, Any]]:
    """Return what the runs below a folder are, as plain values; a damaged one is named as such."""
    rows = []
    for run in runs_below(folder):
        name = run.path.relative_to(folder).as_posix()
        row: dict[str, Any] = {"name": run.name if name == "." else name}
        try:
            own = run.manifest
        except RunError:
            rows.append(row | {"state": "damaged"})
            continue
        main = _main(own)
        figure = "" if main is None else f"{_column(main)} {number(main.value)}"
        rows.append(
            row
            | {
                "command": own.command,
                "model": Path(own.model).name,
                "data": Path(own.data).name,
                "method": own.method,
                "state": own.state,
                "figure": figure,
                "bytes": own.size,
            }
        )
    return rows


def _main(manifest: Manifest) -> Record | None:
    """Return the figure that a run is known by: the first of the split that it reports."""
    reported = manifest.details.get("reported") or manifest.details.get("split") or "test"
    records = manifest.records
    own = [record for record in records if record.split == reported]
    return next(iter(own or records), None)


def list_grid(rows: Sequence[Mapping[str, Any]]) -> Grid:
    """Return a list of runs as a table."""
    header = ("run", "command", "model", "data", "method", "state", "main figure", "size")
    keys = ("command", "model", "data", "method", "state", "figure")
    cells = tuple(
        (str(row["name"]), *(str(row.get(key, "")) for key in keys), _size(row.get("bytes")))
        for row in rows
    )
    return Grid("", header, (cells,), folded=(2, 3))


def _size(count: int | None) -> str:
    if count is None:
        return ""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
