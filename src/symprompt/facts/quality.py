"""Facts that need no language model: the training facts alone give their objects away.

Count what a reader of results should know about a fact set: repeats, leaks, easy answers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from symprompt.facts.types import SPLITS, Fact, FactSet, Relation, Split

Turned = dict[tuple[str, str], set[str]]
_WORD = re.compile(r"\w+")
LEAKS = ("test_pairs_in_train_or_dev", "test_subjects_in_train", "test_inverses_in_train")
"""What is counted of the facts that training gives away."""


def easy_facts(facts: FactSet) -> set[Fact]:
    """Return the test facts that a baseline without a model answers: LAMA-easy, the rest is hard.

    After OptiPrompt (Zhong et al., 2021, section 5), whose baselines are the majority class, naive
    Bayes over the subject's word pieces, and tuned models with random weights. Here they are the
    first two, with words for word pieces, so that the split depends on the facts alone; fewer
    facts are easy than in theirs.
    """
    easy: set[Fact] = set()
    for relation in facts.relations:
        if not relation.train:
            continue
        majority = _majority_object(relation.train)
        guesses = naive_bayes(relation, [fact.subject for fact in relation.test])
        easy |= {
            fact
            for fact, guess in zip(relation.test, guesses, strict=True)
            if fact.object in (majority, guess)
        }
    return easy


def naive_bayes(relation: Relation, subjects: Sequence[str]) -> list[str]:
    """Return the most probable object of each subject by naive Bayes over words, add-one smoothed.

    Learned from the relation's training facts; ties go to the object met first.
    """
    names = list(dict.fromkeys(fact.object for fact in relation.train))
    objects = {name: row for row, name in enumerate(names)}
    pairs = [(fact.object, word) for fact in relation.train for word in _words(fact.subject)]
    words = {word: place for place, word in enumerate(sorted({word for _, word in pairs}))}
    prior = np.bincount([objects[fact.object] for fact in relation.train])
    counts = np.zeros((len(objects), len(words) + 1))
    for name, word in pairs:
        counts[objects[name], words[word]] += 1
    # The last column stands for every word that training has not seen.
    likelihood = np.log((counts + 1) / (counts.sum(1, keepdims=True) + counts.shape[1]))
    guesses = []
    for subject in subjects:
        seen = [words.get(word, len(words)) for word in _words(subject)]
        guesses.append(names[int(np.argmax(np.log(prior) + likelihood[:, seen].sum(1)))])
    return guesses


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _majority_object(train: Iterable[Fact]) -> str:
    # most_common keeps the order of first meeting among equals, so that ties are settled.
    common = Counter(fact.object for fact in train).most_common(1)
    return common[0][0] if common else ""


def count_inverses(facts: FactSet, split: Split) -> dict[str, dict[str, int]]:
    """Count a split's facts (s, o) that are training facts (o, s), by relation and theirs.

    A subject that is its own object is not counted. Relations without any are left out.
    """
    turned = _turned(facts)
    found: dict[str, Counter[str]] = {}
    for fact in facts.facts(split):
        for name in sorted(turned.get((fact.subject, fact.object), ())):
            found.setdefault(fact.relation, Counter())[name] += 1
    return {name: dict(own) for name, own in found.items()}


@dataclass(frozen=True)
class Counts:
    """What is counted for one relation, and for all together.

    Args:
        facts: number of facts by split.
        distinct_objects: number of different objects over all splits; over all relations less
            than the sum where relations share objects.
        duplicates: by split, facts that repeat an earlier (subject, object) pair.
        test_pairs_in_train_or_dev: test facts whose pair is also in train or dev.
        test_subjects_in_train: test facts whose subject also occurs in train.
        test_inverses_in_train: test facts that are training facts of any relation, turned around.
        test_facts_with_several_objects: test facts whose subject has several objects in test.
        object_in_subject: by split, facts whose object is part of the subject, case kept.
    """

    facts: Mapping[Split, int]
    distinct_objects: int
    duplicates: Mapping[Split, int]
    test_pairs_in_train_or_dev: int
    test_subjects_in_train: int
    test_inverses_in_train: int
    test_facts_with_several_objects: int
    object_in_subject: Mapping[Split, int]


@dataclass(frozen=True)
class RelationCheck(Counts):
    """What was counted for one relation.

    Args:
        majority_object: the most frequent object of train; ties go to the one met first.
        majority_correct: how many test facts it answers; None where train or test is empty.
        majority_accuracy: the same as a share of the test facts.
        inverses: test facts that are training facts turned around, by those facts' relation.
    """

    name: str
    label: str
    template: str
    majority_object: str
    majority_correct: int | None
    majority_accuracy: float | None
    inverses: Mapping[str, int]


@dataclass(frozen=True)
class CheckReport(Counts):
    """What was counted for a fact set: each relation, and all of them together.

    Args:
        majority_mean_over_relations: accuracy of always answering each relation's majority
            object, each relation counting the same; None where it is not known for any.
        majority_mean_over_facts: the same, each test fact counting the same.
        majority_unknown: relations left out of both means, because train or test is empty.
        dropped_by_reason: facts left out so far, by reason.
        dropped_by_relation: the same by relation, then reason.
        composed: facts whose names were in decomposed Unicode; counted in composed one.
    """

    source: str
    layout: str
    fingerprint: str
    relations: list[RelationCheck]
    majority_mean_over_relations: float | None
    majority_mean_over_facts: float | None
    majority_unknown: list[str]
    dropped_by_reason: Mapping[str, int]
    dropped_by_relation: Mapping[str, Mapping[str, int]]
    composed: int

    def to_dict(self) -> dict[str, Any]:
        """Return the report as dictionaries, lists, text and numbers, ready for JSON."""
        return asdict(self)


def check(facts: FactSet) -> CheckReport:
    """Return what was counted for every relation of the set, and for all together.

    Example:
        >>> check(world_facts()).relations[0].name
        'capital'
    """
    inverses, turned = count_inverses(facts, "test"), _turned(facts)
    relations = [
        _check_relation(facts, relation, inverses.get(relation.name, {}), turned)
        for relation in facts.relations
    ]
    by_relation: dict[str, Counter[str]] = {}
    for entry in facts.dropped:
        by_relation.setdefault(entry.relation, Counter())[entry.reason] += entry.count
    accuracies = [x.majority_accuracy for x in relations if x.majority_accuracy is not None]
    over_relations = over_facts = None
    if accuracies:
        over_relations = sum(accuracies) / len(accuracies)
        asked = sum(x.facts["test"] for x in relations if x.majority_correct is not None)
        over_facts = sum(x.majority_correct or 0 for x in relations) / asked
    return CheckReport(
        **_count(facts, turned),
        source=facts.source,
        layout=facts.layout,
        fingerprint=facts.fingerprint(),
        relations=relations,
        majority_mean_over_relations=over_relations,
        majority_mean_over_facts=over_facts,
        majority_unknown=[entry.name for entry in relations if entry.majority_correct is None],
        dropped_by_reason=facts.dropped_by_reason(),
        dropped_by_relation={name: dict(own) for name, own in by_relation.items()},
        composed=facts.composed,
    )


def count_leakage(facts: FactSet) -> dict[str, int]:
    """Return how many test facts, their subjects, and they turned around, other splits have too."""
    counts = _count(facts, _turned(facts))
    return {name: counts[name] for name in LEAKS}


def _check_relation(
    facts: FactSet, relation: Relation, inverses: Mapping[str, int], turned: Turned
) -> RelationCheck:
    majority, test = _majority_object(relation.train), relation.test
    known = bool(relation.train and test)
    correct = sum(fact.object == majority for fact in test) if known else None
    return RelationCheck(
        **_count(replace(facts, relations=(relation,)), turned),
        name=relation.name,
        label=relation.label,
        template=relation.template,
        majority_object=majority,
        majority_correct=correct,
        majority_accuracy=None if correct is None else correct / len(test),
        inverses=inverses,
    )


def _turned(facts: FactSet) -> Turned:
    """Return (object, subject) of all training facts, with the relations that have them."""
    turned: Turned = {}
    for fact in facts.facts("train"):
        if fact.subject != fact.object:
            turned.setdefault((fact.object, fact.subject), set()).add(fact.relation)
    return turned


def _count(facts: FactSet, turned: Turned) -> dict[str, Any]:
    """Return the fields of ``Counts``; equal pairs of two relations are no repeats.

    Args:
        turned: what facts of all relations are inverses of.
    """
    splits = {split: facts.facts(split) for split in SPLITS}
    test = splits["test"]
    seen_pairs = {*splits["train"], *splits["dev"]}
    seen_subjects = {(fact.relation, fact.subject) for fact in splits["train"]}
    objects = Counter((fact.relation, fact.subject) for fact in set(test))
    return {
        "facts": {split: len(own) for split, own in splits.items()},
        "distinct_objects": len({fact.object for fact in facts.facts()}),
        "duplicates": {split: len(own) - len(set(own)) for split, own in splits.items()},
        "test_pairs_in_train_or_dev": sum(fact in seen_pairs for fact in test),
        "test_subjects_in_train": sum(
            (fact.relation, fact.subject) in seen_subjects for fact in test
        ),
        "test_inverses_in_train": sum((fact.subject, fact.object) in turned for fact in test),
        "test_facts_with_several_objects": sum(
            objects[fact.relation, fact.subject] > 1 for fact in test
        ),
        "object_in_subject": {
            split: sum(fact.object in fact.subject for fact in own) for split, own in splits.items()
        },
    }
