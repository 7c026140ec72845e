"""Facts that need no language model: the training facts alone give their objects away.

Count what a reader of results should know about a fact set: repeats, leaks, easy answers.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from symprompt.facts.types import SPLITS, Fact, FactSet, Relation, Split

_WORD = re.compile(r"\w+")


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
        majority = Counter(fact.object for fact in relation.train).most_common(1)[0][0]
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
    words: dict[str, int] = {}
    for fact in relation.train:
        for word in _words(fact.subject):
            words.setdefault(word, len(words))
    counts = np.zeros((len(objects), len(words) + 1))
    prior = np.zeros(len(objects))
    for fact in relation.train:
        prior[objects[fact.object]] += 1
        for word in _words(fact.subject):
            counts[objects[fact.object], words[word]] += 1
    # The last column stands for every word that training has not seen.
    likelihood = np.log((counts + 1) / (counts.sum(1, keepdims=True) + counts.shape[1]))
    guesses = []
    for subject in subjects:
        seen = [words.get(word, len(words)) for word in _words(subject)]
        guesses.append(names[int(np.argmax(np.log(prior) + likelihood[:, seen].sum(1)))])
    return guesses


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


@dataclass(frozen=True)
class RelationCheck:
    """What was counted for one relation.

    Args:
        facts: number of facts by split.
        distinct_objects: number of different objects over all splits.
        majority_object: the most frequent object of train; ties go to the one met first.
        majority_correct: how many test facts it answers; None where train or test is empty.
        majority_accuracy: the same as a share of the test facts.
        duplicates: by split, facts that repeat an earlier (subject, object) pair.
        test_pairs_in_train_or_dev: test facts whose pair is also in train or dev.
        test_subjects_in_train: test facts whose subject also occurs in train.
        test_facts_with_several_objects: test facts whose subject has several objects in test.
        object_in_subject: by split, facts whose object is part of the subject, case kept.
    """

    name: str
    label: str
    template: str
    facts: Mapping[Split, int]
    distinct_objects: int
    majority_object: str
    majority_correct: int | None
    majority_accuracy: float | None
    duplicates: Mapping[Split, int]
    test_pairs_in_train_or_dev: int
    test_subjects_in_train: int
    test_facts_with_several_objects: int
    object_in_subject: Mapping[Split, int]


@dataclass(frozen=True)
class CheckReport:
    """What was counted for a fact set: each relation, and the sums over relations.

    Args:
        relations: one entry per relation; see RelationCheck for the counts, which are summed
            here under the same names.
        distinct_objects: number of different objects over all relations, which is less than the
            sum where relations share objects.
        majority_mean_over_relations: accuracy of always answering each relation's majority
            object, each relation counting the same; None where it is not known for any.
        majority_mean_over_facts: the same, each test fact counting the same.
        majority_unknown: relations left out of both means, because train or test is empty.
        dropped_by_reason: facts left out so far, by reason.
        dropped_by_relation: the same by relation, then reason.
    """

    source: str
    layout: str
    fingerprint: str
    relations: tuple[RelationCheck, ...]
    facts: Mapping[Split, int]
    distinct_objects: int
    duplicates: Mapping[Split, int]
    test_pairs_in_train_or_dev: int
    test_subjects_in_train: int
    test_facts_with_several_objects: int
    object_in_subject: Mapping[Split, int]
    majority_mean_over_relations: float | None
    majority_mean_over_facts: float | None
    majority_unknown: tuple[str, ...]
    dropped_by_reason: Mapping[str, int]
    dropped_by_relation: Mapping[str, Mapping[str, int]]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as dictionaries, lists, text and numbers, ready for JSON."""
        report = asdict(self)
        report["relations"] = list(report["relations"])
        report["majority_unknown"] = list(report["majority_unknown"])
        return report


def check(facts: FactSet) -> CheckReport:
    """Return what was counted for every relation of the set, and the sums."""
    relations = tuple(_check_relation(relation) for relation in facts.relations)
    over_relations, over_facts = _majority_means(relations)
    objects = {fact.object for relation in facts.relations for fact in relation.all()}
    return CheckReport(
        source=facts.source,
        layout=facts.layout,
        fingerprint=facts.fingerprint(),
        relations=relations,
        facts=_sum_splits(entry.facts for entry in relations),
        distinct_objects=len(objects),
        duplicates=_sum_splits(entry.duplicates for entry in relations),
        test_pairs_in_train_or_dev=sum(entry.test_pairs_in_train_or_dev for entry in relations),
        test_subjects_in_train=sum(entry.test_subjects_in_train for entry in relations),
        test_facts_with_several_objects=sum(
            entry.test_facts_with_several_objects for entry in relations
        ),
        object_in_subject=_sum_splits(entry.object_in_subject for entry in relations),
        majority_mean_over_relations=over_relations,
        majority_mean_over_facts=over_facts,
        majority_unknown=tuple(entry.name for entry in relations if entry.majority_correct is None),
        dropped_by_reason=facts.dropped_by_reason(),
        dropped_by_relation=_dropped_by_relation(facts),
    )


def _check_relation(relation: Relation) -> RelationCheck:
    train, dev, test = relation.train, relation.dev, relation.test
    seen_pairs = {*train, *dev}
    seen_subjects = {fact.subject for fact in train}
    answers: defaultdict[str, set[str]] = defaultdict(set)
    for fact in test:
        answers[fact.subject].add(fact.object)
    majority = _majority_object(train)
    correct = sum(fact.object == majority for fact in test) if train and test else None
    return RelationCheck(
        name=relation.name,
        label=relation.label,
        template=relation.template,
        facts={split: len(relation.split(split)) for split in SPLITS},
        distinct_objects=len({fact.object for fact in relation.all()}),
        majority_object=majority,
        majority_correct=correct,
        majority_accuracy=None if correct is None else correct / len(test),
        duplicates={
            split: len(relation.split(split)) - len(set(relation.split(split))) for split in SPLITS
        },
        test_pairs_in_train_or_dev=sum(fact in seen_pairs for fact in test),
        test_subjects_in_train=sum(fact.subject in seen_subjects for fact in test),
        test_facts_with_several_objects=sum(len(answers[fact.subject]) > 1 for fact in test),
        object_in_subject={
            split: sum(fact.object in fact.subject for fact in relation.split(split))
            for split in SPLITS
        },
    )


def _majority_object(train: Iterable[Fact]) -> str:
    # most_common keeps the order of first meeting among equals, so that ties are settled.
    common = Counter(fact.object for fact in train).most_common(1)
    return common[0][0] if common else ""


def _majority_means(relations: Iterable[RelationCheck]) -> tuple[float | None, float | None]:
    accuracies: list[float] = []
    correct = total = 0
    for entry in relations:
        if entry.majority_correct is not None and entry.majority_accuracy is not None:
            accuracies.append(entry.majority_accuracy)
            correct += entry.majority_correct
            total += entry.facts["test"]
    if not accuracies:
        return None, None
    return sum(accuracies) / len(accuracies), correct / total


def _sum_splits(counts: Iterable[Mapping[Split, int]]) -> dict[Split, int]:
    total: dict[Split, int] = dict.fromkeys(SPLITS, 0)
    for count in counts:
        for split in SPLITS:
            total[split] += count[split]
    return total


def _dropped_by_relation(facts: FactSet) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for entry in facts.dropped:
        reasons = counts.setdefault(entry.relation, {})
        reasons[entry.reason] = reasons.get(entry.reason, 0) + entry.count
    return counts
