"""P-tuning's tables: facts (1, 2) and SuperGLUE through patterns (3 to 6), with Figure 1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from symprompt.files.grid import DASH, Grid
from symprompt.papers.fact_jobs import MANUAL, PARAPHRASES, ROWS, paraphrase_row
from symprompt.papers.records import (
    FEW,
    FULL,
    NOT_MEASURED,
    ON_DEV,
    Entries,
    Entry,
    Key,
    Loaded,
    published,
    published_grid,
    show,
)
from symprompt.probing.results import load_card
from symprompt.report.figures import BarPanel, draw_bar_panels
from symprompt.report.pages import Picture, Section, save_picture
from symprompt.report.tables import load_scores
from symprompt.runs.folder import Folder
from symprompt.runs.statistics import OVER_RELATIONS, by_relation

# ---------------------------------------------------------------- facts: Tables 1 and 2

TABLE_1 = "P-tuning, Table 1"
TABLE_34K, TABLE_29K = "P-tuning, Table 2, LAMA-34k", "P-tuning, Table 2, LAMA-29k"
_MODELS_34K = ("BERT-base", "BERT-large", "E-BERT")
_MODELS_29K = tuple(published(MANUAL)[TABLE_29K])
_OUT_OF_MEMORY = (("MegatronLM (11B)", "lama-ft"), ("MegatronLM (11B)", "lama-mp-ft"))
_STRATEGIES = (MANUAL, "lama-ft", "lama-mp-ft", "lama-ptuning", "lama-spe", "lama-autoprompt")
_KINDS = {
    "original": "original (MP)",
    "discrete": "discrete",
    "continuous": "continuous",
}


def relation_p1(path: str) -> dict[str, float]:
    """Return P@1 of every relation of a run, in percent."""
    scores = load_scores(path)
    found = by_relation(scores.rank, scores.relation)
    return {scores.relation_names[number]: summary.p1 for number, summary in found.items()}


def paraphrase_p1(loaded: Loaded, model: str) -> dict[str, dict[str, float]]:
    """Return P@1 by relation and template: LAMA's own first, then the changed ones."""
    group = loaded.groups.get((model, MANUAL))
    if group is None:
        return {}
    card = load_card(Folder(group.paths[0]))["relations"]
    own = relation_p1(group.paths[0])
    found = {
        name: {card[name]["manual_template"]: own[name]}
        for name in PARAPHRASES
        if name in card and name in own
    }
    for number in range(1, max(map(len, PARAPHRASES.values())) + 1):
        for job in loaded.plan.of_row(model, paraphrase_row(number)):
            if job.finished:
                for name, value in relation_p1(job.config.out).items():
                    found.setdefault(name, {})[PARAPHRASES[name][number - 1]] = value
    return found


def paraphrase_section(loaded: Loaded) -> Section:
    """Return P-tuning's Table 1 for the relations that have changed templates."""
    models = [model.name for model in loaded.plan.models]
    found = {model: paraphrase_p1(loaded, model) for model in models}
    sections, notes = [], []
    for name in PARAPHRASES:
        texts = dict.fromkeys(text for model in models for text in found[model].get(name, {}))
        rows = []
        for place, text in enumerate(texts):
            cells = [found[model].get(name, {}).get(text) for model in models]
            theirs = _printed_p1(MANUAL, TABLE_1, text) if name == "P17" else None
            shown = text if place else f"{text} (LAMA's)"
            rows.append((f"{name}: {shown}", *(show(own, 2) for own in (*cells, theirs))))
        if rows:
            sections.append(tuple(rows))
            spread = [
                f"{max(values):.2f} - {min(values):.2f} = {max(values) - min(values):.2f} ({model})"
                for model in models
                if (values := list(found[model].get(name, {}).values()))
            ]
            notes.append(f"{name}, best minus worst: {'; '.join(spread)}.")
    title = "P-tuning, Table 1: one-word changes of a manual prompt"
    if not sections:
        none = "None of the relations has changed templates, or manual prompts were left out."
        return Section(title, (none,))
    named = (f"BERT-base\n{TABLE_1}",)
    grid = published_grid("P@1 of the relation", "prompt", models, named, sections)
    text = "The paraphrases of P17 are the paper's, those of other relations our own."
    return Section(title, (text,), (grid,), tuple(notes))


