"""P-tuning's Table 1, one-word changes of a manual prompt, and Table 2, prompt types."""

from __future__ import annotations

from collections import Counter

import numpy as np

from symprompt.papers import published
from symprompt.papers.groups import Group, Key, Loaded
from symprompt.papers.inputs import REWORDED
from symprompt.papers.methods import DASH
from symprompt.papers.plan import wording_row
from symprompt.papers.rows import MANUAL
from symprompt.probing.folder import RunFolder
from symprompt.report.grid import Grid
from symprompt.report.pages import Section
from symprompt.report.tables import load_scores
from symprompt.runs.statistics import by_relation

_KINDS = {
    "original": "original (MP)",
    "discrete": "discrete",
    "continuous": "continuous",
}
_STRATEGIES = ("Manual", "FT", "MP+FT", "P-tuning", "SPE", "AutoPrompt")


def relation_p1(path: str) -> dict[str, float]:
    """Return P@1 of every relation of a run, in percent."""
    scores = load_scores(path)
    found = by_relation(scores.rank, scores.relation)
    return {scores.relation_names[number]: summary.p1 for number, summary in found.items()}


def reworded_p1(loaded: Loaded, model: str) -> dict[str, dict[str, float]]:
    """Return P@1 by relation and template: LAMA's own first, then the changed ones."""
    group = loaded.groups.get((model, MANUAL))
    if group is None:
        return {}
    card = RunFolder(group.paths[0]).load_card()["relations"]
    own = relation_p1(group.paths[0])
    found = {
        name: {card[name]["manual_template"]: own[name]}
        for name in REWORDED
        if name in card and name in own
    }
    for number in range(1, max(map(len, REWORDED.values())) + 1):
        for run in loaded.plan.runs_of(model, wording_row(number)):
            if run.folder.finished:
                for name, value in relation_p1(run.config.out).items():
                    found.setdefault(name, {})[REWORDED[name][number - 1]] = value
    return found


def wording_section(loaded: Loaded) -> Section:
    """Return P-tuning's Table 1 for the relations that have changed templates."""
    models = [model.name for model in loaded.plan.models]
    found = {model: reworded_p1(loaded, model) for model in models}
    sections, notes = [], []
    for name in REWORDED:
        texts = dict.fromkeys(text for model in models for text in found[model].get(name, {}))
        rows = []
        for place, text in enumerate(texts):
            cells = [found[model].get(name, {}).get(text) for model in models]
            theirs = published.PTUNING_TABLE_1.get(text) if name == "P17" else None
            shown = text if place else f"{text} (LAMA's)"
            rows.append((f"{name}: {shown}", *map(_p1, cells), _p1(theirs)))
        if rows:
            sections.append(tuple(rows))
            spread = [
                f"{max(values):.2f} - {min(values):.2f} = {max(values) - min(values):.2f} ({model})"
                for model in models
                if (values := list(found[model].get(name, {}).values()))
            ]
            notes.append(f"{name}, best minus worst: {'; '.join(spread)}.")
    header = ("prompt", *models, f"published:\nBERT-base\n{published.P1}")
    grid = Grid("P@1 of the relation", header, tuple(sections), marked=(len(header) - 1,))
    text = "The rewordings of P17 are the paper's, those of other relations our own."
    if not sections:
        return Section(
            "P-tuning, Table 1: one-word changes of a manual prompt",
            ("None of the relations has changed templates, or manual prompts were left out.",),
        )
    return Section(
        "P-tuning, Table 1: one-word changes of a manual prompt", (text,), (grid,), tuple(notes)
    )


def common_keys(loaded: Loaded) -> set[Key]:
    """Return the test facts that every model was asked: their objects are one token of each."""
    sets = []
    for model in loaded.plan.models:
        groups = loaded.of_model(model.name)
        if groups:
            sets.append(set(groups[0].keys))
    return set.intersection(*sets) if sets else set()


def prompt_type_section(loaded: Loaded) -> Section:
    """Return P-tuning's Table 2: all facts by prompt type, and those common to all models."""
    common = common_keys(loaded)
    counts = Counter(len(groups[0].keys) for groups in _by_model(loaded) if groups)
    largest = max(counts, default=0)
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


def _by_model(loaded: Loaded) -> list[list[Group]]:
    return [loaded.of_model(model.name) for model in loaded.plan.models]


def _all_grid(loaded: Loaded) -> Grid:
    models = [model.name for model in loaded.plan.models]
    sections = []
    for kind, title in _KINDS.items():
        rows = []
        for row in loaded.plan.rows:
            if row.kind != kind:
                continue
            groups = [loaded.groups.get((model, row.config)) for model in models]
            cells = [
                f"{group.means['mean over relations'].p1:.2f}"
                if group
                else loaded.missing[model, row.config]
                for model, group in zip(models, groups, strict=True)
            ]
            theirs = published.PTUNING_34K.get(row.published, {})
            shown = [_p1(theirs.get(name), 1) for name in published.MODELS_34K]
            rows.append((f"{title}: {row.name}", *cells, *shown))
        sections.append(tuple(rows))
    header = ("prompt type", *models, *(f"published:\n{name}" for name in published.MODELS_34K))
    marked = tuple(range(1 + len(models), len(header)))
    return Grid(f"All facts; published: {published.P2}, left", header, tuple(sections), marked)


def _common_grid(loaded: Loaded, common: set[Key]) -> Grid:
    models = [model.name for model in loaded.plan.models]
    by_name = {row.published: row for row in loaded.plan.rows}
    rows = []
    for strategy in _STRATEGIES:
        cells = []
        for model in models:
            row = by_name.get(strategy)
            group = loaded.groups.get((model, row.config)) if row else None
            if row is None:
                cells.append(DASH)
            elif group is None:
                cells.append(loaded.missing[model, row.config])
            else:
                found = group.mean_of(np.array([key in common for key in group.keys]))
                cells.append(_p1(found.p1 if found else None))
        theirs = [_common_cell(name, strategy) for name in published.PTUNING_29K]
        named = by_name[strategy].name if strategy in by_name else strategy
        rows.append((named, *cells, *theirs))
    header = ("strategy", *models, *(f"published:\n{name}" for name in published.PTUNING_29K))
    marked = tuple(range(1 + len(models), len(header)))
    title = f"Facts common to all models; published: {published.P2}, right (LAMA-29k)"
    return Grid(title, header, (tuple(rows),), marked)


def _common_cell(model: str, strategy: str) -> str:
    big, strategies = published.OUT_OF_MEMORY
    if model == big and strategy in strategies:
        return "out of memory"
    return _p1(published.PTUNING_29K[model].get(strategy), 1)


def _p1(value: float | None, digits: int = 2) -> str:
    return DASH if value is None else f"{value:.{digits}f}"
