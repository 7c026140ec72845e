"""The standard sets, on hand-made files in their real formats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from symprompt.errors import ConfigError, DataError
from symprompt.tasks.data.examples import (
    Answer,
    QuestionExample,
    TaggedExample,
    TextExample,
)
from symprompt.tasks.data.load import SETS, load_task
from symprompt.tasks.data.tags import tags_of_brackets


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


# ------------------------------------------------------------------------------------- classes


def test_sst2(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", 'sentence\tlabel\na "quoted word \t1\nbad , bad \t0\n')
    write(tmp_path / "dev.tsv", "sentence\tlabel\nfine\t1\n")
    write(tmp_path / "test.tsv", "index\tsentence\n0\tno label here\n")
    data = load_task("sst2", tmp_path)
    assert data.counts() == {"train": 2, "dev": 1, "test": 1}
    assert data.labels.names == ("0", "1")
    assert data.splits["train"][0] == TextExample("train-2", ('a "quoted word',), "1")
    assert data.splits["test"][0] == TextExample("0", ("no label here",), None)


def test_rte_as_glue_and_as_superglue(tmp_path: Path) -> None:
    header = "index\tsentence1\tsentence2\tlabel\n"
    rows = "0\tA man.\tA person.\tentailment\n1\tA man.\tA dog.\tnot_entailment\n"
    write(tmp_path / "glue/train.tsv", header + rows)
    write(tmp_path / "glue/dev.tsv", header + rows)
    row = {"premise": "A man.", "hypothesis": "A person.", "label": "entailment", "idx": 0}
    other = {"premise": "A man.", "hypothesis": "A dog.", "label": "not_entailment", "idx": 1}
    write(tmp_path / "super/train.jsonl", lines(row, other))
    write(tmp_path / "super/val.jsonl", lines(row, other))
    glue, superglue = (load_task("rte", tmp_path / name) for name in ("glue", "super"))
    assert glue == superglue
    assert glue.splits["dev"][0] == TextExample("0", ("A man.", "A person."), "entailment")


def test_boolq_and_cb(tmp_path: Path) -> None:
    rows = [
        {"question": "is it", "passage": "It is.", "idx": 0, "label": True},
        {"question": "is it not", "passage": "It is.", "idx": 1, "label": False},
    ]
    write(tmp_path / "boolq/train.jsonl", lines(*rows))
    write(tmp_path / "boolq/test.jsonl", lines({"question": "q", "passage": "p", "idx": 0}))
    data = load_task("boolq", tmp_path / "boolq")
    assert data.labels.names == ("false", "true")
    assert data.splits["train"][0] == TextExample("0", ("is it", "It is."), "true")
    assert data.splits["test"][0] == TextExample("0", ("q", "p"), None)
    names = ("contradiction", "entailment", "neutral")
    cb = [{"premise": "p", "hypothesis": "h", "label": name, "idx": 3} for name in names]
    for name in ("train", "dev32", "val"):
        write(tmp_path / f"CB/{name}.jsonl", lines(*cb))
    data = load_task("cb", tmp_path / "CB")
    assert data.counts() == {"train": 3, "dev": 3, "dev32": 3}
    assert data.labels.names == names


def test_mnli_as_glue_and_as_published(tmp_path: Path) -> None:
    columns = [
        "index",
        "promptID",
        "pairID",
        "genre",
        "sentence1_binary_parse",
        "sentence2_binary_parse",
        "sentence1_parse",
        "sentence2_parse",
        "sentence1",
        "sentence2",
        "label1",
    ]
    cells = ["0", "31193", "31193n", "government", "(a)", "(b)", "(c)", "(d)", "One.\tTwo"]
    names = ("neutral", "entailment", "contradiction")
    body = "".join("\t".join([*cells, name, name]) + "\n" for name in names)
    write(tmp_path / "glue/train.tsv", "\t".join([*columns, "gold_label"]) + "\n" + body)
    for name in ("dev_matched", "dev_mismatched"):
        write(tmp_path / f"glue/{name}.tsv", "\t".join([*columns, "gold_label"]) + "\n" + body)
    short = "\t".join(columns[:-1])
    write(tmp_path / "glue/test_matched.tsv", short + "\n" + "\t".join(cells) + "\n")
    data = load_task("mnli", tmp_path / "glue")
    assert data.counts() == {"train": 3, "dev": 3, "dev-mismatched": 3, "test": 1}
    assert data.splits["train"][0] == TextExample("31193n", ("One.", "Two"), "neutral")
    assert data.labels.names == ("contradiction", "entailment", "neutral")
    rows = [
        {"pairID": "a", "sentence1": "One.", "sentence2": "Two", "gold_label": name, "genre": "x"}
        for name in (*names, "-")
    ]
    write(tmp_path / "own/multinli_1.0_train.jsonl", lines(*rows))
    write(tmp_path / "own/multinli_1.0_dev_matched.jsonl", lines(*rows))
    data = load_task("mnli", tmp_path / "own")
    assert data.counts() == {"train": 3, "dev": 3}
    assert data.dropped == {"train: no gold label": 1, "dev: no gold label": 1}


# ------------------------------------------------------------------------------------ entities

CONLL2003 = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC
# # I-NP O

Paris NNP I-NP I-LOC
Rome NNP I-NP B-LOC
Oslo NNP I-NP I-ORG
"""


