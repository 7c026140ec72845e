"""The jobs behind the tables of labelled tasks: every task x method x model x seed.

A task whose files are not there is no mistake: most of these sets may not be passed on, and the
tables say "not measured". Files that are there and cannot be read are one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from symprompt.config import override, shipped_configs
from symprompt.errors import ConfigError, DataError
from symprompt.papers.jobs import Job, Model, Plan, find_models
from symprompt.papers.settings import (
    ENTITIES,
    PTUNING_V2,
    QUESTIONS,
    ROLES,
    TaskSettings,
)
from symprompt.runs.folder import Manifest
from symprompt.tasks.config import TuneConfig, load_pattern_config, load_tune_config
from symprompt.tasks.data.load import load_task
from symprompt.tasks.patterns.data import load_verbal
from symprompt.tasks.patterns.pattern import find_task, manual_patterns, reference_pattern

# ---------------------------------------------------------------- where the data is

# Below the folder of data, the first that is there; tasks' own names come before these.
_PLACES: Mapping[str, tuple[str, ...]] = {
    "sst2": ("SST-2", "glue/sst2", "glue/SST-2", "glue/glue_sst2_alps_split"),
    "mnli": ("MNLI", "glue/mnli", "glue/MNLI"),
    "rte": ("RTE", "glue/rte", "glue/RTE", "glue/glue_rte", "SuperGLUE/RTE", "superglue/RTE"),
    "boolq": ("BoolQ", "SuperGLUE/BoolQ", "superglue/BoolQ", "boolq/superglue_boolq"),
    "cb": ("CB", "SuperGLUE/CB", "superglue/CB"),
    "wic": ("WiC", "SuperGLUE/WiC", "superglue/WiC"),
    "multirc": ("MultiRC", "SuperGLUE/MultiRC", "superglue/MultiRC"),
    "wsc": ("WSC", "SuperGLUE/WSC", "superglue/WSC"),
    "copa": ("COPA", "SuperGLUE/COPA", "superglue/COPA"),
    "conll2003": ("ner/conll2003",),
    "conll2004": ("ner/conll2004",),
    "ontonotes": ("ner/ontonotes", "conll2012", "srl/conll2012"),
    "wikigold": ("ner/wikigold", "ner/ner_wikigold_gum/wikigold"),
    "gum": ("ner/gum", "ner/ner_wikigold_gum/GUM/CONLL-format"),
    "squad": ("squad1.1", "squad/squad1.1"),
    "squad2": ("squad2.0", "squad/squad2.0", "squad/squad2"),
    "propbank-ewt": ("srl/propbank-ewt", "srl/srl_propbank_ewt"),
    "conll05": ("conll2005", "srl/conll05", "srl/conll2005"),
    "conll12": ("conll2012", "srl/conll12", "srl/conll2012"),
}
_FEWGLUE = ("FewGLUE_32dev", "fewglue/FewGLUE_32dev", "fewglue/fewglue/FewGLUE_32dev", "")
_FEW_FILE = "dev32.jsonl"


@dataclass(frozen=True)
class Found:
    """Where tasks are, and why others are not measured; final.

    Attributes:
        few: folders with 32 training and 32 dev examples (P-tuning alone).
    """

    full: dict[str, Path]
    few: dict[str, Path]
    missing: dict[str, str]


def find_tasks(settings: TaskSettings) -> Found:
    """Look for the files of every task that the settings name, and read them once.

    Raises:
        DataError: there is no such folder, a place that was named holds no such task, or files
            that are there cannot be read.
    """
    data = Path(settings.data)
    if not data.is_dir():
        raise DataError(f"--data is {settings.data!r}, which is no folder; name the tasks' folder.")
    full: dict[str, Path] = {}
    few: dict[str, Path] = {}
    missing: dict[str, str] = {}
    for task, named in settings.places.items():
        where = _full_place(data, task, named)
        if settings.paper == PTUNING_V2:
            if where is None:
                missing[task] = f"no files of it in {data.name or data}"
            elif load_task(where, task).splits.get("train"):
                full[task] = where
            else:
                missing[task] = f"{where.name} has no training examples"
            continue
        below = f"{find_task(task).folder}/{_FEW_FILE}"
        tree = next((data / name for name in _FEWGLUE if (data / name / below).is_file()), None)
        for places, place in ((full, where), (few, tree)):
            if place is not None:
                load_verbal(task, place)
                places[task] = place
    return Found(full, few, missing)


def _full_place(data: Path, task: str, named: str) -> Path | None:
    """Return the folder with a task's whole training set, if it is there."""
    if named:
        place = data / named
        if not place.is_dir():
            raise DataError(f"--tasks says that {task} is in {place}, which is no folder.")
        return place
    places = [data / name for name in (task, *_PLACES[task]) if (data / name).is_dir()]
    for place in places:
        # Folders of packs may have a task's name and hold its folder: boolq/superglue_boolq.
        if not (place / _FEW_FILE).is_file() and any(own.is_file() for own in place.iterdir()):
            return place
    for place in places:
        if not any(place.rglob(_FEW_FILE)) and any(own.is_file() for own in place.rglob("*")):
            return place
    return None


