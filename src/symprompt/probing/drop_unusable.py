"""Which facts a model can be asked: those it can read and answer; every other one is counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from symprompt.errors import DataError
from symprompt.facts import (
    SPLITS,
    FactSet,
    Relation,
    Split,
    at_most,
    in_word_list,
    load_word_list,
    uhn,
)
from symprompt.models import Vocabulary
from symprompt.probing.config import RunConfig
from symprompt.prompts import Template, fixed_length, read_names


def needed_splits(config: RunConfig) -> tuple[Split, ...]:
    """Return the splits that every relation must have facts in."""
    name = config.method.name
    if name == "manual":
        return ("test",)
    if name == "majority":
        return ("train", "test")
    if name == "lpaqa":
        learns = config.ensemble.combine != "uniform" or config.ensemble.most > 0
        return ("train", "test") if learns else ("test",)
    return SPLITS if config.training.epochs > 0 else ("test",)


def drop_unusable(
    config: RunConfig,
    vocabulary: Vocabulary,
    facts: FactSet,
    templates: Sequence[Template],
    *,
    max_length: int | None = None,
) -> FactSet:
    """Return the facts that can be asked, every other one counted with its reason.

    Args:
        max_length: the longest sentence the model takes; None asks the tokenizer.

    Raises:
        DataError: with ``facts.strict``, if there is any other one.
    """
    words = listed_words(config)
    any_length = config.facts.objects == "any-length"
    room = {
        name: (max_length or vocabulary.max_length) - fixed_length(vocabulary, template)
        for name, template in zip(facts.names, templates, strict=True)
    }
    if any_length:
        kept = _drop_odd_subjects(vocabulary, _nameable(vocabulary, facts, templates))
        for name, longest in _longest(vocabulary, kept, templates, words).items():
            room[name] -= longest - 1
    else:
        kept = _drop_odd_subjects(vocabulary, _single(vocabulary, facts, templates))
    kept = _drop_long(vocabulary, kept, room)
    if any_length or config.facts.vocabulary == "objects":
        # The training facts that stay are those that the limit leaves.
        seen = at_most(kept, {"train": config.facts.train_limit}, seed=config.facts.split_seed)
        names = {relation.name: candidate_names(relation, words) for relation in seen.relations}
        kept = kept.keep(
            lambda fact: fact.object in names[fact.relation],
            "object not among the candidates"
            if any_length and words
            else "object not among the relation's training objects",
            ("dev", "test"),
        )
    elif words:
        kept = in_word_list(kept, set(words))
    if config.facts.uhn:
        kept = uhn(kept, ("test",))
    new = len(facts.dropped)
    if config.facts.strict and len(kept.dropped) > new:
        first = kept.dropped[new]
        total = sum(entry.count for entry in kept.dropped[new:])
        raise DataError(
            f"{total} facts cannot be used, the first in relation {first.relation} "
            f"({first.split}): {first.reason}; drop facts.strict to leave them out and count them."
        )
    # Last, so that a limit counts facts that can be asked.
    limits: dict[Split, int] = {split: getattr(config.facts, f"{split}_limit") for split in SPLITS}
    return at_most(kept, limits, seed=config.facts.split_seed)


def listed_words(config: RunConfig) -> tuple[str, ...]:
    """Return the lines of the word list a config names, if it names one."""
    named = config.facts.vocabulary not in ("full", "objects")
    return load_word_list(config.facts.vocabulary) if named else ()


def candidate_names(relation: Relation, words: Sequence[str]) -> set[str]:
    """Return the names a relation may answer with: its training objects, and those listed for it.

    Args:
        words: a name for every relation, or a relation's name, a tab and a name for that one.
    """
    listed = (word.rpartition("\t") for word in words)
    return {fact.object for fact in relation.train} | {
        name.strip() for owner, _, name in listed if owner.strip() in ("", relation.name)
    }


def _single(vocabulary: Vocabulary, facts: FactSet, templates: Sequence[Template]) -> FactSet:
    """Drop objects that are not one token."""
    tokens: dict[tuple[str, str], int | None] = {}
    for relation, template in zip(facts.relations, templates, strict=True):
        names = sorted({fact.object for fact in relation.all()})
        found = vocabulary.single_tokens(names, after_space=template.space_before("object"))
        tokens |= {(relation.name, name): token for name, token in zip(names, found, strict=True)}
    return facts.keep(
        lambda fact: tokens[fact.relation, fact.object] is not None,
        "object is not one token of the model",
    )


def _nameable(vocabulary: Vocabulary, facts: FactSet, templates: Sequence[Template]) -> FactSet:
    """Drop objects that the model cannot read, of whatever length."""
    read: dict[tuple[str, str], list[int] | None] = {}
    for relation, template in zip(facts.relations, templates, strict=True):
        names = sorted({fact.object for fact in relation.all()})
        spaced = [template.space_before("object")] * len(names)
        found = zip(names, read_names(vocabulary, names, spaced), strict=True)
        read |= {(relation.name, name): ids for name, ids in found}
    return facts.keep(
        lambda fact: read[fact.relation, fact.object] is not None, "object is not readable text"
    )


def _longest(
    vocabulary: Vocabulary,
    facts: FactSet,
    templates: Sequence[Template],
    words: Sequence[str],
) -> dict[str, int]:
    """Return how many tokens each relation's longest candidate has."""
    longest: dict[str, int] = {}
    for relation, template in zip(facts.relations, templates, strict=True):
        names = sorted(candidate_names(relation, words))
        read = read_names(vocabulary, names, [template.space_before("object")] * len(names))
        longest[relation.name] = max((len(ids) for ids in read if ids), default=1)
    return longest


def _drop_odd_subjects(vocabulary: Vocabulary, facts: FactSet) -> FactSet:
    """Drop subjects without a token, or with the mask."""
    encoded = _subjects(vocabulary, facts)
    return facts.keep(
        lambda fact: (
            bool(encoded[fact.subject]) and vocabulary.mask_id not in encoded[fact.subject]
        ),
        "subject is not readable text",
    )


def _drop_long(vocabulary: Vocabulary, facts: FactSet, room: Mapping[str, int]) -> FactSet:
    """Drop subjects that have more tokens than their relation's sentences have room for."""
    encoded = _subjects(vocabulary, facts)
    return facts.keep(
        lambda fact: len(encoded[fact.subject]) <= room[fact.relation],
        "sentence longer than the model takes",
    )


def _subjects(vocabulary: Vocabulary, facts: FactSet) -> dict[str, list[int]]:
    subjects = sorted({fact.subject for relation in facts.relations for fact in relation.all()})
    return dict(zip(subjects, vocabulary.encode_words(subjects), strict=True))


def refuse_empty(config: RunConfig, facts: FactSet) -> None:
    """Refuse a relation without facts in a split that the config's method needs.

    Raises:
        DataError: naming the relation, the split and what was dropped from it.
    """
    needed = needed_splits(config)
    for relation in facts.relations:
        for split in needed:
            if not relation.split(split):
                lost = {
                    entry.reason: entry.count
                    for entry in facts.dropped
                    if entry.relation == relation.name and entry.split == split
                }
                why = "; ".join(f"{count} dropped: {reason}" for reason, count in lost.items())
                raise DataError(
                    f"relation {relation.name} has no usable {split} facts"
                    f"{' (' + why + ')' if why else ''}; add facts, or leave it out with "
                    "facts.relations."
                )
