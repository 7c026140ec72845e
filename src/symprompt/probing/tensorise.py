"""Facts and candidates as tensors on a model's device, as the templates of their relations say."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from symprompt.errors import ConfigError, DataError
from symprompt.facts import Fact, FactSet, load_word_list
from symprompt.models import LanguageModel, Vocabulary
from symprompt.probing.config import RunConfig
from symprompt.probing.drop_unusable import candidate_names
from symprompt.probing.methods import Sentences, Spelling, make_spelling
from symprompt.prompts import (
    Template,
    encode_facts,
    make_layout,
    make_name_table,
    make_names,
    read_names,
)


def spell(
    config: RunConfig,
    backbone: LanguageModel,
    facts: FactSet,
    templates: Sequence[Template],
    words: Sequence[str],
) -> Spelling:
    """Return how each relation's candidates of any length are asked for.

    Args:
        facts: what is left after dropping.
        words: further candidates, see ``candidate_names``.
    """
    names, ids = make_name_table(
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
    backbone: LanguageModel,
    templates: Sequence[Template],
    relations: Sequence[str],
    facts: Sequence[Fact],
    answers: Mapping[tuple[str, str], Collection[str]],
    *,
    swapped: bool,
    several: bool = False,
    spelling: Spelling | None = None,
) -> Sentences:
    """Lay out facts for the way forth and the way back, on the model's device.

    Args:
        answers: every known true object of each (relation, subject).
        several: the method has several prompts, which need the subjects by themselves.
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
        make_names(backbone.vocabulary, [fact.subject for fact in facts], backbone.device)
        if several
        else None,
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


def allowed_answers(
    config: RunConfig, backbone: LanguageModel, facts: FactSet, templates: Sequence[Template]
) -> Tensor:
    """Return the tokens each relation may answer with, [relation, v] bool."""
    vocabulary = backbone.vocabulary
    allowed = torch.zeros(len(facts.relations), backbone.vocabulary_size, dtype=torch.bool)
    if config.facts.vocabulary == "full":
        allowed[:, : len(vocabulary)] = True
    else:
        words = (
            None
            if config.facts.vocabulary == "objects"
            else sorted(load_word_list(config.facts.vocabulary))
        )
        for index, (relation, template) in enumerate(zip(facts.relations, templates, strict=True)):
            names = words or sorted({fact.object for fact in relation.train})
            allowed[index, allowed_tokens(vocabulary, template, names)] = True
    return allowed


def refuse_few(config: RunConfig, facts: FactSet, allowed: Tensor) -> None:
    """Refuse a K that is larger than a relation's set of answers."""
    fewest = int(allowed.sum(1).min())
    if config.method.k > fewest and config.method.name == "spe":
        name = facts.names[int(allowed.sum(1).argmin())]
        raise ConfigError(
            f"method.k is {config.method.k}, but relation {name} has only {fewest} allowed "
            f"answers; choose k <= {fewest}, or a larger facts.vocabulary."
        )
