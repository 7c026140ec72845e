"""Filters leave out the right facts and count them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symprompt.errors import DataError
from symprompt.facts import Fact, FactSet, Relation, in_word_list, load_word_list, uhn


def make_set(*pairs: tuple[str, str]) -> FactSet:
    facts = tuple(Fact("maker", subject, answer) for subject, answer in pairs)
    return FactSet((Relation("maker", test=facts),), "hand", "table")


def test_uhn_drops_objects_named_in_the_subject_whatever_their_case() -> None:
    facts = uhn(make_set(("Apple Watch", "Apple"), ("iMac", "Apple"), ("GERMANIUM", "germ")))
    assert [fact.subject for fact in facts.facts("test")] == ["iMac"]
    assert facts.dropped_by_reason() == {"object named in the subject": 2}


@given(st.lists(st.tuples(st.text("abAB", min_size=1), st.text("abAB", min_size=1))))
def test_uhn_loses_no_fact_uncounted_and_is_done_after_once(pairs: list[tuple[str, str]]) -> None:
    facts = make_set(*pairs)
    kept = uhn(facts)
    lost = sum(kept.dropped_by_reason().values())
    assert len(kept.facts("test")) + lost == len(pairs)
    assert uhn(kept) == kept


def test_word_list_keeps_exact_words_only(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_bytes("\ufeffParis\r\n\r\n Rome \nParis\nõ\n".encode())
    words = load_word_list(path)
    assert words == ("Paris", "Rome", "õ")
    facts = in_word_list(make_set(("a", "Paris"), ("b", "paris"), ("c", "New York")), words)
    assert [fact.subject for fact in facts.facts("test")] == ["a"]
    assert facts.dropped_by_reason() == {"object not in the word list": 2}


def test_missing_and_empty_word_lists_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.txt does not exist"):
        load_word_list(str(tmp_path / "none.txt"))
    (tmp_path / "empty.txt").write_text(" \n", encoding="utf-8")
    with pytest.raises(DataError, match=r"empty\.txt is empty"):
        load_word_list(tmp_path / "empty.txt")
