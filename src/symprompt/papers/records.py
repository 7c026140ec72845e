"""What the tables read: ranks of facts, results on labelled tasks, and the papers' own numbers.

The only module here that opens run folders.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from symprompt.config import read_toml, shipped_configs
from symprompt.errors import ConfigError, RunError
from symprompt.facts import FactSet
from symprompt.files.atomic import read_json
from symprompt.files.grid import DASH, Grid
from symprompt.papers.jobs import Job, Model, Plan
from symprompt.papers.settings import PTUNING_V2, TaskPaper, TaskSettings
from symprompt.probing.config import RunConfig
from symprompt.probing.results import load_facts
from symprompt.report.records import SECONDS, TRAINED, deviation, run_records
from symprompt.report.records import load_results as load_stored
from symprompt.report.tables import load_scores
from symprompt.runs.folder import Folder, Record
from symprompt.runs.statistics import OVER_RELATIONS, Summary
from symprompt.runs.statistics import summarise as summarise_ranks
from symprompt.tasks.predict import COMMAND

if TYPE_CHECKING:
    from symprompt.papers.fact_jobs import Row

# ---------------------------------------------------------------- what papers print

# table -> model or row -> column -> value
Rows = Sequence[tuple[str, ...]]
Published = Mapping[str, Mapping[str, Mapping[str, float]]]


@cache
def published(name: str) -> Published:
    """Return a paper's numbers that a shipped recipe holds in [published]; empty if it has none."""
    found: Published = read_toml(shipped_configs()[name]).get("published", {})
    return found


def published_grid(
    title: str, first: str, ours: Sequence[str], theirs: Sequence[str], sections: Sequence[Rows]
) -> Grid:
    """Return our columns and then a paper's own, headed "published"."""
    header = (first, *ours, *(f"published:\n{name}" for name in theirs))
    marked = tuple(range(1 + len(ours), len(header)))
    return Grid(title, header, tuple(map(tuple, sections)), marked)


def describe_plan(
    plan: Plan[Any], what: str, *, facts: bool = False, more: Sequence[str] = ()
) -> str:
    """Return what tables are about, in a few sentences.

    Args:
        what: of which a trial takes few.
        facts: name the facts too.
        more: further sentences.
    """
    settings = plan.settings
    parts = [f"Models: {plan.about.model}."]
    if facts:
        of = f", relations {', '.join(settings.relations)}" if settings.relations else ""
        parts.append(f"Facts: {Path(settings.data).name or settings.data}{of}.")
    parts.append(f"Seeds: {', '.join(map(str, plan.about.seeds))}.")
    return " ".join([*parts, *more, *settings.describe_trial(what)])


def show(value: float | None, digits: int = 1) -> str:
    """Return a figure for a table, or a dash."""
    return DASH if value is None else f"{value:.{digits}f}"


# ---------------------------------------------------------------- facts: ranks of a method's runs

Ranks = npt.NDArray[np.float64]
Key = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Group:
    """The finished runs of a method on a model; final.

    Attributes:
        paths: run folders, one per seed.
        seeds: their seeds.
        wanted: how many runs there should be.
        rank: [seeds, facts], realistic ranks.
        relation: [facts] int, places in ``names``.
        keys: per fact (relation, subject, object).
    """

    row: Row
    model: str
    paths: tuple[str, ...]
    seeds: tuple[int, ...]
    wanted: int
    names: tuple[str, ...]
    rank: Ranks
    relation: npt.NDArray[Any]
    keys: tuple[Key, ...]
    note: str

    @property
    def label(self) -> str:
        """What results call the group: model and method."""
        return f"{self.model}: {self.row.name}"

    @cached_property
    def facts(self) -> FactSet:
        """The facts of the first run, training facts too."""
        return load_facts(Folder(self.paths[0]))

    @cached_property
    def means(self) -> dict[str, Summary]:
        """P@1, P@10 and MRR by averaging."""
        return summarise_ranks(self.rank, self.relation)

    def mean_of(self, keep: npt.NDArray[np.bool_]) -> Summary | None:
        """Return the mean over relations of some of the facts; None if there are none."""
        if not keep.any():
            return None
        return summarise_ranks(self.rank[:, keep], self.relation[keep])[OVER_RELATIONS]


