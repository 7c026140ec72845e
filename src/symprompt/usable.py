"""Which facts a model can be asked: those it can read and answer; every other one is counted."""

from __future__ import annotations

from collections.abc import Sequence

from symprompt.backbone import Vocabulary
from symprompt.config import RunConfig
from symprompt.errors import DataError
from symprompt.facts import SPLITS, FactSet, Split, at_most, in_word_list, load_word_list, uhn
from symprompt.prompts import Template, fixed_length


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
    kept = _readable(vocabulary, facts, templates, max_length or vocabulary.max_length)
    if config.facts.vocabulary == "objects":
        seen = {
            relation.name: {fact.object for fact in relation.train} for relation in kept.relations
        }
        kept = kept.keep(
            lambda fact: fact.object in seen[fact.relation],
            "object not among the relation's training objects",
        )
    elif config.facts.vocabulary != "full":
        kept = in_word_list(kept, set(load_word_list(config.facts.vocabulary)))
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


def _readable(
    vocabulary: Vocabulary, facts: FactSet, templates: Sequence[Template], max_length: int
) -> FactSet:
    """Drop what the model cannot read: objects of several tokens, odd subjects, long sentences."""
    tokens = _object_tokens(vocabulary, facts, templates)
    subjects = sorted({fact.subject for relation in facts.relations for fact in relation.all()})
    encoded = dict(zip(subjects, vocabulary.encode_words(subjects), strict=True))
    room = {
        name: max_length - fixed_length(vocabulary, template)
        for name, template in zip(facts.names, templates, strict=True)
    }
    kept = facts.keep(
        lambda fact: tokens[fact.relation, fact.object] is not None,
        "object is not one token of the model",
    )
    kept = kept.keep(
        lambda fact: (
            bool(encoded[fact.subject]) and vocabulary.mask_id not in encoded[fact.subject]
        ),
        "subject is not readable text",
    )
    return kept.keep(
        lambda fact: len(encoded[fact.subject]) <= room[fact.relation],
        "sentence longer than the model takes",
    )


def _object_tokens(
    vocabulary: Vocabulary, facts: FactSet, templates: Sequence[Template]
) -> dict[tuple[str, str], int | None]:
    tokens: dict[tuple[str, str], int | None] = {}
    for relation, template in zip(facts.relations, templates, strict=True):
        names = sorted({fact.object for fact in relation.all()})
        found = vocabulary.single_tokens(names, after_space=template.space_before("object"))
        tokens |= {(relation.name, name): token for name, token in zip(names, found, strict=True)}
    return tokens


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
