"""Train a recipe over a grid of settings and seeds, and choose the best setting by dev."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from symprompt.cluster.executor import Executor
from symprompt.config import flatten, full_key, nearest, override, shipped_configs
from symprompt.errors import ConfigError
from symprompt.files.grid import DASH, Grid
from symprompt.files.progress import Tick, silent
from symprompt.papers.jobs import Config, Job, Outcome, Plan, find_models, load_metrics, run_plan
from symprompt.papers.records import show_values
from symprompt.papers.settings import SweepSettings
from symprompt.probing.config import RunConfig, load_config
from symprompt.report.pages import Page, Section
from symprompt.report.records import METRIC_NAMES
from symprompt.runs.folder import Manifest, Record
from symprompt.runs.statistics import OVER_RELATIONS
from symprompt.tasks.config import (
    PatternRunConfig,
    TuneConfig,
    is_pattern_config,
    load_pattern_config,
    load_tune_config,
)

# Keys of a config that the sweep sets itself.
_PLACED = ("model", "out", "seed", "seeds", "device")


@dataclass(frozen=True)
class Tried:
    """One setting and its finished runs: the main metric over seeds, on dev and on test."""

    setting: Mapping[str, Any]
    metric: str
    seeds: tuple[int, ...]
    dev: tuple[float, ...]
    test: tuple[float, ...]
    wanted: int

    @property
    def complete(self) -> bool:
        """Whether every seed is there."""
        return len(self.dev) == self.wanted


@dataclass(frozen=True)
class Sweep:
    """What came of it; final.

    Attributes:
        tried: every setting with a finished run, the best on dev first.
        files: the pages that were written.
    """

    tried: tuple[Tried, ...]
    outcome: Outcome
    files: tuple[Path, ...]

    @property
    def best(self) -> Tried:
        """The setting that is best on dev."""
        return self.tried[0]

    @property
    def grid(self) -> Grid:
        """The table of settings."""
        return _grid(self.tried)


def load_recipe(name: str) -> Config:
    """Load a config of train or tune by its shipped name or its path.

    Raises:
        ConfigError: no such recipe, or one of another command.
    """
    known = {command: shipped_configs(command) for command in ("train", "tune")}
    if name not in known["train"] | known["tune"] and not Path(name).is_file():
        near = nearest(name, known["train"] | known["tune"])
        hint = f" (did you mean {near}?)" if near else ""
        raise ConfigError(
            f"recipe {name!r} is neither a file nor a config of train or tune{hint}; symprompt "
            "configs lists them."
        )
    if is_pattern_config(name):
        return load_pattern_config(name)
    try:
        return load_tune_config(name)
    except ConfigError:
        if name in known["tune"]:
            raise
        return load_config(name)


def make_sweep_plan(settings: SweepSettings) -> tuple[Plan[SweepSettings], list[dict[str, Any]]]:
    """Read the recipe and the grid, and list the jobs; return also the settings, in their order.

    Raises:
        SympromptError: an unknown recipe or key (the nearest is named), a value that is not
            allowed, or a folder that was made with another recipe.
    """
    fixed = {
        key: values[0] if len(values) == 1 else values
        for key, values in _parse(settings.set, "--set").items()
    }
    fixed |= {key: getattr(settings, key) for key in ("model", "data") if getattr(settings, key)}
    recipe = load_recipe(settings.recipe)
    fixed = {full_key(type(recipe), key): value for key, value in fixed.items()}
    base = override(recipe, **fixed)
    values = _parse(settings.grid, "--grid")
    grid = {full_key(type(base), key): tried for key, tried in values.items()}
    for key in grid:
        if key in (*_PLACED, *fixed):
            raise ConfigError(f"--grid has {key}, which has a flag of its own or stands in --set.")
    seeds = settings.seeds or (base.seeds if isinstance(base, PatternRunConfig) else (base.seed,))
    if len(set(seeds)) != len(seeds):
        raise ConfigError(f"--seeds has one twice: {', '.join(map(str, seeds))}.")
    (model,) = find_models((base.model,))
    kept = {key: value for key, value in flatten(base).items() if key not in (*_PLACED, *grid)}
    kept = {key: list(v) if isinstance(v, tuple) else v for key, v in kept.items()}
    tried = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    jobs = []
    for setting in tried:
        for seed in seeds:
            out = str(Path(settings.out) / "runs" / model.name / f"{_name(setting)}-{seed}")
            seeded = {"seeds": (seed,)} if isinstance(base, PatternRunConfig) else {"seed": seed}
            config = override(base, **setting, **seeded, out=out)
            jobs.append(Job(model.name, _name(setting), config))
    name = Path(settings.recipe).stem
    about = Manifest(command="sweep", model=model.name, method=name, seeds=seeds, details=kept)
    return Plan(settings.out, settings, (model,), tuple(jobs), about), tried


def sweep(
    settings: SweepSettings, *, executor: Executor | None = None, tick: Tick = silent
) -> Sweep:
    """Train every setting of a grid with every seed, and write a table, the best on dev first.

    Stop it as you like: called again it goes on. Test is shown of the best setting alone.

    Args:
        executor: where jobs run; where the settings say if it is None.
        tick: is called with progress.

    Raises:
        SympromptError: bad settings, a folder made with another recipe, or no setting whose runs
            all came to their end.

    Example:
        >>> grid = ("learning.rate=1e-3,1e-2",)
        >>> settings = SweepSettings(recipe="rte-pt2", grid=grid)                # doctest: +SKIP
        >>> sweep(settings).best.setting                                        # doctest: +SKIP
    """
    plan, settings_tried = make_sweep_plan(settings)
    tried: list[Tried] = []

    def make_page(outcome: Outcome) -> Page:
        found = (_read(plan, setting) for setting in settings_tried)
        tried.extend(one for one in found if one is not None)
        outcome.require_some(any(one.complete for one in tried))
        # Settings with a run that failed are no better than any other.
        tried.sort(key=lambda one: (not one.complete, -fmean(one.dev)))
        return _page(plan.about.method, tried, outcome)

    outcome, files = run_plan(plan, make_page, executor=executor, tick=tick)
    return Sweep(tuple(tried), outcome, tuple(files))


def _parse(entries: Sequence[str], flag: str) -> dict[str, list[Any]]:
    """Read KEY=VALUE,VALUE; what has no key goes on with the key before. A value is TOML's or text.

    Raises:
        ConfigError: an entry without a key or a value, or a key that is there twice.
    """
    found: dict[str, list[Any]] = {}
    key = ""
    for part in (part for entry in entries for part in entry.split(",")):
        name, given, text = part.partition("=")
        if given:
            if name in found:
                raise ConfigError(f"{flag} has {name} twice; name it once.")
            key = name
        if not key:
            raise ConfigError(f"{flag} has {part!r}; give KEY=VALUE, such as learning.rate=1e-3.")
        found.setdefault(key, []).append(_value(text if given else part))
    return found


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _name(setting: Mapping[str, Any]) -> str:
    """Return a setting's name for files."""
    parts = [f"{key}={value}" for key, value in setting.items()] or ["recipe"]
    return re.sub(r"[^\w.=-]+", "_", "-".join(parts))


