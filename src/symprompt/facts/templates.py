"""Manual templates: find them near the data, read them, put them into a fact set."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from symprompt.errors import DataError
from symprompt.facts.reading import load_json_lines, shorten, text_at
from symprompt.facts.types import FactSet

_USUAL_PLACES = ("relations.jsonl", "LAMA_relations.jsonl", "prompts/trex")


@dataclass(frozen=True)
class ManualTemplate:
    """A relation's manual template and, where known, its label."""

    template: str
    label: str = ""


def find_templates(folder: Path) -> Path | None:
    """Return the template file or folder in ``folder`` or up to two folders above, if any."""
    start = folder.resolve()
    for place in (start, *start.parents[:2]):
        for usual in _USUAL_PLACES:
            if (place / usual).exists():
                return place / usual
    return None


def load_templates(path: Path, names: Collection[str]) -> dict[str, ManualTemplate]:
    """Return the manual template of each named relation that ``path`` has one for.

    Args:
        path: a JSONL file with the keys relation, template and perhaps label, or a folder with
            one ``<relation>.jsonl`` per relation, whose first line holds the template.
        names: the relations wanted; entries for others are passed by.
    """
    if path.is_dir():
        files = {file.stem: file for file in sorted(path.glob("*.jsonl"))}
        return {name: _load_first(files[name]) for name in names if name in files}
    found: dict[str, ManualTemplate] = {}
    for number, row in load_json_lines(path):
        name = text_at(row, ("relation",), path, number)
        if name not in names:
            continue
        entry = _read_entry(row, path, number)
        if found.setdefault(name, entry).template != entry.template:
            raise DataError(
                f"{path}, line {number}: relation {name!r} has a second template "
                f"{shorten(entry.template)}; keep one template per relation."
            )
    return found


def apply_templates(facts: FactSet, templates: Mapping[str, ManualTemplate]) -> FactSet:
    """Return the set with these templates, and their labels where given, put in place."""
    relations = []
    for relation in facts.relations:
        entry = templates.get(relation.name)
        if entry is not None:
            label = entry.label or relation.label
            relation = replace(relation, template=entry.template, label=label)
        relations.append(relation)
    return replace(facts, relations=tuple(relations))


def check_template(template: str, path: Path, number: int) -> str:
    """Return the template when it holds [X] and [Y] once each, and refuse it otherwise."""
    if template.count("[X]") != 1 or template.count("[Y]") != 1:
        raise DataError(
            f"{path}, line {number}: the template {shorten(template)} must hold [X] and [Y] once "
            'each, as in "The capital of [X] is [Y] ."; correct it.'
        )
    return template


def _load_first(path: Path) -> ManualTemplate:
    number, row = load_json_lines(path)[0]
    return _read_entry(row, path, number)


def _read_entry(row: Mapping[str, object], path: Path, number: int) -> ManualTemplate:
    template = check_template(text_at(row, ("template",), path, number), path, number)
    label = row.get("label")
    return ManualTemplate(template, label.strip() if isinstance(label, str) else "")
