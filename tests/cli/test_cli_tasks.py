"""tune and predict on the command line: what they print, and exit codes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from symprompt import cli
from symprompt.errors import ConfigError
from symprompt.files import stream as streaming
from symprompt.tasks import predict as predicting
from symprompt.tasks.predict import TaskRun
from symprompt.tasks.tables import prediction_grid, run_notes
from tiny.labelled import write_toy
from tiny.runs import Call

CONFIG = """
method = "pt2"
[task]
kind = "tagging"
max_length = 32
stride = 4
[prefix]
length = 3
[learning]
epochs = 1
batch = 8
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and a config."""
    folder = tmp_path_factory.mktemp("cli")
    write_toy(folder / "data", "tagging")
    (folder / "toy.toml").write_text(CONFIG)
    return folder


@pytest.fixture(scope="module")
def words(root: Path, family_folder: Callable[[str], Path]) -> list[object]:
    """A command that trains, but for --out; later flags override its own."""
    place = ("--model", family_folder("bert"), "--data", root / "data", "--device", "cpu")
    return ["tune", root / "toy.toml", *place]


@pytest.fixture(scope="module")
def tagger(root: Path, words: list[object]) -> Path:
    """A finished run; tests must not change it."""
    cli.main([*map(str, words), "--out", str(root / "tagger")])
    return root / "tagger"


@pytest.fixture
def predict(call: Call) -> Callable[..., dict[str, Any]]:
    """A function that has a run predict and returns what --json prints."""

    def run(*words: object) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            call("predict", *words, "--device", "cpu", "--json").done
        )
        return found

    return run


Predict = Callable[..., dict[str, Any]]


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def labels_of(found: dict[str, Any]) -> list[Any]:
    return [row["prediction"] for row in found["predictions"]]


def test_tune_predict_and_table(
    call: Call, predict: Predict, root: Path, words: list[object]
) -> None:
    for seed in (1, 2):
        out = call(*words, "--out", root / f"run{seed}", "--seed", seed).done
    assert "PT-2" in out
    assert f"run folder: {root / 'run2'}" in out
    assert f"symprompt predict {root / 'run2'} FILE" in out
    asked = (root / "run1", root / "data/test.jsonl")
    shown = call("predict", *asked, "--device", "cpu").done
    assert "and 4 more" in shown
    assert "f1:" in shown
    found = predict(*asked)["predictions"]
    assert len(found) == 24
    written = call("predict", *asked, "--device", "cpu", "--out", root / "p").done
    assert "24 predictions in " in written
    assert f"/s): {root / 'p'}" in written
    assert "f1:" in written
    assert lines_of(root / "p") == found
    runs = (root / "run1", root / "run2")
    records = json.loads(call("table", *runs, "--json").done)["records"]
    assert {tuple(record["seeds"]) for record in records} == {(1,), (2,)}
    assert {record["split"] for record in records} == {"test"}
    assert "| PT-2 | 2 |" in call("table", *runs, "--split", "dev", "--format", "markdown").done
    stored = root / "stored.json"
    stored.write_text(json.dumps({"about": {"note": "a note"}, "records": records}))
    assert "a note" in call("table", stored).done
    assert "| PT-2 | 2 |" in call("table", stored, "--format", "markdown").done


def test_runs_with_other_settings_are_rows_of_their_own(
    call: Call, root: Path, words: list[object]
) -> None:
    for name, seed, length in (("short-1", 1, 2), ("short-2", 2, 2), ("long", 1, 5)):
        call(*words, "--out", root / name, "--prefix.length", length, "--seed", seed)
    runs = [root / name for name in ("short-1", "long", "short-2")]
    records = json.loads(call("table", *runs, "--json").done)["records"]
    seen = {(own["label"], *own["seeds"]) for own in records}
    assert seen == {("PT-2 short", 1), ("PT-2 short", 2), ("PT-2 long", 1)}
    for own in records:
        assert own["settings"] == {"prefix.length": 5 if own["label"] == "PT-2 long" else 2}
    out = call("table", *runs).done
    assert "PT-2 short" in out
    assert "short: prefix.length 2; long: prefix.length 5" in " ".join(out.split())
    # Folders of one name are told apart by their paths.
    other = root / "other" / "long"
    call(*words, "--out", other, "--prefix.length", 4)
    records = json.loads(call("table", runs[1], other, "--json").done)["records"]
    assert {own["label"] for own in records} == {f"PT-2 {runs[1]}", f"PT-2 {other}"}


def test_predicted_spans_and_relations_are_shown_by_their_words() -> None:
    spans = {"prediction": [["PER", 0, 2], ["LOC", 4, 5]], "texts": ["Kim Lee", "Oslo"]}
    rows = [
        {"id": "a", **spans, "relations": [["Live_In", 0, 1]]},
        {"id": "b", **spans},
        {"id": "c", "prediction": [], "texts": []},
        {"id": "d", "prediction": ["O", "B-PER"]},
        {"id": "e", "prediction": "yes"},
    ]
    (section,) = prediction_grid(rows).sections
    assert [cell for _, cell in section] == [
        "Kim Lee (PER), Oslo (LOC); Live_In: Kim Lee > Oslo",
        "Kim Lee (PER), Oslo (LOC)",
        "no span",
        "O B-PER",
        "yes",
    ]


def test_predicted_tags_stand_beside_their_words_and_pairs_are_both_shown() -> None:
    rows = [
        {"id": "a", "text": "Kim Lee left", "prediction": ["B-PER", "I-PER", "O"]},
        {"id": "b", "text": "It rains", "prediction": ["PRON", "VERB"]},
    ]
    grid = prediction_grid(rows)
    assert grid.header == ("example", "prediction")
    assert grid.sections == ((("a", "Kim/B-PER Lee/I-PER left"), ("b", "It/PRON rains/VERB")),)
    pair = {"id": "p", "text": f"{'a ' * 50}| {'b ' * 50}".strip(), "prediction": "same"}
    ((cells,),) = prediction_grid([pair]).sections
    assert cells == ("p", f"{'a ' * 28}... | {'b ' * 28}...", "same")
    # A word with a space in it cannot be told from two.
    odd = prediction_grid([{"id": "c", "text": "1 000 men", "prediction": ["NUM", "NOUN"]}])
    assert odd.sections == ((("c", "1 000 men", "NUM NOUN"),),)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["predict", "RUN", "TEST", "--model", "ELECTRA"], "learned for another model"),
        (["predict", "TMP", "TEST"], "not a run folder"),
        (["predict", "RUN", "nofile.jsonl"], "nofile"),
        (["predict", "RUN"], "name a FILE to predict for, or -"),
        (["predict", "RUN", "TEST", "--text", "Rome"], "name a FILE to predict for, or -"),
        (["predict", "RUN", "--text", "the Kenya", "--probabilities"], "predicts no classes"),
        (["tune"], "no config was named"),
        (["tune", "BAD"], "unknown key prefix.lenght"),
        (["tune", "lama-spe"], "for symprompt train"),
        (["train", "rte-pt2"], "for symprompt tune"),
        (["TUNE"], "--out is missing"),
        (["tune", "rte-pt2", "--out", "OUT"], "--data is missing; name the folder of rte's files"),
        (
            ["tune", "ner-mpt2", "--tasks", "conll2003", "--out", "OUT"],
            "mixture.tasks names conll2003 alone; name two",
        ),
        (["TUNE", "--data", "FEW", "--out", "OUT"], "train.jsonl"),
        (["TUNE", "--data", "BARE", "--out", "OUT"], "tags"),
        (["table", "RUN", "TMP"], "is not a run folder"),
        (["table", "RUN", "--k", "3"], "--k is about runs on facts"),
        (["table", "RUN", "--split", "val"], "has no figures of 'val'"),
        (
            ["ask", "RUN", "--relation", "capital", "--subject", "Rome"],
            "holds a run of tune; give one made by train or rerank",
        ),
    ],
    ids=lambda own: " ".join(own) if isinstance(own, list) else "",
)
def test_mistakes_are_one_sentence(
    given: list[str],
    message: str,
    call: Call,
    root: Path,
    words: list[object],
    tagger: Path,
    family_folder: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    row = lines_of(root / "data/train.jsonl")[0]
    rows = {"few": row | {"tags": ["O"]}, "bare": {"words": row["words"]}}
    for name, own in rows.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.jsonl").write_text(json.dumps(own) + "\n")
    (tmp_path / "bad.toml").write_text("[prefix]\nlenght = 3\n")
    places: dict[str, list[object]] = {
        "RUN": [tagger],
        "TEST": [root / "data/test.jsonl"],
        "TMP": [tmp_path],
        "OUT": [tmp_path / "out"],
        "FEW": [tmp_path / "few"],
        "BARE": [tmp_path / "bare"],
        "BAD": [tmp_path / "bad.toml"],
        "ELECTRA": [family_folder("electra")],
        "TUNE": words,
    }
    filled = [own for word in given for own in places.get(word, [word])]
    assert message in call(*filled).refusal
    assert not (tmp_path / "out").exists()


def test_a_mistake_leaves_no_folder_behind(
    call: Call, root: Path, words: list[object], tmp_path: Path
) -> None:
    """What was refused can be put right and run again with the same words."""
    own = tmp_path / "data"
    own.mkdir()
    (own / "train.jsonl").write_text('{"words": ["Paris"], "tags": ["O", "O"]}\n')
    there = [*words, "--data", own, "--out", tmp_path / "run"]
    assert "train.jsonl, line 1" in call(*there).refusal
    mixed = ("--method", "mpt2", "--mixture.tasks", "one=.", "two=.")
    assert "line 1" in call(*there, *mixed).refusal
    for name in ("train", "dev", "test"):
        (own / f"{name}.jsonl").write_text((root / f"data/{name}.jsonl").read_text())
    assert "PT-2" in call(*there).done
    (own / "run").mkdir()
    (own / "run/notes.txt").write_text("mine")
    assert "is not a run folder" in call(*there, "--out", own / "run").refusal


@pytest.fixture(scope="module")
def classifier(root: Path, words: list[object]) -> Path:
    """A finished run on classes of texts; its data lie in classes."""
    data = write_toy(root / "classes", "sequence")
    flags = ["--task.kind", "sequence", "--data", str(data), "--out", str(root / "classifier")]
    cli.main([*map(str, words), *flags])
    return root / "classifier"


def test_a_class_that_training_has_not_is_refused_in_a_file_to_predict(
    call: Call, classifier: Path, tmp_path: Path
) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"text": "Rome", "label": "land"}\n{"text": "Lima", "label": "sea"}\n')
    said = call("predict", classifier, file, "--device", "cpu").refusal
    assert "mine.jsonl, line 2: the label 'sea' does not occur in training, which has land" in said
    file.write_text('{"text": "Rome"}\n')
    assert "probability" in call("predict", classifier, file, "--device", "cpu").done


def test_a_file_of_any_size_is_predicted_in_a_stream(
    classifier: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = TaskRun.load(classifier)
    file = root / "classes/test.jsonl"
    whole = task.predict(file, probabilities=True)
    monkeypatch.setitem(streaming.Reader.__init__.__kwdefaults__, "block", 5)
    monkeypatch.setattr(streaming, "EVERY", 0.0)
    rows = file.read_text().splitlines()
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_text("\n".join([rows[0], "{", '{"text": ""}', *rows[1:]]))
    done, found = task.predict_stream(mixed, tmp_path / "a.jsonl", probabilities=True)
    assert (done.rows, done.bad) == (len(rows), 2)
    bad = lines_of(Path(done.bad_file))
    assert [row["line"] for row in bad] == [2, 3]
    assert "mixed.jsonl, line 3: 'text' is empty" in bad[1]["why"]
    assert found.metrics == pytest.approx(whole.metrics)
    for own_row, row in zip(lines_of(tmp_path / "a.jsonl"), whole.rows, strict=True):
        assert own_row["prediction"] == row["prediction"]
        assert own_row["probabilities"] == pytest.approx(row["probabilities"], abs=1e-4)
    # Broken after its second block, it goes on, and counts what it had counted.
    start, calls = predicting._Predictor.start, []

    def fail(self: Any, block: Any) -> Any:
        calls.append(block)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return start(self, block)

    monkeypatch.setattr(predicting._Predictor, "start", fail)
    with pytest.raises(KeyboardInterrupt):
        task.predict_stream(mixed, tmp_path / "b.jsonl", probabilities=True)
    # Half from another device would be two sets of numbers in one file.
    state = tmp_path / "b.jsonl.state.json"
    told = state.read_text()
    state.write_text(told.replace('"device": "cpu"', '"device": "cuda"'))
    assert state.read_text() != told
    with pytest.raises(ConfigError, match=r"begun with other settings \(device\); give those"):
        task.predict_stream(mixed, tmp_path / "b.jsonl", probabilities=True)
    state.write_text(told)
    done, again = task.predict_stream(mixed, tmp_path / "b.jsonl", probabilities=True)
    assert done.resumed == 8
    assert again.metrics == found.metrics
    assert (tmp_path / "b.jsonl").read_bytes() == (tmp_path / "a.jsonl").read_bytes()


def test_tags_that_training_has_not_are_told(call: Call, tagger: Path, tmp_path: Path) -> None:
    """Some tags are rare, so a tagged file is no mistake, but its figures need the note."""
    file = tmp_path / "mine.jsonl"
    file.write_text('{"words": ["Rome", "the"], "tags": ["B-RIVER", "O"]}\n')
    said = call("predict", tagger, file, "--device", "cpu").done
    assert "note: labels that training does not have, counted as missed: 'B-RIVER' (1)." in said
    unseen = "'B-X' (test.txt, line 3; 1 in test)"
    assert run_notes({"unseen": [unseen] * 7}) == [
        f"labels that training does not have are never predicted: {', '.join([unseen] * 5)}"
        " and 2 more"
    ]


def test_examples_that_a_pattern_cut_are_told() -> None:
    cut = {"train": {"examples": 0, "tokens": 0}, "val": {"examples": 3, "tokens": 40}}
    assert run_notes({"pattern": "p", "cut": cut}) == [
        "examples too long, the ends of their longest fields left out: 3 of val (40 tokens)"
    ]
    assert run_notes({}) == []


def test_any_file_of_two_texts_is_learned_and_predicted(
    call: Call, predict: Predict, words: list[object], tmp_path: Path
) -> None:
    rows = lines_of(write_toy(tmp_path / "toy", "pair") / "train.jsonl")
    texts = [f"{row['first']}\t{row['second']}" for row in rows]
    labelled = [f"{text}\t{row['label']}" for text, row in zip(texts, rows, strict=True)]

    def written(name: str, *lines: str) -> Path:
        path = tmp_path / f"{name}.tsv"
        path.write_text("".join(line + "\n" for line in lines))
        return path

    def tuned(name: str, file: Path, *more: str) -> str:
        there = ("--task.kind", "auto", "--data", file, "--out", tmp_path / name)
        return call(*words, *there, *more).err

    def predicted(name: str, file: Path) -> tuple[list[Any], dict[str, float]]:
        found = predict(tmp_path / name, file)
        return labels_of(found), found["metrics"]

    known = written("known", "premise\thypothesis\tgold_label", *labelled)
    said = tuned("by-name", known)
    assert "kind of task: pair, by what is in" in said
    assert "first is premise, second is hypothesis, label is gold_label" in said
    labels, metrics = predicted("by-name", known)
    assert metrics["accuracy"] > 0
    # Without labels, with other well-known names, and beside a column that is no label.
    for name, head in (("bare", "sentence1\tsentence2"), ("usual", "first\tsecond")):
        assert predicted("by-name", written(name, head, *texts)) == (labels, {})
    scored = written("scored", "text1\ttext2\tscore", *(f"{text}\t0.5" for text in texts))
    assert predicted("by-name", scored) == (labels, {})
    numbers = ("--columns", "first=0", "second=1", "label=2")
    said = tuned("by-number", written("headless", *labelled), *numbers)
    assert "columns:" not in said
    assert predicted("by-number", written("no-labels", *texts)) == (labels, {})
    assert predicted("by-number", tmp_path / "headless.tsv")[1]["accuracy"] > 0


def test_predict_takes_texts_standard_input_and_the_columns_of_training(
    call: Call,
    predict: Predict,
    words: list[object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = write_toy(tmp_path / "data", "sequence")
    for file in data.iterdir():
        renamed = file.read_text().replace('"text"', '"ticket"').replace('"label"', '"team"')
        file.write_text(renamed)
    run = tmp_path / "run"
    own = ("--task.kind", "auto", "--columns", "text=ticket", "label=team")
    said = call(*words, *own, "--data", data, "--out", run)
    assert "kind of task: sequence, by what is in" in said.err
    stored = predict(run, data / "test.jsonl", "--probabilities")["predictions"]
    rows = lines_of(data / "test.jsonl")
    texts = [row["ticket"] for row in rows]
    assert [row["text"] for row in stored] == texts
    assert [row["gold"] for row in stored] == [row["team"] for row in rows]
    for row in stored:
        assert set(row["probabilities"]) == {"land", "tongue"}
        assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert max(row["probabilities"].values()) == row["probability"]
    labels = [row["prediction"] for row in stored]
    assert labels_of(predict(run, "--text", *texts)) == labels
    lines = ["", texts[0], json.dumps({"ticket": texts[1]}), *texts[2:]]
    given = io.TextIOWrapper(io.BytesIO("\n".join(lines).encode()))
    monkeypatch.setattr("sys.stdin", given)
    assert labels_of(predict(run, "-")) == labels
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    wrong = call("predict", run, "-").refusal
    assert "standard input, line 1: the bytes are not UTF-8" in wrong
    asked = ("predict", run, "--device", "cpu", "--text")
    shown = call(*asked, texts[0], "--probabilities").done
    assert texts[0] in shown
    assert "land 0." in shown
    out = tmp_path / "out.jsonl"
    out.write_text("mine")
    wrong = call(*asked, "Rome", "--out", out).refusal
    assert f"{out} exists; choose another --out, or give --overwrite" in wrong
    assert out.read_text() == "mine"
    call(*asked, "Rome", "--out", out, "--overwrite")
    assert json.loads(out.read_text())["text"] == "Rome"


def test_a_pair_takes_two_texts(
    call: Call, predict: Predict, words: list[object], tagger: Path, tmp_path: Path
) -> None:
    data, run = write_toy(tmp_path / "data", "pair"), tmp_path / "pairs"
    call(*words, "--task.kind", "pair", "--data", data, "--out", run)
    (row,) = predict(tagger, "--text", "the Kenya")["predictions"]
    assert (row["text"], len(row["prediction"])) == ("the Kenya", 2)
    found = predict(run, "--text", "the", "old Kenya", "in", "Rome")["predictions"]
    assert [row["text"] for row in found] == ["the | old Kenya", "in | Rome"]
    wrong = call("predict", run, "--device", "cpu", "--text", "the").refusal
    assert "('the',) is not first and second" in wrong