def common_keys(loaded: Loaded) -> set[Key]:
    """Return the test facts common to all models: their objects are one token of each."""
    sets = [set(groups[0].keys) for groups in loaded.by_model.values()]
    return set.intersection(*sets) if sets else set()


def prompt_type_section(loaded: Loaded) -> Section:
    """Return P-tuning's Table 2: all facts by prompt type, and those common to all models."""
    common = common_keys(loaded)
    largest = max((len(groups[0].keys) for groups in loaded.by_model.values()), default=0)
    notes = []
    if len(loaded.plan.models) == 1:
        notes.append("There is one model, so the facts common to all models are all its facts.")
    return Section(
        "P-tuning, Table 2: prompt types",
        (
            f"P@1, mean over relations. The first table is about all facts (LAMA-34k has 34,039; "
            f"here up to {largest:,}), the second about the {len(common):,} facts whose object is "
            "one token of every model here, as LAMA-29k is for BERT and GPT. Ranks are over each "
            "model's own vocabulary, unless a word list was named.",
        ),
        (_all_grid(loaded), _common_grid(loaded, common)),
        tuple(notes),
    )


def _all_grid(loaded: Loaded) -> Grid:
    models = [model.name for model in loaded.plan.models]
    sections = []
    for kind, title in _KINDS.items():
        rows = []
        for row in loaded.rows:
            if row.kind == kind:
                groups = [(model, loaded.groups.get((model, row.config))) for model in models]
                cells = [
                    f"{group.means[OVER_RELATIONS].p1:.2f}"
                    if group
                    else loaded.missing[model, row.config]
                    for model, group in groups
                ]
                shown = [show(_printed_p1(row.config, TABLE_34K, name)) for name in _MODELS_34K]
                rows.append((f"{title}: {row.name}", *cells, *shown))
        sections.append(rows)
    title = "All facts; published: P-tuning, Table 2, left"
    return published_grid(title, "prompt type", models, _MODELS_34K, sections)


def _common_grid(loaded: Loaded, common: set[Key]) -> Grid:
    models = [model.name for model in loaded.plan.models]
    chosen = {row.config for row in loaded.rows}
    rows = []
    for row in (row for config in _STRATEGIES for row in ROWS if row.config == config):
        cells = []
        for model in models:
            group = loaded.groups.get((model, row.config))
            if row.config not in chosen:
                cells.append(DASH)
            elif group is None:
                cells.append(loaded.missing[model, row.config])
            else:
                found = group.mean_of(np.array([key in common for key in group.keys]))
                cells.append(show(found.p1 if found else None, 2))
        for name in _MODELS_29K:
            printed = show(_printed_p1(row.config, TABLE_29K, name))
            cells.append("out of memory" if (name, row.config) in _OUT_OF_MEMORY else printed)
        rows.append((row.name, *cells))
    title = "Facts common to all models; published: P-tuning, Table 2, right (LAMA-29k)"
    return published_grid(title, "strategy", models, _MODELS_29K, [rows])


def _printed_p1(config: str, table: str, row: str) -> float | None:
    return published(config).get(table, {}).get(row, {}).get("p1")


# ---------------------------------------------------------------- SuperGLUE: Tables 3 to 6

