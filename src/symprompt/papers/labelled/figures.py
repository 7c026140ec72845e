"""Figure 1 of both papers as bars: averages by model and method, ours and the papers' apart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from symprompt.papers.labelled import published, v2
from symprompt.papers.labelled.entries import FEW, FULL, Entries, mean_of
from symprompt.papers.labelled.ptuning import METHODS, TASKS, average, common_tasks, printed_average
from symprompt.report.figures import BarPanel, draw_bar_panels, save_figure
from symprompt.report.pages import Picture

_V2_TASKS = ("rte", "boolq", "cb")
_V2_METHODS = ("ft", "pt", "pt2")
_LEFT, _RIGHT = "Ours", "Published"


def draw_v2(entries: Entries, folder: Path) -> dict[str, list[Picture]]:
    """Draw the average over RTE, BoolQ and CB, and each model's methods on every task."""
    pictures: dict[str, list[Picture]] = {"average": [], "tasks": []}
    panels, tasks = v2_panels(entries)
    if panels:
        names = ", ".join(v2.NAMES[task] for task in tasks)
        title = f"P-tuning v2, Figure 1: average accuracy on {names}"
        caption = (
            "Left: our runs, smallest model first, mean over seeds. Right: the same average of the "
            "figures printed in P-tuning v2's Table 1; other models, not our measurements."
        )
        figure = draw_bar_panels(panels, title=title, caption=caption)
        save_figure(figure, folder / "figure-1.png")
        pictures["average"].append(Picture("figure-1.png", title))
    for model in entries.models:
        panel = _task_panel(entries, model)
        if panel is None:
            continue
        title = f"{model}: methods by task"
        caption = (
            "Our runs, mean over seeds: accuracy of classes, F1 of entities, answers and roles."
        )
        figure = draw_bar_panels([panel], title=title, caption=caption)
        # Stored results call models as they like, and Markdown's links end at a space.
        file = "tasks-" + re.sub(r"[^\w.-]+", "-", model) + ".png"
        save_figure(figure, folder / file)
        pictures["tasks"].append(Picture(file, title))
    return pictures


def v2_panels(entries: Entries) -> tuple[list[BarPanel], list[str]]:
    """Return the panels of Figure 1 and the tasks that every bar is an average of."""
    models = [model for model in entries.models if _any(entries, model, _V2_TASKS, _V2_METHODS)]
    methods = [
        method
        for method in _V2_METHODS
        if models and all(_any(entries, model, _V2_TASKS, [method]) for model in models)
    ]
    tasks = [
        task
        for task in _V2_TASKS
        if methods
        and all(entries.find(model, task, method) for model in models for method in methods)
    ]
    if not tasks:
        return [], []
    models.sort(key=entries.parameters)
    ours = {
        v2.LABELS[method]: [
            mean_of(_value(entries, model, task, method, "accuracy") for task in tasks)
            for model in models
        ]
        for method in methods
    }
    names = published.V2_TABLE_1_MODELS
    theirs = {
        v2.LABELS[method]: [
            mean_of(published.V2_TABLE_1[task][method][place] or 0.0 for task in tasks)
            for place in range(len(names))
        ]
        for method in methods
    }
    shown = [f"{model}\n{_size(entries.parameters(model))}".strip() for model in models]
    sized = [f"{name}\n{published.V2_SIZES[name]}" for name in names]
    return [BarPanel(_LEFT, shown, ours), BarPanel(_RIGHT, sized, theirs, published=True)], tasks


def _task_panel(entries: Entries, model: str) -> BarPanel | None:
    methods = tuple(v2.LABELS)
    tasks = [task for task in v2.NAMES if _any(entries, model, [task], methods)]
    shown = [method for method in methods if _any(entries, model, tasks, [method])]
    if not tasks:
        return None
    bars = {
        v2.LABELS[method]: [
            _value(
                entries, model, task, method, "accuracy" if task in published.V2_TABLE_1 else "f1"
            )
            if entries.find(model, task, method)
            else None
            for task in tasks
        ]
        for method in shown
    }
    return BarPanel("", [v2.NAMES[task] for task in tasks], bars)


def _any(entries: Entries, model: str, tasks: Sequence[str], methods: Sequence[str]) -> bool:
    return any(entries.find(model, task, method) for task in tasks for method in methods)


def _value(entries: Entries, model: str, task: str, method: str, metric: str) -> float:
    entry = entries.find(model, task, method)
    assert entry is not None
    return float(entry["metrics"][metric]["value"])


def _size(parameters: int) -> str:
    if not parameters:
        return ""
    millions = parameters / 1e6
    return f"{millions / 1000:.1f}B" if millions >= 1000 else f"{millions:.3g}M"


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
    save_figure(figure, folder / "figure-1.png")
    return [Picture("figure-1.png", title)]


def ptuning_panels(entries: Entries) -> tuple[list[BarPanel], list[str]]:
    """Return the panels, and the tasks that the whole training set was measured on."""
    panels, whole = [], []
    for split, about in ((FULL, "whole training set"), (FEW, "32 examples")):
        models = [
            model
            for model in entries.models
            if any(entries.find(model, task, one, split=split) for task in TASKS for one in METHODS)
        ]
        methods = [
            method
            for method in METHODS
            if models
            and all(
                any(entries.find(model, task, method, split=split) for task in TASKS)
                for model in models
            )
        ]
        tasks = common_tasks(entries, models, methods, split)
        if not tasks:
            continue
        if split == FULL:
            whole = tasks
        bars = {
            METHODS[method]: [average(entries, model, method, tasks, split) for model in models]
            for method in methods
        }
        every = len(tasks) == len(TASKS)
        listed = "seven tasks" if every else ", ".join(TASKS[task] for task in tasks)
        panels.append(BarPanel(f"{_LEFT}, {about}\n({listed})", models, bars))
    if panels:
        theirs = {
            label: [
                printed_average(published.P_FULL[model][method], whole)
                if whole
                else published.P_FULL[model][method][-1]
                for model in published.P_FULL_MODELS
            ]
            for method, label in METHODS.items()
            if any(label in panel.bars for panel in panels)
        }
        names = [name.removesuffix("-cased") for name in published.P_FULL_MODELS]
        panels.append(BarPanel(f"{_RIGHT},\nwhole training set", names, theirs, published=True))
    return panels, whole
