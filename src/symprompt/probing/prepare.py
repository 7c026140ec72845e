"""From a config to something trainable: facts the model can answer, tensorised, and a method.

Facts that the model cannot read or answer are dropped, every one counted with its reason.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from symprompt.errors import ConfigError, DataError, RunError
from symprompt.facts import (
    SPLITS,
    Fact,
    FactSet,
    Relation,
    Split,
    at_most,
    in_word_list,
    load_facts,
    load_word_list,
    uhn,
)
from symprompt.models import LanguageModel, Vocabulary
from symprompt.probing.any_length import Spelling, make_spelling
from symprompt.probing.config import FactsConfig, RunConfig
from symprompt.probing.folder import CARD, VOCABULARY, load_card, run_config
from symprompt.probing.folder import load_facts as load_stored_facts
from symprompt.probing.methods import method_class
from symprompt.probing.methods.base import Method, Prompts, Sentences
from symprompt.probing.templates import load_ensemble, longest_prompt, make_templates
from symprompt.prompts import (
    Template,
    encode_facts,
    fixed_length,
    make_layout,
    make_name_table,
    make_names,
    read_names,
)
from symprompt.runs.folder import Folder


@dataclass(frozen=True)
class Problem:
    """Facts that this model can be asked, as tensors on its device.

    Attributes:
        facts: what is left after dropping, with the counts of what was dropped.
        templates: one per relation.
        allowed: [relation, v] bool, the answers each relation may give; v tokens, or names.
        sentences: each non-empty split, tensorised.
        prompts: each relation's manual templates, where the method has several.
        spelling: how names of any length are asked for; None where tokens are the answers.
    """

    backbone: LanguageModel
    facts: FactSet
    templates: tuple[Template, ...]
    allowed: Tensor
    sentences: dict[Split, Sentences]
    prompts: Prompts = ()
    spelling: Spelling | None = None

    def text(self, answer: int) -> str:
        """Return an answer as people read it."""
        if self.spelling is not None:
            return self.spelling.names.texts[answer]
        return self.backbone.vocabulary.text(answer)

    def counts(self) -> dict[str, int] | None:
        """Return how many candidates each relation has; None where tokens are the answers."""
        if self.spelling is None:
            return None
        return dict(zip(self.relations, self.allowed.sum(1).tolist(), strict=True))

    def candidates(self, k: int) -> int:
        """Return how many candidates to keep of every fact: k, or all where there are fewer."""
        return min(k, int(self.allowed.sum(1).min()))

    @property
    def several(self) -> Prompts:
        """Each relation's manual templates, none where the method has one template."""
        return self.prompts or ((),) * len(self.templates)

    def object_counts(self) -> Tensor:
        """Return how often each answer is a training object of each relation, [relation, v]."""
        vocabulary, spelling = self.backbone.vocabulary, self.spelling
        size = self.backbone.vocabulary_size if spelling is None else len(spelling.names)
        counts = torch.zeros(len(self.templates), size, dtype=torch.float64)
        for row, (relation, template) in enumerate(
            zip(self.facts.relations, self.templates, strict=True)
        ):
            objects = [fact.object for fact in relation.train]
            if spelling is None:
                answers = _single_tokens(vocabulary, template, objects)
            else:
                spaced = [template.space_before("object")] * len(objects)
                read = vocabulary.encode_names(objects, spaced)
                places = [spelling.names.find(tokens) for tokens in read]
                answers = [place for place in places if place is not None]
            counts[row] = torch.bincount(torch.tensor(answers, dtype=torch.long), minlength=size)
        return counts

    @property
    def relations(self) -> tuple[str, ...]:
        """The relations' names, in the order of every leading axis."""
        return self.facts.names

    def part(self, first: int, stop: int) -> Problem:
        """Return the problem of some consecutive relations alone."""
        sentences: dict[Split, Sentences] = {}
        for split, every in self.sentences.items():
            owner = every.object_prompt.relations
            rows = np.flatnonzero((owner >= first) & (owner < stop))
            if len(rows):
                sentences[split] = every.take(rows, owner[rows] - first)
        return Problem(
            self.backbone,
            self.facts.select(self.relations[first:stop]),
            self.templates[first:stop],
            self.allowed[first:stop],
            sentences,
        )


