"""The jobs behind the tables of facts: every method x model x seed, and what small tables need."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from symprompt.config import override, shipped_configs
from symprompt.errors import ConfigError
from symprompt.facts import FactSet
from symprompt.files.atomic import to_json_lines
from symprompt.models import load_vocabulary
from symprompt.papers.jobs import Job, Model, Plan, find_models
from symprompt.papers.settings import BearSettings, FactSettings
from symprompt.probing.config import RunConfig, load_config
from symprompt.probing.prepare import drop_unusable, load_config_facts, make_templates
from symprompt.prompts import Template
from symprompt.runs.folder import Manifest


@dataclass(frozen=True)
class Row:
    """One method of the tables.

    Attributes:
        name: what the tables call it.
        config: the shipped config for masked models.
        causal: the config for causal models; "" where the method is not for them.
        kind: P-tuning's Table 2 sorts by it: "baseline", "original" (manual prompts), "discrete",
            "continuous" or "tuned" (the model itself changes).
        seeded: whether another seed gives other numbers; others are run once.
        needs_prompts: whether it needs folders of mined prompts and paraphrases (--prompts).
    """

    name: str
    config: str
    causal: str = ""
    kind: str = "continuous"
    seeded: bool = False
    needs_prompts: bool = False

    @property
    def short(self) -> str:
        """The name for --methods."""
        return self.config.removeprefix("lama-")


# Order as in SPE's Table 1. A row whose config does not ship is not listed.
# fmt: off
ROWS = (
    Row("majority object", "lama-majority", "lama-majority", "baseline"),
    Row("manual prompts", "lama-manual", "lama-manual", "original"),
    # The papers' LPAQA is its top-1: AutoPrompt's table, where 34.1 comes from, names it so.
    Row("LPAQA, top-1", "lama-lpaqa-top1", "", "discrete", needs_prompts=True),
    Row("LPAQA, uniform weights", "lama-lpaqa-uniform", "", "discrete", needs_prompts=True),
    Row("LPAQA, learned weights", "lama-lpaqa", "", "discrete", needs_prompts=True),
    Row("AutoPrompt", "lama-autoprompt", "lama-autoprompt", "discrete", seeded=True),
    Row("OptiPrompt, random start", "lama-optiprompt", "lama-optiprompt", seeded=True),
    Row("OptiPrompt, manual start", "lama-optiprompt-manual", "lama-optiprompt-manual",
        seeded=True),
    Row("SoftPrompt", "lama-softprompt", "", seeded=True, needs_prompts=True),
    Row("P-tuning", "lama-ptuning", "lama-ptuning-gpt", seeded=True),
    Row("SPE", "lama-spe", "lama-spe-gpt", seeded=True),
    Row("fine-tuning, subject alone", "lama-ft", "lama-ft", "tuned", seeded=True),
    Row("LoRA, subject alone", "lama-ft-lora", "lama-ft-lora", "tuned", seeded=True),
    Row("manual prompts + fine-tuning", "lama-mp-ft", "lama-mp-ft", "tuned", seeded=True),
    Row("manual prompts + LoRA", "lama-mp-lora", "lama-mp-lora", "tuned", seeded=True),
)
# fmt: on

PTUNING, SPE, MANUAL, MAJORITY = "lama-ptuning", "lama-spe", "lama-manual", "lama-majority"


def list_rows(methods: Sequence[str] = ()) -> tuple[Row, ...]:
    """Return the rows whose configs ship, or of these the named ones, in the tables' order.

    Args:
        methods: short names such as "ptuning"; none means all.

    Raises:
        ConfigError: a name is not among them.
    """
    there = [row for row in ROWS if row.config in shipped_configs()]
    known = {row.short: row for row in there}
    for name in methods:
        if name not in known:
            raise ConfigError(f"method {name!r} is not known; the methods are: {', '.join(known)}.")
    return tuple(row for row in there if not methods or row.short in methods)


# ---------------------------------------------------------------- what smaller tables query

# P-tuning's Table 1 changes P17's template; the other relations' paraphrases are our own.
PARAPHRASES: Mapping[str, tuple[str, ...]] = {
    "P17": (
        "[X] is located in which country or state ? [Y] .",
        "[X] is located in which country ? [Y] .",
        "[X] is located in which country ? In [Y] .",
    ),
    "P19": ("[X] was raised in [Y] .", "[X] was born near [Y] .", "[X] , born in [Y] ."),
    "P36": (
        "The capital city of [X] is [Y] .",
        "The capital of [X] was [Y] .",
        "The capital of [X] is called [Y] .",
    ),
    "P103": (
        "The first language of [X] is [Y] .",
        "The native tongue of [X] is [Y] .",
        "The native language of [X] was [Y] .",
    ),
    "P176": ("[X] is made by [Y] .", "[X] is built by [Y] .", "[X] was produced by [Y] ."),
    "P364": (
        "The main language of [X] is [Y] .",
        "The spoken language of [X] is [Y] .",
        "The original language of [X] was [Y] .",
    ),
}

# LAMA-UHN's second filter (Poerner et al., 2020): may the name alone give the answer away?
_NAME = "[X] is a common name in the following {} : [Y] ."
NAMES: Mapping[str, str] = {
    "P19": _NAME.format("city"),
    "P20": _NAME.format("city"),
    "P27": _NAME.format("country"),
    "P103": _NAME.format("language"),
    "P1412": _NAME.format("language"),
}


def list_paraphrases(facts: FactSet) -> tuple[dict[str, str], ...]:
    """Return the first, second, ... paraphrase of each relation of the set that has one."""
    there = {name: PARAPHRASES[name] for name in facts.names if name in PARAPHRASES}
    most = max((len(texts) for texts in there.values()), default=0)
    return tuple(
        {name: texts[number] for name, texts in there.items() if number < len(texts)}
        for number in range(most)
    )


def name_words(subject: str) -> list[str]:
    """Return the words of a person's name, each of which is queried by itself."""
    return list(dict.fromkeys(subject.split()))


