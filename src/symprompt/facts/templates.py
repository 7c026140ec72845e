"""Manual templates: find them near the data, read them, put them into a fact set.

Several manual templates per relation, in the layouts that LPAQA's files come in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from symprompt.errors import DataError
from symprompt.facts.types import FactSet
from symprompt.files.reading import Row, Source, load_rows, shorten, text_in

_TEMPLATE_PLACES = ("relations.jsonl", "LAMA_relations.jsonl", "prompts/trex")
_PROMPT_PLACES = (
    "prompts/trex_mine",
    "prompts/trex_paraphrase",
    "prompt/mine",
    "prompt/paraphrase",
)


def find_templates(folder: Path) -> Path | None:
    """Return the template file or folder in ``folder`` or up to two folders above, if any."""
    return next(iter(_find_near(folder, _TEMPLATE_PLACES, above=2)), None)


def find_prompts(source: Path) -> list[Path]:
    """Return the folders of manual templates in ``source`` or up to three folders above."""
    return _find_near(source, _PROMPT_PLACES, above=3)


def _find_near(folder: Path, usual: Sequence[str], *, above: int) -> list[Path]:
    start = folder.resolve()
    for place in (start, *start.parents[:above]):
        found = [place / name for name in usual if (place / name).exists()]
        if found:
            return found
    return []


def add_templates(facts: FactSet, path: Path, *, insist: bool) -> FactSet:
    """Return the set with the manual templates, and labels, that ``path`` has for its relations.

    Args:
        path: a JSONL file with the keys relation, template and perhaps label, or a folder with
            one ``<relation>.jsonl`` per relation, whose first line holds the template.
        insist: refuse a path without a template for any relation.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, template, label, where in _read_entries(path, facts.names, lines=1):
        entry = {"template": template} | ({"label": label} if label else {})
        if found.setdefault(name, entry)["template"] != template:
            raise DataError(
                f"{where}: relation {name!r} has a second template "
                f"{shorten(template)}; keep one template per relation."
            )
    if insist and not found:
        raise DataError(
            f"{path} holds no template for any relation of {facts.source}; it must name "
            f"relations such as {facts.names[0]!r}."
        )
    relations = (replace(entry, **found.get(entry.name, {})) for entry in facts.relations)
    return replace(facts, relations=tuple(relations))


def template_in(row: Row, path: Source, number: int) -> str:
    """Return a row's template when it holds [X] and [Y] once each, and refuse it otherwise."""
    template = text_in(row, ("template", "pattern"), path, number, one_line=True)
    if template.count("[X]") != 1 or template.count("[Y]") != 1:
        raise DataError(
            f"{path}, line {number}: the template {shorten(template)} must hold [X] and [Y] once "
            'each, as in "The capital of [X] is [Y] ."; correct it.'
        )
    return template


def _read_entries(
    path: Path,
    names: Collection[str],
    *,
    lines: int | None = None,
    bad: list[str] | None = None,
) -> Iterator[tuple[str, str, str, str]]:
    """Yield each named relation's templates, with their labels, files and lines.

    Args:
        lines: how many of each file in a folder are read; None reads all.
        bad: gets what is wrong with templates that cannot be used; None refuses them.
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
                try:
                    template = template_in(row, file, number)
                except DataError as error:
                    if bad is None:
                        raise
                    bad.append(str(error))
                    continue
                label = row.get("label")
                label = label.strip() if isinstance(label, str) else ""
                yield name, template, label, f"{file}, line {number}"


def load_prompts(
    paths: Sequence[Path], names: Collection[str], bad: list[str] | None = None
) -> dict[str, tuple[str, ...]]:
    """Return each named relation's templates, in the order of the files, each once.

    Weights in the files are passed by: they were learned for another model.

    Args:
        paths: folders with one ``<relation>.jsonl`` per relation, a template (ParaRel: a pattern) a
            line, or JSONL files with the keys relation and template.
        names: the relations wanted; those without a template are missing in the answer.
        bad: gets what is wrong with templates that are left out; None refuses them.

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
        read = list(_read_entries(path, names, bad=bad))
        if not read and bad:
            raise DataError(bad[0])
        if not read:
            raise DataError(
                f"{path} holds no prompt for any of the relations; it must name relations such as "
                f"{sorted(names)[0]!r}."
            )
        for name, template, *_ in read:
            found.setdefault(name, []).append(template)
    return {name: tuple(dict.fromkeys(templates)) for name, templates in found.items()}