@dataclass(frozen=True)
class Loaded:
    """Everything the tables of facts read: the groups, and why a row has none.

    Attributes:
        groups: (model, row config) -> group.
        missing: (model, row config) -> what stands in the table instead.
        failed: job -> why it failed.
    """

    plan: Plan[Any]
    rows: tuple[Row, ...]
    groups: dict[tuple[str, str], Group]
    missing: dict[tuple[str, str], str]
    failed: dict[str, str]

    @cached_property
    def by_model(self) -> dict[str, list[Group]]:
        """The groups of every model that has one, in the order of the rows."""
        found: dict[str, list[Group]] = {}
        for (model, _), group in self.groups.items():
            found.setdefault(model, []).append(group)
        return found

    def of_row(self, config: str) -> dict[str, Group]:
        """Return by model the group of one row, where there is one."""
        return {model: group for (model, own), group in self.groups.items() if own == config}


def load_groups(plan: Plan[Any], rows: tuple[Row, ...], failed: Mapping[str, str]) -> Loaded:
    """Read the ranks of every finished run of the rows.

    Raises:
        RunError: a run is damaged, or the runs of one model were made by different weights.
    """
    groups: dict[tuple[str, str], Group] = {}
    missing: dict[tuple[str, str], str] = {}
    for model in plan.models:
        for row in rows:
            place = (model.name, row.config)
            why = plan.missing.get("/".join(place))
            group = None if why else _load_group(plan, model, row)
            if group is None:
                missing[place] = why or "failed"
            else:
                groups[place] = group
    return Loaded(plan, rows, groups, missing, dict(sorted(failed.items())))


def _load_group(plan: Plan[Any], model: Model, row: Row) -> Group | None:
    jobs = plan.of_row(model.name, row.config)
    done = [job for job in jobs if job.finished]
    if not done:
        return None
    paths = tuple(job.config.out for job in done)
    scores = [load_scores(path) for path in paths]
    if any(list(score.key) != list(scores[0].key) for score in scores):
        raise RunError(f"the runs of {row.name} on {model.name} are about different facts.")
    for path in paths:
        found = Folder(path).manifest.model_fingerprint
        if found != model.fingerprint:
            raise RunError(
                f"{path} was made by other weights ({found}) than {model.name} has now "
                f"({model.fingerprint}); delete the folder to make it again."
            )
    return Group(
        row,
        model.name,
        paths,
        tuple(job.config.seed for job in done if isinstance(job.config, RunConfig)),
        len(jobs),
        scores[0].relation_names,
        np.stack([score.rank for score in scores]),
        scores[0].relation,
        tuple(tuple(key) for key in scores[0].key),
        scores[0].note,
    )


# ---------------------------------------------------------------- labelled tasks: figures

# Results of runs through patterns say in "split" how many examples were trained on.
FEW, FULL = "val, 32", "val, full train"
NOT_MEASURED = "not measured"
REPARAMETERISED = {"prefix.encoder": "mlp"}
LABELS = {
    "zero-shot": "MP zero-shot",
    "mp": "MP fine-tuning",
    "ptuning": "P-tuning",
    "cls": "[CLS] fine-tuning",
    "frozen": "P-tuning, frozen model",
    "verbalizer": "verbalizer, frozen model",
    "pt2-verbalizer": "PT-2, verbalizer",
}
# Runs through patterns that P-tuning v2's ablation sets beside heads.
_OF_V2 = ("verbalizer", "pt2-verbalizer")
ON_DEV = "dev "
"""Before the names of figures on the 32 examples that choose."""
# Settings that tell entries of one method apart; the others are its recipe.
_OWN = ("variant", "pattern")
# Metric -> a value for each seed.
Entry = Mapping[str, Sequence[float]]
EntryKey = tuple[str, str, str, str, str]
Place = tuple[str, str, str, str]