def list_names(facts: FactSet) -> list[tuple[str, ...]]:
    """Return every word of a person's name with the fact's object, as rows of a table of facts."""
    return list(
        dict.fromkeys(
            (word, fact.relation, fact.object, "test", NAMES[fact.relation])
            for fact in facts.facts("test")
            if fact.relation in NAMES
            for word in name_words(fact.subject)
        )
    )


# ---------------------------------------------------------------- the plan

NAMES_RUN = "names"


def make_fact_plan(settings: FactSettings) -> Plan[FactSettings]:
    """Look at models and facts, and list the jobs; nothing is written.

    Raises:
        SympromptError: bad settings, models or facts, or a folder that was made with other ones.
    """
    settings.check()
    rows = list_rows(settings.methods)
    models = find_models(settings.models)
    facts = load_config_facts(settings.data, _facts_config(settings, RunConfig()).facts)
    kept = settings.kept() | {"facts": facts.fingerprint()}
    about = Manifest(
        command="reproduce",
        method="spe",
        model=", ".join(model.name for model in models),
        seeds=settings.seeds,
        details=kept,
    )
    jobs: list[Job] = []
    missing: dict[str, str] = {}
    inputs: dict[Path, bytes] = {}
    for model in models:
        for row in rows:
            if model.source.causal and not row.causal:
                missing[f"{model.name}/{row.config}"] = "not for causal models"
            elif row.needs_prompts and not settings.prompts:
                missing[f"{model.name}/{row.config}"] = "needs --prompts"
            else:
                jobs += _row_jobs(settings, model, row)
        if MANUAL in [row.config for row in rows]:
            jobs += _paraphrase_jobs(settings, model, facts, inputs)
        jobs += _names_job(settings, model, facts, inputs)
    return Plan(settings.out, settings, models, tuple(jobs), about, missing, inputs)


