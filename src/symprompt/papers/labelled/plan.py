"""From settings to a list of runs on labelled tasks: every task x method x model x seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from symprompt.config import differing_keys
from symprompt.errors import ConfigError, RunError
from symprompt.files.atomic import read_json, write_json
from symprompt.models.loading import find_model, fingerprint
from symprompt.papers.labelled.places import Found, find_tasks
from symprompt.papers.labelled.recipes import mixture, recipe, verbalized
from symprompt.papers.labelled.settings import (
    ENTITIES,
    PTUNING_V2,
    QUESTIONS,
    ROLES,
    LabelledSettings,
    check_labelled,
)
from symprompt.papers.plan import Model, name_models
from symprompt.papers.settings import RECORD, merge_record
from symprompt.tasks.config import TuneConfig
from symprompt.tasks.folder import TaskFolder
from symprompt.tasks.patterns.config import PatternRunConfig, load_pattern_config
from symprompt.tasks.patterns.published import manual_patterns, reference_pattern
from symprompt.tasks.patterns.superglue import find_task

# Tasks of the two ablations, which the paper describes in words (section 2.3).
REPARAMETERISED = ("rte", "boolq", "cb", "conll2003", "conll2004")
VERBALIZED = ("rte", "boolq", "cb")
VERBALIZERS = ("pt2-verbalizer", "verbalizer")
PATTERNS_OF_TABLE_6 = ("agree-1", "agree-2", "named", "truth")
_KINDS = {"tagging": ENTITIES, "question": QUESTIONS, "roles": ROLES}
_METRICS = "metrics.json"
# What every run's numbers follow from; the rest only says how many runs there are.
KEPT = ("paper", "data", "epochs", "limit", "dtype")


@dataclass(frozen=True)
class Job:
    """One run folder to be made.

    Attributes:
        model: the model's name.
        tasks: the task, or the tasks of a mixture.
        method: as ``--methods`` names it.
        pattern: the name of the manual pattern, for those that have one.
        full: trained on the whole training set, not on 32 examples.
    """

    model: str
    tasks: tuple[str, ...]
    method: str
    config: TuneConfig | PatternRunConfig
    pattern: str = ""
    full: bool = True

    @property
    def name(self) -> str:
        """The run's name: its model and its folder."""
        return f"{self.model}/{Path(self.config.out).name}"

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to make: all seeds of a run through a pattern are there."""
        if isinstance(self.config, TuneConfig):
            return TaskFolder(self.config.out).finished
        path = Path(self.config.out) / _METRICS
        if not path.is_file():
            return False
        seeds = list(self.config.seeds)
        wanted = seeds[:1] if self.config.pattern.method == "zero-shot" else seeds
        return bool(read_json(path)["seeds"] == wanted)

    @property
    def begun(self) -> bool:
        """Whether a folder is there."""
        return (Path(self.config.out) / "config.toml").is_file()

    def load_metrics(self) -> dict[str, Any]:
        """Read a finished run's numbers."""
        if isinstance(self.config, TuneConfig):
            return TaskFolder(self.config.out).load_metrics()
        return dict(read_json(Path(self.config.out) / _METRICS))


@dataclass(frozen=True)
class LabelledPlan:
    """All runs in the order in which they are made, and why tasks are not measured.

    Attributes:
        missing: task, or mixture of a kind, -> why nothing is trained on it.
        record: what the folder is about.
    """

    settings: LabelledSettings
    models: tuple[Model, ...]
    jobs: tuple[Job, ...]
    missing: dict[str, str]
    record: dict[str, Any]

    def write(self) -> None:
        """Write the folder's record; look again whether it is about something else.

        Raises:
            RunError: the folder was made with other settings since the plan was made.
        """
        kept = {key: self.record[key] for key in KEPT}
        record = merge_record(self.settings.out, kept, self.record["models"])
        for job in self.jobs:
            _check_same(job)
        write_json(Path(self.settings.out) / RECORD, record)