@dataclass(frozen=True)
class Entries:
    """Results by model, task, method, split and pattern, of runs or of stored files; final.

    Attributes:
        records: what the tables show, by entry.
        sizes: model -> how many parameters it has.
        failed: (model, task, method, split) of runs that failed; the split of patterns alone.
        missing: task -> why nothing was trained on it.
        note: what the results are about.
    """

    records: Mapping[EntryKey, Sequence[Record]]
    models: tuple[str, ...]
    sizes: Mapping[str, int]
    failed: frozenset[Place] = frozenset()
    missing: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    @cached_property
    def values(self) -> dict[EntryKey, Entry]:
        """Every entry's figures."""
        found: dict[EntryKey, dict[str, list[float]]] = {}
        for key, records in self.records.items():
            for record in records:
                found.setdefault(key, {}).setdefault(record.metric, []).append(record.value)
        return dict(found)

    def find(
        self, model: str, task: str, method: str, *, split: str = "", pattern: str | None = None
    ) -> Entry | None:
        """Return the entry of a method, if it was measured; an empty split or no pattern is any."""
        for (own_model, own_task, own_method, own_split, own_pattern), entry in self.values.items():
            if (own_model, own_task, own_method) != (model, task, method):
                continue
            if split in ("", own_split) and pattern in (None, own_pattern):
                return entry
        return None

    def any_of(
        self, models: Sequence[str], tasks: Iterable[str], methods: Iterable[str], split: str = ""
    ) -> bool:
        """Return whether any of these was measured."""
        wanted = {(m, t, o) for m in models for t in tasks for o in methods}
        return any(key[:3] in wanted and split in ("", key[3]) for key in self.values)

    def common(
        self, models: Sequence[str], tasks: Iterable[str], methods: Sequence[str], split: str = ""
    ) -> list[str]:
        """Return the tasks that every model and method was measured on."""
        pairs = [(model, method) for model in models for method in methods]
        return [
            task
            for task in tasks
            if pairs and all(self.find(model, task, own, split=split) for model, own in pairs)
        ]

    def comparable(
        self, tasks: Iterable[str], methods: Iterable[str], split: str = ""
    ) -> tuple[list[str], list[str], list[str]]:
        """Return the models, methods and tasks of a figure, whose bars average the same tasks."""
        tasks = list(tasks)
        models = [own for own in self.models if self.any_of([own], tasks, methods, split)]
        shown = [
            method
            for method in methods
            if models and all(self.any_of([model], tasks, [method], split) for model in models)
        ]
        return models, shown, self.common(models, tasks, shown, split)

    def average(
        self, model: str, method: str, metrics: Mapping[str, Sequence[str]], split: str = ""
    ) -> float:
        """Return the papers' average: over tasks, of several metrics of a task their mean.

        Args:
            metrics: of each task; all were measured.
        """
        means = []
        for task, names in metrics.items():
            entry = self.find(model, task, method, split=split)
            assert entry is not None
            means.append(fmean(fmean(entry[name]) for name in names))
        return fmean(means)

    def cell(self, entry: Entry | None, metric: str, *, of: Place) -> str:
        """Return an entry's value for a table, or why there is none.

        Args:
            of: the model, task, method and split that the entry would be of.
        """
        if entry is None or metric not in entry:
            return "failed" if of in self.failed else NOT_MEASURED
        return show_values(entry[metric])

    def cells(self, task: str, method: str, metric: str, split: str = "") -> list[str]:
        """Return a method's values for a table, one of each model."""
        of = split if split in (FEW, FULL) else ""
        return [
            self.cell(
                self.find(model, task, method, split=split), metric, of=(model, task, method, of)
            )
            for model in self.models
        ]


def show_values(values: Sequence[float]) -> str:
    """Return a mean and its deviation over seeds."""
    return f"{fmean(values):.2f}" + (f" ± {deviation(values):.2f}" if len(values) > 1 else "")


def load_results(paths: Sequence[str], paper: TaskPaper) -> Entries:
    """Read stored files of results, such as those of experiments/results.

    Entries of a search over settings are left out: their numbers are of the split that chooses. So
    are variants of a method that are no row of the papers.

    Args:
        paths: files, or folders of them; what a folder holds besides is passed over.
        paper: leave out what its tables do not show.

    Raises:
        RunError: a file holds no results on labelled tasks, or none of them serves the paper.
        ConfigError: two files have results of the same method on the same task and model.
    """
    found: dict[EntryKey, list[Record]] = {}
    origin: dict[EntryKey, tuple[str, ...]] = {}
    sizes: dict[str, int] = {}
    notes = []
    for path in (file for place in paths for file in _files(place)):
        stored, before = load_stored(path), len(found)
        for record in stored.records:
            key = _key(record)
            if key is None or not _serves(key, paper):
                continue
            here = (path, record.label, str(record.settings))
            if origin.setdefault(key, here) != here:
                raise ConfigError(
                    f"{origin[key][0]} and {path} both have results of {record.method} on "
                    f"{record.data} with the model {record.model}; leave one of them out."
                )
            found.setdefault(key, []).append(record)
        if len(found) > before:
            notes.append(stored.about.get("note", ""))
            sizes |= stored.about.get("model parameters", {})
    if not found:
        shown = f"that the tables of {paper} show"
        raise RunError(f"{', '.join(paths)}: no results {shown}; give others.")
    models = tuple(dict.fromkeys(key[0] for key in found))
    return Entries(found, models, sizes, note=" ".join(filter(None, notes)))