TASKS = {
    "boolq": "BoolQ",
    "cb": "CB",
    "wic": "WiC",
    "rte": "RTE",
    "multirc": "MultiRC",
    "wsc": "WSC",
    "copa": "COPA",
}
_METRICS = {"accuracy": "accuracy", "macro_f1": "F1", "em": "EM", "f1a": "F1a"}
# The columns of Tables 3 to 5. Table 4 prints the heads of CB's two columns in the other order; its
# figures are multiples of 1/56 where accuracy stands, and CB's dev set has 56 examples.
COLUMNS = (
    ("boolq", "accuracy"),
    ("cb", "accuracy"),
    ("cb", "macro_f1"),
    ("wic", "accuracy"),
    ("rte", "accuracy"),
    ("multirc", "em"),
    ("multirc", "f1a"),
    ("wsc", "accuracy"),
    ("copa", "accuracy"),
)
METRICS = {task: [metric for name, metric in COLUMNS if name == task] for task in TASKS}
# Models of Tables 3 and 4 -> their table.
FULL_MODELS = {
    "BERT-base-cased": "Table 3",
    "GPT2-base": "Table 3",
    "BERT-large-cased": "Table 4",
    "GPT2-medium": "Table 4",
}
_FEW_MODEL = "ALBERT-xxlarge"
# Others' systems in Table 5, which the paper cites.
_SYSTEMS = ("GPT-3", "PET (ensemble, distilled)", "iPET")
# Table 6: our names of the patterns -> how the paper prints them.
PATTERNS = {
    "agree-1": "Does [PRE] agree with [HYP]? [MASK].",
    "agree-2": "Does [HYP] agree with [PRE]? [MASK].",
    "named": "Premise: [PRE] Hypothesis: [HYP] Answer: [MASK].",
    "truth": "[PRE] question: [HYP]. true or false? answer: [MASK].",
    "ptuning": "P-tuning",
}
# The table's rows: method -> what it is called.
METHODS = {
    "cls": "fine-tuning, [CLS]",
    "zero-shot": "MP zero-shot",
    "mp": "MP fine-tuning",
    "ptuning": "P-tuning",
}
_FEW_METHODS = {
    "zero-shot": "MP zero-shot",
    "cls": "fine-tuning, [CLS]",
    "mp": "MP fine-tuning",
    "pet-mean": "PET: mean ± deviation over patterns",
    "pet-dev32": "PET best, chosen on dev32",
    "pet-best": "PET best, chosen on dev (an oracle)",
    "ptuning": "P-tuning",
    "frozen": "P-tuning, frozen model",
}


def ptuning_sections(entries: Entries) -> list[Section]:
    """Return all tables of the paper."""
    return [_full_section(entries), _few_section(entries), _pattern_section(entries)]


def _full_section(entries: Entries) -> Section:
    sections = []
    for task, metric in COLUMNS:
        rows = []
        for method, label in METHODS.items():
            ours = entries.cells(task, method, metric, FULL)
            theirs = [show(printed_full(model, method, task, metric)) for model in FULL_MODELS]
            rows.append((f"{_name(task, metric)}: {label}", *ours, *theirs))
        sections.append(rows)
    common = entries.common(entries.models, TASKS, list(METHODS), FULL)
    notes = _missing(entries, "full training set")
    if common:
        # Over the tasks that all our rows have, of both sides alike.
        metrics = {task: METRICS[task] for task in common}
        printed = common if len(common) < len(TASKS) else []
        rows = []
        for method, label in METHODS.items():
            ours = [f"{entries.average(own, method, metrics, FULL):.2f}" for own in entries.models]
            theirs = [show(printed_average(model, method, printed)) for model in FULL_MODELS]
            rows.append((f"average of {_listed(common)}: {label}", *ours, *theirs))
        sections.append(rows)
        if len(common) < len(TASKS):
            notes.append(
                "The paper averages seven tasks; the averages over fewer in its columns are made "
                "here from its printed figures."
            )
    notes.append(
        "The published Table 4 prints the heads of CB's two columns in the other order; its "
        "figures (multiples of 1/56, CB has 56 dev examples) show that accuracy comes first."
    )
    named = [f"{model}\n({table})" for model, table in FULL_MODELS.items()]
    title = "SuperGLUE dev, trained on the whole training set; published: P-tuning, Tables 3 and 4"
    return Section(
        "P-tuning, Tables 3 and 4: fully supervised",
        (
            "Ours: mean ± deviation over seeds, in percent (one seed where there is no ±); rate, "
            "batch and epoch are chosen on a held-out part of train, the paper's on the "
            "dev set it reports.",
        ),
        (published_grid(title, "task and method", entries.models, named, sections),),
        tuple(notes),
    )


