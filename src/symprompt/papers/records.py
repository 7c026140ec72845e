"""What runs have stored, as the tables read it: ranks of facts, and results on labelled tasks.

The only module here that opens run folders.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from symprompt.errors import ConfigError, RunError
from symprompt.facts import FactSet
from symprompt.files.atomic import read_json
from symprompt.papers.recipes import Config
from symprompt.papers.settings import PTUNING_V2, FactSettings, TaskPaper, TaskSettings
from symprompt.probing import results as facts_results
from symprompt.probing.config import RunConfig
from symprompt.probing.results import PROMPTS, load_facts
from symprompt.report.records import SECONDS, TRAINED, deviation
from symprompt.report.records import load_results as load_stored
from symprompt.report.tables import load_scores
from symprompt.runs.folder import CONFIG, HISTORY, Folder, Record
from symprompt.runs.statistics import OVER_RELATIONS, Summary
from symprompt.runs.statistics import summarise as summarise_ranks
from symprompt.tasks import folder as tasks
from symprompt.tasks.config import TuneConfig

if TYPE_CHECKING:
    from symprompt.papers.fact_jobs import Row
    from symprompt.papers.jobs import Job, Plan

# ---------------------------------------------------------------- one run


def finished(config: Config) -> bool:
    """Say whether a run is finished; one through a pattern has all its seeds."""
    folder = Folder(config.out)
    if not folder.finished or isinstance(config, RunConfig | TuneConfig):
        return folder.finished
    wanted = config.seeds[:1] if config.pattern.method == "zero-shot" else config.seeds
    return folder.manifest.seeds == wanted


def begun(config: Config) -> bool:
    """Say whether a run's folder is there."""
    return Folder(config.out).has(CONFIG)


def check_same(config: Config) -> None:
    """Refuse a run folder that was made with another config; seeds may be added to patterns.

    Raises:
        RunError: naming the first key that differs.
    """
    folder = Folder(config.out)
    if folder.has(CONFIG):
        command = "train" if isinstance(config, RunConfig) else tasks.COMMAND
        folder.check(command, config, resume=True)


def load_metrics(config: Config) -> dict[str, Any]:
    """Return what a finished run states, and its figures."""
    folder = Folder(config.out)
    if isinstance(config, RunConfig):
        return facts_results.load_metrics(folder)
    return tasks.load_metrics(folder)


def borrow_prompts(source: str, config: RunConfig) -> None:
    """Begin a run with the prompts that another one learned, so that it only queries."""
    folder = Folder(config.out)
    if folder.check("train", config, resume=True):
        return
    folder.write_config(config)
    # The prompts last: a run that has them is taken to have learned.
    for name in (HISTORY, PROMPTS):
        if not folder.has(name):
            folder.write(name, (Path(source) / name).read_bytes())


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

    plan: Plan[FactSettings]
    rows: tuple[Row, ...]
    groups: dict[tuple[str, str], Group]
    missing: dict[tuple[str, str], str]
    failed: dict[str, str]

    def of_model(self, model: str) -> list[Group]:
        """Return a model's groups in the order of the rows."""
        found = (self.groups.get((model, row.config)) for row in self.rows)
        return [group for group in found if group is not None]


def load_groups(
    plan: Plan[FactSettings], rows: tuple[Row, ...], failed: Mapping[str, str]
) -> Loaded:
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
            group = None if why else _load_group(plan, model.name, row)
            if group is None:
                missing[place] = why or "failed"
            else:
                groups[place] = group
    return Loaded(plan, rows, groups, missing, dict(sorted(failed.items())))


