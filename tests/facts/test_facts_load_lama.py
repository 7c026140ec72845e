"""LAMA folders: every layout that is passed around, their templates, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from symprompt.errors import DataError
from symprompt.facts import Fact, load_facts

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