def _read(plan: Plan[SweepSettings], setting: Mapping[str, Any]) -> Tried | None:
    jobs = plan.of_row(plan.models[0].name, _name(setting))
    done = [job.config for job in jobs if job.finished]
    if not done:
        return None
    names, dev, test = zip(*map(chosen_and_reported, done), strict=True)
    seeds = [one.seeds[0] if isinstance(one, PatternRunConfig) else one.seed for one in done]
    return Tried(setting, names[0], tuple(seeds), dev, test, len(jobs))


def _grid(tried: Sequence[Tried]) -> Grid:
    metric = tried[0].metric
    header = (*(tried[0].setting or ("setting",)), "seeds", f"{metric}, dev", f"{metric}, test")
    rows = []
    for place, one in enumerate(tried):
        cells = [str(value) for value in one.setting.values()] or ["the recipe's"]
        count = str(len(one.dev)) + ("" if one.complete else f" of {one.wanted}")
        rows.append((*cells, count, show_values(one.dev), DASH if place else show_values(one.test)))
    return Grid("Settings by dev; test of the best alone", header, (tuple(rows),))


def _page(recipe: str, tried: Sequence[Tried], outcome: Outcome) -> Page:
    note = f"Recipe {recipe}, {len(tried)} settings, mean ± deviation of seeds."
    notes = tuple(f"{job} failed: {why}" for job, why in outcome.failed.items())
    section = Section("Settings", grids=(_grid(tried),), notes=notes)
    records = list(_records(tried, recipe))
    return Page("A sweep over settings", (note,), (section,), {"note": note}, records)


def _records(tried: Sequence[Tried], recipe: str) -> Iterator[Record]:
    """Yield every run's figure on dev, and those of the best setting on test."""
    for place, one in enumerate(tried):
        splits = {"dev": one.dev} if place else {"dev": one.dev, "test": one.test}
        for split, values in splits.items():
            for seed, value in zip(one.seeds, values, strict=True):
                yield Record(
                    metric=one.metric,
                    value=value,
                    split=split,
                    data=recipe,
                    seeds=(seed,),
                    label=_name(one.setting),
                    settings=dict(one.setting),
                )


def chosen_and_reported(config: Config) -> tuple[str, float, float]:
    """Return a finished run's main metric, its value on the split that chooses, and on the other.

    In percent. Of facts it is what ``learning.select`` names, the mean over relations; of a mixture
    the mean over its tasks.
    """
    metrics = load_metrics(config)
    if isinstance(config, RunConfig):
        name = "p1" if config.learning.select == "p@1" else "mrr"
        means = [metrics[s]["raw"]["realistic"][OVER_RELATIONS][name] for s in ("dev", "test")]
        return METRIC_NAMES[name], means[0], means[1]
    if isinstance(config, TuneConfig):
        tasks = list(metrics.get("tasks", {"": metrics}).values())
        name = next(iter(tasks[0]["splits"][tasks[0]["reported"]]))
        chosen = fmean(own["splits"][own["chosen_on"]][name] for own in tasks)
        return name, chosen, fmean(own["splits"][own["reported"]][name] for own in tasks)
    name = next(iter(metrics["metrics"]))
    chosen = metrics["dev"]["accuracy"]["value"]
    return name, float(chosen), float(metrics["metrics"][name]["value"])