def _load_group(plan: Plan[FactSettings], model: str, row: Row) -> Group | None:
    jobs = plan.of_row(model, row.config)
    done = [job for job in jobs if job.finished]
    if not done:
        return None
    paths = tuple(job.config.out for job in done)
    scores = [load_scores(path) for path in paths]
    if any(list(score.key) != list(scores[0].key) for score in scores):
        raise RunError(f"the runs of {row.name} on {model} are about different facts.")
    wanted = plan.record["models"][model]["fingerprint"]
    for path in paths:
        found = Folder(path).manifest.model_fingerprint
        if found != wanted:
            raise RunError(
                f"{path} was made by other weights ({found}) than {model} has now "
                f"({wanted}); delete the folder to make it again."
            )
    return Group(
        row,
        model,
        paths,
        tuple(job.config.seed for job in done if isinstance(job.config, RunConfig)),
        len(jobs),
        scores[0].relation_names,
        np.stack([score.rank for score in scores]),
        scores[0].relation,
        tuple(tuple(key) for key in scores[0].key),
        scores[0].note,
    )


# ---------------------------------------------------------------- labelled tasks: entries

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
Entry = Mapping[str, Any]
EntryKey = tuple[str, str, str, str, str]
Place = tuple[str, str, str, str]


@dataclass(frozen=True)
class Entries:
    """Results by model, task, method, split and pattern, of runs or of stored files; final.

    Attributes:
        failed: (model, task, method, split) of runs that failed; the split of patterns alone.
        missing: task -> why nothing was trained on it.
        note: what the results are about.
    """

    values: Mapping[EntryKey, Entry]
    models: tuple[str, ...]
    failed: frozenset[Place] = frozenset()
    missing: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

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

    def of_method(self, model: str, task: str, method: str, *, split: str) -> dict[str, Entry]:
        """Return a method's entries by the name of their pattern."""
        return {
            key[4]: entry
            for key, entry in self.values.items()
            if key[:4] == (model, task, method, split)
        }

    def cell(self, entry: Entry | None, metric: str, *, of: Place) -> str:
        """Return an entry's value for a table, or why there is none.

        Args:
            of: the model, task, method and split that the entry would be of.
        """
        value = None if entry is None else entry["metrics"].get(metric)
        if value is None:
            return "failed" if of in self.failed else NOT_MEASURED
        return show_value(value)

    def parameters(self, model: str) -> int:
        """Return how many parameters a model has, 0 if no entry holds it."""
        found = [
            int(entry.get("model_parameters") or 0)
            for key, entry in self.values.items()
            if key[0] == model
        ]
        return max(found, default=0)


def show_value(value: Mapping[str, Any]) -> str:
    """Return a mean and its deviation over seeds."""
    deviation = value.get("deviation") or 0.0
    several = len(value.get("values", [])) > 1 or deviation
    return f"{value['value']:.2f}" + (f" ± {deviation:.2f}" if several else "")


def mean_of(values: Iterable[float]) -> float:
    """Return the mean of one number or more."""
    found = list(values)
    return sum(found) / len(found)


def load_results(paths: Sequence[str], paper: TaskPaper | None = None) -> Entries:
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
    values: dict[EntryKey, Entry] = {}
    origin: dict[EntryKey, str] = {}
    notes = []
    for path in (file for place in paths for file in _files(place)):
        stored = load_stored(path)
        found = len(values)
        for entry in _to_entries(stored.records, stored.about):
            key = _key(entry)
            if key is None or not _serves(key, paper):
                continue
            if key in values:
                raise ConfigError(
                    f"{origin[key]} and {path} both have results of {entry['method']} on "
                    f"{entry['task']} with the model {key[0]}; leave one of them out."
                )
            values[key], origin[key] = entry, path
        note = stored.about.get("note", "")
        notes += [note] if note and len(values) > found else []
    if not values:
        wanted = f"that the tables of {paper} show" if paper else "on labelled tasks"
        raise RunError(f"{', '.join(paths)}: no results {wanted}; give others.")
    models = tuple(dict.fromkeys(key[0] for key in values))
    return Entries(values, models, note=" ".join(notes))


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


_DEV = "dev "
_OWN = ("variant", "pattern")
"""Settings that tell entries of one method apart; the others are its recipe."""