def load_config_facts(source: str, config: FactsConfig) -> FactSet:
    """Load a source of facts by a config's settings."""
    return load_facts(
        source,
        layout=config.layout,
        relations=config.relations,
        templates=config.templates,
        seed=config.split_seed,
    )


def prepare(
    config: RunConfig,
    backbone: LanguageModel,
    facts: FactSet,
    *,
    prompts: Mapping[str, Sequence[str]] | None = None,
) -> Problem:
    """Drop what cannot be asked (counted), tensorise the rest, find which answers are allowed.

    Args:
        prompts: each relation's manual templates for a method that has several, if they are known;
            otherwise they are loaded and chosen by the config.

    Raises:
        DataError: a relation has no usable facts in a split that the method needs, or with
            ``facts.strict`` any fact cannot be used.
        ConfigError: K is larger than a relation's set of answers, or the config asks what a causal
            model cannot be asked.
    """
    kind = method_class(config.method.name)
    kind.check_model(config, backbone)
    written: Prompts = ()
    if kind.several_prompts:
        known = prompts or {}
        if set(facts.names) <= set(known):
            written = tuple(tuple(map(Template.parse, known[name])) for name in facts.names)
        else:
            found = load_ensemble(config, backbone.vocabulary, facts)
            written = kind.choose_prompts(config, backbone, facts, found)
        templates = tuple(longest_prompt(backbone.vocabulary, own) for own in written)
    else:
        templates = make_templates(config, backbone.vocabulary, facts)
    usable = drop_unusable(
        config, backbone.vocabulary, facts, templates, max_length=backbone.max_length
    )
    _refuse_empty(usable, kind.needed_splits(config))
    allowed, spelling = allowed_answers(config, backbone, usable, templates)
    if kind.has_subject_prompt:
        _refuse_few(config, usable, allowed)
    sentences: dict[Split, Sentences] = {}
    answers: dict[tuple[str, str], set[str]] = {}
    for split in SPLITS:
        # Training may know what training facts say, dev also dev's, and only test everything.
        # Facts that were dropped are true all the same.
        for fact in facts.facts(split):
            answers.setdefault((fact.relation, fact.subject), set()).add(fact.object)
        listed = usable.facts(split)
        if listed:
            sentences[split] = tensorise(
                backbone,
                templates,
                usable.names,
                listed,
                answers,
                swapped=config.method.blanks == "swapped",
                spelling=spelling,
                several=kind.several_prompts,
            )
    return Problem(backbone, usable, templates, allowed, sentences, written, spelling)


def stored_problem(
    folder: Folder, backbone: LanguageModel, relations: Sequence[str] = ()
) -> Problem:
    """Return what a finished run is about, to be asked further: facts and answers, no sentences.

    Args:
        relations: only these; none means all.

    Raises:
        RunError: the run folder is damaged.
    """
    config, card = run_config(folder), load_card(folder)
    names = list(relations) or list(card["relations"])
    facts = load_stored_facts(folder).select(names)
    about = [card["relations"][name] for name in facts.names]
    templates = tuple(Template.parse(own["template"]) for own in about)
    prompts: Prompts = ()
    if method_class(config.method.name).several_prompts:
        listed = [own.get("prompts", []) for own in about]
        for name, own in zip(facts.names, listed, strict=True):
            if not own:
                raise RunError(f"{folder.path / CARD} is damaged: no prompts of {name}.")
        prompts = tuple(tuple(Template.parse(text) for text in own) for own in listed)
    # The run's own copy of a word list: the list may have moved.
    words = load_word_list(folder.path / VOCABULARY) if _names_list(config) else ()
    allowed, spelling = allowed_answers(config, backbone, facts, templates, words)
    for name, count in zip(facts.names, allowed.sum(1).tolist(), strict=True):
        if not count:
            raise RunError(f"{folder.path} allows no answer for relation {name}.")
    return Problem(backbone, facts, templates, allowed, {}, prompts, spelling)