def _missing(entries: Entries, what: str) -> list[str]:
    return [
        f"{TASKS[task]}: {NOT_MEASURED} ({why})."
        for task in TASKS
        if (why := entries.missing.get(f"{task}, {what}"))
    ]


def _listed(tasks: Sequence[str]) -> str:
    every = len(tasks) == len(TASKS)
    return "seven tasks" if every else ", ".join(TASKS[task] for task in tasks)


def printed_full(model: str, method: str, task: str, metric: str) -> float:
    """Return what Table 3 or 4 prints."""
    table = f"P-tuning, {FULL_MODELS[model]}, {metric}"
    return published(f"superglue-{task}")[table][model][method]


def printed_average(model: str, method: str, tasks: Sequence[str]) -> float:
    """Return the average of printed figures over some tasks; without tasks, the printed average."""
    if not tasks:
        return printed_full(model, method, "boolq", "average")
    return fmean(
        fmean(printed_full(model, method, task, metric) for metric in METRICS[task])
        for task in tasks
    )


def _few_section(entries: Entries) -> Section:
    sections = []
    for task, metric in COLUMNS:
        name = _name(task, metric)
        printed = published(f"fewglue-{task}")[f"P-tuning, Table 5, {metric}"]
        theirs = printed[_FEW_MODEL]
        rows = []
        for method, label in _FEW_METHODS.items():
            if method.startswith("pet-"):
                ours = [
                    entries.cell(pet_values(entries, own, task).get(method), metric, of=place)
                    for own in entries.models
                    for place in [(own, task, "pet", FEW)]
                ]
            else:
                ours = entries.cells(task, method, metric, FEW)
            if method == "frozen" and set(ours) == {NOT_MEASURED}:
                continue
            spread = theirs.get(f"{method}-deviation")
            shown = show(theirs.get(method)) + (f" ± {spread:.1f}" if spread else "")
            rows.append((f"{name}: {label}", *ours, shown, DASH))
        for system in _SYSTEMS:
            nothing = [DASH] * len(entries.models)
            chosen_on_dev = show(printed.get(system, {}).get("chosen-on-dev"))
            rows.append((f"{name}: {system}", *nothing, DASH, chosen_on_dev))
        sections.append(rows)
    notes = _missing(entries, "32 examples")
    notes.append(
        "PET here is a manual pattern, fine-tuned, without ensemble, distillation and unlabelled "
        "data; causal models are queried through the patterns that end with the answer alone."
    )
    named = ("ALBERT-xxlarge\n(dev32 chooses)", "others' systems\n(full dev chooses)")
    title = "SuperGLUE dev, trained on 32 examples; published: P-tuning, Table 5"
    return Section(
        "P-tuning, Table 5: 32 training examples",
        (
            "Ours: mean ± deviation over seeds, in percent; the step is chosen on the 32 examples "
            "of dev32. GPT-3, PET with its ensemble and iPET are published numbers of others.",
        ),
        (published_grid(title, "task and method", entries.models, named, sections),),
        tuple(notes),
    )


def pet_values(entries: Entries, model: str, task: str) -> dict[str, Entry]:
    """Return PET's means over its patterns' means, and its best pattern on dev32 and on dev.

    Nothing where fewer than two of its patterns were trained.
    """
    trained = [
        entry
        for method in ("mp", "pet")
        for key, entry in entries.values.items()
        if key[:4] == (model, task, method, FEW) and key[4].startswith("pet-")
    ]
    if len(trained) < 2:
        return {}
    return {
        "pet-mean": {
            metric: [fmean(entry[metric]) for entry in trained] for metric in METRICS[task]
        },
        "pet-dev32": max(trained, key=lambda entry: fmean(entry[ON_DEV + "accuracy"])),
        "pet-best": max(trained, key=lambda entry: fmean(entry[METRICS[task][0]])),
    }


