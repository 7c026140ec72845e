"""Results of any command as tables: from run folders, or from files of records.

And what a command prints of the run that it has finished.

A file of results is a JSON object: "about" (a note, how it was made) and a list "records", see
``symprompt.runs.folder.Record``. Neither torch nor the code that made a run is needed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import stdev
from typing import TYPE_CHECKING, Any

from symprompt.errors import ConfigError, RunError, counted
from symprompt.files.atomic import read_json
from symprompt.files.grid import Grid, Grids, difference_cell, interval_cell, stack
from symprompt.probing.summary import skipped_notes
from symprompt.runs.folder import (
    JOBS,
    MANIFEST,
    Folder,
    Manifest,
    Record,
    is_held,
    validated,
)

if TYPE_CHECKING:
    from rich.console import Group

TRAINED, SECONDS = "trained", "seconds"
"""Figures of every method: how many weights are trained, and how long that takes."""
METRIC_NAMES = {"p1": "P@1", "p10": "P@10", "mrr": "MRR"}
METHODS = {"ft": "FT", "pt": "PT", "pt2": "PT-2", "mpt2": "MPT-2", "lora": "LoRA"}
"""What is trained on a labelled task, as tables call it."""
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
class Results:
    """Records and what they are about, such as a note; final."""

    records: tuple[Record, ...]
    about: dict[str, Any] = field(default_factory=dict)

    def tables(self) -> Grids:
        """Return a table for each task, split and model, a row for each method."""
        groups: dict[tuple[str, ...], list[Record]] = {}
        for record in self.records:
            table = str(record.settings.get("table", ""))
            mean = str(record.settings.get("mean", ""))
            about = (mean.capitalize(), record.data, record.split, record.model)
            groups.setdefault((table,) if table else about, []).append(record)
        grids = [_grid(", ".join(filter(None, key)), own) for key, own in groups.items()]
        note = str(self.about.get("note", ""))
        notes = [note] if note else []
        lower = self.about.get("relations with a lower MRR")
        if isinstance(lower, dict):
            told = "; ".join(f"{name} {change}" for name, change in lower.items())
            which = "Relations in which SPE, as it was run, has a lower MRR than P-tuning"
            notes.append(f"{which} (p by Holm's method): {told or 'none'}.")
        values = {"note": note, **plain_results(self.about, self.records)}
        return Grids(values, grids, notes)


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
            return METHODS.get(method, method) or self.folder.name
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
                differing = {
                    setting: value
                    for setting, value in runs[0].settings.items()
                    if any(others[0].settings.get(setting) != value for others in recipes.values())
                }
                label = f"{label} {name}"
                told = ", ".join(f"{setting} {value}" for setting, value in differing.items())
                notes.append(f"{name}: {told}")
            for run in runs:
                left_out = skipped_notes(run.manifest.details.get("skipped", {}))
                notes += [f"{run.folder.name}: {note}" for note in left_out]
                for record in run_records(run.folder, split):
                    changes = {"label": label, "settings": {**record.settings, **differing}}
                    records.append(record.model_copy(update=changes))
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


def run_records(folder: Folder, split: str = "") -> list[Record]:
    """Return a run's figures of a split, then what was trained and how long it took.

    Args:
        split: empty takes what the run reports.

    Raises:
        ConfigError: the run has no figures of the split.
    """
    own, details = folder.manifest, folder.manifest.details
    splits = list(dict.fromkeys(record.split for record in own.records))
    reported = reported_split(own)
    wanted = split or (reported if reported in splits else next(filter(None, splits), ""))
    if wanted and wanted not in splits:
        raise ConfigError(
            f"{folder.path} has no figures of {wanted!r}; --split may be one of: "
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
        with folder.refuse_damage(MANIFEST):
            found.append(Record(**whole, value=details["trainable_parameters"]))
    if "training" in own.seconds:
        found.append(Record(**whole | {"metric": SECONDS}, value=own.seconds["training"]))
    return found


def _names(recipes: Sequence[Sequence[_Run]]) -> list[str]:
    """Return a name for each recipe: its folder's, or what the folders of its seeds share."""
    names = []
    for runs in recipes:
        folders = [run.folder.name for run in runs]
        shared = os.path.commonprefix(folders)  # noqa: RUF071 (letter by letter)
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
        name = record.label or METHODS.get(record.method, record.method)
        where, row = rows, name
        if record.versus:
            where, row = changes, f"{name}\nminus {record.versus}"
        where.setdefault(row, {}).setdefault(_column(record), []).append(record)
    every = dict.fromkeys(_column(record) for record in records)
    last = [name for name in (TRAINED, SECONDS) if name in every]
    published = list(dict.fromkeys(_column(own) for own in records if _is_published(own)))
    first = [name for name in every if name not in last + published and is_share(name)]
    columns = [*first, *last, *published]
    largest = {
        name: max(abs(own.value) for own in records if _column(own) == name) for name in columns
    }
    sections = []
    for part in filter(None, (rows, changes)):
        section = []
        for row, own in part.items():
            seeds = {seed for found in own.values() for record in found for seed in record.seeds}
            # Three digits for shares and cosines, two for percents.
            cells = (
                figure_cell(own.get(name, []), 3 if largest[name] <= 1 else 2) for name in columns
            )
            section.append((row, str(len(seeds) or ""), *cells))
        sections.append(tuple(section))
    header = ("method", "seeds", *columns)
    if any(record.low is not None for record in records):
        title += ", in percent, with 95 % intervals"
    marked = tuple(range(len(header) - len(published), len(header)))
    return Grid(title, header, tuple(sections), marked)