def make_labelled_plan(settings: LabelledSettings) -> LabelledPlan:
    """Look at models and data, and list the runs; nothing is written.

    Raises:
        SympromptError: bad settings, models or data, or a folder that was made with other ones.
    """
    check_labelled(settings)
    named = name_models(settings.models)
    sources = {name: find_model(place) for name, place in named.items()}
    models = tuple(Model(name, named[name], source.causal) for name, source in sources.items())
    found = find_tasks(settings)
    record = merge_record(
        settings.out,
        {key: getattr(settings, key) for key in KEPT},
        {
            name: {"place": named[name], "fingerprint": fingerprint(source)}
            for name, source in sources.items()
        },
    )
    jobs: list[Job] = []
    missing = dict(found.missing)
    for model in models:
        if settings.paper == PTUNING_V2:
            jobs += _v2_jobs(settings, model, found, missing)
        else:
            jobs += _ptuning_jobs(settings, model, found, missing)
    if not jobs:
        whys = "; ".join(f"{task}: {why}" for task, why in missing.items())
        raise ConfigError(f"there is nothing to train ({whys or 'no method fits the tasks'}).")
    for job in jobs:
        _check_same(job)
    return LabelledPlan(settings, models, tuple(jobs), missing, record)


def _check_same(job: Job) -> None:
    """Refuse a run folder that was made with another config, before anything is begun."""
    if not job.begun:
        return
    if isinstance(job.config, TuneConfig):
        TaskFolder(job.config.out).start(job.config, resume=True)
        return
    stored = load_pattern_config(str(Path(job.config.out) / "config.toml"))
    other = differing_keys(stored, job.config)
    if other:
        raise RunError(
            f"{job.config.out} was made with another {other[0]}; choose another --out, or delete "
            "the folder."
        )


# ---------------------------------------------------------------- P-tuning v2


def _v2_jobs(
    settings: LabelledSettings, model: Model, found: Found, missing: dict[str, str]
) -> Iterator[Job]:
    for task, place in found.full.items():
        for method in settings.all_methods:
            if method == "mpt2" or not _concerns(method, task):
                continue
            if method in VERBALIZERS:
                yield _verbalizer_job(settings, model, task, place, method)
                continue
            for seed in settings.all_seeds:
                changes = _common(settings, model, f"{task}-{method}-{seed}")
                changes |= {"data": str(place), "seed": seed}
                yield Job(model.name, (task,), method, recipe(task, method, changes))
    if "mpt2" in settings.all_methods:
        yield from _mixture_jobs(settings, model, found, missing)


def _concerns(method: str, task: str) -> bool:
    if method in VERBALIZERS:
        return task in VERBALIZED
    return method != "pt2-mlp" or task in REPARAMETERISED


def _common(settings: LabelledSettings, model: Model, name: str) -> dict[str, Any]:
    """Return what the settings say of every run, under dotted keys."""
    changes: dict[str, Any] = {
        "model": model.place,
        "out": _out(settings, model, name),
        "device": settings.device,
        "dtype": settings.dtype,
    }
    if settings.epochs:
        changes |= {"learning.epochs": settings.epochs, "mixture.epochs": settings.epochs}
    if settings.limit:
        changes |= {f"task.{split}_limit": settings.limit for split in ("train", "dev", "test")}
    return changes


def _out(settings: LabelledSettings, model: Model, name: str) -> str:
    return str(Path(settings.out) / "runs" / model.name / name)


def _mixture_jobs(
    settings: LabelledSettings, model: Model, found: Found, missing: dict[str, str]
) -> Iterator[Job]:
    """Give the runs of mixtures; one with fewer than two tasks is no mixture."""
    for kind, tasks in _KINDS.items():
        there = [task for task in tasks if task in found.full]
        asked = [task for task in tasks if task in settings.places]
        if len(there) < 2:
            if asked:
                name = f"MPT-2 on {', '.join(asked)}"
                have = " and ".join(there) or "none of them"
                missing[name] = f"a mixture needs two tasks of a kind, and there is {have}"
            continue
        for seed in settings.all_seeds:
            changes = _common(settings, model, f"{kind}-mpt2-{seed}")
            entries = [f"{task}={found.full[task].absolute()}" for task in there]
            changes |= {"data": settings.data, "seed": seed, "mixture.tasks": entries}
            yield Job(model.name, tuple(there), "mpt2", mixture(kind, changes))


