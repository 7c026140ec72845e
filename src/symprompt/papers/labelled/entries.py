"""What was measured on labelled tasks, whether in run folders or in stored files of results.

Both become the entries that ``symprompt.report.tasks`` describes, and every table and figure is
made from them alone. Results of runs through patterns say in "split" whether 32 examples were
trained on ("val, 32") or the whole set ("val, full train").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from symprompt.errors import ConfigError, RunError
from symprompt.files.atomic import read_json
from symprompt.papers.labelled.plan import Job, LabelledPlan
from symprompt.papers.labelled.settings import PTUNING_V2, Paper
from symprompt.report.stored import load_stored
from symprompt.report.tasks import TaskResults, summarise
from symprompt.runs.shapes import Shape, require
from symprompt.tasks.config import TuneConfig

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
_SHAPE: Shape = {"task": str, "method": str, "metrics": dict}
Entry = Mapping[str, Any]
Key = tuple[str, str, str, str, str]
Place = tuple[str, str, str, str]


@dataclass(frozen=True)
class Entries:
    """Results by model, task, method, split and pattern; final.

    Attributes:
        failed: (model, task, method, split) of runs that failed; the split of patterns alone.
        missing: task -> why nothing was trained on it.
        note: what the results are about.
    """

    values: Mapping[Key, Entry]
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
        """Return an entry's number for a table, or why there is none.

        Args:
            of: the model, task, method and split that the entry would be of.
        """
        value = None if entry is None else entry["metrics"].get(metric)
        if value is None:
            return "failed" if of in self.failed else NOT_MEASURED
        return show_value(value)

    def parameters(self, model: str) -> int:
        """Return how many parameters a model has, 0 if no entry tells."""
        told = [
            int(entry.get("model_parameters") or 0)
            for key, entry in self.values.items()
            if key[0] == model
        ]
        return max(told, default=0)

    def to_list(self) -> list[Entry]:
        """Return the entries as they are stored."""
        return list(self.values.values())


def show_value(value: Mapping[str, Any]) -> str:
    """Return a mean and its deviation over seeds."""
    deviation = value.get("deviation") or 0.0
    several = len(value.get("values", [])) > 1 or deviation
    return f"{value['value']:.2f}" + (f" ± {deviation:.2f}" if several else "")


def load_results(paths: Sequence[str], paper: Paper | None = None) -> Entries:
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
    values: dict[Key, Entry] = {}
    origin: dict[Key, str] = {}
    notes = []
    for path in (file for place in paths for file in _files(place)):
        stored = load_stored(path)
        if not isinstance(stored, TaskResults):
            raise RunError(f"{path} holds no results on labelled tasks; give others.")
        found = len(values)
        for number, entry in enumerate(stored.values["tasks"], start=1):
            try:
                require(entry, _SHAPE)
            except (TypeError, ValueError) as error:
                raise RunError(f"{path}, result {number} is damaged: {error}.") from error
            key = _key(entry)
            if key is None or not _serves(key, paper):
                continue
            if key in values:
                raise ConfigError(
                    f"{origin[key]} and {path} both have results of {entry['method']} on "
                    f"{entry['task']} with the model {key[0]}; leave one of them out."
                )
            values[key], origin[key] = entry, path
        notes += [stored.note] if stored.note and len(values) > found else []
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
        if isinstance(values, dict) and isinstance(values.get("tasks"), list):
            found.append(str(path))
    return found


def _serves(key: Key, paper: Paper | None) -> bool:
    """Say whether a paper's tables show an entry; without a paper, whether any do."""
    if paper is None:
        return True
    worded = key[3] in (FEW, FULL)
    if paper == PTUNING_V2:
        return not worded or key[2] in (*_OF_V2, "frozen")
    return worded and key[2] not in _OF_V2


def load_jobs(plan: LabelledPlan, failed: Mapping[str, str]) -> Entries:
    """Read the finished runs of a plan, runs that differ in the seed alone together."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    values: dict[Key, Entry] = {}
    broken = set()
    for job in plan.jobs:
        if job.name in failed:
            split = "" if isinstance(job.config, TuneConfig) else FULL if job.full else FEW
            broken |= {(job.model, task, job.method, split) for task in job.tasks}
        if not job.finished:
            continue
        metrics = job.load_metrics()
        if not isinstance(job.config, TuneConfig):
            entry = _pattern_entry(job, metrics)
            values[_must(entry)] = entry
            continue
        for task in job.tasks:
            own = metrics["tasks"][task] if job.method == "mpt2" else metrics
            groups.setdefault((job.model, task, job.method), []).append(own)
    for (model, task, method), runs in groups.items():
        splits = [name for name in runs[0]["splits"] if name.startswith("test-")]
        for split in (runs[0]["reported"], *splits):
            entry = _task_entry(model, task, method, runs, split)
            values[_must(entry)] = entry
    models = tuple(model.name for model in plan.models)
    return Entries(values, models, frozenset(broken), plan.missing)


def _task_entry(
    model: str, task: str, method: str, runs: Sequence[dict[str, Any]], split: str
) -> dict[str, Any]:
    first = runs[0]
    entry = summarise(runs, split) | {
        "task": task,
        "model": model,
        "best_epoch": [run["best_epoch"] for run in runs],
        "chosen_on": first["chosen_on"],
        "device": first["device"],
        "versions": first["versions"],
    }
    if method == "pt2-mlp":
        entry |= {"settings": REPARAMETERISED, "label": "PT-2, reparameterised"}
    return entry


def _pattern_entry(job: Job, metrics: dict[str, Any]) -> dict[str, Any]:
    label = LABELS.get(job.method, f"pattern {job.pattern}")
    kept = ("pattern", "words", "seeds", "metrics", "dev", "seconds", "counts", "cut")
    return {
        "task": metrics["task"],
        "method": job.method,
        "model": job.model,
        "split": FULL if job.full else FEW,
        "label": label,
        "pattern_name": job.pattern,
        **{key: metrics[key] for key in kept},
    }


def _key(entry: Entry) -> Key | None:
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


def _must(entry: Entry) -> Key:
    key = _key(entry)
    assert key is not None
    return key


def mean_of(values: Iterable[float]) -> float:
    """Return the mean of one number or more."""
    found = list(values)
    return sum(found) / len(found)
