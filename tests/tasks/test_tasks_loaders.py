"""The standard sets, on hand-made files in their real formats."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from symprompt.errors import DataError
from symprompt.tasks.data.examples import (
    Answer,
    Example,
    QuestionExample,
    TaggedExample,
    TextExample,
)
from symprompt.tasks.data.load import SETS, load_task
from symprompt.tasks.data.sentences import tags_of_brackets
from tiny.labelled import lines


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


RTE = [
    {"premise": "A man.", "hypothesis": "A person.", "label": "entailment", "idx": 0},
    {"premise": "A man.", "hypothesis": "A dog.", "label": "not_entailment", "idx": 1},
]
RTE_TABLE = (
    "index\tsentence1\tsentence2\tlabel\n"
    "0\tA man.\tA person.\tentailment\n1\tA man.\tA dog.\tnot_entailment\n"
)
RTE_FIRST = TextExample("0", ("A man.", "A person."), "entailment")
BOOLQ = [
    {"question": "is it", "passage": "It is.", "idx": 0, "label": True},
    {"question": "is it not", "passage": "It is.", "idx": 1, "label": False},
]
NAMES = ("contradiction", "entailment", "neutral")
CB = lines(*({"premise": "p", "hypothesis": "h", "label": name, "idx": 3} for name in NAMES))
COLUMNS = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t"
    "sentence1_parse\tsentence2_parse\tsentence1\tsentence2"
)
CELLS = "0\t31193\t31193n\tgovernment\t(a)\t(b)\t(c)\t(d)\tOne.\tTwo"
MNLI_TABLE = f"{COLUMNS}\tlabel1\tgold_label\n" + "".join(
    f"{CELLS}\t{name}\t{name}\n" for name in NAMES
)
MNLI = lines(
    *(
        {"pairID": "a", "sentence1": "One.", "sentence2": "Two", "gold_label": name, "genre": "x"}
        for name in (*NAMES, "-")
    )
)
CONLL2003 = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC
# # I-NP O

Paris NNP I-NP I-LOC
Rome NNP I-NP B-LOC
Oslo NNP I-NP I-ORG
"""
CONLL2004 = (
    "#doc 12\n0\tGrande\tB-Loc\t['N']\t[0]\n1\tIsle\tI-Loc\t['Located_In']\t[2]\n"
    "2\t,\tO\t['N']\t[2]\n#doc 7\n0\tAnn\tB-Peop\t['N']\t[0]\n"
)
GUM = "\nThe\tB-object\nback\tI-object\nsays\tO\n"
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
GOLD_FILES = {
    f"v4/data/{split}/data/english/bc/cctv_0000.v4_gold_conll": GOLD
    for split in ("train", "development", "test")
}
GOLD_WORDS = ("John", "Smith", "likes", "buying", "New", "York")
PROPBANK = lines(
    {"words": ["Yes"], "pos": ["UH"], "frames": []},
    {
        "words": ["What", "is", "this", "Miramar"],
        "pos": ["WP", "VBZ", "DT", "NNP"],
        "frames": [
            {"i": 1, "roleset": "be.01", "args": ["(ARG2*)", "(V*)", "(ARG1*", "*)"]},
            {"i": 3, "roleset": "x.01", "args": ["*", "*", "*", "(V*)"]},
        ],
    },
)
CONTEXT = "  Normandy is in France. All of socially all."
PARAGRAPH = {
    "context": CONTEXT,
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
SQUAD = json.dumps({"version": "v2.0", "data": [{"title": "Normans", "paragraphs": [PARAGRAPH]}]})
# The first match lies inside "socially"; the word itself comes later.
UNPLACED = lines(
    {
        "title": "x",
        "context": CONTEXT,
        "qas": [{"id": "c", "question": "How?", "answers": [{"text": "all", "first_start": 36}]}],
    }
)


def each(names: str, text: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), text)