# ---------------------------------------------------------------- the plan

# Tasks of the two ablations, which the paper describes in words (section 2.3).
REPARAMETERISED = ("rte", "boolq", "cb", "conll2003", "conll2004")
VERBALIZED = ("rte", "boolq", "cb")
VERBALIZERS = {"pt2-verbalizer": "pt2", "verbalizer": "pt"}
_ABLATED = {"pt2-mlp": REPARAMETERISED} | dict.fromkeys(VERBALIZERS, VERBALIZED)
PATTERNS_OF_TABLE_6 = ("agree-1", "agree-2", "named", "truth")
# Recipes that are not called after their task; tasks without one are trained as one of their kind.
LIKE = {
    "cb": "rte",
    "mnli": "sst2",
    "ontonotes": "conll2003",
    "wikigold": "conll2004",
    "gum": "conll2004",
    "squad2": "squad",
    "propbank-ewt": "srl",
    "conll05": "srl",
    "conll12": "srl",
}
MIXTURES = {"ner-mpt2": ENTITIES, "squad-mpt2": QUESTIONS, "srl-mpt2": ROLES}


def make_task_plan(settings: TaskSettings) -> Plan[TaskSettings]:
    """Look at models and data, and list the jobs; nothing is written.

    Raises:
        SympromptError: bad settings, models or data, or a folder that was made with other ones.
    """
    settings.check()
    models = find_models(settings.models)
    found = find_tasks(settings)
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
    about = Manifest(
        command="reproduce",
        method=settings.paper,
        model=", ".join(model.name for model in models),
        seeds=settings.all_seeds,
        details=settings.kept(),
    )
    return Plan(settings.out, settings, models, tuple(jobs), about, missing)


def task_recipe(task: str, method: str) -> TuneConfig:
    """Return the recipe of a method on a task.

    A task without a recipe for the method is trained as one of its kind, on its own table [task]
    where its recipe of P-tuning v2 has one. A reparameterised prefix is trained as a free one is.
    """
    if method == "pt2-mlp":
        return override(task_recipe(task, "pt2"), **{"prefix.encoder": "mlp"})
    if f"{task}-{method}" in shipped_configs():
        return load_tune_config(f"{task}-{method}")
    config = load_tune_config(f"{LIKE[task]}-{method}")
    own: dict[str, Any] = {"task.name": task}
    if f"{task}-pt2" in shipped_configs():
        like = load_tune_config(f"{task}-pt2").task
        own |= {f"task.{key}": value for key, value in vars(like).items()}
    return override(config, **own)


# ---------------------------------------------------------------- P-tuning v2


