"""The written prompts of a run: which ones each relation has, and what stands for them all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from symprompt.backbone import Vocabulary
from symprompt.config import RunConfig
from symprompt.errors import DataError, TemplateError
from symprompt.facts import FactSet, find_prompts, load_prompts
from symprompt.prompts import Frame, Template, fixed_length


def load_ensemble(
    config: RunConfig, vocabulary: Vocabulary, facts: FactSet
) -> tuple[tuple[Template, ...], ...]:
    """Return each relation's written prompts, its manual template first.

    A causal model's are cut after the object; those with the subject behind it are left out.

    Raises:
        DataError: no prompts were found, a relation has none, or one has learned vectors.
    """
    paths = [Path(path) for path in config.ensemble.prompts] or find_prompts(Path(config.data))
    if not paths:
        raise DataError(
            f"no written prompts were found near {config.data}; name folders or files of them "
            "with --prompts."
        )
    read = load_prompts(paths, facts.names)
    found = []
    for relation in facts.relations:
        manual = (relation.template,) if config.ensemble.with_manual and relation.template else ()
        written = _distinct(
            vocabulary,
            [Template.parse(text) for text in (*manual, *read.get(relation.name, ()))],
        )
        if not written:
            behind = " with the subject before the object" if vocabulary.causal else ""
            raise DataError(
                f"relation {relation.name} has no written prompt{behind} in "
                f"{', '.join(map(str, paths))}; add some, or leave it out with --relations."
            )
        for template in written:
            if template.vectors:
                raise DataError(
                    f"a written prompt of relation {relation.name} has learned vectors, and this "
                    f"method learns none: {template}."
                )
        found.append(written)
    return tuple(found)


def _distinct(vocabulary: Vocabulary, templates: Sequence[Template]) -> tuple[Template, ...]:
    """Return the prompts that the model can be asked by, each once as the model reads it.

    Files have "[X] in [Y] ." beside "[X] in [Y].", the same tokens to many a model; a prompt that
    stands twice would count twice.
    """
    found: dict[tuple[object, ...], Template] = {}
    for written in templates:
        template = _readable(vocabulary, written)
        if template is not None:
            row = Frame(vocabulary, template).fill([], [vocabulary.pad_id])
            places = (row.subject_at, row.object_at)
            spaces = (template.space_before("subject"), template.space_before("object"))
            found.setdefault((*row.ids, *row.slots, *places, *spaces), template)
    return tuple(found.values())


def _readable(vocabulary: Vocabulary, template: Template) -> Template | None:
    """Return a prompt as the model can be asked by it, None where it cannot."""
    if not vocabulary.causal:
        return template
    try:
        return template.cut_after_object()
    except TemplateError:
        return None


def longest_prompt(vocabulary: Vocabulary, prompts: Sequence[Template]) -> Template:
    """Return a template at least as long as every prompt, its object after a space.

    Facts are read and passes are planned by it: what fits into it fits into every prompt, and an
    object's token is the one it has after a space.
    """
    lengths = {template: fixed_length(vocabulary, template) for template in prompts}
    longest = max(prompts, key=lambda template: lengths[template])
    words = " ".join(piece.text for piece in longest.pieces if piece.kind == "words")
    made = Template.parse(f"[X] {words} [Y]")
    while fixed_length(vocabulary, made) < lengths[longest]:
        words += " ."
        made = Template.parse(f"[X] {words} [Y]")
    return made