def _pattern_section(entries: Entries) -> Section:
    rows, notes = [], []
    printed = published("fewglue-rte")["P-tuning, Table 6"]
    for name, text in PATTERNS.items():
        cells = []
        for model in entries.models:
            entry = _pattern_entry(entries, model, name)
            of = (model, "rte", "ptuning" if name == "ptuning" else "table6", FEW)
            cells.append(entries.cell(entry, "accuracy", of=of))
            cells.append(entries.cell(entry, ON_DEV + "accuracy", of=of))
        rows.append((text, *cells, *(f"{printed[name][key]:.2f}" for key in ("dev", "dev32"))))
    for model in entries.models:
        notes += _choice_note(entries, model)
    ours = [f"{model}\n{split}" for model in entries.models for split in ("dev", "dev32")]
    theirs = [f"ALBERT-xxlarge\n{split}" for split in ("dev", "dev32")]
    title = "RTE, accuracy, trained on 32 examples; published: P-tuning, Table 6"
    return Section(
        "P-tuning, Table 6: patterns for RTE, on dev and on the 32 examples that choose",
        ("Manual patterns are fine-tuned as P-tuning is; dev32 chooses the step.",),
        (published_grid(title, "pattern", ours, theirs, [rows[:-1], rows[-1:]]),),
        tuple(notes),
    )


def _pattern_entry(entries: Entries, model: str, name: str) -> Entry | None:
    if name == "ptuning":
        return entries.find(model, "rte", "ptuning", split=FEW)
    return entries.find(model, "rte", "table6", split=FEW, pattern=name)


def _choice_note(entries: Entries, model: str) -> list[str]:
    """Return which manual pattern dev32 would have chosen, and which is best on dev."""
    found = {
        name: entry
        for name in PATTERNS
        if name != "ptuning" and (entry := _pattern_entry(entries, model, name)) is not None
    }
    if len(found) < 2:
        return []
    chosen = max(found, key=lambda name: fmean(found[name][ON_DEV + "accuracy"]))
    best = max(found, key=lambda name: fmean(found[name]["accuracy"]))
    text = {name: PATTERNS[name] for name in found}
    same = (
        "which is also the best on dev" if chosen == best else f'the best on dev is "{text[best]}"'
    )
    return [f'{model}: of the manual patterns dev32 chooses "{text[chosen]}"; {same}.']


def _name(task: str, metric: str) -> str:
    several = len(METRICS[task]) > 1
    return f"{TASKS[task]} {_METRICS[metric]}" if several else TASKS[task]


# ---------------------------------------------------------------- Figure 1


def draw_ptuning(entries: Entries, folder: Path) -> list[Picture]:
    """Draw the averages over SuperGLUE's tasks: whole sets, 32 examples, and the paper's."""
    panels, whole = ptuning_panels(entries)
    if not panels:
        return []
    title = "P-tuning, Figure 1: averages over SuperGLUE's dev sets"
    names = ", ".join(TASKS[task] for task in whole) if whole else "all seven tasks"
    caption = (
        "Our runs: mean over seeds and over the tasks named above the panel, two metrics of a task "
        f"averaged first. Published: the figures printed in P-tuning's Tables 3 and 4, averaged "
        f"over {names}; other models, not our measurements."
    )
    figure = draw_bar_panels(panels, title=title, caption=caption)
    return [save_picture(figure, folder, "figure-1.png", title)]


def ptuning_panels(entries: Entries) -> tuple[list[BarPanel], list[str]]:
    """Return the panels, and the tasks that the whole training set was measured on."""
    panels: list[BarPanel] = []
    whole: list[str] = []
    for split, about in ((FULL, "whole training set"), (FEW, "32 examples")):
        models, methods, tasks = entries.comparable(TASKS, METHODS, split)
        if not tasks:
            continue
        if split == FULL:
            whole = tasks
        metrics = {task: METRICS[task] for task in tasks}
        bars = {
            METHODS[method]: [entries.average(model, method, metrics, split) for model in models]
            for method in methods
        }
        panels.append(BarPanel(f"Ours, {about}\n({_listed(tasks)})", models, bars))
    if panels:
        theirs = {
            label: [printed_average(model, method, whole) for model in FULL_MODELS]
            for method, label in METHODS.items()
            if any(label in panel.bars for panel in panels)
        }
        names = [name.removesuffix("-cased") for name in FULL_MODELS]
        panels.append(BarPanel("Published,\nwhole training set", names, theirs, published=True))
    return panels, whole