def test_conll2003_is_read_as_iob2(tmp_path: Path) -> None:
    for name in ("train", "testa", "testb"):
        write(tmp_path / f"deep/eng.{name}", CONLL2003)
    data = load_task("conll2003", tmp_path)
    assert data.counts() == {"train": 2, "dev": 2, "test": 2}
    first, second = data.splits["train"]
    assert first == TaggedExample(
        "train-0", ("EU", "rejects", "German", "#"), ("B-ORG", "O", "B-MISC", "O")
    )
    assert isinstance(second, TaggedExample)
    assert second.tags == ("B-LOC", "B-LOC", "B-ORG")
    assert data.labels.names == ("O", "B-LOC", "I-LOC", "B-MISC", "I-MISC", "B-ORG", "I-ORG")


def test_conll2004(tmp_path: Path) -> None:
    text = (
        "#doc 12\n0\tGrande\tB-Loc\t['N']\t[0]\n1\tIsle\tI-Loc\t['Located_In']\t[2]\n"
        "2\t,\tO\t['N']\t[2]\n#doc 7\n0\tAnn\tB-Peop\t['N']\t[0]\n"
    )
    for name in ("train", "dev", "test"):
        write(tmp_path / f"{name}.txt", text)
    data = load_task("conll2004", tmp_path)
    assert data.splits["dev"] == [
        TaggedExample("dev-0", ("Grande", "Isle", ","), ("B-Loc", "I-Loc", "O")),
        TaggedExample("dev-1", ("Ann",), ("B-Peop",)),
    ]


def test_wikigold_is_parted_by_document(tmp_path: Path) -> None:
    one = "{0} I-MISC\nis O\n\nAgain{0} I-MISC\n\n-DOCSTART- O\n\n"
    write(tmp_path / "wikigold.conll.txt", "".join(one.format(n) for n in range(20)))
    data = load_task("wikigold", tmp_path)
    assert data.counts() == {"train": 32, "dev": 4, "test": 4}
    documents = [
        {example.words[0].removeprefix("Again") for example in part if hasattr(example, "words")}
        for part in data.splits.values()
    ]
    assert sum(map(len, documents)) == 20
    assert data == load_task("wikigold", tmp_path)
    assert data != load_task("wikigold", tmp_path, seed=1)


def test_gum(tmp_path: Path) -> None:
    text = "\nThe\tB-object\nback\tI-object\nsays\tO\n"
    home = tmp_path / "GUM/CONLL-format/data"
    write(home / "train/gum-train.conll", text)
    write(home / "test/gum-test.conll", text + "\nAnn\tB-person\n")
    data = load_task("gum", tmp_path)
    assert data.counts() == {"train": 1, "test": 2}
    (unseen,) = data.unseen
    assert (unseen.split, unseen.label, unseen.count, unseen.line) == ("test", "B-person", 1, 6)


GOLD = """#begin document (bc/cctv/00/cctv_0000); part 000
bc/cctv/00/cctv_0000 0 0 John NNP (TOP(S(NP* - - - Speaker#1 (PERSON) (ARG0*) * (1
bc/cctv/00/cctv_0000 0 1 Smith NNP *) - - - Speaker#1 * * * 1)
bc/cctv/00/cctv_0000 0 2 likes VBZ (VP* like 01 1 Speaker#1 * (V*) * -
bc/cctv/00/cctv_0000 0 3 buying VBG (S(VP* buy 01 1 Speaker#1 * (ARG1* (V*) -
bc/cctv/00/cctv_0000 0 4 New NNP (NP* - - - Speaker#1 (GPE* * (ARG1* -
bc/cctv/00/cctv_0000 0 5 York NNP *))))) - - - Speaker#1 *) *) *) -

bc/cctv/00/cctv_0000 0 0 Yes UH (TOP*) - - - Speaker#1 * -

#end document
"""