def to_records(entries: Iterable[Entry]) -> list[Record]:
    """Return entries as records, one for each seed and metric."""
    records = []
    for entry in entries:
        settings = dict(entry.get("settings") or {})
        if entry.get("pattern_name"):
            settings["pattern"] = entry["pattern_name"]
        own: dict[str, Any] = {"command": tasks.COMMAND, "data": entry["task"]}
        own |= {key: entry[key] for key in ("model", "method", "split")}
        own |= {"label": entry.get("label", ""), "settings": settings}
        figures = dict(entry["metrics"])
        figures |= {_DEV + name: value for name, value in entry.get("dev", {}).items()}
        for name, value in figures.items():
            records += [
                Record(metric=name, value=single, seeds=(seed,), **own)
                for seed, single in zip(entry["seeds"], value["values"], strict=True)
            ]
        whole = {TRAINED: entry.get("trainable_parameters"), SECONDS: entry.get("seconds")}
        records += [
            Record(metric=name, value=value, seeds=tuple(entry["seeds"]), **own)
            for name, value in whole.items()
            if value is not None
        ]
    return records


def _to_entries(records: Iterable[Record], about: Mapping[str, Any]) -> list[Entry]:
    """Return stored records of labelled tasks as entries, a method with all its seeds each."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        if record.command != tasks.COMMAND or record.versus or "published" in record.settings:
            continue
        key = [record.data, record.method, record.model, record.split, record.label]
        groups.setdefault(str([*key, record.settings]), []).append(record)
    sizes = about.get("model parameters", {})
    return [_to_entry(own, sizes) for own in groups.values()]


def _to_entry(records: Sequence[Record], sizes: Mapping[str, int]) -> Entry:
    first = records[0]
    figures: dict[str, list[float]] = {}
    for record in records:
        figures.setdefault(record.metric, []).append(record.value)
    settings = {key: own for key, own in first.settings.items() if key not in _OWN}
    measured = {name: _over_seeds(own) for name, own in figures.items()}
    shown = {k: v for k, v in measured.items() if k not in (TRAINED, SECONDS) and _DEV not in k}
    return {
        "task": first.data,
        "method": first.method,
        "model": first.model,
        "split": first.split,
        "label": first.label,
        "settings": settings,
        "variant": first.settings.get("variant", ""),
        "pattern_name": first.settings.get("pattern", ""),
        "seeds": sorted({seed for record in records for seed in record.seeds}),
        "metrics": shown,
        "dev": {k.removeprefix(_DEV): v for k, v in measured.items() if k.startswith(_DEV)},
        "model_parameters": sizes.get(first.model),
        "trainable_parameters": next(iter(figures.get(TRAINED, [])), None),
        "seconds": next(iter(figures.get(SECONDS, [])), None),
    }


def _serves(key: EntryKey, paper: TaskPaper | None) -> bool:
    """Say whether a paper's tables show an entry; without a paper, whether any do."""
    if paper is None:
        return True
    worded = key[3] in (FEW, FULL)
    if paper == PTUNING_V2:
        return not worded or key[2] in (*_OF_V2, "frozen")
    return worded and key[2] not in _OF_V2


