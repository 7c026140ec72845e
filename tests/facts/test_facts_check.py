"""The check report against figures by hand and brute force; facts that training gives away."""

from __future__ import annotations

import json
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symprompt.facts import (
    FactSet,
    Relation,
    check,
    count_inverses,
)
from symprompt.facts.quality import easy_facts, naive_bayes
from tiny.models import facts_of


def make_relation(name: str, **splits: list[tuple[str, str]]) -> Relation:
    return Relation(name, **{split: facts_of(name, pairs) for split, pairs in splits.items()})  # type: ignore[arg-type]


def make_set() -> FactSet:
    first = make_relation(
        "P1",
        train=[("a", "x"), ("b", "y"), ("b", "y"), ("c", "x"), ("d", "y")],
        dev=[("e", "z")],
        test=[("a", "y"), ("a", "x"), ("e", "z"), ("f y", "y"), ("f y", "y"), ("Y", "y")],
    )
    second = make_relation("P2", train=[("a", "q"), ("b", "r")], test=[("c", "r"), ("d", "q")])
    third = make_relation("P3", test=[("zebra", "zeb")])
    return FactSet((first, second, third), "hand", "lama")


def test_counts_worked_out_by_hand() -> None:
    report = check(make_set())
    first, second, third = report.relations
    assert first.facts == {"train": 5, "dev": 1, "test": 6}
    assert first.distinct_objects == 3
    assert (first.majority_object, first.majority_correct) == ("y", 4)
    assert first.duplicates == {"train": 1, "dev": 0, "test": 1}
    assert first.test_pairs_in_train_or_dev == 2
    assert first.test_subjects_in_train == 2
    assert first.test_facts_with_several_objects == 2
    assert first.object_in_subject == {"train": 0, "dev": 0, "test": 2}
    # A tie in train goes to the object met first.
    assert (second.majority_object, second.majority_accuracy) == ("q", 0.5)
    assert (third.majority_object, third.majority_accuracy) == ("", None)
    assert report.facts == {"train": 7, "dev": 1, "test": 9}
    assert report.distinct_objects == 6
    assert report.duplicates == {"train": 1, "dev": 0, "test": 1}
    assert report.object_in_subject["test"] == 3
    assert report.majority_mean_over_relations == pytest.approx((4 / 6 + 1 / 2) / 2)
    assert report.majority_mean_over_facts == pytest.approx(5 / 8)
    assert report.majority_unknown == ["P3"]
    alone = check(make_set().select(["P3"]))
    assert alone.majority_mean_over_relations is alone.majority_mean_over_facts is None
    plain = report.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["relations"][0]["facts"]["test"] == 6
    assert plain["fingerprint"] == make_set().fingerprint()


def test_facts_that_are_training_facts_turned_around_are_counted() -> None:
    capital = make_relation(
        "capital", train=[("a", "x"), ("b", "y"), ("c", "c")], test=[("d", "z"), ("e", "e")]
    )
    capital_of = make_relation("of", train=[("x", "a"), ("y", "b"), ("z", "d")], test=[("x", "a")])
    near = make_relation("near", train=[("a", "b"), ("b", "a"), ("e", "e")], test=[("b", "a")])
    seen = make_relation("seen", train=[("x", "b"), ("b", "a")], test=[("p", "q"), ("a", "b")])
    facts = FactSet((capital, capital_of, near, seen), "hand", "table")
    report = check(facts)
    assert [row.test_inverses_in_train for row in report.relations] == [1, 1, 1, 1]
    assert report.test_inverses_in_train == 4
    by_relation = {
        "capital": {"of": 1},
        "of": {"capital": 1},
        "near": {"near": 1},
        "seen": {"near": 1, "seen": 1},
    }
    assert {row.name: row.inverses for row in report.relations} == by_relation
    assert count_inverses(facts, "test") == by_relation


def test_dropped_facts_are_counted_by_reason_and_relation() -> None:
    facts = make_set()
    by_subject = {fact for fact in facts.facts() if fact.subject == "a"}
    by_object = {fact for fact in facts.facts() if fact.object == "zeb"}
    report = check(facts.drop(by_subject, "subject a").drop(by_object, "zeb"))
    assert report.dropped_by_reason == {"subject a": 4, "zeb": 1}
    assert report.dropped_by_relation == {
        "P1": {"subject a": 3},
        "P2": {"subject a": 1},
        "P3": {"zeb": 1},
    }


pairs = st.lists(st.tuples(st.text("ab", min_size=1, max_size=2), st.sampled_from("abc")))


@given(train=pairs, dev=pairs, test=pairs)
def test_counts_agree_with_brute_force(
    train: list[tuple[str, str]], dev: list[tuple[str, str]], test: list[tuple[str, str]]
) -> None:
    facts = FactSet((make_relation("P1", train=train, dev=dev, test=test),), "hand", "lama")
    entry = check(facts).relations[0]
    assert entry.duplicates["test"] == sum(pair in test[:i] for i, pair in enumerate(test))
    assert entry.test_pairs_in_train_or_dev == sum(pair in train + dev for pair in test)
    assert entry.test_subjects_in_train == sum(
        any(subject == other for other, _ in train) for subject, _ in test
    )
    assert entry.test_facts_with_several_objects == sum(
        any(subject == s and answer != a for s, a in test) for subject, answer in test
    )
    turned = sum(any((b, a) == pair and a != b for pair in train) for a, b in test)
    assert entry.test_inverses_in_train == sum(entry.inverses.values()) == turned
    assert entry.object_in_subject["train"] == sum(answer in subject for subject, answer in train)
    if train and test:
        answered = [answer for _, answer in train]
        assert answered.count(entry.majority_object) == max(map(answered.count, answered))
        assert entry.majority_correct == sum(a == entry.majority_object for _, a in test)
    else:
        assert entry.majority_correct is None


# ------------------------------------------------------------ what training alone gives away

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
    assert naive_bayes(make_relation("country", train=TRAIN, test=TEST), subjects) == [
        slow_guess(text) for text in subjects
    ]


def test_easy_facts_are_those_of_the_majority_or_of_naive_bayes() -> None:
    facts = FactSet(
        (make_relation("country", train=TRAIN, test=TEST),), source="made up", layout="table"
    )
    easy = {fact.subject for fact in easy_facts(facts)}
    wanted = {text for text, right in TEST if right in ("Japan", slow_guess(text))}
    assert easy == wanted
    assert "Toyota" in easy
    assert "Olivetti" not in easy
    without = make_relation("country", test=TEST)
    assert easy_facts(FactSet((without,), source="made up", layout="table")) == set()