def test_ontonotes_and_conll12_from_gold_conll(tmp_path: Path) -> None:
    for split in ("train", "development", "test"):
        write(tmp_path / f"v4/data/{split}/data/english/bc/cctv_0000.v4_gold_conll", GOLD)
    entities = load_task("ontonotes", tmp_path)
    assert entities.counts() == {"train": 2, "dev": 2, "test": 2}
    first = entities.splits["train"][0]
    assert isinstance(first, TaggedExample)
    assert first.words == ("John", "Smith", "likes", "buying", "New", "York")
    assert first.tags == ("B-PERSON", "O", "O", "O", "B-GPE", "I-GPE")
    roles = load_task("conll12", tmp_path)
    assert roles.counts() == {"train": 2, "dev": 2, "test": 2}
    likes, buying = roles.splits["dev"]
    assert likes == TaggedExample(
        "dev-0-0", first.words, ("B-ARG0", "O", "B-V", "B-ARG1", "I-ARG1", "I-ARG1"), 2
    )
    assert buying == TaggedExample(
        "dev-0-1", first.words, ("O", "O", "O", "B-V", "B-ARG1", "I-ARG1"), 3
    )


def test_ontonotes_in_columns_and_with_other_marks(tmp_path: Path) -> None:
    text = "New NNP B-GPE\nYork NNP E-GPE\nin IN O\nMay NNP S-DATE\n"
    for name in ("train", "dev", "test"):
        write(tmp_path / f"{name}.conll", text)
    example = load_task("ontonotes", tmp_path).splits["test"][0]
    assert isinstance(example, TaggedExample)
    assert example.tags == ("B-GPE", "I-GPE", "O", "B-DATE")


# --------------------------------------------------------------------------------------- roles


@pytest.mark.parametrize(
    ("cells", "tags"),
    [
        ("(A0*) (V*) (A1* * *)", "B-A0 B-V B-A1 I-A1 I-A1"),
        ("(A0*A0) (V*V) * (A1* *A1)", "B-A0 B-V O B-A1 I-A1"),
        ("(A1(A2* *) * *) *", "B-A1 I-A1 I-A1 I-A1 O"),
        ("(GPE) * (ORG* *)", "B-GPE O B-ORG I-ORG"),
    ],
)
def test_brackets_become_tags(cells: str, tags: str) -> None:
    assert tags_of_brackets(cells.split(), Path("f"), 7) == tuple(tags.split())


@pytest.mark.parametrize(
    ("cells", "place", "wrong"),
    [
        ("* *)", 1, "closes a bracket"),
        ("(A0* *", 1, "'A0' is never closed"),
        ("* B-A0", 1, "no bracketed tag"),
    ],
)
def test_broken_brackets_are_named(cells: str, place: int, wrong: str) -> None:
    with pytest.raises(DataError, match=f"f, line {7 + place}: .*{wrong}"):
        tags_of_brackets(cells.split(), Path("f"), 7)


def test_propbank(tmp_path: Path) -> None:
    frames = [
        {"i": 1, "roleset": "be.01", "args": ["(ARG2*)", "(V*)", "(ARG1*", "*)"]},
        {"i": 3, "roleset": "x.01", "args": ["*", "*", "*", "(V*)"]},
    ]
    words = ["What", "is", "this", "Miramar"]
    row = {"words": words, "pos": ["WP", "VBZ", "DT", "NNP"], "frames": frames}
    empty = {"words": ["Yes"], "pos": ["UH"], "frames": []}
    for name in ("train", "dev", "test"):
        write(tmp_path / f"{name}.jsonl", lines(empty, row))
    data = load_task("propbank-ewt", tmp_path)
    assert data.counts() == {"train": 2, "dev": 2, "test": 2}
    assert data.splits["train"][0] == TaggedExample(
        "train-2-0", tuple(words), ("B-ARG2", "B-V", "B-ARG1", "I-ARG1"), 1
    )
    assert "B-ARG1" in data.labels


WORDS_FILE = "We\nsaw\nhim\nrun\n\nYes\n\n"
PROPS_FILE = "- (A0*) *\nsee (V*) *\n- (A1* (A0*)\nrun *) (V*)\n\n-\n\n"


