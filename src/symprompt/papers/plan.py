"""From settings to a list of runs: every method x model x seed, and what the small tables need."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from symprompt.config import override
from symprompt.errors import ConfigError
from symprompt.facts import FactSet
from symprompt.files.atomic import write_file, write_json
from symprompt.models import SHIPPED, Vocabulary, load_vocabulary
from symprompt.models.loading import find_model, fingerprint
from symprompt.papers.inputs import list_names, names_file, reworded, templates_file
from symprompt.papers.rows import MANUAL, SPE, Row, list_rows
from symprompt.papers.settings import RECORD, ReproduceSettings, check_settings, make_record
from symprompt.probing.config import RunConfig, load_config
from symprompt.probing.folder import RunFolder
from symprompt.probing.prepare import drop_unusable, load_config_facts
from symprompt.probing.templates import make_templates
from symprompt.prompts import Template

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
    """All runs in the order in which they are begun, and the rows that have none.

    Attributes:
        inputs: files that some of the runs read.
        record: what the folder is about.
    """

    settings: ReproduceSettings
    models: tuple[Model, ...]
    rows: tuple[Row, ...]
    runs: tuple[PlannedRun, ...]
    gaps: tuple[Gap, ...]
    inputs: dict[Path, bytes]
    record: dict[str, Any]

    def runs_of(self, model: str, row: str) -> tuple[PlannedRun, ...]:
        """Return the runs of one row for one model, a run per seed."""
        return tuple(run for run in self.runs if (run.model, run.row) == (model, row))

    def write(self) -> None:
        """Write the folder's record and the runs' inputs."""
        write_json(Path(self.settings.out) / RECORD, self.record)
        for path, content in self.inputs.items():
            if not path.is_file() or path.read_bytes() != content:
                write_file(path, content)


def make_plan(settings: ReproduceSettings) -> Plan:
    """Look at models and facts, and list the runs; nothing is written.

    Raises:
        SympromptError: bad settings, models or facts, or a folder that was made with other ones.
    """
    check_settings(settings)
    rows = list_rows(settings.methods)
    named = name_models(settings.models)
    facts = load_config_facts(settings.data, _facts_config(settings, RunConfig()).facts)
    sources = {name: find_model(place) for name, place in named.items()}
    models = tuple(Model(name, named[name], source.causal) for name, source in sources.items())
    about = {
        name: {"place": named[name], "fingerprint": fingerprint(source)}
        for name, source in sources.items()
    }
    record = make_record(settings, facts.fingerprint(), about)
    runs: list[PlannedRun] = []
    gaps: list[Gap] = []
    inputs: dict[Path, bytes] = {}
    for model in models:
        for row in rows:
            why = _why_not(settings, model, row)
            if why:
                gaps.append(Gap(model.name, row.config, why))
            else:
                runs += _row_runs(settings, model, row)
        if MANUAL in [row.config for row in rows]:
            runs += _wording_runs(settings, model, facts, inputs)
        vocabulary = load_vocabulary(model.place, sources[model.name])
        runs += _names_run(settings, model, _usable(settings, model, vocabulary, facts), inputs)
    for run in runs:
        if run.folder.has("config.toml"):
            run.folder.start(run.config, resume=True)
    return Plan(settings, models, rows, tuple(runs), tuple(gaps), inputs, record)


def name_models(models: tuple[str, ...]) -> dict[str, str]:
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
        base = replace(base, learning=replace(base.learning, epochs=settings.epochs))
    runs = []
    for seed in settings.seeds if row.seeded else settings.seeds[:1]:
        config = _placed(settings, model, base, f"{row.config}-{seed}", seed)
        runs.append(PlannedRun(model.name, row.config, config))
        if row.config == SPE and settings.pool > config.method.k:
            name = f"{row.config}-k{settings.pool}-{seed}"
            larger = _placed(settings, model, base, name, seed)
            larger = replace(larger, method=replace(larger.method, k=settings.pool))
            if larger.method.choose_weight != "dev-fit":
                # Only test is looked at, with the weight that was chosen for the run itself.
                larger = replace(
                    larger,
                    facts=replace(larger.facts, dev_limit=1),
                    method=replace(larger.method, choose_weight="fixed"),
                )
            runs.append(PlannedRun(model.name, pool_row(settings), larger, runs[-1].name))
    return runs


def pool_row(settings: ReproduceSettings) -> str:
    """Return the row under which the plan keeps SPE's larger pools."""
    return f"{SPE}-k{settings.pool}"


def wording_row(number: int) -> str:
    """Return the row under which the plan keeps the first, second, ... rewording (from 1)."""
    return f"wording-{number}"


def _wording_runs(
    settings: ReproduceSettings, model: Model, facts: FactSet, inputs: dict[Path, bytes]
) -> list[PlannedRun]:
    """Return the manual runs with reworded templates; these go to ``inputs``."""
    runs = []
    base = _facts_config(settings, load_config(MANUAL))
    for number, templates in enumerate(reworded(facts), start=1):
        name = wording_row(number)
        path = Path(settings.out) / "inputs" / f"{name}.jsonl"
        inputs[path] = templates_file(templates)
        asked = replace(base.facts, relations=tuple(templates), templates=str(path))
        own = replace(base, facts=asked)
        config = _placed(settings, model, own, name, settings.seeds[0])
        runs.append(PlannedRun(model.name, name, config))
    return runs


def _names_run(
    settings: ReproduceSettings, model: Model, facts: FactSet, inputs: dict[Path, bytes]
) -> list[PlannedRun]:
    """Return the run that asks what people's names give away, if the facts name people."""
    names = list_names(facts)
    if not names:
        return []
    path = Path(settings.out) / "inputs" / model.name / "names.csv"
    inputs[path] = names_file(names)
    # The names are those of the facts that are left, so no limit is put on them.
    own = load_config(MANUAL)
    own = replace(own, facts=replace(own.facts, vocabulary=settings.vocabulary))
    config = _placed(settings, model, own, NAMES_RUN, settings.seeds[0], data=str(path))
    return [PlannedRun(model.name, NAMES_RUN, config)]


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
    return override(
        base,
        model=model.place,
        data=data or settings.data,
        out=str(Path(settings.out) / "runs" / model.name / name),
        seed=seed,
        dtype=settings.dtype,
        compile=settings.compile,
        keep_encoder=False,
    )


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
        table: Any = getattr(config, entry.name)
        if is_dataclass(table) and hasattr(table, "prompts"):
            changed: Any = replace(table, prompts=prompts)  # type: ignore[type-var]
            return override(config, **{entry.name: changed})
    raise ConfigError(f"config {name} takes no prompts, so --prompts cannot serve it.")
