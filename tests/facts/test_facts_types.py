"""The core types: order, selection, dropping with a count, fingerprints."""

from __future__ import annotations

import pytest

from symprompt.errors import DataError
from symprompt.facts import Dropped, Fact, FactSet, Relation


def make_set() -> FactSet:
    capital = Relation(
        "capital",
        train=(Fact("capital", "France", "Paris"), Fact("capital", "Italy", "Rome")),
        test=(Fact("capital", "Spain", "Madrid"),),
    )
    language = Relation("language", dev=(Fact("language", "France", "French"),))
    return FactSet((capital, language), source="hand", layout="table")


def test_splits_are_read_in_order() -> None:
    facts = make_set()
    assert facts.names == ("capital", "language")
    assert [fact.object for fact in facts["capital"].all()] == ["Paris", "Rome", "Madrid"]
    assert [fact.subject for fact in facts.facts("dev")] == ["France"]
    with pytest.raises(DataError, match=r"'currency' is not in hand; it has: capital, language"):
        facts["currency"]


def test_drop_counts_what_it_drops_and_select_keeps_the_counts() -> None:
    facts = make_set()
    kept = facts.drop([fact for fact in facts.facts() if fact.subject == "France"], "not France")
    assert kept.dropped == (
        Dropped("capital", "train", "not France", 1),
        Dropped("language", "dev", "not France", 1),
    )
    assert kept.dropped_by_reason() == {"not France": 2}
    assert [fact.subject for fact in kept["capital"].train] == ["Italy"]
    # And a selection keeps its own drops.
    chosen = kept.select(["language"])
    assert chosen.names == ("language",)
    assert chosen.dropped == (Dropped("language", "dev", "not France", 1),)


def test_the_fingerprint_sees_the_split_of_a_fact() -> None:
    fact = Fact("capital", "France", "Paris")
    train = FactSet((Relation("capital", train=(fact,)),), "hand", "table")
    dev = FactSet((Relation("capital", dev=(fact,)),), "hand", "table")
    assert train.fingerprint() != dev.fingerprint()
    assert make_set().fingerprint() == make_set().fingerprint()


def test_true_objects_join_all_splits() -> None:
    both = Relation(
        "neighbour",
        train=(Fact("neighbour", "France", "Spain"),),
        test=(Fact("neighbour", "France", "Italy"),),
    )
    answers = FactSet((both,), "hand", "table").true_objects()
    assert answers == {("neighbour", "France"): {"Spain", "Italy"}}