def is_share(metric: str) -> bool:
    """Return whether a table shows a metric: it is no count, and not of a part of the examples."""
    counts = metric in (TRAINED, SECONDS) or metric.endswith(_NO_SHARE)
    return not counts and not metric.startswith(_PARTS)


def _is_published(record: Record) -> bool:
    return "published" in record.settings


def _column(record: Record) -> str:
    if _is_published(record):
        return str(record.settings["published"])
    return METRIC_NAMES.get(record.metric, record.metric)


def figure_cell(records: Sequence[Record], digits: int = 2) -> str:
    """Return a figure: with its interval, or the mean over seeds and their deviation."""
    if not records:
        return ""
    first = records[0]
    if first.low is not None and first.high is not None:
        if first.versus and first.p is not None:
            return difference_cell(first.value, first.low, first.high, first.p)
        return interval_cell(first.value, first.low, first.high)
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
    return stdev(values) if len(values) > 1 else 0.0


# ------------------------------------------------------------------------------ listing


def list_runs(folder: str) -> list[dict[str, Any]]:
    """Return what the runs below a folder are, as plain values; a damaged one is named as such.

    Raises:
        RunError: there is no such folder.
    """
    place = Path(folder)
    if not place.is_dir():
        raise RunError(f"{place} is no folder; give one that holds runs.")
    rows = []
    for path in sorted(place.rglob(MANIFEST)):
        run = Folder(path.parent)
        name = run.path.relative_to(folder).as_posix()
        row: dict[str, Any] = {"name": run.name if name == "." else name}
        try:
            own = run.manifest
        except RunError:
            rows.append(row | {"state": "damaged"})
            continue
        # A run is known by the first figure of the split that it reports.
        reported = [record for record in own.records if record.split == reported_split(own)]
        main = next(iter(reported or own.records), None)
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
    states = _job_states(place)
    for row in rows:
        state = states.pop(row["name"], "")
        if state and row["state"] != "finished":
            row["state"] = state
    return rows + [{"name": name, "state": state} for name, state in sorted(states.items())]


def _job_states(place: Path) -> dict[str, str]:
    """Return what becomes of jobs that are not done, by their runs' paths below a folder."""
    found: dict[str, str] = {}
    for path in place.rglob(JOBS):
        own = path.parents[1]
        try:
            states = validated(dict[str, str], read_json(path), path)
        except RunError:
            continue
        held = is_held(own)
        for run, state in states.items():
            # Nobody is at work, whatever was written last.
            told = state if held or state.startswith("failed") else "stopped"
            found[os.path.relpath(own / run, place)] = told
    return found


def reported_split(manifest: Manifest) -> str:
    """Return the split that a run reports."""
    details = manifest.details
    return str(details.get("reported") or details.get("split") or "test")


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


# ------------------------------------------------------------------------------ finished runs


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
    trained = model.get("trained_parameters", model["parameters"])
    part = f", {trained:,} of them trained" if trained < model["parameters"] else ""
    title = f"{model['type']}, {model['parameters']:,} weights{part}"
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
    parent = [f"gone on from {training['parent']['text']}"] if "parent" in training else []
    notes = [
        *parent,
        f"text: {counted(corpus['documents'], 'document')}, {counted(corpus['tokens'], 'token')}, "
        f"{counted(corpus['sequences'], 'sequence')}",
        f"training: {counted(training['steps'], 'step')}, {training['tokens']:,} tokens, "
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
        f"held out: {about['held_out_documents']:,} of {counted(about['documents'], 'document')}",
        f"vocabulary: {vocabulary['size']:,} tokens",
        *_missing(vocabulary["broken"], about["empty_documents"]),
    ]
    return stack(Grid("text to train on", ("language", *names), (rows,)), *notes)


def _missing(broken: Sequence[str], empty: int) -> list[str]:
    """Return a note on listed words that are not one token, and one on documents left out."""
    notes = []
    if broken:
        shown = ", ".join(broken[:5]) + (", ..." if len(broken) > 5 else "")
        notes.append(f"vocabulary: {counted(len(broken), 'listed word')} not one token: {shown}")
    if empty:
        notes.append(f"left out: {counted(empty, 'document')} without a token")
    return notes
