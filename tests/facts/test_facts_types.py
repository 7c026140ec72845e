"""Sets of facts: order, selection, fingerprints, and what is left out with a count."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symprompt.errors import DataError
from symprompt.facts import (
    Dropped,
    Fact,
    FactSet,
    Relation,
    at_most,
    in_word_list,
    load_word_list,
    uhn,
)
from tiny.models import facts_of


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


def test_fingerprints_see_splits_and_true_objects_join_them() -> None:
    one, other = Fact("near", "France", "Spain"), Fact("near", "France", "Italy")
    sets = [Relation("near", train=(one,), test=(other,)), Relation("near", dev=(one, other))]
    left, right = (FactSet((relation,), "hand", "table") for relation in sets)
    assert left.fingerprint() != right.fingerprint()
    assert make_set().fingerprint() == make_set().fingerprint()
    assert left.true_objects() == right.true_objects() == {("near", "France"): {"Spain", "Italy"}}


def make_test(*pairs: tuple[str, str]) -> FactSet:
    return FactSet((Relation("maker", test=facts_of("maker", pairs)),), "hand", "table")


def test_uhn_drops_objects_named_in_the_subject_whatever_their_case() -> None:
    facts = uhn(make_test(("Apple Watch", "Apple"), ("iMac", "Apple"), ("GERMANIUM", "germ")))
    assert [fact.subject for fact in facts.facts("test")] == ["iMac"]
    assert facts.dropped_by_reason() == {"object named in the subject": 2}


@given(st.lists(st.tuples(st.text("abAB", min_size=1), st.text("abAB", min_size=1))))
def test_uhn_loses_no_fact_uncounted_and_is_done_after_once(pairs: list[tuple[str, str]]) -> None:
    facts = make_test(*pairs)
    kept = uhn(facts)
    lost = sum(kept.dropped_by_reason().values())
    assert len(kept.facts("test")) + lost == len(pairs)
    assert uhn(kept) == kept


def test_word_list_keeps_exact_words_only(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_bytes("\ufeffParis\r\n\r\n Rome \nParis\nõ\n".encode())
    words = load_word_list(path)
    assert words == ("Paris", "Rome", "õ")
    facts = in_word_list(make_test(("a", "Paris"), ("b", "paris"), ("c", "New York")), words)
    assert [fact.subject for fact in facts.facts("test")] == ["a"]
    assert facts.dropped_by_reason() == {"object not in the word list": 2}
    with pytest.raises(DataError, match=r"none\.txt does not exist"):
        load_word_list(str(tmp_path / "none.txt"))
    (tmp_path / "empty.txt").write_text(" \n", encoding="utf-8")
    with pytest.raises(DataError, match=r"empty\.txt is empty"):
        load_word_list(tmp_path / "empty.txt")


def test_a_limit_keeps_so_many_of_each_relation_and_counts_the_rest() -> None:
    relations = tuple(
        Relation(
            name,
            train=tuple(Fact(name, f"s{number}", "o") for number in range(size)),
            test=tuple(Fact(name, f"t{number}", "o") for number in range(size)),
        )
        for name, size in (("small", 3), ("large", 20))
    )
    facts = FactSet(relations, "hand", "table")
    kept = at_most(facts, {"train": 5, "test": 0}, seed=1)
    assert [len(relation.train) for relation in kept.relations] == [3, 5]
    assert kept.facts("test") == facts.facts("test")
    assert kept.dropped_by_reason() == {"beyond the train limit of 5": 15}
    # Those that stay keep their order.
    listed = facts["large"].train
    assert list(kept["large"].train) == [fact for fact in listed if fact in kept["large"].train]


@given(st.sets(st.text("abc", min_size=1, max_size=4), min_size=2), st.integers(0, 3))
def test_what_a_limit_keeps_depends_on_the_seed_and_not_on_the_order(
    subjects: set[str], seed: int
) -> None:
    pairs = [(subject, "o") for subject in sorted(subjects)]
    one = at_most(make_test(*pairs), {"test": 2}, seed=seed)
    other = at_most(make_test(*reversed(pairs)), {"test": 2}, seed=seed)
    assert set(one.facts("test")) == set(other.facts("test"))
    assert len(one.facts("test")) == 2
    # A larger limit keeps what the smaller one kept.
    larger = at_most(make_test(*pairs), {"test": 3}, seed=seed)
    assert set(one.facts("test")) <= set(larger.facts("test"))


def test_another_seed_draws_other_facts() -> None:
    facts = make_test(*((f"s{number}", "o") for number in range(50)))
    drawn = {at_most(facts, {"test": 5}, seed=seed).fingerprint() for seed in range(4)}
    assert len(drawn) == 4