def _row_jobs(settings: FactSettings, model: Model, row: Row) -> list[Job]:
    """Return a row's jobs, one per seed; for SPE also the larger pool of candidates."""
    base = load_config(row.causal if model.source.causal else row.config)
    if row.needs_prompts:
        base = override(base, prompts=settings.prompts)
    base = _facts_config(settings, for_model(base, model))
    if settings.epochs:
        base = override(base, **{"learning.epochs": settings.epochs})
    jobs = []
    for seed in settings.seeds if row.seeded else settings.seeds[:1]:
        config = place_run(settings, model, base, f"{row.config}-{seed}", seed)
        jobs.append(Job(model.name, row.config, config))
        if row.config == SPE and settings.pool > config.method.k:
            name = f"{row.config}-k{settings.pool}-{seed}"
            # Prompts are the run's own, and none are trained anew for a fit.
            changes: dict[str, Any] = {"method.k": settings.pool, "method.evidence": "dev"}
            if config.method.choose_weight != "dev-fit":
                # Only test is looked at, with the weight that was chosen for the run itself.
                changes |= {"facts.dev_limit": 1, "method.choose_weight": "fixed"}
            larger = override(place_run(settings, model, base, name, seed), **changes)
            jobs.append(Job(model.name, pool_row(settings), larger, jobs[-1]))
    return jobs


def pool_row(settings: FactSettings) -> str:
    """Return the row under which the plan keeps SPE's larger pools."""
    return f"{SPE}-k{settings.pool}"


def paraphrase_row(number: int) -> str:
    """Return the row under which the plan keeps the first, second, ... paraphrase (from 1)."""
    return f"paraphrase-{number}"


def _paraphrase_jobs(
    settings: FactSettings, model: Model, facts: FactSet, inputs: dict[Path, bytes]
) -> list[Job]:
    """Return the jobs of manual prompts with paraphrased templates; these go to ``inputs``."""
    jobs = []
    base = _facts_config(settings, load_config(MANUAL))
    for number, templates in enumerate(list_paraphrases(facts), start=1):
        name = paraphrase_row(number)
        path = Path(settings.out) / "inputs" / f"{name}.jsonl"
        rows = ({"relation": relation, "template": text} for relation, text in templates.items())
        inputs[path] = to_json_lines(rows)
        own = {"facts.relations": tuple(templates), "facts.templates": str(path)}
        config = place_run(settings, model, override(base, **own), name, settings.seeds[0])
        jobs.append(Job(model.name, name, config))
    return jobs


def _names_job(
    settings: FactSettings, model: Model, facts: FactSet, inputs: dict[Path, bytes]
) -> list[Job]:
    """Return the job that queries what people's names give away, if the facts name people."""
    of_run = _facts_config(settings, for_model(RunConfig(), model))
    vocabulary = load_vocabulary(model.place, model.source)
    templates = make_templates(of_run, vocabulary, facts)
    names = list_names(drop_unusable(of_run, vocabulary, facts, templates))
    if not names:
        return []
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["subject", "relation", "object", "split", "template"])
    table.writerows(names)
    path = Path(settings.out) / "inputs" / model.name / "names.csv"
    inputs[path] = text.getvalue().encode()
    # The names are those of the facts that are left, so no limit is put on them.
    own = override(load_config(MANUAL), **{"facts.vocabulary": settings.vocabulary})
    config = place_run(settings, model, own, NAMES_RUN, settings.seeds[0], data=str(path))
    return [Job(model.name, NAMES_RUN, config)]


def place_run(
    settings: FactSettings | BearSettings,
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


def _facts_config(settings: FactSettings, config: RunConfig) -> RunConfig:
    """Return a config about the facts that the settings name."""
    changes: dict[str, Any] = {
        f"facts.{key}": getattr(settings, key) for key in ("relations", "templates", "vocabulary")
    }
    changes |= {f"facts.{split}_limit": settings.limit for split in ("train", "dev", "test")}
    return override(config, **changes)


def for_model(config: RunConfig, model: Model) -> RunConfig:
    """Return the config with a template that ends with the object, where the model is causal."""
    prompt = config.prompt
    if not model.source.causal or prompt.template == "manual":
        return config
    template = Template.parse(prompt.template)
    if template.ends_with_object:
        return config
    return override(config, **{"prompt.template": str(template.cut_after_object())})