@pytest.mark.parametrize(
    ("name", "files", "counts", "labels", "firsts"),
    [
        (
            "sst2",
            {
                "train.tsv": 'sentence\tlabel\na "quoted word \t1\nbad , bad \t0\n',
                "dev.tsv": "sentence\tlabel\nfine\t1\n",
                "test.tsv": "index\tsentence\n0\tno label here\n",
            },
            "train 2, dev 1, test 1",
            "0 1",
            {
                "train": [TextExample("train-2", ('a "quoted word',), "1")],
                "test": [TextExample("0", ("no label here",), None)],
            },
        ),
        (
            "rte",
            each("train.tsv dev.tsv", RTE_TABLE),
            "train 2, dev 2",
            "entailment not_entailment",
            {"dev": [RTE_FIRST]},
        ),
        (
            "rte",
            each("train.jsonl val.jsonl", lines(*RTE)),
            "train 2, dev 2",
            "entailment not_entailment",
            {"dev": [RTE_FIRST]},
        ),
        (
            "boolq",
            {
                "train.jsonl": lines(*BOOLQ),
                "test.jsonl": lines({"question": "q", "passage": "p", "idx": 0}),
            },
            "train 2, test 1",
            "false true",
            {
                "train": [TextExample("0", ("is it", "It is."), "true")],
                "test": [TextExample("0", ("q", "p"), None)],
            },
        ),
        (
            "cb",
            each("CB/train.jsonl CB/dev32.jsonl CB/val.jsonl", CB),
            "train 3, dev 3, dev32 3",
            " ".join(NAMES),
            {"dev32": [TextExample("3", ("p", "h"), "contradiction")]},
        ),
        (
            "mnli",
            {
                **each("train.tsv dev_matched.tsv dev_mismatched.tsv", MNLI_TABLE),
                "test_matched.tsv": f"{COLUMNS}\n{CELLS}\n",
            },
            "train 3, dev 3, dev-mismatched 3, test 1",
            " ".join(NAMES),
            {"train": [TextExample("31193n", ("One.", "Two"), "contradiction")]},
        ),
        (
            "mnli",
            each("multinli_1.0_train.jsonl multinli_1.0_dev_matched.jsonl", MNLI),
            "train 3, dev 3; train: no gold label 1, dev: no gold label 1",
            " ".join(NAMES),
            {},
        ),
        (
            "conll2003",
            each("deep/eng.train deep/eng.testa deep/eng.testb", CONLL2003),
            "train 2, dev 2, test 2",
            "O B-LOC I-LOC B-MISC I-MISC B-ORG I-ORG",
            {
                "train": [
                    TaggedExample(
                        "train-0", ("EU", "rejects", "German", "#"), ("B-ORG", "O", "B-MISC", "O")
                    ),
                    TaggedExample(
                        "train-1", ("Paris", "Rome", "Oslo"), ("B-LOC", "B-LOC", "B-ORG")
                    ),
                ]
            },
        ),
        (
            "conll2004",
            each("train.txt dev.txt test.txt", CONLL2004),
            "train 2, dev 2, test 2",
            "O B-Loc I-Loc B-Peop I-Peop",
            {
                "dev": [
                    TaggedExample("dev-0", ("Grande", "Isle", ","), ("B-Loc", "I-Loc", "O")),
                    TaggedExample("dev-1", ("Ann",), ("B-Peop",)),
                ]
            },
        ),
        (
            "ontonotes",
            GOLD_FILES,
            "train 2, dev 2, test 2",
            "O B-GPE I-GPE B-PERSON I-PERSON",
            {
                "train": [
                    TaggedExample(
                        "train-0", GOLD_WORDS, ("B-PERSON", "O", "O", "O", "B-GPE", "I-GPE")
                    )
                ]
            },
        ),
        (
            "ontonotes",
            each(
                "train.conll dev.conll test.conll",
                "New NNP B-GPE\nYork NNP E-GPE\nin IN O\nMay NNP S-DATE\n",
            ),
            "train 1, dev 1, test 1",
            "O B-DATE I-DATE B-GPE I-GPE",
            {
                "test": [
                    TaggedExample(
                        "test-0", ("New", "York", "in", "May"), ("B-GPE", "I-GPE", "O", "B-DATE")
                    )
                ]
            },
        ),
        (
            "conll12",
            GOLD_FILES,
            "train 2, dev 2, test 2",
            "O B-ARG0 I-ARG0 B-ARG1 I-ARG1 B-V I-V",
            {
                "dev": [
                    TaggedExample(
                        "dev-0-0",
                        GOLD_WORDS,
                        ("B-ARG0", "O", "B-V", "B-ARG1", "I-ARG1", "I-ARG1"),
                        2,
                    ),
                    TaggedExample(
                        "dev-0-1", GOLD_WORDS, ("O", "O", "O", "B-V", "B-ARG1", "I-ARG1"), 3
                    ),
                ]
            },
        ),
        (
            "propbank-ewt",
            each("train.jsonl dev.jsonl test.jsonl", PROPBANK),
            "train 2, dev 2, test 2",
            "O B-ARG1 I-ARG1 B-ARG2 I-ARG2 B-V I-V",
            {
                "train": [
                    TaggedExample(
                        "train-2-0",
                        ("What", "is", "this", "Miramar"),
                        ("B-ARG2", "B-V", "B-ARG1", "I-ARG1"),
                        1,
                    )
                ]
            },
        ),
        (
            "squad2",
            each("train-v2.0.json dev-v2.0.json", SQUAD),
            "train 2, dev 2",
            "",
            {
                "train": [
                    QuestionExample(
                        "a", "Where?", CONTEXT, (Answer(17, "France"), Answer(14, "in"))
                    ),
                    QuestionExample("b", "Who?", CONTEXT, ()),
                ]
            },
        ),
        (
            "squad",
            each("train.jsonl dev.jsonl dev-v2.0.jsonl", UNPLACED),
            "train 1, dev 1",
            "",
            {"train": [QuestionExample("c", "How?", CONTEXT, (Answer(41, "all"),))]},
        ),
        ("squad2", each("dev-v2.0.jsonl", UNPLACED), "dev 1", "", {}),
    ],
)
def test_sets(
    name: str,
    files: dict[str, str],
    counts: str,
    labels: str,
    firsts: dict[str, Sequence[Example]],
    tmp_path: Path,
) -> None:
    data = load_task(write(tmp_path, files), name)
    listed = [", ".join(f"{k} {v}" for k, v in x.items()) for x in (data.counts(), data.dropped)]
    assert "; ".join(filter(None, listed)) == counts
    assert data.labels.names == tuple(labels.split())
    for split, wanted in firsts.items():
        assert list(data.splits[split][: len(wanted)]) == wanted


