"""Manual templates: find them near the data, read them, put them into a fact set.

Several manual templates per relation, in the layouts that LPAQA's files come in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from symprompt.errors import DataError
from symprompt.facts.types import FactSet
from symprompt.files.reading import Row, load_rows, shorten, text_in

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
    found: dict[str, ManualTemplate] = {}
    for name, entry, where in _read_entries(path, names, lines=1):
        if found.setdefault(name, entry).template != entry.template:
            raise DataError(
                f"{where}: relation {name!r} has a second template "
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


def template_in(row: Row, path: Path, number: int) -> str:
    """Return a row's template when it holds [X] and [Y] once each, and refuse it otherwise."""
    template = text_in(row, ("template",), path, number, one_line=True)
    if template.count("[X]") != 1 or template.count("[Y]") != 1:
        raise DataError(
            f"{path}, line {number}: the template {shorten(template)} must hold [X] and [Y] once "
            'each, as in "The capital of [X] is [Y] ."; correct it.'
        )
    return template


def _read_entries(
    path: Path, names: Collection[str], *, lines: int | None = None
) -> Iterator[tuple[str, ManualTemplate, str]]:
    """Yield each named relation's templates, with the file and line they stand in.

    Args:
        lines: how many of each file in a folder are read; None reads all.
    """
    folder = path.is_dir()
    for file in sorted(path.glob("*.jsonl")) if folder else [path]:
        if folder and file.stem not in names:
            continue
        for number, row in islice(load_rows(file, any_case=True), lines if folder else None):
            name = file.stem
            if not folder:
                name = text_in(row, ("relation",), file, number, one_line=True)
            if name in names:
                template, label = template_in(row, file, number), row.get("label")
                entry = ManualTemplate(template, label.strip() if isinstance(label, str) else "")
                yield name, entry, f"{file}, line {number}"


_USUAL_PROMPT_FILES = (
    "prompts/trex_mine",
    "prompts/trex_paraphrase",
    "prompt/mine",
    "prompt/paraphrase",
)


def find_prompts(source: Path) -> list[Path]:
    """Return the folders of manual templates in ``source`` or up to three folders above."""
    start = source.resolve()
    for place in (start, *start.parents[:3]):
        found = [place / usual for usual in _USUAL_PROMPT_FILES if (place / usual).is_dir()]
        if found:
            return found
    return []


def load_prompts(paths: Sequence[Path], names: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return each named relation's templates, in the order of the files, each once.

    Weights in the files are passed by: they were learned for another model.

    Args:
        paths: folders with one ``<relation>.jsonl`` per relation, a template a line, or JSONL
            files with the keys relation and template.
        names: the relations wanted; those without a template are missing in the answer.

    Raises:
        DataError: no such file or folder, one without a template for any of the relations, or a
            template without [X] and [Y].
    """
    found: dict[str, list[str]] = {}
    for path in paths:
        if not path.exists():
            raise DataError(
                f"{path} does not exist; give a folder with files such as P36.jsonl, or a JSONL "
                "file with the keys relation and template."
            )
        read = list(_read_entries(path, names))
        if not read:
            raise DataError(
                f"{path} holds no prompt for any of the relations; it must name relations such as "
                f"{sorted(names)[0]!r}."
            )
        for name, entry, _ in read:
            found.setdefault(name, []).append(entry.template)
    return {name: tuple(dict.fromkeys(templates)) for name, templates in found.items()}
