"""One door to every source of facts: world facts, LAMA folders, your own tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from symprompt.errors import DataError
from symprompt.facts.lama import load_lama
from symprompt.facts.tables import load_table
from symprompt.facts.templates import apply_templates, find_templates, load_templates
from symprompt.facts.types import FactSet, choose_names
from symprompt.facts.world import world_facts

WORLD = "world"
LAYOUTS = ("auto", "lama", "table", WORLD)


def load_facts(
    source: str,
    *,
    layout: str = "auto",
    relations: Sequence[str] = (),
    templates: str = "",
    seed: int = 0,
) -> FactSet:
    """Return the facts of a source with their splits and manual templates.

    Args:
        source: "world" for the built-in world facts, a LAMA folder, or a .csv, .tsv or .jsonl
            file with the columns subject, relation, object and, if wanted, split and template.
            Write "./world" for a folder of that name.
        layout: "auto" tells the three apart; "lama", "table" and "world" insist on one.
        relations: names of the relations to load; none means all.
        templates: a file or folder of manual templates. When empty, a LAMA folder is searched
            for them (and up to two folders above it), and a relation may end up without one.
        seed: makes the split where the source has none.

    Example:
        >>> facts = load_facts("world", relations=["capital"])
        >>> facts["capital"].template
        'The capital of [X] is [Y] .'
    """
    if isinstance(relations, str):
        relations = (relations,)
    kind = _tell_layout(source, layout)
    found: Path | None = Path(templates) if templates else None
    if kind == WORLD:
        facts = world_facts(seed)
        facts = facts.select(choose_names(facts.names, relations, facts.source))
    elif kind == "table":
        facts = load_table(Path(source), relations=relations, seed=seed)
    else:
        facts, home = load_lama(Path(source), relations=relations)
        found = found or find_templates(home)
    if found is not None:
        facts = _add_templates(facts, found, insist=bool(templates))
    return facts


def _tell_layout(source: str, layout: str) -> str:
    if layout not in LAYOUTS:
        raise DataError(
            f"layout is {layout!r}, but only {', '.join(LAYOUTS)} are allowed; choose one of them."
        )
    if not source:
        raise DataError('no source of facts was given; give "world", a folder or a file.')
    if layout == WORLD and source != WORLD:
        raise DataError(
            f'layout "world" reads no files but the source is {source!r}; '
            'give the source "world" or another layout.'
        )
    if layout != "auto":
        return layout
    if source == WORLD:
        return WORLD
    # os.path answers False where Path.exists raises, such as for a name that is too long.
    if not os.path.exists(source):
        raise DataError(
            f'{source} does not exist; give "world", an existing folder, '
            "or a .csv, .tsv or .jsonl file."
        )
    return "lama" if os.path.isdir(source) else "table"


def _add_templates(facts: FactSet, path: Path, *, insist: bool) -> FactSet:
    manual = load_templates(path, facts.names)
    if insist and not manual:
        raise DataError(
            f"{path} holds no template for any relation of {facts.source}; it must name "
            f"relations such as {facts.names[0]!r}."
        )
    return apply_templates(facts, manual)