@pytest.mark.parametrize(
    ("name", "files", "first"),
    [
        (
            "conll2003",
            each("eng.train eng.testa eng.testb", CONLL2003),
            TaggedExample("train-0", ("EU", "rejects", "German", "#"), ("NNP", "VBZ", "JJ", "#")),
        ),
        (
            "propbank-ewt",
            each("train.jsonl dev.jsonl test.jsonl", PROPBANK),
            TaggedExample("train-1", ("Yes",), ("UH",)),
        ),
    ],
)
def test_sets_have_parts_of_speech_too(
    name: str, files: dict[str, str], first: Example, tmp_path: Path
) -> None:
    data = load_task(write(tmp_path, files), name, kind="words")
    assert data.kind == "words"
    assert data.splits["train"][0] == first
    assert data.labels.names == tuple(sorted({*first.labels, *data.splits["train"][1].labels}))


def test_wikigold_is_parted_by_document(tmp_path: Path) -> None:
    one = "{0} I-MISC\nis O\n\nAgain{0} I-MISC\n\n-DOCSTART- O\n\n"
    write(tmp_path, {"wikigold.conll.txt": "".join(one.format(n) for n in range(20))})
    data = load_task(tmp_path, "wikigold")
    assert data.counts() == {"train": 32, "dev": 4, "test": 4}
    documents = [
        {example.words[0].removeprefix("Again") for example in part if hasattr(example, "words")}
        for part in data.splits.values()
    ]
    assert sum(map(len, documents)) == 20
    assert data == load_task(tmp_path, "wikigold")
    assert data != load_task(tmp_path, "wikigold", seed=1)


