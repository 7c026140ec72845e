"""Each relation's template: the config's, the manual one, or vectors in the manual one's shape.

Several manual templates: which ones each relation has, and what stands for them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from symprompt.errors import ConfigError, DataError, TemplateError
from symprompt.facts import FactSet, Relation, find_prompts, load_prompts
from symprompt.models import Vocabulary
from symprompt.probing.config import RunConfig
from symprompt.probing.methods import method_class
from symprompt.prompts import Frame, Piece, Template, encode_piece, fixed_length

CAUSAL_TEMPLATE = "<3> [X] <3> [Y]"
"""P-tuning's template for causal models: (3, sub, 3, obj), section 4.1."""


def make_templates(
    config: RunConfig, vocabulary: Vocabulary, facts: FactSet
) -> tuple[Template, ...]:
    """Return each relation's template: the config's, the manual one, or vectors in its shape.

    Raises:
        ConfigError: a causal model's template goes on after the object, or a manual template with
            vectors of its own is to be started from.
        DataError: a relation has no manual template, or one that a causal model cannot be asked by.
    """
    prompt = config.prompt
    manual = prompt.template == "manual" or method_class(config.method.name).manual_templates
    if not manual and prompt.start == "random":
        template = Template.parse(prompt.template)
        if vocabulary.causal and not template.ends_with_object:
            raise ConfigError(
                f"prompt.template is {prompt.template!r}; a causal model is asked for what comes "
                f'next, so [Y] must stand last: write --template "{CAUSAL_TEMPLATE}", or take the '
                "config lama-ptuning-gpt or lama-spe-gpt."
            )
        return (template,) * len(facts.relations)
    missing = [relation.name for relation in facts.relations if not relation.template]
    if missing:
        raise DataError(
            f"relation {missing[0]} has no manual template ({len(missing)} such); add a template "
            "column, or name a file with facts.templates."
        )
    written = tuple(manual_template(vocabulary, relation) for relation in facts.relations)
    if prompt.start == "random":
        return written
    for relation, template in zip(facts.relations, written, strict=True):
        if template.vectors:
            raise ConfigError(
                f"the manual template of relation {relation.name} has learned vectors of its own, "
                f"so they cannot start from its words: {template}."
            )
    return tuple(words_to_vectors(vocabulary, template)[0] for template in written)


def manual_template(vocabulary: Vocabulary, relation: Relation) -> Template:
    """Return a relation's manual template, cut after [Y] for a causal model.

    Raises:
        DataError: the subject stands after the object, and the model is causal.
    """
    template = Template.parse(relation.template)
    if not vocabulary.causal:
        return template
    try:
        return template.cut_after_object()
    except TemplateError as error:
        raise DataError(
            f"relation {relation.name}: {error} Or leave the relation out with facts.relations."
        ) from error


def words_to_vectors(vocabulary: Vocabulary, template: Template) -> tuple[Template, list[int]]:
    """Return a manual template with one vector for each token of its words, and those tokens."""
    pieces: list[Piece] = []
    tokens: list[int] = []
    for piece in template.pieces:
        if piece.kind == "words":
            ids = encode_piece(vocabulary, piece, first=not pieces)
            tokens += ids
            pieces.append(Piece("vectors", piece.space, count=len(ids)))
        else:
            pieces.append(piece)
    return Template(tuple(pieces)), tokens


def load_ensemble(
    config: RunConfig, vocabulary: Vocabulary, facts: FactSet
) -> tuple[tuple[Template, ...], ...]:
    """Return each relation's manual templates, its own first.

    A causal model's are cut after the object; those with the subject behind it are left out.

    Raises:
        DataError: no prompts were found, a relation has none, or one has learned vectors.
    """
    paths = [Path(path) for path in config.ensemble.prompts] or find_prompts(Path(config.data))
    if not paths:
        raise DataError(
            f"no manual templates were found near {config.data}; name folders or files of them "
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
                f"relation {relation.name} has no manual template{behind} in "
                f"{', '.join(map(str, paths))}; add some, or leave it out with --relations."
            )
        for template in written:
            if template.vectors:
                raise DataError(
                    f"a manual template of relation {relation.name} has learned vectors, and this "
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
            row = Frame(vocabulary, template, answer=[vocabulary.pad_id])
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
