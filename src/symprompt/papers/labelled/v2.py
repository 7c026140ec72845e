"""P-tuning v2's Tables 1 to 4 and its two ablations, ours beside the paper's marked columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from symprompt.papers.labelled import published
from symprompt.papers.labelled.entries import FULL, NOT_MEASURED, Entries, Entry
from symprompt.report.grid import Grid
from symprompt.report.pages import Section

DASH = "–"
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
LABELS = {"ft": "FT", "pt": "PT", "pt2": "PT-2", "mpt2": "MPT-2", "lora": "LoRA"}
_EASY = ("ft", "pt", "pt2", "lora")
_HARD = ("ft", "pt", "pt2", "mpt2", "lora")
# The paper's metrics of questions, as the official script calls them.
_ANSWERS = {"em": "exact", "f1": "f1"}
_ABOUT = (
    "Ours: mean ± deviation over seeds, in percent (one seed where there is no ±); the epoch is "
    "chosen on dev where a test set is reported, and on a held-out part of train where dev is. The "
    "paper chooses on the dev sets it reports, and its models are other ones."
)


def v2_sections(entries: Entries) -> list[Section]:
    """Return all tables of the paper."""
    return [
        _section_1(entries),
        _section_2(entries),
        _section_3(entries),
        _section_4(entries),
        _ablations(entries),
    ]


def _section_1(entries: Entries) -> Section:
    sections = [
        _rows(entries, task, "accuracy", NAMES[task], _EASY, theirs)
        for task, theirs in published.V2_TABLE_1.items()
    ]
    models = published.V2_TABLE_1_MODELS
    grid = _grid(entries, "Accuracy, dev", sections, models, "Table 1")
    return Section(
        "P-tuning v2, Table 1: classes of texts and pairs",
        (_ABOUT,),
        (grid,),
        _notes(entries, published.V2_TABLE_1),
    )


def _section_2(entries: Entries) -> Section:
    sections = [
        _rows(entries, task, "f1", NAMES[task], _HARD, theirs)
        for task, theirs in published.V2_TABLE_2.items()
    ]
    more = [task for task in ("wikigold", "gum") if _has(entries, task)]
    sections += [_rows(entries, task, "f1", NAMES[task], _HARD, {}) for task in more]
    grid = _grid(
        entries, "Micro F1 of entities, test", sections, published.V2_HARD_MODELS, "Table 2"
    )
    notes = _notes(entries, published.V2_TABLE_2)
    text = f"{_ABOUT} The paper mixes CoNLL03, OntoNotes 5.0 and CoNLL04 for MPT-2; ours mixes the"
    text += " sets that are there."
    return Section("P-tuning v2, Table 2: named entities", (text,), (grid,), notes)


def _section_3(entries: Entries) -> Section:
    sections = [
        _rows(entries, task, _ANSWERS[metric], f"{NAMES[task]} {metric.upper()}", _HARD, theirs)
        for task, metrics in published.V2_TABLE_3.items()
        for metric, theirs in metrics.items()
    ]
    grid = _grid(entries, "Exact match and F1, dev", sections, published.V2_HARD_MODELS, "Table 3")
    return Section(
        "P-tuning v2, Table 3: answers in a text",
        (_ABOUT,),
        (grid,),
        _notes(entries, published.V2_TABLE_3),
    )


def _section_4(entries: Entries) -> Section:
    sections = []
    for (task, split), theirs in published.V2_TABLE_4.items():
        brown = split == "test-brown"
        name = "CoNLL05 Brown" if brown else NAMES[task]
        sections.append(_rows(entries, task, "f1", name, _HARD, theirs, split=split))
    if _has(entries, "propbank-ewt"):
        sections.append(_rows(entries, "propbank-ewt", "f1", NAMES["propbank-ewt"], _HARD, {}))
    grid = _grid(entries, "F1 of roles, test", sections, published.V2_HARD_MODELS, "Table 4")
    tasks = [task for task, _ in published.V2_TABLE_4]
    text = f"{_ABOUT} PropBank on EWT is ours; the paper has no such column."
    return Section("P-tuning v2, Table 4: roles", (text,), (grid,), _notes(entries, tasks))


def _ablations(entries: Entries) -> Section:
    """Return the two choices of section 2.3; the paper gives them in words, without figures."""
    prefixes, words = [], []
    for task, name in NAMES.items():
        if any(entries.find(model, task, "pt2-mlp") for model in entries.models):
            metric = "f1" if task in published.V2_TABLE_2 else "accuracy"
            prefixes.append(
                (
                    (f"{name}: free (PT-2)", *_cells(entries, task, "pt2", metric)),
                    (f"{name}: reparameterised", *_cells(entries, task, "pt2-mlp", metric)),
                )
            )
        for method, label in (("pt2", "PT-2"), ("pt", "PT")):
            if any(_verbal(entries, model, task, method) for model in entries.models):
                head = _cells(entries, task, method, "accuracy")
                worded = _worded(entries, task, method)
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


def _worded(entries: Entries, task: str, method: str) -> list[str]:
    name = "pt2-verbalizer" if method == "pt2" else "verbalizer"
    return [
        entries.cell(
            _verbal(entries, model, task, method), "accuracy", of=(model, task, name, FULL)
        )
        for model in entries.models
    ]


def _cells(entries: Entries, task: str, method: str, metric: str, split: str = "") -> list[str]:
    return [
        entries.cell(
            entries.find(model, task, method, split=split), metric, of=(model, task, method, "")
        )
        for model in entries.models
    ]


def _rows(
    entries: Entries,
    task: str,
    metric: str,
    name: str,
    methods: Sequence[str],
    theirs: published.Printed,
    *,
    split: str = "",
) -> tuple[tuple[str, ...], ...]:
    """Return a row for each method: our models' numbers, then the paper's."""
    found = []
    for method in methods:
        ours = _cells(entries, task, method, metric, split)
        found.append((f"{name}: {LABELS[method]}", *ours, *map(show, theirs.get(method, ()))))
    return tuple(found)


def _grid(
    entries: Entries,
    title: str,
    sections: Sequence[tuple[tuple[str, ...], ...]],
    models: Sequence[str],
    table: str,
) -> Grid:
    named = [f"published:\n{model}\n({published.V2_SIZES[model]})" for model in models]
    header = ("task and method", *entries.models, *named)
    width = len(header)
    filled = tuple(
        tuple((*row, *([DASH] * (width - len(row)))) for row in section) for section in sections
    )
    marked = tuple(range(1 + len(entries.models), width))
    return Grid(f"{title}; published: P-tuning v2, {table}", header, filled, marked)


def _has(entries: Entries, task: str) -> bool:
    return any(entries.find(model, task, method) for model in entries.models for method in _HARD)


def _notes(entries: Entries, tasks: Mapping[str, object] | Sequence[str]) -> tuple[str, ...]:
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


def show(value: float | None) -> str:
    """Return a printed figure as the papers have it."""
    return DASH if value is None else f"{value:.1f}"
