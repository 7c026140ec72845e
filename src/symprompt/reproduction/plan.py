"""From settings to a list of runs: every method x model x seed, and what the small tables need."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path

from symprompt.backbone import SHIPPED, Vocabulary, load_vocabulary
from symprompt.backbone.loading import find_model, fingerprint
from symprompt.config import RunConfig, check_config, load_config
from symprompt.errors import ConfigError
from symprompt.facts import FactSet
from symprompt.problem import load_config_facts
from symprompt.prompts import Template
from symprompt.reproduction.inputs import list_names, reworded, write_names, write_templates
from symprompt.reproduction.rows import MANUAL, SPE, Row, list_rows
from symprompt.reproduction.settings import ReproduceSettings, check_settings, record_settings
from symprompt.runs import RunFolder
from symprompt.usable import drop_unusable
from symprompt.wordings import make_templates

NAMES_RUN = "names"
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Model:
    """A model of the tables: what it is called, where it is, and whether it is causal."""

    name: str
    place: str
    causal: bool


@dataclass(frozen=True)
class PlannedRun:
    """One run folder to be made.

    Attributes:
        model: the model's name.
        row: the row's config for masked models, or what else the run is for.
        source: a run of the plan whose prompts this one asks again, or "".
    """

    model: str
    row: str
    config: RunConfig
    source: str = ""

    @property
    def name(self) -> str:
        """The run's name: its model and its folder."""
        return f"{self.model}/{Path(self.config.out).name}"

    @property
    def folder(self) -> RunFolder:
        """Where the run is made."""
        return RunFolder(self.config.out)


@dataclass(frozen=True)
class Gap:
    """A row that has no runs for a model, and why."""

    model: str
    row: str
    why: str


@dataclass(frozen=True)
class Plan:
    """All runs in the order in which they are begun, and the rows that have none."""

    settings: ReproduceSettings
    models: tuple[Model, ...]
    rows: tuple[Row, ...]
    runs: tuple[PlannedRun, ...]
    gaps: tuple[Gap, ...]

    def runs_of(self, model: str, row: str) -> tuple[PlannedRun, ...]:
        """Return the runs of one row for one model, a run per seed."""
        return tuple(run for run in self.runs if (run.model, run.row) == (model, row))


def make_plan(settings: ReproduceSettings, *, record: bool = True) -> Plan:
    """Look at models and facts, and list the runs; every run that is there must be the same run.

    Args:
        record: write the folder's settings and the runs' inputs; False only looks.

    Raises:
        SympromptError: bad settings, models or facts, or a folder that was made with other ones.
    """
    check_settings(settings)
    rows = list_rows(settings.methods)
    named = _name_models(settings.models)
    facts = load_config_facts(settings.data, _facts_config(settings, RunConfig()).facts)
    sources = {name: find_model(place) for name, place in named.items()}
    models = tuple(Model(name, named[name], source.causal) for name, source in sources.items())
    if record:
        prints = {
            name: {"place": named[name], "fingerprint": fingerprint(source)}
            for name, source in sources.items()
        }
        record_settings(settings, facts.fingerprint(), prints)
    runs: list[PlannedRun] = []
    gaps: list[Gap] = []
    for model in models:
        vocabulary = load_vocabulary(model.place, sources[model.name])
        for row in rows:
            why = _why_not(settings, model, row)
            if why:
                gaps.append(Gap(model.name, row.config, why))
            else:
                runs += _row_runs(settings, model, row)
        runs += _small_runs(settings, model, rows, vocabulary, facts, record=record)
    plan = Plan(settings, models, rows, tuple(runs), tuple(gaps))
    for run in plan.runs:
        if run.folder.has("config.toml"):
            run.folder.start(run.config, resume=True)
    return plan


def _name_models(models: tuple[str, ...]) -> dict[str, str]:
    """Return name -> place; a model is called after its folder unless NAME=PLACE says otherwise."""
    named: dict[str, str] = {}
    for text in models:
        name, given, place = text.partition("=")
        if not given:
            place = text
            name = SHIPPED if text == SHIPPED else Path(text).name.removesuffix(".gguf")
        if not _SAFE.fullmatch(name) or not place:
            raise ConfigError(
                f"--models has {text!r}; give a folder, hub name or GGUF file, or NAME=PLACE with "
                "a name of letters, digits, dots, dashes and underscores."
            )
        if name in named:
            raise ConfigError(
                f"--models has two models of the name {name} ({named[name]} and {place}); call one "
                f"otherwise, as in --models {name},other={place}."
            )
        named[name] = place
    return named


def _why_not(settings: ReproduceSettings, model: Model, row: Row) -> str:
    if model.causal and not row.causal:
        return "not for causal models"
    if row.needs_prompts and not settings.prompts:
        return "needs --prompts"
    return ""