def test_labels_that_training_lacks_are_kept_in_mind(tmp_path: Path) -> None:
    files = {"train/gum-train.conll": GUM, "test/gum-test.conll": GUM + "\nAnn\tB-person\n"}
    write(tmp_path / "GUM/CONLL-format/data", files)
    data = load_task(tmp_path, "gum")
    assert data.counts() == {"train": 1, "test": 2}
    (unseen,) = data.unseen
    assert (unseen.split, unseen.label, unseen.count, unseen.line) == ("test", "B-person", 1, 6)


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
    ("cells", "wrong"),
    [
        ("* *)", "closes a bracket"),
        ("(A0* *", "'A0' is never closed"),
        ("* B-A0", "no bracketed tag"),
    ],
)
def test_broken_brackets_are_named(cells: str, wrong: str) -> None:
    with pytest.raises(DataError, match=f"f, line 8: .*{wrong}"):
        tags_of_brackets(cells.split(), Path("f"), 7)


WORDS_FILE = "We\nsaw\nhim\nrun\n\nYes\n\n"
PROPS_FILE = "- (A0*) *\nsee (V*) *\n- (A1* (A0*)\nrun *) (V*)\n\n-\n\n"


def test_conll05_in_three_formats(tmp_path: Path) -> None:
    names = {
        "train.02": "train",
        "devel.24": "dev",
        "test.wsj": "test",
        "test.brown": "test-brown",
    }
    pairs = zip(WORDS_FILE.split("\n"), PROPS_FILE.split("\n"), strict=True)
    joined = "\n".join(f"{word} NN (S* O - {props}" if word else "" for word, props in pairs)
    text = "1 We saw him run ||| B-A0 B-V B-A1 I-A1\n3 We saw him run ||| O O B-A0 B-V\n"
    for stem in names:
        files = {f"pairs/{stem}.words": WORDS_FILE, f"pairs/{stem}.props": PROPS_FILE}
        files |= {f"columns/{stem}.txt": joined, f"lines/conll05.{stem}.txt": text}
        write(tmp_path, files)
    for form in ("pairs", "columns", "lines"):
        data = load_task(tmp_path / form, "conll05")
        assert set(data.splits) == set(names.values())
        for part in data.splits.values():
            found = [(x.words, x.predicate, x.tags) for x in part if isinstance(x, TaggedExample)]
            words = ("We", "saw", "him", "run")
            assert found == [
                (words, 1, ("B-A0", "B-V", "B-A1", "I-A1")),
                (words, 3, ("O", "O", "B-A0", "B-V")),
            ]


# ---------------------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize("name", SETS)
def test_a_set_that_is_not_there_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"holds no files of {name}"):
        load_task(tmp_path, name)


def test_two_sets_in_one_folder_are_not_mixed(tmp_path: Path) -> None:
    write(tmp_path, each("a/train.tsv b/train.tsv", "sentence\tlabel\nx\t1\n"))
    with pytest.raises(DataError, match="holds 2 folders with files of sst2"):
        load_task(tmp_path, "sst2")
    with pytest.raises(DataError, match=r"train\.tsv is a file"):
        load_task(tmp_path / "a/train.tsv", "sst2")


def answered(answer: object) -> dict[str, str]:
    question = {"id": "a", "question": "Where?", "answers": [answer]}
    return {"train.jsonl": "\n" + lines({"context": CONTEXT, "qas": [question]})}


def framed(*frames: object, words: object = ("a",)) -> dict[str, str]:
    return {"train.jsonl": lines({"words": words, "frames": list(frames)})}


def propped(words: str, props: str) -> dict[str, str]:
    return {"train.words": words, "train.props": props}