def _verbalizer_job(
    settings: LabelledSettings, model: Model, task: str, place: Path, method: str
) -> Job:
    """Return the run whose words answer where PT or PT-2 has a head."""
    base = verbalized(task, "pt2" if method == "pt2-verbalizer" else "pt")
    config = replace(
        base,
        model=model.place,
        data=str(place),
        out=_out(settings, model, f"{task}-{method}"),
        seeds=settings.all_seeds,
        device=settings.device,
        pattern=replace(base.pattern, train_limit=settings.limit, test_limit=settings.limit),
        learning=replace(base.learning, epochs=settings.epochs or base.learning.epochs),
    )
    return Job(model.name, (task,), method, config, "ptuning")


# ---------------------------------------------------------------- P-tuning


def _ptuning_jobs(
    settings: LabelledSettings, model: Model, found: Found, missing: dict[str, str]
) -> Iterator[Job]:
    for task in settings.places:
        if task not in found.few:
            missing[f"{task}, 32 examples"] = "no files of it in a folder FewGLUE_32dev"
        if task not in found.full:
            missing[f"{task}, full training set"] = "no files of it"
        for full, places in ((False, found.few), (True, found.full)):
            if task not in places:
                continue
            for method in settings.all_methods:
                for pattern in _patterns(method, task, full=full, causal=model.causal):
                    yield _pattern_job(settings, model, task, places[task], method, pattern, full)


def _patterns(method: str, task: str, *, full: bool, causal: bool) -> list[str]:
    """Return the names of a method's patterns; "" is the method's own.

    The manual row's own pattern is not trained twice where PET has it too, and Tables 3 and 4 have
    one pattern alone.
    """
    spec = find_task(task)
    own = reference_pattern(spec).name
    names = [one.name for one in manual_patterns(spec, causal=causal)]
    if method == "pet":
        return [] if full else [name for name in names if name.startswith("pet-") and name != own]
    if method == "table6":
        fits = task == "rte" and not full
        return [name for name in names if name in PATTERNS_OF_TABLE_6] if fits else []
    return [own if method in ("mp", "zero-shot") else ""]


def _pattern_job(
    settings: LabelledSettings,
    model: Model,
    task: str,
    place: Path,
    method: str,
    pattern: str,
    full: bool,
) -> Job:
    base = _pattern_base(task, full=full)
    learned: Any = {"pet": "mp", "table6": "mp", "frozen": "ptuning"}.get(method, method)
    learning = base.learning
    if settings.epochs:
        learning = replace(learning, epochs=settings.epochs)
    if settings.limit:
        # A trial does not search: the first rate and batch of the grid are taken.
        learning = replace(learning, rates=learning.rates[:1], batches=learning.batches[:1])
    parts = (task, "full" if full else "32", method, pattern)
    # A manual pattern has a name; P-tuning's own stands in the config.
    template = "" if method == "cls" else base.pattern.template
    config = replace(
        base,
        model=model.place,
        data=str(place),
        out=_out(settings, model, "-".join(part for part in parts if part)),
        seeds=settings.all_seeds,
        device=settings.device,
        # Tables need no weights, and there would be a model's for each of some hundred runs.
        keep_weights=False,
        pattern=replace(
            base.pattern,
            task=task,
            method=learned,
            template=pattern or template,
            train_model=method != "frozen",
            train_limit=settings.limit,
            test_limit=settings.limit,
        ),
        learning=learning,
    )
    return Job(model.name, (task,), method, config, pattern, full)


def _pattern_base(task: str, *, full: bool) -> PatternRunConfig:
    """Return the shipped config; tasks that have none of the whole set take RTE's grid."""
    if not full:
        return load_pattern_config(f"fewglue-{task}")
    if task in ("boolq", "rte"):
        return load_pattern_config(f"superglue-{task}")
    grid = load_pattern_config("superglue-boolq" if task in ("wic", "multirc") else "superglue-rte")
    return replace(grid, pattern=load_pattern_config(f"fewglue-{task}").pattern)