def load_entries(plan: Plan[TaskSettings], failed: Mapping[str, str], note: str) -> Entries:
    """Read the finished runs of a plan, runs that differ in the seed alone together."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    entries: list[Entry] = []
    broken = set()
    for job in plan.jobs:
        if job.name in failed:
            split = "" if job.command == "tune" else FULL if job.full else FEW
            broken |= {(job.model, task, job.row, split) for task in job.tasks}
        if not job.finished:
            continue
        metrics = load_metrics(job.config)
        if job.command == "patterns":
            entries.append(_pattern_entry(job, metrics))
            continue
        for task in job.tasks:
            own = metrics["tasks"][task] if job.row == "mpt2" else metrics
            groups.setdefault((job.model, task, job.row), []).append(own)
    for (model, task, method), runs in groups.items():
        splits = [name for name in runs[0]["splits"] if name.startswith("test-")]
        for split in (runs[0]["reported"], *splits):
            entries.append(_task_entry(model, task, method, runs, split))
    values = {key: entry for entry in entries if (key := _key(entry)) is not None}
    models = tuple(model.name for model in plan.models)
    return Entries(values, models, frozenset(broken), plan.missing, note)


def _task_entry(
    model: str, task: str, method: str, runs: Sequence[dict[str, Any]], split: str
) -> dict[str, Any]:
    first = runs[0]
    values = {
        name: [float(run["splits"][split][name]) for run in runs]
        for name in first["splits"].get(split, {})
    }
    entry = {
        "task": task,
        "method": first["method"],
        "model": model,
        "split": split,
        "seeds": [run["seed"] for run in runs],
        "metrics": {name: _over_seeds(own) for name, own in values.items()},
        "trainable_parameters": first["trainable_parameters"],
        "model_parameters": first["model_parameters"],
        "seconds": mean_of(float(run["seconds"]["training"]) for run in runs),
        "best_epoch": [run["best_epoch"] for run in runs],
        "chosen_on": first["chosen_on"],
        "device": first["device"],
        "versions": first["versions"],
    }
    if method == "pt2-mlp":
        entry |= {"settings": REPARAMETERISED, "label": "PT-2, reparameterised"}
    return entry


def _over_seeds(values: Sequence[float]) -> dict[str, Any]:
    return {"value": mean_of(values), "deviation": deviation(values), "values": list(values)}


def _pattern_entry(job: Job, metrics: dict[str, Any]) -> dict[str, Any]:
    label = LABELS.get(job.row, f"pattern {job.pattern}")
    kept = ("pattern", "words", "seeds", "metrics", "dev", "seconds", "counts", "cut")
    return {
        "task": metrics["task"],
        "method": job.row,
        "model": job.model,
        "split": FULL if job.full else FEW,
        "label": label,
        "pattern_name": job.pattern,
        **{key: metrics[key] for key in kept},
    }


def _key(entry: Entry) -> EntryKey | None:
    """Return what an entry is found by; None for one that no table shows."""
    method, settings = entry["method"], entry.get("settings")
    if method == "difference" or (method == "pet" and not entry.get("pattern_name")):
        return None
    if entry.get("variant"):
        return None
    if settings:
        if settings != REPARAMETERISED:
            return None
        method = "pt2-mlp"
    model, split = str(entry.get("model", "")), str(entry.get("split", ""))
    return model, entry["task"], method, split, str(entry.get("pattern_name", ""))


# ---------------------------------------------------------------- one run's figures on dev and test


def chosen_and_reported(config: Config) -> tuple[str, float, float]:
    """Return a finished run's main metric, its value on the split that chooses, and on the other.

    In percent. Of facts it is what ``learning.select`` names, the mean over relations; of a mixture
    the mean over its tasks.
    """
    metrics = load_metrics(config)
    if isinstance(config, RunConfig):
        name = "p1" if config.learning.select == "p@1" else "mrr"
        means = [metrics[s]["raw"]["realistic"][OVER_RELATIONS][name] for s in ("dev", "test")]
        return {"p1": "P@1", "mrr": "MRR"}[name], means[0], means[1]
    if isinstance(config, TuneConfig):
        tasks = list(metrics.get("tasks", {"": metrics}).values())
        name = next(iter(tasks[0]["splits"][tasks[0]["reported"]]))
        chosen = mean_of(own["splits"][own["chosen_on"]][name] for own in tasks)
        return name, chosen, mean_of(own["splits"][own["reported"]][name] for own in tasks)
    name = next(iter(metrics["metrics"]))
    chosen = metrics["dev"]["accuracy"]["value"]
    return name, float(chosen), float(metrics["metrics"][name]["value"])
