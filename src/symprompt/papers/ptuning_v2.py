"""P-tuning v2's Tables 1 to 4, its two ablations and Figure 1."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from symprompt.files.grid import Grid
from symprompt.papers.records import (
    FULL,
    NOT_MEASURED,
    Entries,
    Entry,
    published,
    published_grid,
    show,
)
from symprompt.papers.settings import CLASSES, QUESTIONS
from symprompt.report.figures import BarPanel, draw_bar_panels
from symprompt.report.pages import Picture, Section, save_picture
from symprompt.report.records import METHODS

NAMES = {
    "sst2": "SST-2",
    "mnli": "MNLI-m",
    "rte": "RTE",
    "boolq": "BoolQ",
    "cb": "CB",
    "conll2003": "CoNLL03",
    "ontonotes": "OntoNotes 5.0",
    "conll2004": "CoNLL04",
    "wikigold": "Wikigold",
    "gum": "GUM",
    "squad": "SQuAD 1.1",
    "squad2": "SQuAD 2.0",
    "conll12": "CoNLL12",
    "conll05": "CoNLL05 WSJ",
    "propbank-ewt": "PropBank EWT",
}
_EASY = ("ft", "pt", "pt2", "lora")
_HARD = ("ft", "pt", "pt2", "mpt2", "lora")
SIZES = {
    "BERT-large": "335M",
    "RoBERTa-large": "355M",
    "GLM-xlarge": "2B",
    "GLM-xxlarge": "10B",
    "DeBERTa-xlarge": "750M",
}
MODELS = ("BERT-large", "RoBERTa-large", "GLM-xlarge", "GLM-xxlarge")
_HARD_MODELS = ("BERT-large", "RoBERTa-large", "DeBERTa-xlarge")
_TABLE = "P-tuning v2, Table "
_ABOUT = (
    "Ours: mean ± deviation over seeds, in percent (one seed where there is no ±); the epoch is "
    "chosen on dev where a test set is reported, and on a held-out part of train where dev is. The "
    "paper chooses on the dev sets it reports, and its models are other ones."
)


@dataclass(frozen=True)
class Block:
    """The rows of one task in a table, a method each.

    Attributes:
        name: what the rows call the task.
        recipe: the config that holds the paper's figures; "" where the paper has none.
        published: their table in it.
        split: the reported split, if the task has several.
    """

    task: str
    metric: str
    name: str
    recipe: str = ""
    published: str = ""
    split: str = ""

    def printed(self, model: str, method: str) -> float | None:
        """Return what the paper prints."""
        if not self.recipe:
            return None
        return published(self.recipe)[self.published].get(model, {}).get(method)


@dataclass(frozen=True)
class Table:
    """One of the paper's tables: its blocks, the paper's models and our methods."""

    number: int
    about: str
    title: str
    models: tuple[str, ...]
    methods: tuple[str, ...]
    blocks: tuple[Block, ...]
    note: str = ""


def _block(
    task: str, metric: str, recipe: str, table: str, name: str = "", split: str = ""
) -> Block:
    return Block(task, metric, name or NAMES[task], recipe, _TABLE + table, split)


def _own(task: str) -> Block:
    """Return the rows of a task that the paper does not have, shown where it was measured."""
    return Block(task, "f1", NAMES[task])


TABLES = (
    Table(
        1,
        "classes of texts and pairs",
        "Accuracy, dev",
        MODELS,
        _EASY,
        tuple(_block(task, "accuracy", f"{task}-pt2", "1") for task in CLASSES),
    ),
    Table(
        2,
        "named entities",
        "Micro F1 of entities, test",
        _HARD_MODELS,
        _HARD,
        (
            _block("conll2003", "f1", "conll2003-pt2", "2"),
            _block("ontonotes", "f1", "conll2003-pt2", "2, OntoNotes 5.0"),
            _block("conll2004", "f1", "conll2004-pt2", "2"),
            _own("wikigold"),
            _own("gum"),
        ),
        " The paper mixes CoNLL03, OntoNotes 5.0 and CoNLL04 for MPT-2; ours mixes the sets that "
        "are there.",
    ),
    Table(
        3,
        "answers in a text",
        "Exact match and F1, dev",
        _HARD_MODELS,
        _HARD,
        tuple(
            _block(task, metric, f"{task}-pt2", f"3, {name}", f"{NAMES[task]} {name}")
            for task in QUESTIONS
            for metric, name in (("exact", "EM"), ("f1", "F1"))
        ),
    ),
    Table(
        4,
        "roles",
        "F1 of roles, test",
        _HARD_MODELS,
        _HARD,
        (
            _block("conll12", "f1", "srl-pt2", "4, CoNLL12", split="test"),
            _block("conll05", "f1", "srl-pt2", "4, CoNLL05 WSJ", split="test"),
            _block("conll05", "f1", "srl-pt2", "4, CoNLL05 Brown", "CoNLL05 Brown", "test-brown"),
            _own("propbank-ewt"),
        ),
        " PropBank on EWT is ours; the paper has no such column.",
    ),
)


def v2_sections(entries: Entries) -> list[Section]:
    """Return all tables of the paper."""
    return [*(_section(entries, table) for table in TABLES), _ablations(entries)]


def _section(entries: Entries, table: Table) -> Section:
    """Return one table: our models' numbers, then the paper's."""
    sections = []
    for block in table.blocks:
        if not block.recipe and not entries.any_of(entries.models, [block.task], table.methods):
            continue
        rows = []
        for method in table.methods:
            ours = entries.cells(block.task, method, block.metric, block.split)
            theirs = [show(block.printed(model, method)) for model in table.models]
            rows.append((f"{block.name}: {METHODS[method]}", *ours, *theirs))
        sections.append(rows)
    named = [f"{model}\n({SIZES[model]})" for model in table.models]
    title = f"{table.title}; published: {_TABLE}{table.number}"
    return Section(
        f"{_TABLE}{table.number}: {table.about}",
        (_ABOUT + table.note,),
        (published_grid(title, "task and method", entries.models, named, sections),),
        _notes(entries, [block.task for block in table.blocks if block.recipe]),
    )


def _ablations(entries: Entries) -> Section:
    """Return the two choices of section 2.3; the paper gives them in words, without figures."""
    prefixes, words = [], []
    for task, name in NAMES.items():
        if any(entries.find(model, task, "pt2-mlp") for model in entries.models):
            metric = "accuracy" if task in CLASSES else "f1"
            prefixes.append(
                (
                    (f"{name}: free (PT-2)", *entries.cells(task, "pt2", metric)),
                    (f"{name}: reparameterised", *entries.cells(task, "pt2-mlp", metric)),
                )
            )
        for method, label in (("pt2", "PT-2"), ("pt", "PT")):
            if any(_verbal(entries, model, task, method) for model in entries.models):
                head = entries.cells(task, method, "accuracy")
                verbal = "pt2-verbalizer" if method == "pt2" else "verbalizer"
                worded = [
                    entries.cell(
                        _verbal(entries, own, task, method),
                        "accuracy",
                        of=(own, task, verbal, FULL),
                    )
                    for own in entries.models
                ]
                words.append(
                    (
                        (f"{name}: head on [CLS] ({label})", *head),
                        (f"{name}: verbalizer ({label})", *worded),
                    )
                )
    nothing = (("all tasks", *(NOT_MEASURED for _ in entries.models)),)
    header = ("", *entries.models)
    return Section(
        "P-tuning v2, section 2.3: reparameterisation, and a verbalizer against a head on [CLS]",
        (
            "The paper says in words that reparameterisation brings little, and that verbalizers "
            "hinder labels without a meaning of their own, hence heads; it prints no figures. The "
            "first table has prefixes at every layer, free or out of a small network (MLP). The "
            "second has the same prompts and a frozen model in both rows of a pair, prefixes at "
            "every layer (PT-2) or prompts at the input alone (PT): a head reads [CLS], or the "
            "model's own output layer fills a pattern's gap.",
        ),
        (
            Grid("Prefixes: free or reparameterised", header, tuple(prefixes) or (nothing,)),
            Grid("Accuracy: head or verbalizer", header, tuple(words) or (nothing,)),
        ),
    )


def _verbal(entries: Entries, model: str, task: str, method: str) -> Entry | None:
    """Return the frozen model that answers in words, trained on the whole set."""
    if method == "pt2":
        return entries.find(model, task, "pt2-verbalizer", split=FULL)
    found = entries.find(model, task, "verbalizer")
    return found or entries.find(model, task, "frozen", split=FULL)


def _notes(entries: Entries, tasks: Sequence[str]) -> tuple[str, ...]:
    """Return why tasks of a table were not measured, and the mixtures that could not be made."""
    wanted = dict.fromkeys(tasks)
    notes = [
        f"{NAMES[task]}: {NOT_MEASURED} ({entries.missing[task]})."
        for task in wanted
        if task in entries.missing
    ]
    for name, why in entries.missing.items():
        if name.startswith("MPT-2") and any(task in name for task in wanted):
            notes.append(f"{name}: {NOT_MEASURED} ({why}).")
    return tuple(notes)


# ---------------------------------------------------------------- Figure 1

_BY_SIZE = (
    (
        TABLES[0],
        ("rte", "boolq", "cb"),
        "figure-1.png",
        "P-tuning v2, Figure 1: average accuracy on ",
    ),
    (TABLES[1], ("conll2003", "conll2004"), "sizes.png", "Methods by model size: average F1 on "),
)
"""Figures over models: the table, those of its tasks that count, the file and the title."""
_FIGURE_METHODS = ("ft", "pt", "pt2")


def draw_v2(entries: Entries, folder: Path) -> dict[str, list[Picture]]:
    """Draw averages over tasks by model, and each model's methods on every task."""
    pictures: dict[str, list[Picture]] = {"average": [], "tasks": []}
    for table, tasks, file, title in _BY_SIZE:
        panels, shown = v2_panels(entries, table, tasks)
        if panels:
            named = title + ", ".join(NAMES[task] for task in shown)
            caption = (
                "Left: our runs, smallest model first, mean over seeds. Right: the same average of "
                f"the figures printed in P-tuning v2's Table {table.number}; other models, not our "
                "measurements."
            )
            figure = draw_bar_panels(panels, title=named, caption=caption)
            pictures["average"].append(save_picture(figure, folder, file, named))
    for model in entries.models:
        panel = _task_panel(entries, model)
        if panel is None:
            continue
        title = f"{model}: methods by task"
        caption = (
            "Our runs, mean over seeds (dots): accuracy of classes, F1 of entities, answers, roles."
        )
        figure = draw_bar_panels([panel], title=title, caption=caption)
        # Stored results call models as they like, and Markdown's links end at a space.
        file = "tasks-" + re.sub(r"[^\w.-]+", "-", model) + ".png"
        pictures["tasks"].append(save_picture(figure, folder, file, title))
    return pictures


