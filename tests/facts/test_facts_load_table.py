"""Your own tables: CSV, TSV, JSONL, splits given or made, and what is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symprompt.errors import DataError
from symprompt.facts import SPLITS, Dropped, Fact, Relation, load_facts
from symprompt.facts.types import split_by_subject

ROWS = [(f"country {i}", "capital", f"city {i}") for i in range(10)]


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def as_csv(rows: list[tuple[str, str, str]], separator: str = ",") -> str:
    lines = [separator.join(row) for row in [("subject", "relation", "object"), *rows]]
    return "\n".join(lines)


def test_the_three_file_kinds_give_the_same_facts(tmp_path: Path) -> None:
    keys = ("subject", "relation", "object")
    lines = "\n".join(json.dumps(dict(zip(keys, row, strict=True))) for row in ROWS)
    prints = {
        load_facts(write(tmp_path / "facts.csv", as_csv(ROWS))).fingerprint(),
        load_facts(write(tmp_path / "facts.tsv", as_csv(ROWS, "\t"))).fingerprint(),
        load_facts(write(tmp_path / "facts.jsonl", lines)).fingerprint(),
        load_facts(write(tmp_path / "bom.CSV", "\ufeff" + as_csv(ROWS) + "\n\n")).fingerprint(),
        load_facts(
            write(tmp_path / "f.csv", as_csv(ROWS).replace("subject,relation", " Sub , Relation"))
        ).fingerprint(),
    }
    assert len(prints) == 1


def test_given_splits_keep_the_order_of_the_file(tmp_path: Path) -> None:
    text = (
        "sub,obj,relation,split,template,note\n"
        "Spain,Madrid,capital,Train,The capital of [X] is [Y] .,x\n"
        "France,Paris,capital,train,,\n"
        "Italy,Rome,capital,validation,,\n"
        '"Korea, South",Seoul,capital,test,The capital of [X] is [Y] .,\n'
    )
    facts = load_facts(write(tmp_path / "facts.csv", text))
    relation = facts["capital"]
    assert [fact.subject for fact in relation.train] == ["Spain", "France"]
    assert relation.dev == (Fact("capital", "Italy", "Rome"),)
    assert relation.test == (Fact("capital", "Korea, South", "Seoul"),)
    assert relation.template == "The capital of [X] is [Y] ."
    assert facts.layout == "table"


def test_repeats_are_dropped_and_counted(tmp_path: Path) -> None:
    text = "subject,relation,object,split\n" + "a,r,b,train\n" * 3 + "a,r,b,test\n" + "c,r,d,dev\n"
    facts = load_facts(write(tmp_path / "facts.csv", text))
    assert facts.dropped == (Dropped("r", "train", "duplicate", 2),)
    assert len(facts["r"].train) == len(facts["r"].test) == 1
    # And where splits are made.
    path = write(tmp_path / "facts.csv", as_csv([*ROWS, ROWS[0], ROWS[0]]))
    facts = load_facts(path)
    assert facts.dropped_by_reason() == {"duplicate": 2}
    assert facts.fingerprint() == load_facts(write(tmp_path / "b.csv", as_csv(ROWS))).fingerprint()


def test_the_split_ignores_file_order_and_other_relations(tmp_path: Path) -> None:
    other = [(f"s{i}", "other", "o") for i in range(4)]
    plain = load_facts(write(tmp_path / "a.csv", as_csv(ROWS)))
    mixed = load_facts(write(tmp_path / "b.csv", as_csv([*other, *reversed(ROWS)])))
    assert mixed["capital"] == plain["capital"]
    counts = [len(plain["capital"].split(split)) for split in SPLITS]
    assert counts == [6, 2, 2]
    assert load_facts(str(tmp_path / "a.csv"), seed=1)["capital"] != plain["capital"]


def test_the_split_of_one_seed_never_changes() -> None:
    facts = [Fact("r", letter, "o") for letter in "abcdefghij"]
    relation = split_by_subject("r", facts, seed=0)
    dealt = ["".join(fact.subject for fact in relation.split(split)) for split in SPLITS]
    assert dealt == ["jigedh", "fb", "ca"]


def subjects(relation: Relation) -> list[set[str]]:
    return [{fact.subject for fact in relation.split(split)} for split in SPLITS]


@given(
    pairs=st.lists(st.tuples(st.sampled_from("abcdefghijklmnopq"), st.sampled_from("xyz"))),
    seed=st.integers(),
    order=st.randoms(use_true_random=False),
)
def test_made_splits_cover_all_facts_once_and_share_no_subject(
    pairs: list[tuple[str, str]], seed: int, order: random.Random
) -> None:
    facts = [Fact("r", subject, answer) for subject, answer in pairs]
    if len({fact.subject for fact in facts}) < 3:
        with pytest.raises(DataError, match=r"at least 3 are needed"):
            split_by_subject("r", facts, seed=seed)
        return
    relation = split_by_subject("r", facts, seed=seed)
    assert sorted(relation.all(), key=repr) == sorted(set(facts), key=repr)
    groups = subjects(relation)
    assert all(groups)
    assert len(set.union(*groups)) == sum(len(group) for group in groups)
    assert len(groups[1]) == len(groups[2]) == max(1, round(len(set.union(*groups)) / 5))
    shuffled = list(facts)
    order.shuffle(shuffled)
    assert split_by_subject("r", shuffled, seed=seed) == relation


def test_too_few_subjects_are_refused_unless_not_wanted(tmp_path: Path) -> None:
    rows = [*ROWS, ("a", "small", "b"), ("a", "small", "c"), ("d", "small", "e")]
    path = write(tmp_path / "facts.csv", as_csv(rows))
    with pytest.raises(DataError, match=r"facts\.csv: relation 'small' has 2 subject\(s\)"):
        load_facts(path)
    assert load_facts(path, relations=["capital"]).names == ("capital",)
    with pytest.raises(DataError, match=r"did you mean 'capital'"):
        load_facts(path, relations=["capitol"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"is empty"),
        ("subject,relation,object\n", r"has a header but no facts"),
        ("France,capital,Paris\n", r"has a header but no facts"),
        ("subject;relation;object\na;b;c\n", r"line 2: there is no column 'relation', only"),
        ("subject,relation\na,b\n", r"line 2: there is no column .* or 'object' or"),
        ("subject,relation,object,Object\na,b,c,d\n", r"line 1: a column name is repeated"),
        ("subject,relation,object\na,r,b\n\nc,r\n", r"line 4: got 2 cell\(s\), but .* has 3"),
        ("subject,relation,object\na,r,b,c\n", r"line 2: got 4 cell\(s\), but .* has 3"),
        ("subject,relation,object\na,r,\n", r"line 2: 'object' is empty"),
        ("subject,relation,object\n,,\n", r"line 2: 'relation' is empty"),
        ('subject,relation,object\n"a"b,r,c\n', r"line 2: the cells cannot be read"),
        ('subject,relation,object\n"a,r,c\n', r"line 2: the cells cannot be read"),
        ('subject,relation,object\n"a\nb",r,c\n', r"line 2: 'subject' is 'a\\nb', but tabs"),
        ("subject,relation,object,split\na,r,b,holdout\n", r"line 2: split is 'holdout', but"),
        ("subject,relation,object,split\na,r,b,\n", r"line 2: 'split' is empty"),
        ("subject,relation,object,template\na,r,b,[X] is\n", r"line 2: the template '\[X\] is'"),
        (
            "subject,relation,object,template\na,r,b,[X] is [Y]\nc,r,d,[X] has [Y]\n",
            r"line 3: relation 'r' has a second template",
        ),
    ],
)
def test_bad_tables_are_refused_by_line(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "facts.csv", text)
    with pytest.raises(DataError, match=r"facts\.csv.* ?" + message):
        load_facts(path)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("{", r"line 2: '\{' is not valid JSON"),
        ('{"sub": "c", "obj": "d"}', r"line 2: there is no column 'relation'"),
        ('{"sub": 1, "obj": "d", "relation": "r"}', r"line 2: 'sub' is 1, but only text"),
        ('{"sub": "c", "obj": "d", "relation": "r", "split": "dev"}', r"line 2: this line says"),
        ('{"sub": "c", "obj": "d", "relation": "r", "template": null}', r"'template' is None"),
    ],
)
def test_bad_json_tables_are_refused_by_line(tmp_path: Path, second: str, message: str) -> None:
    first = '{"sub": "a", "obj": "b", "relation": "r"}\n'
    with pytest.raises(DataError, match=message):
        load_facts(write(tmp_path / "facts.jsonl", first + second))
    splits = first.replace("}", ', "split": "test"}')
    with pytest.raises(DataError, match=r"line 2: there is no column 'split'"):
        load_facts(write(tmp_path / "facts.jsonl", splits + first))


def test_other_endings_and_binary_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"ends in '\.txt', but .* \.jsonl, \.csv, \.tsv"):
        load_facts(write(tmp_path / "facts.txt", as_csv(ROWS)))
    (tmp_path / "binary.csv").write_bytes(b"\x89PNG\r\n\x1a\n\x00")
    with pytest.raises(DataError, match=r"binary\.csv, line 1: the bytes are not UTF-8"):
        load_facts(str(tmp_path / "binary.csv"))
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(DataError, match=r"folder\.csv cannot be read"):
        load_facts(str(tmp_path / "folder.csv"), layout="table")


def test_templates_named_by_the_caller_win_over_the_column(tmp_path: Path) -> None:
    header, *lines = as_csv(ROWS).split("\n")
    text = "\n".join([f"{header},template", *(f"{line},[X] has [Y] ." for line in lines)])
    file = write(tmp_path / "t.jsonl", '{"relation": "capital", "template": "[Y] of [X] ."}')
    path = write(tmp_path / "facts.csv", text)
    assert load_facts(path)["capital"].template == "[X] has [Y] ."
    assert load_facts(path, templates=file)["capital"].template == "[Y] of [X] ."


def test_relations_are_in_natural_order(tmp_path: Path) -> None:
    long = "P" + "9" * 5000
    names = ["P2", "P010", "P10", "P101", long, "Q"]
    rows = [(str(i), name, "o") for name in reversed(names) for i in range(3)]
    assert list(load_facts(write(tmp_path / "facts.csv", as_csv(rows))).names) == names