def _files(place: str) -> list[str]:
    """Return a file itself, and of a folder the files that hold results on labelled tasks."""
    if not Path(place).is_dir():
        return [place]
    found = []
    for path in sorted(Path(place).glob("*.json")):
        values = read_json(path)
        if isinstance(values, dict) and isinstance(values.get("records"), list):
            found.append(str(path))
    return found


def _key(record: Record) -> EntryKey | None:
    """Return what an entry is found by; None for one that no table shows."""
    settings, method = record.settings, record.method
    pattern = str(settings.get("pattern", ""))
    recipe = {key: value for key, value in settings.items() if key not in _OWN}
    if (
        record.command != COMMAND
        or record.versus
        or settings.get("variant")
        or recipe not in ({}, REPARAMETERISED)
        or method == "difference"
        or (method == "pet" and not pattern)
    ):
        return None
    return record.model, record.data, "pt2-mlp" if recipe else method, record.split, pattern


def _serves(key: EntryKey, paper: TaskPaper) -> bool:
    """Say whether a paper's tables show an entry."""
    worded = key[3] in (FEW, FULL)
    if paper == PTUNING_V2:
        return not worded or key[2] in (*_OF_V2, "frozen")
    return worded and key[2] not in _OF_V2


def load_entries(plan: Plan[TaskSettings], failed: Mapping[str, str], note: str) -> Entries:
    """Read the finished runs of a plan, runs that differ in the seed alone together."""
    found: dict[EntryKey, list[Record]] = {}
    sizes = {model.name: 0 for model in plan.models}
    broken = set()
    for job in plan.jobs:
        if job.name in failed:
            split = "" if job.command == "tune" else _pattern_split(job)
            broken |= {(job.model, task, job.row, split) for task in job.tasks}
        if not job.finished:
            continue
        for task in job.tasks:
            folder = Folder(Path(job.config.out) / task if job.row == "mpt2" else job.config.out)
            size = folder.manifest.details.get("model_parameters") or 0
            sizes[job.model] = max(sizes[job.model], size)
            for record in _job_records(job, task, folder):
                key = _key(record)
                assert key is not None
                found.setdefault(key, []).append(record)
    return Entries(found, tuple(sizes), sizes, frozenset(broken), plan.missing, note)


def _pattern_split(job: Job) -> str:
    return FULL if job.full else FEW


def _job_records(job: Job, task: str, folder: Folder) -> Iterable[Record]:
    """Yield a run's figures as the tables' results call them."""
    own: dict[str, Any] = {"model": job.model, "data": task, "n": None}
    if job.command == "patterns":
        settings = {"pattern": job.pattern} if job.pattern else {}
        label = LABELS.get(job.row, f"pattern {job.pattern}")
        own |= {"method": job.row, "split": _pattern_split(job)}
        own |= {"label": label, "settings": settings}
        for split, prefix in (("", ""), ("dev", ON_DEV)):
            for record in run_records(folder, split):
                if split and record.metric in (TRAINED, SECONDS):
                    continue
                changes = {"metric": prefix + record.metric, "value": round(record.value, 3)}
                yield record.model_copy(update=own | changes)
        return
    if job.row == "pt2-mlp":
        own |= {"settings": REPARAMETERISED, "label": "PT-2, reparameterised"}
    splits = {record.split for record in folder.manifest.records}
    for split in ("", *sorted(split for split in splits if split.startswith("test-"))):
        for record in run_records(folder, split):
            yield record.model_copy(update=own)
