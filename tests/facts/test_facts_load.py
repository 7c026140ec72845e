"""Facts from LAMA folders and tables of your own, their templates, and what is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symprompt.errors import ConfigError, DataError
from symprompt.facts import (
    SPLITS,
    Dropped,
    Fact,
    Relation,
    check,
    find_prompts,
    load_facts,
    load_prompts,
)
from symprompt.facts.types import split_by_subject
from tiny.runs import PROMPTS, write_prompts

CAPITALS = [("France", "Paris"), ("Italy", "Rome")]


def write_lines(path: Path, rows: Iterable[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    # No final newline, as in the published files.
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def write_pairs(path: Path, pairs: Iterable[tuple[str, str]], keys: str = "sub obj") -> Path:
    subject, answer = keys.split()
    return write_lines(path, ({subject: a, answer: b} for a, b in pairs))


def make_softprompts(top: Path, name: str = "trex_original") -> Path:
    home = top / "db" / name
    for relation in ("P17", "P1001", "P101"):
        for split in ("train", "dev", "test"):
            write_pairs(home / relation / f"{split}.jsonl", CAPITALS)
        write_lines(
            top / "prompts" / "trex" / f"{relation}.jsonl",
            [{"template": f"{relation} of [X] is [Y] ."}, {"template": "unused"}],
        )
    return home


def test_softprompts_folder_with_templates_two_folders_up(tmp_path: Path) -> None:
    home = make_softprompts(tmp_path)
    facts = load_facts(str(home))
    assert facts.layout == "lama"
    assert facts.names == ("P17", "P101", "P1001")
    assert facts["P17"].train == (Fact("P17", "France", "Paris"), Fact("P17", "Italy", "Rome"))
    assert len(facts.facts("test")) == 6
    assert facts["P101"].template == "P101 of [X] is [Y] ."
    alone = load_facts(str(home / "P101"))
    assert alone.relations == (facts["P101"],)
    # The top folder will do as long as it holds one set.
    assert load_facts(str(tmp_path)).relations == facts.relations
    write_pairs(tmp_path / "db" / "conceptnet" / "IsA" / "test.jsonl", CAPITALS)
    with pytest.raises(DataError, match=r"2 sets of facts.*conceptnet, .*trex_original"):
        load_facts(str(tmp_path))


def test_original_lama_has_test_facts_only(tmp_path: Path) -> None:
    rows = [{"uuid": "1", "sub_label": "France", "obj_label": "Paris", "evidences": [{"a": 1}]}]
    write_lines(tmp_path / "data" / "TREx" / "P36.jsonl", rows)
    write_lines(
        tmp_path / "data" / "relations.jsonl",
        [
            {"relation": "P36", "template": "The capital of [X] is [Y] .", "label": "capital"},
            {"relation": "other", "template": "not read"},
        ],
    )
    facts = load_facts(str(tmp_path / "data" / "TREx"))
    assert facts["P36"].test == (Fact("P36", "France", "Paris"),)
    assert facts["P36"].train == facts["P36"].dev == ()
    assert facts["P36"].label == "capital"
    assert facts["P36"].template == "The capital of [X] is [Y] ."


def test_shares_deal_a_source_with_splits_anew(tmp_path: Path) -> None:
    home = tmp_path / "lama"
    pairs = [(f"land {number}", "here") for number in range(10)]
    for split, own in (("train", pairs[:8]), ("dev", pairs[8:]), ("test", pairs[:2])):
        write_pairs(home / "P17" / f"{split}.jsonl", own)
    table = tmp_path / "own.csv"
    lines = (f"{a},P17,{b},{split}" for split in ("train", "test") for a, b in pairs)
    table.write_text("\n".join(["subject,relation,object,split", *lines]), encoding="utf-8")
    dealt = [load_facts(str(path), shares=(40, 20, 40), seed=3) for path in (home, table)]
    for facts, repeats in zip(dealt, (2, 10), strict=True):
        relation = facts["P17"]
        assert relation == split_by_subject("P17", relation.all(), seed=3, shares=(40, 20, 40))
        assert [len(relation.split(split)) for split in SPLITS] == [4, 2, 4]
        assert facts.dropped_by_reason() == {"duplicate": repeats}
    other = load_facts(str(home), shares=(40, 20, 40), seed=4)
    assert set(other.facts()) == set(dealt[0].facts()) == set(dealt[1].facts())
    assert other["P17"] != dealt[0]["P17"]
    assert len(load_facts(str(home), seed=4).facts()) == 12
    assert not dealt[0]["P17"].answers
    # Without training facts the objects of all are the answer space.
    every = load_facts(str(home), shares=(0, 0, 100))["P17"]
    assert (len(every.test), every.answers) == (10, ("here",))
    (home / "P36").mkdir()
    write_pairs(home / "P36" / "test.jsonl", CAPITALS)
    with pytest.raises(DataError, match="'P36' has 2 subject"):
        load_facts(str(home), shares=(40, 20, 40))
    kept = load_facts(str(home), shares=(40, 20, 40), seed=3, skip_unusable=True)
    assert kept.relations == dealt[0].relations
    assert kept.skipped == {"P36": "too few subjects to deal to splits"}
    assert kept.dropped_by_reason()["their relation cannot be used"] == 2
    with (home / "P36" / "test.jsonl").open("a", encoding="utf-8") as stream:
        stream.write('\n{"sub": "Peru"}\n')
    # A row that cannot be used is told before that few are left.
    with pytest.raises(DataError, match="line 3"):
        load_facts(str(home), shares=(40, 20, 40))


def test_autoprompt_folder_without_test(tmp_path: Path) -> None:
    for split in ("train", "dev"):
        write_pairs(tmp_path / "P36" / f"{split}.jsonl", CAPITALS, "sub_label obj_label")
    write_lines(tmp_path / "prompts.jsonl", [{"prompt": "a stray file"}])
    facts = load_facts(str(tmp_path))
    assert (len(facts["P36"].train), len(facts["P36"].dev), len(facts["P36"].test)) == (2, 2, 0)
    assert facts["P36"].template == ""


def test_labels_win_over_identifiers(tmp_path: Path) -> None:
    row = {"sub": "/m/0f8l9c", "obj": "/m/05qtj", "sub_label": "France", "obj_label": "Paris"}
    write_lines(tmp_path / "P36" / "test.jsonl", [row, row])
    # Repeats are kept.
    assert load_facts(str(tmp_path)).facts("test") == [Fact("P36", "France", "Paris")] * 2


def test_a_byte_order_mark_and_separators_inside_text_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "P36" / "test.jsonl"
    path.parent.mkdir()
    text = '\ufeff{"subject": "A\u2028B", "object": "C"}\r\n\r\n{"Subject": "D", "OBJECT": "E"}\r\n'
    path.write_bytes(text.encode())
    facts = load_facts(str(tmp_path)).facts("test")
    assert [fact.subject for fact in facts] == ["A\u2028B", "D"]


def test_selected_relations_alone_are_read(tmp_path: Path) -> None:
    home = make_softprompts(tmp_path)
    (home / "P1001" / "test.jsonl").write_text("garbage", encoding="utf-8")
    assert load_facts(str(home), relations=["P101", "P17"]).names == ("P17", "P101")
    assert load_facts(str(home), relations="P17").names == ("P17",)
    with pytest.raises(DataError, match=r"'P10' is not in .*; did you mean 'P101'"):
        load_facts(str(home), relations=["P10"])
    with pytest.raises(DataError, match=r"'capital' is not in .*; it has: 'P17, P101, P1001'"):
        load_facts(str(home), relations=["capital"])


def test_templates_named_by_the_caller(tmp_path: Path) -> None:
    home = make_softprompts(tmp_path / "data")
    file = write_lines(tmp_path / "mine.jsonl", [{"relation": "P17", "template": "[Y] has [X] ."}])
    facts = load_facts(str(home), templates=str(file))
    assert [relation.template for relation in facts.relations] == ["[Y] has [X] .", "", ""]
    folder = tmp_path / "mine"
    write_lines(folder / "P101.jsonl", [{"template": "[X] in [Y] ."}])
    assert load_facts(str(home), templates=str(folder))["P101"].template == "[X] in [Y] ."
    with pytest.raises(DataError, match=r"nowhere does not exist"):
        load_facts(str(home), templates=str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"relation": "P17", "template": "[X] only ."}], r"line 1: the template .* \[X\] and"),
        ([{"relation": "P17"}], r"line 1: there is no column 'template'"),
        ([{"template": "[X] [Y]"}], r"line 1: there is no column 'relation'"),
        ([{"relation": "P9", "template": "[X] [Y]"}], r"holds no template for any relation"),
        (
            [{"relation": "P17", "template": f"[X] {word} [Y]"} for word in ("in", "of")],
            r"line 2: relation 'P17' has a second template '\[X\] of \[Y\]'",
        ),
    ],
)
def test_bad_templates(tmp_path: Path, lines: list[object], message: str) -> None:
    home = make_softprompts(tmp_path / "data")
    file = write_lines(tmp_path / "mine.jsonl", lines)
    with pytest.raises(DataError, match=message):
        load_facts(str(home), templates=str(file))


GOOD_LINE = b'{"sub": "Italy", "obj": "Rome"}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r" is empty"),
        (b"\n \n", r" is empty"),
        (b"a\x00b", r" holds zero bytes"),
        (GOOD_LINE + b"\xff\xfe", r", line 2: the bytes are not UTF-8"),
        (GOOD_LINE + b"{broken", r", line 2: '\{broken' is not valid JSON"),
        (GOOD_LINE + b"[" * 100_000, r", line 2: .* is not valid JSON"),
        (GOOD_LINE + b'["France", "Paris"]', r", line 2: got a JSON list, but only an object"),
        (
            GOOD_LINE + b'{"sub": "France"}',
            r", line 2: there is no column 'obj_label' or 'object' or 'obj', only \['sub'\]",
        ),
        (GOOD_LINE + b'{"sub": "a", "obj": 3}', r", line 2: 'obj' is 3, but only text"),
        (GOOD_LINE + b'{"sub": "a", "obj": null}', r", line 2: 'obj' is None, but only text"),
        (GOOD_LINE + b'{"sub": " ", "obj": "b"}', r", line 2: 'sub' is empty"),
        (
            GOOD_LINE + b'{"sub": "a\\nb", "obj": "c"}',
            r", line 2: 'sub' is 'a\\nb', but tabs, line breaks",
        ),
        (
            GOOD_LINE + b'{"sub": "\\ud800", "obj": "c"}',
            r", line 2: 'sub' is '\\ud800', which holds half",
        ),
        (
            GOOD_LINE + b'{"sub": "a", "SUB": "b", "obj": "c"}',
            r", line 2: two keys .* differ only in case",
        ),
    ],
)
def test_bad_files_are_refused_by_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "P36" / "test.jsonl"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"test\.jsonl" + message):
        load_facts(str(tmp_path))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "holds no facts that are recognised"),
        # Prompt files have the names of LAMA files but hold templates.
        ({"P36.jsonl": '{"template": "[X] [Y]"}'}, "holds no facts that are recognised"),
        ({"P36.jsonl": "{broken"}, r"P36\.jsonl, line 1: .* not valid JSON"),
        (
            dict.fromkeys(("P17/test.jsonl", "P36.jsonl"), '{"sub": "a", "obj": "b"}'),
            r"both relation folders \(P17/\) and .*\(P36\.jsonl\)",
        ),
    ],
)
def test_folders_without_facts_of_one_layout_are_refused(
    tmp_path: Path, files: dict[str, str], message: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        load_facts(str(tmp_path))


def test_sources_and_layouts_that_do_not_fit(tmp_path: Path) -> None:
    file = write_pairs(tmp_path / "facts.jsonl", CAPITALS)
    none = str(tmp_path / "none")
    cases = [
        (none, "auto", r"none does not exist; give \"world\""),
        ("", "auto", r"no source of facts"),
        ("x" * 5000, "auto", r"does not exist"),
        (str(file), "lama", r"is a file, but a folder is needed"),
        (none, "lama", r"does not exist, but a folder"),
        (str(file), "excel", r"layout is 'excel', but only auto, lama"),
        (str(file), "world", r"layout \"world\" reads no files"),
    ]
    for source, layout, message in cases:
        with pytest.raises(DataError, match=message):
            load_facts(source, layout=layout)


# ------------------------------------------------------------------------------------- tables

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


@pytest.mark.parametrize("layout", ["table", "lama"])
def test_a_name_in_composed_and_decomposed_unicode_is_one_name(tmp_path: Path, layout: str) -> None:
    twins = [("S\u00e3o Tom\u00e9", "caf\u00e9"), ("Sa\u0303o Tome\u0301", "cafe\u0301")]
    if layout == "table":
        rows = [(subject, "r", answer) for subject, answer in twins]
        text = as_csv([*rows, *((f"s{i}", "r", "o") for i in range(9))])
        facts = load_facts(write(tmp_path / "facts.csv", text))
        assert facts.dropped_by_reason() == {"duplicate": 1}
    else:
        for split, pair in zip(("train", "test"), twins, strict=True):
            write_pairs(tmp_path / "P36" / f"{split}.jsonl", [pair])
        facts = load_facts(str(tmp_path))
        report = check(facts)
        assert report.test_pairs_in_train_or_dev == 1
        assert report.composed == 1
    assert facts.composed == 1
    assert {fact.object for fact in facts.facts()} - {"o"} == {"caf\u00e9"}


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
        ("subject,relation,object,split\na,r,b,holdout\n", r"line 2: the split is 'holdout', but"),
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


BAD = "subject,relation,object\n" + "".join(f"s{i},r,o\n" for i in range(9))


def test_all_bad_rows_are_named_at_once(tmp_path: Path) -> None:
    text = BAD + "a,r,\nb,r\n,,\n" + "c,r,o,extra\n" * 30
    with pytest.raises(DataError) as refused:
        load_facts(write(tmp_path / "facts.csv", text))
    first, *lines = str(refused.value).splitlines()
    assert first.endswith(
        "facts.csv: 33 rows cannot be used; correct them, or leave such rows out with --bad-rows "
        "skip:"
    )
    assert [line.split(":")[0] for line in lines[:20]] == [f"  line {11 + i}" for i in range(20)]
    assert lines[20:] == ["  and 13 more."]
    with pytest.raises(DataError, match=r"line 11: 'object' is empty; .*, or leave .* skip\.$"):
        load_facts(write(tmp_path / "facts.csv", BAD + "a,r,\n"))


def test_bad_rows_that_are_skipped_are_counted(tmp_path: Path) -> None:
    text = BAD + "a,r,\nb,r\n,,\n" + "".join(f"s{i},other,o\n" for i in range(9)) + "x,other,\n"
    facts = load_facts(write(tmp_path / "facts.csv", text), bad_rows="skip")
    assert facts.dropped == tuple(
        Dropped(name, "train", "row cannot be used", count)
        for name, count in (("other", 3), ("r", 1))
    )
    plain = load_facts(write(tmp_path / "good.csv", BAD))
    assert facts["r"] == plain["r"]
    with pytest.raises(DataError, match="2 rows cannot be used"):
        load_facts(
            write(tmp_path / "facts.csv", "subject,relation,object\na\nb\n"), bad_rows="skip"
        )
    home = make_softprompts(tmp_path / "lama")
    with (home / "P17" / "dev.jsonl").open("a") as stream:
        stream.write('\n{"sub": "a"}\n{')
    with pytest.raises(
        DataError, match=r"trex_original: 2 rows(.|\n)*P17/dev\.jsonl, line 3: there"
    ):
        load_facts(str(home))
    skipped = load_facts(str(home), bad_rows="skip")
    assert skipped.dropped == (Dropped("P17", "dev", "row cannot be used", 2),)


@pytest.mark.parametrize(
    ("name", "sign", "cause"),
    [("a.csv", ";", "semicolons"), ("a.tsv", ",", "commas"), ("a.csv", "\t", "tabs")],
)
@pytest.mark.parametrize("more", ["", ", and"])
def test_the_likely_cause_of_a_table_of_one_column_is_named(
    tmp_path: Path, name: str, sign: str, cause: str, more: str
) -> None:
    rows = [(subject, relation, answer + more) for subject, relation, answer in ROWS]
    with pytest.raises(DataError, match=f"this looks like {cause} between the cells"):
        load_facts(write(tmp_path / name, as_csv(rows, sign)))


@pytest.mark.parametrize(
    "columns", [{"subject": "Firm", "object": "city"}, ["subject=Firm", "object=city"]]
)
def test_columns_may_have_other_names(tmp_path: Path, columns: Any) -> None:
    text = as_csv(ROWS).replace("subject,relation,object", "Firm,relation,city")
    plain = load_facts(write(tmp_path / "plain.csv", as_csv(ROWS)))
    named = load_facts(write(tmp_path / "facts.csv", text), columns=columns)
    assert named["capital"] == plain["capital"]
    # A named column wins over one that has the name of the role, and one relation needs no name.
    text = as_csv(ROWS).replace("subject,relation,object", "firm,object,city")
    alone = load_facts(write(tmp_path / "seats.csv", text), columns=columns)
    assert alone.names == ("seats",)
    assert {(x.subject, x.object) for x in alone.facts()} == {(a, c) for a, _, c in ROWS}
    with pytest.raises(DataError, match=r"no column 'company', only .*firm.* with --columns"):
        load_facts(str(tmp_path / "seats.csv"), columns={"subject": "company"})
    with pytest.raises(ConfigError, match="columns are those of a table of your own, and world"):
        load_facts("world", columns=columns)
    with pytest.raises(ConfigError, match=r"columns has 'who=firm'; .* roles are: subject, rel"):
        load_facts(str(tmp_path / "seats.csv"), columns=["who=firm"])


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


# -------------------------------------------------------------------- several manual templates


def test_a_folder_gives_every_named_relations_prompts_in_order(tmp_path: Path) -> None:
    folder = write_prompts(tmp_path / "mine")
    assert load_prompts([folder], ["capital", "near", "other"]) == {
        "capital": PROMPTS["capital"],
        "near": PROMPTS["near"],
    }


def test_folders_and_files_add_up_and_repeats_count_once(tmp_path: Path) -> None:
    folder = write_prompts(tmp_path / "mine")
    rows = [
        {"relation": "in", "template": "[X] : [Y]"},
        {"relation": "in", "template": PROMPTS["in"][0]},
        {"relation": "elsewhere", "template": "no blanks, but not asked for"},
    ]
    file = tmp_path / "more.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    assert load_prompts([folder, file], ["in"]) == {"in": (PROMPTS["in"][0], "[X] : [Y]")}


def test_prompts_are_found_beside_the_data(tmp_path: Path) -> None:
    data = tmp_path / "db" / "trex"
    data.mkdir(parents=True)
    assert find_prompts(data) == []
    places = [
        write_prompts(tmp_path / "prompts" / f"trex_{kind}") for kind in ("mine", "paraphrase")
    ]
    assert find_prompts(data) == [place.resolve() for place in places]


@pytest.mark.parametrize(
    ("place", "relation", "line", "message"),
    [
        ("absent", "in", "", r"absent does not exist; give a folder"),
        ("mine", "P36", "", r"no prompt for any of the relations.*'P36'"),
        (
            "mine",
            "in",
            '{"template": "[X] lies in nothing"}',
            r"in.jsonl, line 1: .*must hold \[X\] and \[Y\]",
        ),
        ("mine", "in", '{"weight": 1}', "there is no column 'template'"),
    ],
)
def test_what_cannot_be_used_is_refused(
    tmp_path: Path, place: str, relation: str, line: str, message: str
) -> None:
    folder = write_prompts(tmp_path / "mine")
    (folder / "in.jsonl").write_text(line)
    with pytest.raises(DataError, match=message):
        load_prompts([tmp_path / place], [relation])