def test_conll05_in_three_formats(tmp_path: Path) -> None:
    names = {
        "train.02": "train",
        "devel.24": "dev",
        "test.wsj": "test",
        "test.brown": "test-brown",
    }
    for stem in names:
        write(tmp_path / f"pairs/{stem}.words", WORDS_FILE)
        write(tmp_path / f"pairs/{stem}.props", PROPS_FILE)
        pairs = zip(WORDS_FILE.split("\n"), PROPS_FILE.split("\n"), strict=True)
        joined = [f"{word} NN (S* O - {props}" if word else "" for word, props in pairs]
        write(tmp_path / f"columns/{stem}.txt", "\n".join(joined))
        text = "1 We saw him run ||| B-A0 B-V B-A1 I-A1\n3 We saw him run ||| O O B-A0 B-V\n"
        write(tmp_path / f"lines/conll05.{stem}.txt", text)
    wanted = [
        (1, ("B-A0", "B-V", "B-A1", "I-A1")),
        (3, ("O", "O", "B-A0", "B-V")),
    ]
    for form in ("pairs", "columns", "lines"):
        data = load_task("conll05", tmp_path / form)
        assert set(data.splits) == set(names.values())
        for part in data.splits.values():
            found = [
                (example.predicate, example.tags)
                for example in part
                if isinstance(example, TaggedExample)
            ]
            assert found == wanted
            assert all(
                example.words == ("We", "saw", "him", "run")
                for example in part
                if isinstance(example, TaggedExample)
            )


# ------------------------------------------------------------------------------------ questions

PARAGRAPH = {
    "context": "  Normandy is in France. All of socially all.",
    "qas": [
        {
            "id": "a",
            "question": "Where?",
            "answers": [{"text": "France", "answer_start": 17}, {"text": "in", "answer_start": 14}],
        },
        {
            "id": "b",
            "question": "Who?",
            "answers": [],
            "is_impossible": True,
            "plausible_answers": [{"text": "Normandy", "answer_start": 2}],
        },
    ],
}


def test_squad_as_published(tmp_path: Path) -> None:
    article = {"title": "Normans", "paragraphs": [PARAGRAPH]}
    for name in ("train", "dev"):
        text = json.dumps({"version": "v2.0", "data": [article]})
        write(tmp_path / f"{name}-v2.0.json", text)
    data = load_task("squad2", tmp_path)
    first, second = data.splits["train"]
    context = str(PARAGRAPH["context"])
    assert first == QuestionExample(
        "a", "Where?", context, (Answer(17, "France"), Answer(14, "in"))
    )
    assert second == QuestionExample("b", "Who?", context, ())
    assert data.labels.names == ()


def test_squad_as_json_lines_whose_starts_are_not_known(tmp_path: Path) -> None:
    answers = [{"text": "all", "first_start": 36}]
    row = {
        "title": "x",
        "context": PARAGRAPH["context"],
        "qas": [{"question": "How?", "answers": answers}],
    }
    for name in ("train", "dev", "dev-v2.0"):
        write(tmp_path / f"{name}.jsonl", lines(row))
    data = load_task("squad", tmp_path)
    example = data.splits["train"][0]
    assert isinstance(example, QuestionExample)
    # The first match lies inside "socially"; the word itself comes later.
    assert example.context[36:39] == "all"
    assert example.answers == (Answer(41, "all"),)
    second = load_task("squad2", tmp_path)
    assert second.counts() == {"dev": 1}


# ---------------------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize("name", SETS)
def test_a_set_that_is_not_there_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"holds no files of {name}"):
        load_task(name, tmp_path)
    with pytest.raises(ConfigError, match=f"{name} needs the path"):
        load_task(name)


def test_two_sets_in_one_folder_are_not_mixed(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write(tmp_path / folder / "train.tsv", "sentence\tlabel\nx\t1\n")
    with pytest.raises(DataError, match="holds 2 folders with files of sst2"):
        load_task("sst2", tmp_path)
    with pytest.raises(DataError, match=r"train\.tsv is a file"):
        load_task("sst2", tmp_path / "a/train.tsv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("EU NNP I-NP I-ORG\nrejects VBZ O\n", "line 2: got 3 column.*not aligned"),
        ("EU NNP I-NP I-ORG\n\nx NNP I-NP ORG\n", "line 3: 'ORG' is no tag"),
        ("EU\tNNP\tI-NP\t\n", "line 1: .*column of tags is empty"),
    ],
)
def test_misaligned_tags_are_refused_with_their_line(
    text: str, message: str, tmp_path: Path
) -> None:
    write(tmp_path / "eng.train", text)
    with pytest.raises(DataError, match=rf"eng\.train, {message}"):
        load_task("conll2003", tmp_path)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            {"text": "France", "answer_start": 900},
            "'France' of 'a' at 900 lies outside its context",
        ),
        ({"text": "France", "answer_start": -1}, "at -1 lies outside"),
        ({"text": "France", "answer_start": 16}, "its context has ' Franc' at 16"),
        ({"text": "France", "answer_start": "x"}, "only a whole number"),
        ({"text": "Spain"}, "'Spain' of 'a' does not occur in its context"),
        ({"text": ""}, "only text is allowed"),
    ],
)
def test_answers_outside_their_context_are_refused(
    answer: dict[str, object], message: str, tmp_path: Path
) -> None:
    question = {"id": "a", "question": "Where?", "answers": [answer]}
    row = {"context": PARAGRAPH["context"], "qas": [question]}
    write(tmp_path / "train.jsonl", "\n" + lines(row))
    with pytest.raises(DataError, match=rf"train\.jsonl, line 2: .*{message}"):
        load_task("squad", tmp_path)