def _v2_jobs(
    settings: TaskSettings, model: Model, found: Found, missing: dict[str, str]
) -> Iterator[Job]:
    for task, place in found.full.items():
        for method in settings.all_methods:
            if method == "mpt2" or task not in _ABLATED.get(method, (task,)):
                continue
            if method in VERBALIZERS:
                # Words answer where PT or PT-2 has a head.
                base = load_pattern_config(f"superglue-{task}-{VERBALIZERS[method]}")
                changes = _pattern_changes(settings, model, place, f"{task}-{method}")
                words = override(base, **changes)
                yield Job(model.name, method, words, tasks=(task,), pattern="ptuning")
                continue
            for seed in settings.all_seeds:
                changes = _head_changes(settings, model, f"{task}-{method}-{seed}")
                changes |= {"data": str(place), "seed": seed}
                config = override(task_recipe(task, method), **changes)
                yield Job(model.name, method, config, tasks=(task,))
    if "mpt2" in settings.all_methods:
        yield from _mixture_jobs(settings, model, found, missing)


def _head_changes(settings: TaskSettings, model: Model, name: str) -> dict[str, Any]:
    """Return the changes to every recipe of a head, under dotted keys."""
    changes: dict[str, Any] = {"model": model.place, "dtype": settings.dtype}
    changes["out"] = str(Path(settings.out) / "runs" / model.name / name)
    if settings.epochs:
        changes |= {"learning.epochs": settings.epochs, "mixture.epochs": settings.epochs}
    if settings.limit:
        changes |= {f"task.{split}_limit": settings.limit for split in ("train", "dev", "test")}
    return changes


def _pattern_changes(
    settings: TaskSettings, model: Model, place: Path, name: str
) -> dict[str, Any]:
    """Return the changes to every recipe of a pattern, under dotted keys."""
    changes: dict[str, Any] = {"model": model.place, "data": str(place)}
    changes["out"] = str(Path(settings.out) / "runs" / model.name / name)
    changes |= {"seeds": settings.all_seeds, "pattern.train_limit": settings.limit}
    changes["pattern.test_limit"] = settings.limit
    if settings.epochs:
        changes["learning.epochs"] = settings.epochs
    return changes


def _mixture_jobs(
    settings: TaskSettings, model: Model, found: Found, missing: dict[str, str]
) -> Iterator[Job]:
    """Yield the jobs of mixtures; one with fewer than two tasks is no mixture."""
    for recipe, tasks in MIXTURES.items():
        there = [task for task in tasks if task in found.full]
        wanted = [task for task in tasks if task in settings.places]
        if len(there) < 2:
            if wanted:
                name = f"MPT-2 on {', '.join(wanted)}"
                have = " and ".join(there) or "none of them"
                missing[name] = f"a mixture needs two tasks of a kind, and there is {have}"
            continue
        for seed in settings.all_seeds:
            changes = _head_changes(settings, model, f"{recipe}-{seed}")
            entries = [f"{task}={found.full[task].absolute()}" for task in there]
            changes |= {"data": settings.data, "seed": seed, "mixture.tasks": entries}
            config = override(load_tune_config(recipe), **changes)
            yield Job(model.name, "mpt2", config, tasks=tuple(there))


# ---------------------------------------------------------------- P-tuning


def _ptuning_jobs(
    settings: TaskSettings, model: Model, found: Found, missing: dict[str, str]
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
                for pattern in _patterns(method, task, full=full, causal=model.source.causal):
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
    settings: TaskSettings,
    model: Model,
    task: str,
    place: Path,
    method: str,
    pattern: str,
    full: bool,
) -> Job:
    base = load_pattern_config(f"{'superglue' if full else 'fewglue'}-{task}")
    parts = (task, "full" if full else "32", method, pattern)
    changes = _pattern_changes(settings, model, place, "-".join(part for part in parts if part))
    changes |= {
        "pattern.method": {"pet": "mp", "table6": "mp", "frozen": "ptuning"}.get(method, method),
        # A manual pattern has a name; P-tuning's own stands in the recipe.
        "pattern.template": pattern or ("" if method == "cls" else base.pattern.template),
        "pattern.train_model": method != "frozen",
        # Tables need no weights, and there would be a model's for each of some hundred runs.
        "keep_weights": False,
    }
    if settings.limit:
        # A trial does not search: the first rate and batch of the grid are taken.
        changes["learning.rates"] = base.learning.rates[:1]
        changes["learning.batches"] = base.learning.batches[:1]
    config = override(base, **changes)
    return Job(model.name, method, config, tasks=(task,), pattern=pattern, full=full)
