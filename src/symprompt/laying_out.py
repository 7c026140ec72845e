"""Facts and candidates as tensors on a model's device, as the templates of their relations say."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from symprompt.backbone import Backbone, Vocabulary
from symprompt.config import RunConfig
from symprompt.errors import DataError
from symprompt.facts import Fact, FactSet
from symprompt.methods import Sentences, Spelling, make_spelling
from symprompt.prompts import Template, encode_facts, make_layout, make_names, read_names
from symprompt.usable import candidate_names


def spell(
    config: RunConfig,
    backbone: Backbone,
    facts: FactSet,
    templates: Sequence[Template],
    words: Sequence[str],
) -> Spelling:
    """Return how each relation's candidates of any length are asked for.

    Args:
        facts: what is left after dropping.
        words: further candidates, see ``candidate_names``.
    """
    names, ids = make_names(
        backbone.vocabulary,
        [
            (sorted(candidate_names(relation, words)), template.space_before("object"))
            for relation, template in zip(facts.relations, templates, strict=True)
        ],
    )
    allowed = torch.zeros(len(ids), len(names), dtype=torch.bool)
    for row, members in enumerate(ids):
        allowed[row, members] = True
    return make_spelling(
        names.to(backbone.device),
        allowed.to(backbone.device),
        mask_id=backbone.vocabulary.mask_id,
        masking=config.method.object_masking,
        average=config.method.object_average,
        max_tokens=config.max_tokens or backbone.token_budget(),
    )


def lay_out(
    backbone: Backbone,
    templates: Sequence[Template],
    relations: Sequence[str],
    facts: Sequence[Fact],
    answers: Mapping[tuple[str, str], Collection[str]],
    *,
    swapped: bool,
    spelling: Spelling | None = None,
) -> Sentences:
    """Lay out facts for the way forth and the way back, on the model's device.

    Args:
        answers: every known true object of each (relation, subject).
        spelling: how names of any length are asked for; None where tokens are the answers.
    """
    any_length = spelling is not None
    place = {name: index for index, name in enumerate(relations)}
    triples = [(place[fact.relation], fact.subject, fact.object) for fact in facts]
    encoded = encode_facts(backbone.vocabulary, templates, triples, any_length=any_length)
    length = backbone.max_length
    forth = make_layout(backbone.vocabulary, templates, encoded, max_length=length)
    back = forth
    if swapped:
        turned = encode_facts(
            backbone.vocabulary, templates, triples, swapped=True, any_length=any_length
        )
        back = make_layout(backbone.vocabulary, templates, turned, max_length=length, swapped=True)
    gold = encoded.objects
    if spelling is not None:
        found = [spelling.names.find(ids) for ids in encoded.names or []]
        if None in found:
            name = facts[found.index(None)].object
            raise DataError(f"object {name!r} is not among the candidates.")
        gold = np.array(found, dtype=np.int64)
    known = _known(backbone.vocabulary, templates, relations, facts, answers, spelling)
    return Sentences(
        forth.to(backbone.device),
        back.to(backbone.device),
        torch.from_numpy(gold).to(backbone.device),
        known.to(backbone.device),
        spelling,
    )


def allowed_tokens(vocabulary: Vocabulary, template: Template, words: Sequence[str]) -> list[int]:
    """Return the tokens of those words that are one, as they stand in the template's blank."""
    found = vocabulary.single_tokens(words, after_space=template.space_before("object"))
    return [token for token in found if token is not None]


def _known(
    vocabulary: Vocabulary,
    templates: Sequence[Template],
    relations: Sequence[str],
    facts: Sequence[Fact],
    answers: Mapping[tuple[str, str], Collection[str]],
    spelling: Spelling | None,
) -> Tensor:
    spaced = dict(
        zip(relations, (template.space_before("object") for template in templates), strict=True)
    )
    cache: dict[tuple[bool, str], int] = {}
    for after_space in set(spaced.values()):
        names = sorted({name for group in answers.values() for name in group})
        if spelling is None:
            found = vocabulary.single_tokens(names, after_space=after_space)
        else:
            read = read_names(vocabulary, names, [after_space] * len(names))
            found = [spelling.names.find(ids or ()) for ids in read]
        cache |= {
            (after_space, name): token
            for name, token in zip(names, found, strict=True)
            if token is not None
        }
    listed = [
        sorted(
            cache[spaced[fact.relation], name]
            for name in answers[fact.relation, fact.subject]
            if (spaced[fact.relation], name) in cache
        )
        for fact in facts
    ]
    table = np.full((len(facts), max(len(tokens) for tokens in listed)), -1, dtype=np.int64)
    for row, tokens in enumerate(listed):
        table[row, : len(tokens)] = tokens
    return torch.from_numpy(table)