@pytest.mark.parametrize(
    ("name", "files", "message"),
    [
        # tables
        (
            "sst2",
            {"train.tsv": "sentence\tgold\nx\t1\n"},
            r"line 2: there is no column 'label', on",
        ),
        (
            "sst2",
            {"train.tsv": "sentence\tlabel\nx\t1\ty\n"},
            r"line 2: got 3 cell\(s\), but the h",
        ),
        ("sst2", {"train.tsv": "sentence\tlabel\nx\t\n"}, "line 2: the label 'label' is ''"),
        ("sst2", {"train.tsv": "sentence\tsentence\nx\t1\n"}, "line 1: a column name is repeated"),
        ("sst2", {"train.tsv": "sentence\tlabel\n \t1\n"}, "line 2: 'sentence' is empty"),
        ("sst2", {"train.tsv": "sentence\tlabel\n"}, "split 'train' of sst2 has no examples"),
        ("sst2", {"train.tsv": "sentence\tlabel\nx\t1\ny\t1\n"}, "at least two"),
        (
            "sst2",
            {
                "train.tsv": "sentence\tlabel\nx\t1\ny\t0\n",
                "dev.tsv": "sentence\tlabel\nx\t1\ny\t2\n",
            },
            r"dev\.tsv, line 3: the label '2' of dev does not occur",
        ),
        # tags
        (
            "conll2003",
            {"eng.train": "EU NNP I-NP I-ORG\nrejects VBZ O\n"},
            r"eng\.train, line 2: got 3 column.*not aligned",
        ),
        (
            "conll2003",
            {"eng.train": "EU NNP I-NP I-ORG\n\nx NNP I-NP ORG\n"},
            r"eng\.train, line 3: 'ORG' is no tag",
        ),
        (
            "conll2003",
            {"eng.train": "EU\tNNP\tI-NP\t\n"},
            r"eng\.train, line 1: .*column of tags is empty",
        ),
        # roles
        (
            "propbank-ewt",
            framed({"i": 0, "args": ["(V*)"]}, words=["a", "b"]),
            r"train\.jsonl, line 1: .*1 tag\(s\) for 2 word",
        ),
        ("propbank-ewt", framed({"i": 4, "args": ["(V*)"]}), "the predicate is 4"),
        ("propbank-ewt", framed({"args": ["(V*)"]}), "the predicate is None"),
        ("propbank-ewt", framed({"i": 0, "args": ["(V*"]}), "line 1: .*never closed"),
        ("propbank-ewt", framed({"i": 0}), "it needs 'i' and a list of 'args'"),
        ("propbank-ewt", {"train.jsonl": lines({"words": ["a"]})}, "no list of 'frames'"),
        ("propbank-ewt", framed(words=""), "only a list of words"),
        (
            "conll05",
            propped(WORDS_FILE, PROPS_FILE + "-\n"),
            r"2 sentence\(s\) and train.props 3",
        ),
        (
            "conll05",
            propped(WORDS_FILE.replace("run\n", ""), PROPS_FILE),
            "line 1: got roles for 4 word",
        ),
        (
            "conll05",
            propped(WORDS_FILE, PROPS_FILE.replace("run *)", "- *)")),
            r"1 predicate\(s\) and 2",
        ),
        (
            "conll05",
            propped(WORDS_FILE, PROPS_FILE.replace("run *)", "run *")),
            "line 4: .*never closed",
        ),
        ("conll05", {"train.txt": "0 We ||| B-V\nWe\n"}, "line 2: 'We' is not of the form 'place"),
        ("conll05", {"train.txt": "We PRP see\n"}, "line 1: no column names as many predicates"),
        (
            "conll12",
            {"train/x.gold_conll": GOLD.replace("(V*)", "*")},
            "column 11 has no predicate",
        ),
        (
            "ontonotes",
            {"train/x.gold_conll": "#begin document\na b c\n"},
            r"line 2: got 3 column\(s\)",
        ),
        # questions
        (
            "squad",
            answered({"text": "France", "answer_start": 900}),
            r"train\.jsonl, line 2: .*'France' of 'a' at 900 lies outside its context",
        ),
        ("squad", answered({"text": "France", "answer_start": -1}), "at -1 lies outside"),
        (
            "squad",
            answered({"text": "France", "answer_start": 16}),
            "its context has ' Franc' at 16",
        ),
        ("squad", answered({"text": "France", "answer_start": "x"}), "only a whole number"),
        ("squad", answered({"text": "Spain"}), "'Spain' of 'a' does not occur in its context"),
        ("squad", answered({"text": ""}), "line 2: .*only text is allowed"),
        ("squad", {"train-v1.1.json": '{"data": [{"title": "x"}]}'}, "is no SQuAD file"),
        (
            "squad",
            {"train-v1.1.json": '{"data": [{"paragraphs": [{"context": "c", "qas": 3}]}]}'},
            "paragraph 1: a paragraph has no list of 'qas'",
        ),
    ],
)
def test_broken_files_are_refused(
    name: str, files: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        load_task(write(tmp_path, files), name)
