"""P-tuning's Tables 3 to 6 on SuperGLUE, ours beside the paper's marked columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from symprompt.papers.labelled import published
from symprompt.papers.labelled.entries import (
    FEW,
    FULL,
    NOT_MEASURED,
    Entries,
    Entry,
    mean_of,
    show_value,
)
from symprompt.papers.labelled.v2 import DASH, show
from symprompt.report.grid import Grid
from symprompt.report.pages import Section
from symprompt.tasks.patterns.train import summarise_seeds

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


# ---------------------------------------------------------------- Tables 3 and 4


def _full_section(entries: Entries) -> Section:
    sections = []
    for place, (task, metric) in enumerate(published.P_COLUMNS):
        rows = []
        for method, label in METHODS.items():
            ours = _cells(entries, task, method, metric, FULL)
            theirs = [
                show(published.P_FULL[model][method][place]) for model in published.P_FULL_MODELS
            ]
            rows.append((f"{_name(task, metric)}: {label}", *ours, *theirs))
        sections.append(tuple(rows))
    common = common_tasks(entries, entries.models, list(METHODS), FULL)
    if common:
        sections.append(_average_rows(entries, common))
    named = [
        f"published:\n{model}\n({table})"
        for model, table in zip(published.P_FULL_MODELS, published.P_FULL_TABLES, strict=True)
    ]
    header = ("task and method", *entries.models, *named)
    marked = tuple(range(1 + len(entries.models), len(header)))
    title = "SuperGLUE dev, trained on the whole training set; published: P-tuning, Tables 3 and 4"
    notes = [
        f"{TASKS[task]}: {NOT_MEASURED} ({why})."
        for task in TASKS
        if (why := entries.missing.get(f"{task}, full training set"))
    ]
    if common and len(common) < len(TASKS):
        notes.append(
            "The paper averages seven tasks; the averages over fewer in its columns are made here "
            "from its printed figures."
        )
    notes.append(
        "The published Table 4 prints the heads of CB's two columns in the other order; its "
        "figures (multiples of 1/56, CB has 56 dev examples) show that accuracy comes first."
    )
    return Section(
        "P-tuning, Tables 3 and 4: fully supervised",
        (
            "Ours: mean ± deviation over seeds, in percent (one seed where there is no ±); rate, "
            "batch and epoch are chosen on a held-out part of train, the paper's on the "
            "dev set it reports.",
        ),
        (Grid(title, header, tuple(sections), marked),),
        tuple(notes),
    )


def _average_rows(entries: Entries, common: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return the averages over the tasks that all our rows have, of both sides alike."""
    every = len(common) == len(TASKS)
    about = "seven tasks" if every else ", ".join(TASKS[task] for task in common)
    rows = []
    for method, label in METHODS.items():
        ours = [f"{average(entries, model, method, common, FULL):.2f}" for model in entries.models]
        theirs = []
        for model in published.P_FULL_MODELS:
            printed = published.P_FULL[model][method]
            shown = printed[-1] if every else printed_average(printed, common)
            theirs.append(show(shown))
        rows.append((f"average of {about}: {label}", *ours, *theirs))
    return tuple(rows)


def common_tasks(
    entries: Entries, models: Sequence[str], methods: Sequence[str], split: str
) -> list[str]:
    """Return the tasks that every model and method was measured on."""
    return [
        task
        for task in TASKS
        if models
        and methods
        and all(
            entries.find(model, task, method, split=split) for model in models for method in methods
        )
    ]


def average(entries: Entries, model: str, method: str, tasks: Sequence[str], split: str) -> float:
    """Return the paper's average: over tasks, of two metrics of a task their mean."""
    found = []
    for task in tasks:
        entry = entries.find(model, task, method, split=split)
        assert entry is not None
        metrics = [metric for name, metric in published.P_COLUMNS if name == task]
        found.append(mean_of(float(entry["metrics"][metric]["value"]) for metric in metrics))
    return mean_of(found)


def printed_average(printed: Sequence[float], tasks: Sequence[str]) -> float:
    """Return the average of printed figures over some tasks, as the paper averages."""
    return mean_of(
        mean_of(
            printed[place] for place, (name, _) in enumerate(published.P_COLUMNS) if name == task
        )
        for task in tasks
    )


# ---------------------------------------------------------------- Table 5


def _few_section(entries: Entries) -> Section:
    sections = []
    for place, (task, metric) in enumerate(published.P_COLUMNS):
        name = _name(task, metric)
        rows = []
        for method, label in _FEW_METHODS.items():
            ours = _few_cells(entries, task, method, metric)
            if method == "frozen" and set(ours) == {NOT_MEASURED}:
                continue
            rows.append((f"{name}: {label}", *ours, _printed_few(method, place), DASH))
        for system, printed in published.P_FEW_FULL_DEV.items():
            nothing = [DASH] * len(entries.models)
            rows.append((f"{name}: {system}", *nothing, DASH, show(printed[place])))
        sections.append(tuple(rows))
    header = (
        "task and method",
        *entries.models,
        "published:\nALBERT-xxlarge\n(dev32 chooses)",
        "published:\nothers' systems\n(full dev chooses)",
    )
    notes = [
        f"{TASKS[task]}: {NOT_MEASURED} ({why})."
        for task in TASKS
        if (why := entries.missing.get(f"{task}, 32 examples"))
    ]
    notes.append(
        "PET here is a manual pattern, fine-tuned, without ensemble, distillation and unlabelled "
        "data; causal models are asked through the patterns that end with the answer alone."
    )
    marked = (len(header) - 2, len(header) - 1)
    title = "SuperGLUE dev, trained on 32 examples; published: P-tuning, Table 5"
    return Section(
        "P-tuning, Table 5: 32 training examples",
        (
            "Ours: mean ± deviation over seeds, in percent; the step is chosen on the 32 examples "
            "of dev32. GPT-3, PET with its ensemble and iPET are published numbers of others.",
        ),
        (Grid(title, header, tuple(sections), marked),),
        tuple(notes),
    )