def make_method(config: RunConfig, problem: Problem) -> Method:
    """Build the method a config names, its encoders drawn from the config's seed."""
    return method_class(config.method.name).from_config(config, problem)


def stored_method(config: RunConfig, problem: Problem) -> Method:
    """Build the method of a finished run, whose stored vectors stand in for any encoder."""
    # So the cheapest encoder is made.
    prompt = replace(config.prompt, encoder="free", start="random")
    return make_method(replace(config, prompt=prompt), problem)


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
    words = _listed_words(config)
    any_length = config.facts.objects == "any-length"
    room = {
        name: (max_length or vocabulary.max_length) - fixed_length(vocabulary, template)
        for name, template in zip(facts.names, templates, strict=True)
    }
    kept = _drop_objects(vocabulary, facts, templates, any_length=any_length)
    kept = _drop_odd_subjects(vocabulary, kept)
    if any_length:
        for name, longest in _longest(vocabulary, kept, templates, words).items():
            room[name] -= longest - 1
    kept = _drop_long(vocabulary, kept, room)
    if any_length or config.facts.vocabulary == "objects":
        # The training facts that stay are those that the limit leaves.
        seen = at_most(kept, {"train": config.facts.train_limit}, seed=config.facts.split_seed)
        names = {relation.name: _candidate_names(relation, words) for relation in seen.relations}
        others = {fact for fact in kept.facts() if fact.object not in names[fact.relation]}
        kept = kept.drop(
            others,
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


def _names_list(config: RunConfig) -> bool:
    return config.facts.vocabulary not in ("full", "objects")


def _listed_words(config: RunConfig) -> tuple[str, ...]:
    """Return the lines of the word list a config names, if it names one."""
    return load_word_list(config.facts.vocabulary) if _names_list(config) else ()


def _candidate_names(relation: Relation, words: Sequence[str]) -> set[str]:
    """Return the names a relation may answer with: its training objects, and those listed for it.

    Args:
        words: a name for every relation, or a relation's name, a tab and a name for that one.
    """
    listed = (word.rpartition("\t") for word in words)
    return {fact.object for fact in relation.train} | {
        name.strip() for owner, _, name in listed if owner.strip() in ("", relation.name)
    }


def _drop_objects(
    vocabulary: Vocabulary, facts: FactSet, templates: Sequence[Template], *, any_length: bool
) -> FactSet:
    """Drop objects that are not one token, or with ``any_length`` those that are not readable."""
    tokens: dict[tuple[str, str], object] = {}
    for relation, template in zip(facts.relations, templates, strict=True):
        names = sorted({fact.object for fact in relation.all()})
        spaced = template.space_before("object")
        found: Sequence[object] = vocabulary.single_tokens(names, after_space=spaced)
        if any_length:
            found = read_names(vocabulary, names, [spaced] * len(names))
        tokens |= {(relation.name, name): token for name, token in zip(names, found, strict=True)}
    return facts.drop(
        {fact for fact in facts.facts() if tokens[fact.relation, fact.object] is None},
        "object is not readable text" if any_length else "object is not one token of the model",
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
        names = sorted(_candidate_names(relation, words))
        read = read_names(vocabulary, names, [template.space_before("object")] * len(names))
        longest[relation.name] = max((len(ids) for ids in read if ids), default=1)
    return longest


def _drop_odd_subjects(vocabulary: Vocabulary, facts: FactSet) -> FactSet:
    """Drop subjects without a token, or with the mask."""
    encoded = _subjects(vocabulary, facts)
    odd = {name for name, ids in encoded.items() if not ids or vocabulary.mask_id in ids}
    unwanted = {fact for fact in facts.facts() if fact.subject in odd}
    return facts.drop(unwanted, "subject is not readable text")


def _drop_long(vocabulary: Vocabulary, facts: FactSet, room: Mapping[str, int]) -> FactSet:
    """Drop subjects that have more tokens than their relation's sentences have room for."""
    encoded = _subjects(vocabulary, facts)
    long = {fact for fact in facts.facts() if len(encoded[fact.subject]) > room[fact.relation]}
    return facts.drop(long, "sentence longer than the model takes")


def _subjects(vocabulary: Vocabulary, facts: FactSet) -> dict[str, list[int]]:
    subjects = sorted({fact.subject for fact in facts.facts()})
    return dict(zip(subjects, vocabulary.encode_words(subjects), strict=True))


def _refuse_empty(facts: FactSet, needed: Sequence[Split]) -> None:
    """Refuse a relation without facts in a split that the method needs.

    Raises:
        DataError: naming the relation, the split and what was dropped from it.
    """
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


def tensorise(
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
    """Tensorise facts in the object prompt and in the subject prompt, on the model's device.

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
    first = make_layout(backbone.vocabulary, templates, encoded, max_length=length)
    second = first
    if swapped:
        turned = encode_facts(
            backbone.vocabulary, templates, triples, swapped=True, any_length=any_length
        )
        second = make_layout(
            backbone.vocabulary, templates, turned, max_length=length, swapped=True
        )
    gold = encoded.objects
    if spelling is not None:
        found = [spelling.names.find(ids) for ids in encoded.names or []]
        if None in found:
            name = facts[found.index(None)].object
            raise DataError(f"object {name!r} is not among the candidates.")
        gold = np.array(found, dtype=np.int64)
    known = _known(backbone.vocabulary, templates, relations, facts, answers, spelling)
    return Sentences(
        first.to(backbone.device),
        second.to(backbone.device),
        torch.from_numpy(gold).to(backbone.device),
        known.to(backbone.device),
        make_names(backbone.vocabulary, [fact.subject for fact in facts], backbone.device)
        if several
        else None,
        spelling,
    )


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
    config: RunConfig,
    backbone: LanguageModel,
    facts: FactSet,
    templates: Sequence[Template],
    words: Sequence[str] | None = None,
) -> tuple[Tensor, Spelling | None]:
    """Return the answers each relation may give, [relation, v] bool on the model's device.

    v are tokens, or names of any length; then also how these are asked for.

    Args:
        facts: what is left after dropping.
        words: the lines of the config's word list; None reads it.
    """
    vocabulary = backbone.vocabulary
    words = _listed_words(config) if words is None else words
    if config.facts.objects == "any-length":
        spelling = _spell(config, backbone, facts, templates, words)
        return spelling.allowed, spelling
    allowed = torch.zeros(len(facts.relations), backbone.vocabulary_size, dtype=torch.bool)
    if config.facts.vocabulary == "full":
        allowed[:, : len(vocabulary)] = True
    else:
        for index, (relation, template) in enumerate(zip(facts.relations, templates, strict=True)):
            names = words or {fact.object for fact in relation.train}
            allowed[index, _single_tokens(vocabulary, template, sorted(names))] = True
    return allowed.to(backbone.device), None


def _spell(
    config: RunConfig,
    backbone: LanguageModel,
    facts: FactSet,
    templates: Sequence[Template],
    words: Sequence[str],
) -> Spelling:
    """Return how each relation's candidates of any length are asked for.

    Args:
        words: further candidates, see ``_candidate_names``.
    """
    names, ids = make_name_table(
        backbone.vocabulary,
        [
            (sorted(_candidate_names(relation, words)), template.space_before("object"))
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


def _single_tokens(vocabulary: Vocabulary, template: Template, words: Sequence[str]) -> list[int]:
    """Return the tokens of those words that are one, as they stand in the template's blank."""
    found = vocabulary.single_tokens(words, after_space=template.space_before("object"))
    return [token for token in found if token is not None]


def _refuse_few(config: RunConfig, facts: FactSet, allowed: Tensor) -> None:
    """Refuse a K that is larger than a relation's set of answers."""
    fewest = int(allowed.sum(1).min())
    if config.method.k > fewest:
        name = facts.names[int(allowed.sum(1).argmin())]
        raise ConfigError(
            f"method.k is {config.method.k}, but relation {name} has only {fewest} allowed "
            f"answers; choose k <= {fewest}, or a larger facts.vocabulary."
        )
