"""Each relation's template: the config's, the manual one, or vectors in the manual one's shape."""

from __future__ import annotations

from symprompt.backbone import Vocabulary
from symprompt.config import RunConfig
from symprompt.errors import ConfigError, DataError, TemplateError
from symprompt.facts import FactSet, Relation
from symprompt.prompts import Piece, Template, encode_piece

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
    manual = prompt.template == "manual" or config.method.name == "manual"
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
