"""Facts that training alone gives away: naive Bayes against a slow version, and the split."""

from __future__ import annotations

import math
from collections import Counter

from symprompt.facts import Fact, FactSet, Relation
from symprompt.facts.quality import easy_facts, naive_bayes

TRAIN = [
    ("Nokia Corporation", "Finland"),
    ("Kone Corporation", "Finland"),
    ("Sony Group", "Japan"),
    ("Sony Music", "Japan"),
    ("Honda Motor", "Japan"),
    ("Fiat Group", "Italy"),
]
TEST = [
    ("Sony Corporation", "Japan"),
    ("Nokia Networks", "Finland"),
    ("Fiat Motor Group", "Italy"),
    ("Olivetti", "Italy"),
    ("Toyota", "Japan"),
]


def make_relation() -> Relation:
    train, test = (
        tuple(Fact("country", subject, object) for subject, object in pairs)
        for pairs in (TRAIN, TEST)
    )
    return Relation("country", train=train, test=test)


def slow_guess(subject: str) -> str:
    """Naive Bayes in words: prior times add-one smoothed word shares, one product after another."""
    vocabulary = {word for text, _ in TRAIN for word in text.lower().split()}
    best, best_score = "", -math.inf
    for name in dict.fromkeys(object for _, object in TRAIN):
        words = Counter(w for text, object in TRAIN if object == name for w in text.lower().split())
        score = math.log(sum(object == name for _, object in TRAIN))
        for word in subject.lower().split():
            score += math.log((words[word] + 1) / (words.total() + len(vocabulary) + 1))
        if score > best_score:
            best, best_score = name, score
    return best


def test_naive_bayes_is_the_slow_one() -> None:
    subjects = [subject for subject, _ in TRAIN + TEST]
    assert naive_bayes(make_relation(), subjects) == [slow_guess(text) for text in subjects]


def test_easy_facts_are_those_of_the_majority_or_of_naive_bayes() -> None:
    facts = FactSet((make_relation(),), source="made up", layout="table")
    easy = {fact.subject for fact in easy_facts(facts)}
    wanted = {text for text, right in TEST if right in ("Japan", slow_guess(text))}
    assert easy == wanted
    assert "Toyota" in easy
    assert "Olivetti" not in easy


def test_without_training_facts_nothing_is_easy() -> None:
    relation = Relation("country", test=make_relation().test)
    assert easy_facts(FactSet((relation,), source="made up", layout="table")) == set()
