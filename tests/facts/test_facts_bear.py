"""BEAR's files: answer spaces, templates, the split, and what is left out or refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from symprompt.errors import ConfigError, DataError
from symprompt.facts import SPLITS, Dropped, load_facts
from symprompt.facts.types import split_by_subject

COUNTRIES = ("France", "Italy", "Peru", "Kenya", "Japan", "Cuba", "Chile", "Spain", "Oman", "Iraq")
TEMPLATES = ["The capital of [X] is [Y].", "[X] is ruled from [Y].", "[Y] is the capital of [X]."]


def write_bear(
    folder: Path,
    pairs: Sequence[tuple[str, str]],
    metadata: dict[str, Any] | None = None,
    *,
    name: str = "P36",
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    stated = {name: {"templates": TEMPLATES}} if metadata is None else metadata
    (folder / "metadata_relations.json").write_text(json.dumps(stated), encoding="utf-8")
    rows = [
        {"sub_id": "Q1", "sub_label": subject, "sub_aliases": ["?"], "obj_label": answer}
        for subject, answer in pairs
    ]
    (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return folder


PAIRS = [(country, f"City {place % 4}") for place, country in enumerate(COUNTRIES)]


def test_answer_spaces_are_of_all_facts_and_subjects_are_dealt(tmp_path: Path) -> None:
    facts = load_facts(str(write_bear(tmp_path / "BEAR-big", PAIRS)))
    relation = facts["P36"]
    assert facts.layout == "bear"
    assert [len(relation.split(split)) for split in SPLITS] == [4, 2, 4]
    assert {fact.subject for fact in relation.all()} == set(COUNTRIES)
    assert relation.answers == ("City 0", "City 1", "City 2", "City 3")
    assert relation.candidates() == set(relation.answers)
    assert (relation.template, *relation.rewordings) == tuple(TEMPLATES)
    # The split is the seed's alone.
    again, other = (load_facts(str(tmp_path / "BEAR-big"), seed=seed) for seed in (0, 1))
    assert again.relations == facts.relations
    assert other["P36"].test != relation.test
    # The folder above will do as long as it holds one set.
    assert load_facts(str(tmp_path)).relations == facts.relations
    write_bear(tmp_path / "BEAR", PAIRS)
    with pytest.raises(DataError, match=r"one set .*BEAR, .*BEAR-big; give the folder of one"):
        load_facts(str(tmp_path))


def test_a_stated_answer_space_comes_first_and_may_be_larger(tmp_path: Path) -> None:
    stated = {"P36": {"templates": TEMPLATES, "answer_space_labels": ["Nowhere", "City 1"]}}
    folder = write_bear(tmp_path, PAIRS, stated)
    answers = load_facts(str(folder))["P36"].answers
    assert answers == ("Nowhere", "City 1", "City 0", "City 2", "City 3")


def test_a_template_that_stands_twice_counts_twice(tmp_path: Path) -> None:
    twice = [TEMPLATES[0], TEMPLATES[1], TEMPLATES[0]]
    facts = load_facts(str(write_bear(tmp_path, PAIRS, {"P36": {"templates": twice}})))
    assert [own.template for own in facts.worded(0).relations] == twice
    assert facts.worded(3)["P36"].rewordings == (TEMPLATES[0], TEMPLATES[1])


def test_a_line_without_a_subject_is_left_out_counted_and_named(tmp_path: Path) -> None:
    folder = write_bear(tmp_path, [*PAIRS[:3], ("", "Lima"), *PAIRS[3:]])
    facts = load_facts(str(folder))
    reason = "line has no subject (P36.jsonl, line 4)"
    assert facts.dropped == (Dropped("P36", "train", reason, 1),)
    assert len(facts.facts()) == len(PAIRS)


def test_a_relation_without_a_file_is_passed_by(tmp_path: Path) -> None:
    stated = {"P414": {"templates": TEMPLATES}, "P36": {"templates": TEMPLATES}}
    folder = write_bear(tmp_path, PAIRS, stated)
    assert load_facts(str(folder)).names == ("P36",)
    (folder / "P36.jsonl").unlink()
    with pytest.raises(DataError, match=r"none has a file such as P414\.jsonl"):
        load_facts(str(folder))


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"P36": {"templates": ["[X] alone."]}}, r"line 1: the template '\[X\] alone\.' must hold"),
        ({"P36": {"templates": []}}, "relation P36 has no template; add one"),
        ({"P36": {"templates": "[X] [Y]"}}, "P36 must have templates"),
        ([1], "the file must have templates"),
    ],
)
def test_metadata_of_another_form_is_refused(tmp_path: Path, metadata: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        load_facts(str(write_bear(tmp_path, PAIRS, metadata)))


def test_bad_rows_are_named_or_skipped(tmp_path: Path) -> None:
    folder = write_bear(tmp_path, PAIRS)
    with (folder / "P36.jsonl").open("a", encoding="utf-8") as stream:
        stream.write('\n{"sub_label": "Ghana"}\n')
    with pytest.raises(DataError, match=r"line 11.*obj_label"):
        load_facts(str(folder))
    skipped = load_facts(str(folder), bad_rows="skip")
    assert skipped.dropped_by_reason() == {"row cannot be used": 1}
    (folder / "metadata_relations.json").write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match="is not JSON"):
        load_facts(str(folder))


def test_shares_deal_all_or_part(tmp_path: Path) -> None:
    source = str(write_bear(tmp_path, PAIRS))
    for shares, counts in (((0, 0, 100), (0, 0, 10)), ((60, 20, 20), (6, 2, 2))):
        relation = load_facts(source, shares=shares)["P36"]
        assert tuple(len(relation.split(split)) for split in SPLITS) == counts
    for wrong in ((50, 50), (50, 30, 30), (-10, 10, 100)):
        with pytest.raises(ConfigError, match="three percentages that sum to 100"):
            load_facts(source, shares=wrong)


def test_a_relation_with_too_few_subjects_is_left_out_if_that_is_said(tmp_path: Path) -> None:
    stated = {name: {"templates": TEMPLATES} for name in ("P36", "P30")}
    write_bear(tmp_path, PAIRS[:2], name="P30")
    source = str(write_bear(tmp_path, PAIRS, stated))
    with pytest.raises(DataError, match=r"'P30' has 2 subject.*--skip-unusable"):
        load_facts(source)
    kept = load_facts(source, skip_unusable=True)
    assert (kept.names, list(kept.skipped)) == (("P36",), ["P30"])


def test_few_subjects_leave_one_for_every_split() -> None:
    facts = load_facts("world", relations=["capital"]).facts()[:3]
    for shares in ((10, 10, 80), (2, 96, 2), ()):
        relation = split_by_subject("capital", facts, seed=0, shares=shares)
        assert [len(relation.split(split)) for split in SPLITS] == [1, 1, 1]
    with pytest.raises(DataError, match="at least 2 are needed so that dev and test"):
        split_by_subject("capital", facts[:1], seed=0, shares=(0, 50, 50))


def test_one_template_or_all_of_them(tmp_path: Path) -> None:
    facts = load_facts(str(write_bear(tmp_path, [*PAIRS, ("", "Lima")])))
    second = facts.worded(2)
    assert second["P36"].template == TEMPLATES[1]
    assert second["P36"].rewordings == (TEMPLATES[0], TEMPLATES[2])
    assert second["P36"].test == facts["P36"].test
    every = facts.worded(0)
    assert every.names == ("P36.1", "P36.2", "P36.3")
    assert [relation.template for relation in every.relations] == TEMPLATES
    assert len(every.facts("test")) == 3 * len(facts.facts("test"))
    assert {fact.relation for fact in every["P36.2"].all()} == {"P36.2"}
    assert {entry.relation for entry in every.dropped} == set(every.names)
    assert len({facts.fingerprint(), second.fingerprint(), every.fingerprint()}) == 3
    assert second.select(["P36"]).worded(1) == second
    alone = load_facts("world", relations=["capital"])
    assert alone.worded(0) == alone
    with pytest.raises(DataError, match=r"wording is 4, .* has 3 manual templates; take 1 to 3"):
        facts.worded(4)