def _row_runs(settings: ReproduceSettings, model: Model, row: Row) -> list[PlannedRun]:
    """Return a row's runs, one per seed; for SPE also the larger pool of candidates."""
    base = load_config(row.causal if model.causal else row.config)
    if row.needs_prompts:
        base = _with_prompts(base, settings.prompts, row.config)
    base = _facts_config(settings, _for_model(base, model))
    if settings.epochs:
        base = replace(base, training=replace(base.training, epochs=settings.epochs))
    runs = []
    for seed in settings.seeds if row.seeded else settings.seeds[:1]:
        config = _placed(settings, model, base, f"{row.config}-{seed}", seed)
        runs.append(PlannedRun(model.name, row.config, config))
        if row.config == SPE and settings.pool > config.method.k:
            name = f"{row.config}-k{settings.pool}-{seed}"
            larger = _placed(settings, model, base, name, seed)
            # Only test is looked at, with the weight that was chosen for the run itself.
            larger = replace(
                larger,
                facts=replace(larger.facts, dev_limit=1),
                method=replace(larger.method, k=settings.pool, choose_weight="fixed"),
            )
            runs.append(PlannedRun(model.name, pool_row(settings), larger, runs[-1].name))
    return runs


def pool_row(settings: ReproduceSettings) -> str:
    """Return the row under which the plan keeps SPE's larger pools."""
    return f"{SPE}-k{settings.pool}"


def wording_row(number: int) -> str:
    """Return the row under which the plan keeps the first, second, ... rewording (from 1)."""
    return f"wording-{number}"


def _small_runs(
    settings: ReproduceSettings,
    model: Model,
    rows: tuple[Row, ...],
    vocabulary: Vocabulary,
    facts: FactSet,
    *,
    record: bool,
) -> list[PlannedRun]:
    """Return the runs with reworded templates and with people's names, their inputs written."""
    runs: list[PlannedRun] = []
    base = _facts_config(settings, load_config(MANUAL))
    inputs = Path(settings.out) / "inputs"
    texts = reworded(facts) if MANUAL in [row.config for row in rows] else ()
    for number, templates in enumerate(texts, start=1):
        path = inputs / f"{wording_row(number)}.jsonl"
        if record:
            write_templates(templates, path)
        own = replace(base, facts=replace(base.facts, relations=tuple(templates)))
        own = replace(own, facts=replace(own.facts, templates=str(path)))
        config = _placed(settings, model, own, wording_row(number), settings.seeds[0])
        runs.append(PlannedRun(model.name, wording_row(number), config))
    path = inputs / model.name / "names.csv"
    names = list_names(_usable(settings, model, vocabulary, facts))
    if names:
        if record:
            write_names(names, path)
        # The names are those of the facts that are left, so no limit is put on them.
        own = load_config(MANUAL)
        own = replace(own, facts=replace(own.facts, vocabulary=settings.vocabulary))
        config = _placed(settings, model, own, NAMES_RUN, settings.seeds[0], data=str(path))
        runs.append(PlannedRun(model.name, NAMES_RUN, config))
    return runs


def _usable(
    settings: ReproduceSettings, model: Model, vocabulary: Vocabulary, facts: FactSet
) -> FactSet:
    """Return the facts that the model's runs are about."""
    config = _facts_config(settings, _for_model(RunConfig(), model))
    return drop_unusable(config, vocabulary, facts, make_templates(config, vocabulary, facts))


def _placed(
    settings: ReproduceSettings,
    model: Model,
    base: RunConfig,
    name: str,
    seed: int,
    *,
    data: str = "",
) -> RunConfig:
    """Return a run's config with its model, data, folder and seed."""
    config = replace(
        base,
        model=model.place,
        data=data or settings.data,
        out=str(Path(settings.out) / "runs" / model.name / name),
        seed=seed,
        dtype=settings.dtype,
        keep_encoder=False,
    )
    check_config(config)
    return config


def _facts_config(settings: ReproduceSettings, config: RunConfig) -> RunConfig:
    """Return a config about the facts that the settings name."""
    return replace(
        config,
        facts=replace(
            config.facts,
            relations=settings.relations,
            templates=settings.templates,
            vocabulary=settings.vocabulary,
            train_limit=settings.limit,
            dev_limit=settings.limit,
            test_limit=settings.limit,
        ),
    )


def _for_model(config: RunConfig, model: Model) -> RunConfig:
    """Return the config with a template that a causal model can be asked by, where it is one."""
    prompt = config.prompt
    if not model.causal or prompt.template == "manual":
        return config
    template = Template.parse(prompt.template)
    if template.ends_with_object:
        return config
    return replace(config, prompt=replace(prompt, template=str(template.cut_after_object())))


def _with_prompts(config: RunConfig, prompts: tuple[str, ...], name: str) -> RunConfig:
    """Return the config with these folders in whichever of its tables has the key ``prompts``."""
    for entry in fields(config):
        table = getattr(config, entry.name)
        if is_dataclass(table) and hasattr(table, "prompts"):
            changed = replace(table, prompts=prompts)  # type: ignore[type-var]
            return replace(config, **{entry.name: changed})
    raise ConfigError(f"config {name} takes no prompts, so --prompts cannot serve it.")