def test_broken_squad_files_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "train-v1.1.json", '{"data": [{"title": "x"}]}')
    with pytest.raises(DataError, match="is no SQuAD file"):
        load_task("squad", tmp_path)
    broken = {"data": [{"paragraphs": [{"context": "c", "qas": 3}]}]}
    write(tmp_path / "train-v1.1.json", json.dumps(broken))
    with pytest.raises(DataError, match="paragraph 1: a paragraph has no list of 'qas'"):
        load_task("squad", tmp_path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"words": ["a", "b"], "frames": [{"i": 0, "args": ["(V*)"]}]}, r"1 tag\(s\) for 2 word"),
        ({"words": ["a"], "frames": [{"i": 4, "args": ["(V*)"]}]}, "the predicate is 4"),
        ({"words": ["a"], "frames": [{"i": 0, "args": ["(V*"]}]}, "never closed"),
        ({"words": ["a"]}, "no list of 'frames'"),
        ({"words": "", "frames": []}, "only a list of words"),
    ],
)
def test_broken_roles_are_refused(row: dict[str, object], message: str, tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", lines(row))
    with pytest.raises(DataError, match=rf"train\.jsonl, line 1: .*{message}"):
        load_task("propbank-ewt", tmp_path)


@pytest.mark.parametrize(
    ("words", "props", "message"),
    [
        (WORDS_FILE, PROPS_FILE + "-\n", r"2 sentence\(s\) and train.props 3"),
        (WORDS_FILE.replace("run\n", ""), PROPS_FILE, "line 1: got roles for 4 word"),
        (WORDS_FILE, PROPS_FILE.replace("run *)", "- *)"), r"1 predicate\(s\) and 2"),
        (WORDS_FILE, PROPS_FILE.replace("run *)", "run *"), "line 4: .*never closed"),
    ],
)
def test_broken_props_are_refused(words: str, props: str, message: str, tmp_path: Path) -> None:
    write(tmp_path / "train.words", words)
    write(tmp_path / "train.props", props)
    with pytest.raises(DataError, match=message):
        load_task("conll05", tmp_path)


def test_broken_gold_conll_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "train/x.gold_conll", GOLD.replace("(V*)", "*"))
    with pytest.raises(DataError, match="column 11 has no predicate"):
        load_task("conll12", tmp_path)
    write(path, "#begin document\na b c\n")
    with pytest.raises(DataError, match=r"line 2: got 3 column\(s\)"):
        load_task("ontonotes", tmp_path)


def test_a_label_that_training_does_not_have_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", "sentence\tlabel\nx\t1\ny\t0\n")
    write(tmp_path / "dev.tsv", "sentence\tlabel\nx\t1\ny\t2\n")
    with pytest.raises(DataError, match=r"dev\.tsv, line 3: the label '2' of dev does not occur"):
        load_task("sst2", tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sentence\tgold\nx\t1\n", "line 2: there is no column 'label', only .'sentence', 'gold'"),
        ("sentence\tlabel\nx\t1\ty\n", r"line 2: got 3 cell\(s\), but the header has 2"),
        ("sentence\tlabel\nx\t\n", "line 2: the label 'label' is ''"),
        ("sentence\tsentence\nx\t1\n", "line 1: a column name is repeated"),
        ("sentence\tlabel\n \t1\n", "line 2: 'sentence' is empty"),
        ("sentence\tlabel\n", "split 'train' of sst2 has no examples"),
        ("sentence\tlabel\nx\t1\ny\t1\n", "at least two"),
    ],
)
def test_broken_tables_are_refused(text: str, message: str, tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", text)
    with pytest.raises(DataError, match=message):
        load_task("sst2", tmp_path)