def v2_panels(
    entries: Entries, table: Table, tasks: Sequence[str]
) -> tuple[list[BarPanel], list[str]]:
    """Return the panels of a figure over models and the tasks that every bar is an average of."""
    models, methods, tasks = entries.comparable(tasks, _FIGURE_METHODS)
    if not tasks:
        return [], []
    models.sort(key=lambda model: entries.sizes.get(model, 0))
    blocks = {block.task: block for block in table.blocks}
    metrics = {task: [blocks[task].metric] for task in tasks}
    ours = {
        METHODS[method]: [entries.average(model, method, metrics) for model in models]
        for method in methods
    }
    theirs = {
        METHODS[method]: [
            fmean(blocks[task].printed(model, method) or 0.0 for task in tasks)
            for model in table.models
        ]
        for method in methods
    }
    shown = [f"{model}\n{_size(entries.sizes.get(model, 0))}".strip() for model in models]
    sized = [f"{name}\n{SIZES[name]}" for name in table.models]
    return [
        BarPanel("Ours", shown, ours),
        BarPanel("Published", sized, theirs, published=True),
    ], tasks


def _task_panel(entries: Entries, model: str) -> BarPanel | None:
    tasks = [task for task in NAMES if entries.any_of([model], [task], METHODS)]
    if not tasks:
        return None
    seeds: dict[str, list[Sequence[float]]] = {}
    for method, label in METHODS.items():
        if entries.any_of([model], tasks, [method]):
            found = [(task, entries.find(model, task, method)) for task in tasks]
            seeds[label] = [
                entry["accuracy" if task in CLASSES else "f1"] if entry else ()
                for task, entry in found
            ]
    bars = {label: [fmean(runs) if runs else None for runs in own] for label, own in seeds.items()}
    return BarPanel("", [NAMES[task] for task in tasks], bars, seeds=seeds)


def _size(parameters: int) -> str:
    if not parameters:
        return ""
    millions = parameters / 1e6
    return f"{millions / 1000:.1f}B" if millions >= 1000 else f"{millions:.3g}M"