def _printed_few(method: str, place: int) -> str:
    printed = published.P_FEW.get(method)
    if printed is None:
        return DASH
    deviation = published.P_FEW_DEVIATION.get(method)
    return show(printed[place]) + (f" ± {deviation[place]:.1f}" if deviation else "")


def _few_cells(entries: Entries, task: str, method: str, metric: str) -> list[str]:
    if not method.startswith("pet-"):
        return _cells(entries, task, method, metric, FEW)
    cells = []
    for model in entries.models:
        value = pet_values(entries, model, task).get(method, {}).get(metric)
        failed = (model, task, "pet", FEW) in entries.failed
        cells.append(show_value(value) if value else "failed" if failed else NOT_MEASURED)
    return cells


def pet_values(entries: Entries, model: str, task: str) -> dict[str, Mapping[str, Any]]:
    """Return PET's mean over its patterns' means, and its best pattern on dev32 and on dev.

    Nothing where fewer than two of its patterns were trained.
    """
    trained: dict[str, Entry] = {
        name: entry
        for method in ("mp", "pet")
        for name, entry in entries.of_method(model, task, method, split=FEW).items()
        if name.startswith("pet-")
    }
    if len(trained) < 2:
        return {}
    main = next(metric for name, metric in published.P_COLUMNS if name == task)

    def on_dev32(name: str) -> float:
        return float(trained[name]["dev"]["accuracy"]["value"])

    def on_dev(name: str) -> float:
        return float(trained[name]["metrics"][main]["value"])

    means = [
        {metric: value["value"] for metric, value in entry["metrics"].items()}
        for entry in trained.values()
    ]
    return {
        "pet-mean": summarise_seeds(means),
        "pet-dev32": trained[max(trained, key=on_dev32)]["metrics"],
        "pet-best": trained[max(trained, key=on_dev)]["metrics"],
    }


# ---------------------------------------------------------------- Table 6


def _pattern_section(entries: Entries) -> Section:
    rows, notes = [], []
    for name, (text, dev, dev32) in published.P_PATTERNS.items():
        cells = []
        for model in entries.models:
            entry = _pattern_entry(entries, model, name)
            of = (model, "rte", "ptuning" if name == "ptuning" else "table6", FEW)
            cells.append(entries.cell(entry, "accuracy", of=of))
            on_dev32 = None if entry is None else {"metrics": entry["dev"]}
            cells.append(entries.cell(on_dev32, "accuracy", of=of))
        rows.append((text, *cells, f"{dev:.2f}", f"{dev32:.2f}"))
    for model in entries.models:
        notes += _choice_note(entries, model)
    header = (
        "pattern",
        *(f"{model}\n{split}" for model in entries.models for split in ("dev", "dev32")),
        "published:\nALBERT-xxlarge\ndev",
        "published:\nALBERT-xxlarge\ndev32",
    )
    marked = (len(header) - 2, len(header) - 1)
    title = "RTE, accuracy, trained on 32 examples; published: P-tuning, Table 6"
    return Section(
        "P-tuning, Table 6: patterns for RTE, on dev and on the 32 examples that choose",
        ("Manual patterns are fine-tuned as P-tuning is; dev32 chooses the step.",),
        (Grid(title, header, (tuple(rows[:-1]), tuple(rows[-1:])), marked),),
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
        for name in published.P_PATTERNS
        if name != "ptuning" and (entry := _pattern_entry(entries, model, name)) is not None
    }
    if len(found) < 2:
        return []
    chosen = max(found, key=lambda name: float(found[name]["dev"]["accuracy"]["value"]))
    best = max(found, key=lambda name: float(found[name]["metrics"]["accuracy"]["value"]))
    text = {name: published.P_PATTERNS[name][0] for name in found}
    same = (
        "which is also the best on dev" if chosen == best else f'the best on dev is "{text[best]}"'
    )
    return [f'{model}: of the manual patterns dev32 chooses "{text[chosen]}"; {same}.']


def _cells(entries: Entries, task: str, method: str, metric: str, split: str) -> list[str]:
    return [
        entries.cell(
            entries.find(model, task, method, split=split), metric, of=(model, task, method, split)
        )
        for model in entries.models
    ]


def _name(task: str, metric: str) -> str:
    several = sum(name == task for name, _ in published.P_COLUMNS) > 1
    return f"{TASKS[task]} {_METRICS[metric]}" if several else TASKS[task]
