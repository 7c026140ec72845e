"""Your own files: every kind in every format, splits, column names, and what is refused."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from symprompt.errors import ConfigError, DataError, SympromptError
from symprompt.files.reading import GivenRows
from symprompt.tasks.data.examples import (
    Answer,
    Columns,
    Example,
    QuestionExample,
    SpanExample,
    TaggedExample,
    TextExample,
)
from symprompt.tasks.data.load import load_examples, load_task
from symprompt.tasks.kinds import KINDS
from tiny.labelled import lines, write_spans, write_toy
from tiny.models import CITIES


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


ROWS = [{"text": f"text, number {n}", "label": "ab"[n % 2], "id": f"r{n}"} for n in range(20)]


def write_table(path: Path, rows: list[dict[str, str]]) -> Path:
    if path.suffix == ".jsonl":
        return write(path, lines(*rows))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(
            file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ","
        )
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".tsv"])
def test_one_file_is_parted_by_the_seed(ending: str, tmp_path: Path) -> None:
    path = write_table(tmp_path / f"reviews{ending}", ROWS)
    data = load_task(path, kind="sequence")
    assert data.counts() == {"train": 16, "dev": 2, "test": 2}
    assert data.name == "reviews"
    every = sorted(example.id for part in data.splits.values() for example in part)
    assert every == sorted(row["id"] for row in ROWS)
    assert data == load_task(path, kind="sequence")
    assert data != load_task(path, kind="sequence", seed=4)


def test_one_file_is_parted_by_its_column(tmp_path: Path) -> None:
    names = ("train", "train", "validation", "test")
    rows = [
        {"text": row["text"], "label": row["label"], "part": name}
        for row, name in zip(ROWS, names, strict=False)
    ]
    path = write_table(tmp_path / "own.csv", rows)
    data = load_task(path, "mine", kind="sequence", columns=Columns(split="part"))
    assert data.counts() == {"train": 2, "dev": 1, "test": 1}
    assert data.name == "mine"
    rows[2]["part"] = "later"
    write_table(path, rows)
    with pytest.raises(DataError, match=r"line 4: the split is 'later'"):
        load_task(path, kind="sequence", columns=Columns(split="part"))


def test_a_folder_of_splits(tmp_path: Path) -> None:
    for name in ("train.jsonl", "valid.jsonl"):
        write(tmp_path / name, lines({"a": "x", "b": "y", "c": 1}, {"a": "z", "b": "y", "c": 0}))
    write(tmp_path / "test.jsonl", lines({"a": "x", "b": "y"}))
    write(tmp_path / "notes.md", "nothing")
    columns = Columns(first="a", second="b", label="c")
    data = load_task(tmp_path, kind="pair", columns=columns)
    assert data.counts() == {"train": 2, "dev": 2, "test": 1}
    assert data.splits["dev"][0] == TextExample("dev-1", ("x", "y"), "1")
    assert data.splits["test"][0] == TextExample("test-1", ("x", "y"), None)
    write(tmp_path / "dev.csv", "a,b,c\n")
    with pytest.raises(DataError, match=r"two files for dev, dev\.csv and valid\.jsonl"):
        load_task(tmp_path, kind="pair", columns=columns)


ROME = {"question": "Which?", "context": "It is in Rome.", "id": 7}
IN_ROME = [QuestionExample("7", "Which?", "It is in Rome.", (Answer(9, "Rome"),))]
NAMED = [("Rome fell", "B-LOC O"), ("Ann", "B-PER")]


def named(*ids: str) -> list[TaggedExample]:
    parts = zip(ids, NAMED, strict=True)
    return [TaggedExample(x, tuple(a.split()), tuple(b.split())) for x, (a, b) in parts]


@pytest.mark.parametrize(
    ("kind", "file", "text", "wanted"),
    [
        (
            "tagging",
            "train.conll",
            "Rome I-LOC x\nfell O x\n\nAnn I-PER x\n",
            named("train-0", "train-1"),
        ),
        (
            "tagging",
            "train.jsonl",
            lines(
                {"words": ["Rome", "fell"], "tags": ["B-LOC", "O"]},
                {"words": "Ann", "tags": "B-PER"},
            ),
            named("train-1", "train-2"),
        ),
        (
            "tagging",
            "train.csv",
            "words,tags\nRome fell,B-LOC O\nAnn,I-PER\n",
            named("train-2", "train-3"),
        ),
        (
            "words",
            "train.jsonl",
            lines({"words": ["Rome", "fell"], "tags": ["NNP", "VBD"]}),
            [TaggedExample("train-1", ("Rome", "fell"), ("NNP", "VBD"))],
        ),
        (
            "words",
            "train.conll",
            "Rome I-LOC x\nfell -LRB- x\n",
            [TaggedExample("train-0", ("Rome", "fell"), ("I-LOC", "-LRB-"))],
        ),
        (
            "roles",
            "train.jsonl",
            lines({"words": ["I", "ran"], "predicate": 1, "tags": ["B-A0", "B-V"]}),
            [TaggedExample("train-1", ("I", "ran"), ("B-A0", "B-V"), 1)],
        ),
        *(
            ("question", "train.jsonl", lines({**ROME, "answers": answers}), IN_ROME)
            for answers in (
                [{"text": "Rome", "answer_start": 9}],
                [{"text": "Rome", "start": 9}],
                {"text": ["Rome"], "answer_start": [9]},
                ["Rome"],
                "Rome",
            )
        ),
        (
            "question",
            "train.csv",
            'question,context,answers\nWhich?,"It, is",is\nWhy?,It is,\n'
            'Who?,It is,"[{""text"": ""It""}]"\n',
            [
                QuestionExample("train-2", "Which?", "It, is", (Answer(4, "is"),)),
                QuestionExample("train-3", "Why?", "It is", ()),
                QuestionExample("train-4", "Who?", "It is", (Answer(0, "It"),)),
            ],
        ),
    ],
)
def test_files_to_train_on(
    kind: str, file: str, text: str, wanted: list[Example], tmp_path: Path
) -> None:
    write(tmp_path / file, text)
    data = load_task(tmp_path, kind=kind, columns=Columns(tag_column=1))
    assert data.splits["train"] == wanted


RTE = "index\tsentence1\tsentence2\n7\tRome\tLima\n"
KIM = ["Kim", "Lee", "in", "Oslo"]
FRAMES = [{"i": 1, "args": ["(ARG0*)", "(V*)"]}, {"i": 0, "args": ["(V*)", "*"]}]


@pytest.mark.parametrize(
    ("name", "kind", "text", "wanted", "options"),
    [
        (
            "x.txt",
            "sequence",
            "one\n\ntwo\n",
            [TextExample("row-1", ("one",)), TextExample("row-3", ("two",))],
            {},
        ),
        ("x.jsonl", "sequence", '{"text": "one"}', [TextExample("row-1", ("one",))], {}),
        ("x.csv", "sequence", "text,label\none,a\n", [TextExample("row-2", ("one",), "a")], {}),
        ("x.tsv", "pair", "first\tsecond\na\tb\n", [TextExample("row-2", ("a", "b"))], {}),
        # Well-known names of columns need not be given.
        ("x.tsv", "pair", RTE, [TextExample("7", ("Rome", "Lima"))], {}),
        (
            "x.jsonl",
            "pair",
            '{"passage": "Rome", "question": "Lima"}\n',
            [TextExample("row-1", ("Lima", "Rome"))],
            {},
        ),
        (
            "x.tsv",
            "pair",
            RTE,
            [TextExample("7", ("Lima", "Rome"))],
            {"columns": Columns(first="sentence2", second="sentence1")},
        ),
        # Labels are taken from the column of training alone, and where they are.
        (
            "x.csv",
            "pair",
            "premise,hypothesis,score\na,b,0.4\n",
            [TextExample("row-2", ("a", "b"))],
            {},
        ),
        (
            "x.csv",
            "pair",
            "first,second,label\na,b,\nc,d,x\n",
            [TextExample("row-2", ("a", "b")), TextExample("row-3", ("c", "d"), "x")],
            {},
        ),
        # A table without a line of names.
        (
            "x.tsv",
            "pair",
            "7\ta\tb\n8\tc\td\n",
            [TextExample("row-1", ("a", "b")), TextExample("row-2", ("c", "d"))],
            {"columns": Columns(first="1", second="2", label="3")},
        ),
        ("x.txt", "tagging", "Rome\nfell\n", [TaggedExample("row-0", ("Rome", "fell"))], {}),
        ("x.pos", "words", "Rome\nfell\n", [TaggedExample("row-0", ("Rome", "fell"))], {}),
        ("x.conll", "tagging", "Rome B-A\n", [TaggedExample("row-0", ("Rome",), ("B-A",))], {}),
        (
            "x.jsonl",
            "tagging",
            '{"words": "Rome fell"}',
            [TaggedExample("row-1", ("Rome", "fell"))],
            {},
        ),
        (
            "x.jsonl",
            "roles",
            '{"words": ["go"], "predicate": 0}',
            [TaggedExample("row-1", ("go",), None, 0)],
            {},
        ),
        (
            "x.jsonl",
            "roles",
            lines({"words": ["Rome", "lies"], "frames": FRAMES}),
            [
                TaggedExample("row-1-0", ("Rome", "lies"), ("B-ARG0", "B-V"), 1),
                TaggedExample("row-1-1", ("Rome", "lies"), ("B-V", "O"), 0),
            ],
            {},
        ),
        (
            "x.conll",
            "spans",
            "Kim B-PER\nLee I-PER\nin O\nOslo B-LOC\n",
            [SpanExample("row-0", tuple(KIM), (("PER", 0, 2), ("LOC", 3, 4)))],
            {},
        ),
        (
            "x.jsonl",
            "spans",
            lines({"words": KIM, "tags": ["B-PER", "I-PER", "O", "B-LOC"]}),
            [SpanExample("row-1", tuple(KIM), (("PER", 0, 2), ("LOC", 3, 4)))],
            {},
        ),
        ("x.csv", "question", "question,context\nq,c\n", [QuestionExample("row-2", "q", "c")], {}),
    ],
)
def test_files_to_predict(
    name: str,
    kind: str,
    text: str,
    wanted: list[Example],
    options: dict[str, Any],
    tmp_path: Path,
) -> None:
    assert load_examples(write(tmp_path / name, text), kind, **options) == wanted


# ------------------------------------------------------------------------------ what is wrong


@pytest.mark.parametrize(
    ("name", "kind", "text", "message"),
    [
        (
            "train.csv",
            "pair",
            "sentence1,sentence2,score\n"
            + "".join(f"a,b,{at}.{at}\n" for at in range(1, 20) if at != 10),
            r"line 2: the labels are 18 different numbers, such as 1\.1, so they are scores",
        ),
        ("train.jsonl", "sequence", '{"text": "x", "label": NaN}\n', "label 'label' is nan, but"),
        ("train.tsv", "pair", "a\tb\tx\nc\td\n", r"line 2: got 2 cell\(s\), but the header has 3"),
        ("train.csv", "sequence", 'text,label\n"x,a\n', "the cells cannot be read"),
        ("train.jsonl", "sequence", "{text}\n", "line 1: '{text}' is not valid JSON"),
        ("train.jsonl", "sequence", "[1]\n", "line 1: got a JSON list"),
        ("train.jsonl", "sequence", '{"text": "x", "label": null}\n', "label 'label' is None"),
        ("train.jsonl", "sequence", '{"text": 3, "label": "a"}\n', "'text' is 3"),
        ("train.jsonl", "sequence", '{"text": "\\ud800", "label": "a"}\n', "half a character"),
        (
            "train.jsonl",
            "tagging",
            '{"words": ["a", "b"], "tags": ["O"]}\n',
            r"1 tag\(s\) for 2 word",
        ),
        (
            "train.jsonl",
            "tagging",
            '{"words": ["a"], "tags": ["PER"]}\n',
            "'PER' is no tag of a span; allowed are O, .*are read with task.kind words",
        ),
        (
            "train.conll",
            "words",
            "a NN\nb NN\n",
            "line 1: training needs at least two different tags, but only NN occurs; name the col",
        ),
        ("train.txt", "words", "a\nb\n", "line 1: words and tags would both be column 0 of 1; gi"),
        (
            "train.txt",
            "words",
            "".join(f"a word{at}\n" for at in range(60)),
            "line 1: 60 words have 60 different tags, such as 'word0', so these are hardly tags",
        ),
        ("train.jsonl", "tagging", '{"words": ["a"]}\n', "no column 'tags'"),
        ("train.conll", "tagging", "a O\nb\n", "line 2: got 1 column"),
        ("train.jsonl", "question", '{"question": "q", "context": "c"}\n', "no column 'answers'"),
        ("train.jsonl", "question", '{"question": "q", "answers": []}\n', "no column 'context'"),
        ("train.txt", "pair", "x\n", "a table must end in .jsonl, .csv, .tsv"),
        ("train.jsonl", "roles", '{"words": ["a"], "tags": ["O"]}\n', "no column 'predicate'"),
        (
            "train.jsonl",
            "roles",
            '{"words": ["a"], "tags": ["O"], "predicate": 2}\n',
            "line 1: the predicate is 2",
        ),
        ("train.csv", "sequence", "", "is empty"),
        ("dev.csv", "sequence", "text,label\nx,a\n", "has no file for train"),
    ],
)
def test_bad_files_are_refused_in_one_sentence(
    name: str, kind: str, text: str, message: str, tmp_path: Path
) -> None:
    write(tmp_path / name, text)
    with pytest.raises(DataError, match=message) as caught:
        load_task(tmp_path, kind=kind)
    assert str(caught.value).count("\n") == 0


def test_labels_of_dev_that_training_does_not_have(tmp_path: Path) -> None:
    write(tmp_path / "train.conll", "Rome B-LOC\nfell O\n")
    write(tmp_path / "dev.conll", "It O\n\nthe O\nAnn I-PER\nLee I-PER\n")
    with pytest.raises(
        DataError, match=r"dev\.conll, line 4: the label 'B-PER' of dev and 1 other"
    ):
        load_task(tmp_path, kind="tagging")


NOTE, STARS = "note,stars\nx,a\n", "text,stars\nx,a\n"
NONE, MARKS = "text,label\n", "text;label\nx;a\n"


@pytest.mark.parametrize(
    ("kind", "text", "error", "message"),
    [
        (None, NOTE, ConfigError, r"columns \['note', 'stars'\].*sequence: text, label;"),
        ("sequence", STARS, ConfigError, r"not all that kind sequence needs .*or by numbers f"),
        (None, NONE, DataError, r"own\.csv holds no examples; add at least one"),
        ("sequence", NONE, DataError, r"own\.csv holds no examples; add at least one"),
        (None, MARKS, ConfigError, "this looks like semicolons between the cells"),
        ("sequence", MARKS, ConfigError, "this looks like semicolons between the cells"),
        ("sequence", "text,label\nx,a\ny,b\n", DataError, "cannot be parted"),
    ],
)
def test_one_file_that_says_too_little_is_refused(
    kind: str | None, text: str, error: type[SympromptError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        load_task(str(write(tmp_path / "own.csv", text)), kind=kind)


@pytest.mark.parametrize(
    ("kind", "rows", "message"),
    [
        ("sequence", [], "holds no examples"),
        ("sequence", [{1: "x"}], r"what was given, line 1: there is no column 'text', onl"),
        ("pair", [{"text": "x"}], "no column 'first', only"),
    ],
)
def test_what_is_no_example_is_refused(kind: str, rows: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_examples(GivenRows(rows), kind)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="did you mean 'conll2003'"):
        load_task("conll203", kind="tagging")
    with pytest.raises(DataError, match="does not exist"):
        load_examples(tmp_path / "none.jsonl", "sequence")


@pytest.mark.parametrize(
    ("heads", "known"),
    [
        ("sentence1 sentence2 label", "sentence1 sentence2 label"),
        ("premise hypothesis gold_label", "premise hypothesis gold_label"),
        ("question1 question2 is_duplicate", "question1 question2 is_duplicate"),
        ("Quality #1_ID #1_String #2_String", "#1_String #2_String Quality"),
        ("question sentence label", "question sentence label"),
        ("context response label", "context response label"),
        ("text_b text_a labels", "text_a text_b labels"),
        ("sentence1 sentence2 sentence label", "sentence1 sentence2 label"),
    ],
)
@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".tsv"])
def test_pairs_are_known_by_the_names_of_their_columns(
    heads: str, known: str, ending: str, tmp_path: Path
) -> None:
    names = heads.split()
    rows = [{name: f"{name} {at % 2}" for name in names} for at in range(12)]
    data = load_task(str(write_table(tmp_path / f"own{ending}", rows)))
    assert data.kind == "pair"
    first, second, label = known.split()
    example = data.splits["train"][0]
    assert [text.split()[0] for text in example.texts] == [first, second]
    assert example.label.split()[0] == label
    wanted = {"first": first, "second": second, "label": label}
    usual = vars(Columns())
    assert data.columns == {role: name for role, name in wanted.items() if name != usual[role]}


def test_what_a_user_named_is_not_guessed(tmp_path: Path) -> None:
    rows = [{"sentence1": f"a{n}", "sentence2": "b", "label": "xy"[n % 2]} for n in range(12)]
    path = str(write_table(tmp_path / "own.csv", rows))
    one = load_task(path, columns=Columns(text="sentence1"))
    assert one.kind == "sequence"
    assert one.columns == {}
    with pytest.raises(ConfigError, match=r"kind pair needs \(pair: sentence9, sentence2, label\)"):
        load_task(path, kind="pair", columns=Columns(first="sentence9"))
    # One column cannot be both texts.
    single = write_table(tmp_path / "one.csv", [{"context": "a", "label": "x"}] * 12)
    with pytest.raises(ConfigError, match="but no kind of task's"):
        load_task(str(single))
    with pytest.raises(ConfigError, match="both texts of a pair are column 'sentence1'; name two"):
        load_task(path, columns=Columns(first="sentence1", second="sentence1"))


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_a_table_without_a_line_of_names_is_read_by_numbers(ending: str, tmp_path: Path) -> None:
    sign = "," if ending == ".csv" else "\t"
    rows = [[f"a{n}", f"b{n}", "xy"[n % 2], ("train", "dev", "test")[n % 3]] for n in range(12)]
    path = write(tmp_path / f"own{ending}", "".join(sign.join(row) + "\n" for row in rows))
    columns = Columns(first="1", second="0", label="2", split="3")
    data = load_task(path, columns=columns)
    assert data.kind == "pair"
    assert data.counts() == {"train": 4, "dev": 4, "test": 4}
    assert data.splits["train"][0] == TextExample("row-1", ("b0", "a0"), "x")
    named = write(tmp_path / f"named{ending}", sign.join(("premise", "hypothesis", "label", "no")))
    named.write_text(named.read_text() + "\n" + sign.join("abxy") + "\n")
    with pytest.raises(ConfigError, match=r"begins with names of columns .hypothesis, premise, l"):
        load_task(str(named), columns=replace(columns, split="split"))
    path.write_text(path.read_text() + f"a{sign}b\n")
    with pytest.raises(DataError, match=r"line 13: got 2 cell\(s\), but the first line has 4"):
        load_task(path, columns=columns)


def test_labels_that_are_numbers(tmp_path: Path) -> None:
    rows = [{"first": "a", "second": "b", "label": at % 3 / 2} for at in range(12)]
    data = load_task(str(write(tmp_path / "own.jsonl", lines(*rows))))
    assert data.labels.names == ("0", "0.5", "1")


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_columns_say_what_the_examples_are(kind: str, tmp_path: Path) -> None:
    if kind in ("spans", "relations"):
        write_spans(tmp_path, relations=kind == "relations")
    else:
        write_toy(tmp_path, kind)
    assert load_task(tmp_path).kind == load_task(str(tmp_path / "train.jsonl")).kind == kind
    renamed = (tmp_path / "train.jsonl").read_text().replace('"label"', '"team"')
    named = load_task(str(write(tmp_path / "own.jsonl", renamed)), columns=Columns(label="team"))
    assert named.kind == kind


def test_columns_of_words_are_tags(tmp_path: Path) -> None:
    def kind(*tags: str) -> str:
        text = "".join(f"{word} {tags[0]}\nthe {tags[1]}\n\n" for word in CITIES[:4])
        return load_task(str(write(tmp_path / "words.conll", text))).kind

    assert kind("B-X", "O") == kind("S-X", "O") == "tagging"
    assert kind("NNP", "DT") == kind("PER", "O") == kind("-LRB-", "B-") == "words"
    # Tags that are wrong among those of spans are named, not learned.
    with pytest.raises(DataError, match=r"words\.conll, line 2: 'DT' is no tag of a span"):
        kind("B-X", "DT")
    with pytest.raises(DataError, match="tags of at least one type, but only O occurs"):
        kind("O", "O")


UNIVERSAL = """# sent_id = 1
# text = Don't go
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
2.1\tyou\tyou\tPRON\tPRP\t_\t_\t_\t_\t_
3\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\t_
"""


def test_universal_dependencies_have_words_and_two_columns_of_tags(tmp_path: Path) -> None:
    write(tmp_path / "train.conllu", UNIVERSAL)
    bare = "\n".join(f"{at}\tgo" + "\t_" * 8 for at in (1, 2))
    write(tmp_path / "test.conllu", bare)
    data = load_task(tmp_path)
    words = ("Do", "n't", "go")
    assert data.kind == "words"
    assert data.splits["train"] == [TaggedExample("train-0", words, ("AUX", "PART", "VERB"))]
    assert data.splits["test"] == [TaggedExample("test-0", ("go", "go"))]
    own = load_task(tmp_path, columns=Columns(tag_column=4))
    assert own.splits["train"] == [TaggedExample("train-0", words, ("VB", "RB", "VB"))]


def test_files_of_splits_may_end_in_their_names(tmp_path: Path) -> None:
    for split in ("train", "dev", "test"):
        write(tmp_path / f"en_ewt-ud-{split}.conllu", UNIVERSAL)
    assert load_task(tmp_path).counts() == {"train": 1, "dev": 1, "test": 1}
    write(tmp_path / "train.conllu", UNIVERSAL)
    assert load_task(tmp_path).counts() == {"train": 1}


def test_labels_are_in_the_column_of_training(tmp_path: Path) -> None:
    rows = [{"sentence1": "a", "sentence2": "b", "same": "xy"[n % 2]} for n in range(4)]
    write(tmp_path / "train.jsonl", lines(*rows))
    write(tmp_path / "dev.jsonl", lines(*rows))
    write(tmp_path / "test.jsonl", lines({"first": "a", "second": "b", "score": 0.25}))
    data = load_task(tmp_path)
    assert data.splits["test"] == [TextExample("test-1", ("a", "b"))]
    assert data.columns == {"first": "sentence1", "second": "sentence2", "label": "same"}
    words = write(tmp_path / "words.jsonl", lines({"tokens": ["go"], "pos": ["VB"]}))
    for kind in ("tagging", "spans"):
        (example,) = load_examples(words, kind)
        assert example.labels == ()


def test_rare_tags_that_training_does_not_have_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "train.conll", "Rome NNP\nfell VBD\n")
    write(tmp_path / "dev.conll", "It PRP\n\nfell VBD\n")
    data = load_task(tmp_path)
    assert data.labels.names == ("NNP", "VBD")
    assert [entry.describe() for entry in data.unseen] == [
        f"'PRP' ({tmp_path / 'dev.conll'}, line 1; 1 in dev)"
    ]
