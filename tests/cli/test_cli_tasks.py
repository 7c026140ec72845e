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
def made(
    family_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[str]]:
    """A folder with data and a config, and the words of a command that trains."""
    root = tmp_path_factory.mktemp("cli")
    write_toy(root / "data", "tagging")
    (root / "toy.toml").write_text(CONFIG)
    bert = str(family_folder("bert"))
    words = ["tune", str(root / "toy.toml"), "--model", bert, "--data", str(root / "data")]
    return root, [*words, "--device", "cpu"]


def fails(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        cli.main(words)
    assert stopped.value.code == 2
    message = capsys.readouterr().err.strip().splitlines()
    return message[-1]


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_tune_predict_and_table(
    made: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    root, words = made
    for seed in ("1", "2"):
        cli.main([*words, "--out", str(root / f"run{seed}"), "--seed", seed])
    out = capsys.readouterr().out
    assert "PT-2" in out
    assert f"run folder: {root / 'run2'}" in out
    assert f"symprompt predict {root / 'run2'} FILE" in out
    test = str(root / "data/test.jsonl")
    cli.main(["predict", str(root / "run1"), test, "--device", "cpu"])
    out = capsys.readouterr().out
    assert "and 4 more" in out
    assert "f1:" in out
    cli.main(["predict", str(root / "run1"), test, "--device", "cpu", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert len(found["predictions"]) == 24
    cli.main(["predict", str(root / "run1"), test, "--device", "cpu", "--out", str(root / "p")])
    out = capsys.readouterr().out
    assert "24 predictions in " in out
    assert f"/s): {root / 'p'}" in out
    assert "f1:" in out
    assert lines_of(root / "p") == found["predictions"]
    runs = [str(root / "run1"), str(root / "run2")]
    cli.main(["table", *runs, "--json"])
    values = json.loads(capsys.readouterr().out)
    assert {tuple(record["seeds"]) for record in values["records"]} == {(1,), (2,)}
    assert {record["split"] for record in values["records"]} == {"test"}
    cli.main(["table", *runs, "--split", "dev", "--format", "markdown"])
    assert "| PT-2 | 2 |" in capsys.readouterr().out
    stored = root / "stored.json"
    stored.write_text(json.dumps({"about": {"note": "a note"}, "records": values["records"]}))
    cli.main(["table", str(stored)])
    assert "a note" in capsys.readouterr().out
    cli.main(["table", str(stored), "--format", "markdown"])
    assert "| PT-2 | 2 |" in capsys.readouterr().out


def test_runs_with_other_settings_are_rows_of_their_own(
    made: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    root, words = made
    for name, seed, length in (("short-1", 1, 2), ("short-2", 2, 2), ("long", 1, 5)):
        changed = ("--prefix.length", str(length), "--seed", str(seed))
        cli.main([*words, "--out", str(root / name), *changed])
    capsys.readouterr()
    runs = [str(root / name) for name in ("short-1", "long", "short-2")]
    cli.main(["table", *runs, "--json"])
    values = json.loads(capsys.readouterr().out)
    assert {(own["label"], *own["seeds"]) for own in values["records"]} == {
        ("PT-2 short", 1),
        ("PT-2 short", 2),
        ("PT-2 long", 1),
    }
    assert [own["settings"] for own in values["records"] if own["label"] == "PT-2 long"] == [
        {"prefix.length": 5}
    ] * sum(own["label"] == "PT-2 long" for own in values["records"])
    cli.main(["table", *runs])
    out = capsys.readouterr().out
    assert "PT-2 short" in out
    assert "short: prefix.length 2; long: prefix.length 5" in " ".join(out.split())
    # Folders of one name are told apart by their paths.
    other = root / "other" / "long"
    cli.main([*words, "--out", str(other), "--prefix.length", "4"])
    capsys.readouterr()
    cli.main(["table", runs[1], str(other), "--json"])
    labels = {own["label"] for own in json.loads(capsys.readouterr().out)["records"]}
    assert labels == {f"PT-2 {runs[1]}", f"PT-2 {other}"}


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


def test_help_lists_the_configs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["tune", "--help"])
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert "conll2003-pt2" in out
    assert "--prefix.length INT" in out
    assert "no config was named" in fails(["tune"], capsys)


def test_mistakes_are_one_sentence_and_exit_code_two(
    made: tuple[Path, list[str]],
    family_folder: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root, words = made
    run = str(root / "run3")
    cli.main([*words, "--out", run])
    capsys.readouterr()
    test = str(root / "data/test.jsonl")
    other = ["--model", str(family_folder("electra")), "--device", "cpu"]
    assert "learned for another model" in fails(["predict", run, test, *other], capsys)
    assert "not a run folder" in fails(["predict", str(tmp_path), test], capsys)
    assert "nofile" in fails(["predict", run, "nofile.jsonl", "--device", "cpu"], capsys)
    (tmp_path / "bad.toml").write_text("[prefix]\nlenght = 3\n")
    assert "unknown key prefix.lenght" in fails(["tune", str(tmp_path / "bad.toml")], capsys)
    assert "for symprompt train" in fails(["tune", "lama-spe"], capsys)
    assert "for symprompt tune" in fails(["train", "rte-pt2"], capsys)
    assert "--out is missing" in fails(words, capsys)
    bare = ["tune", "rte-pt2", "--out", str(tmp_path / "bare")]
    assert "--data is missing; name the folder of rte's files" in fails(bare, capsys)
    alone = ["tune", "ner-mpt2", "--tasks", "conll2003", "--out", str(tmp_path / "bare")]
    assert "mixture.tasks names conll2003 alone; name two" in fails(alone, capsys)
    lines = (root / "data/train.jsonl").read_text().splitlines()
    row = json.loads(lines[0])
    bad = tmp_path / "data"
    bad.mkdir()
    (bad / "train.jsonl").write_text(json.dumps(row | {"tags": ["O"]}) + "\n")
    there = ["--data", str(bad), "--out", str(tmp_path / "run")]
    assert "train.jsonl" in fails([*words, *there], capsys)
    (bad / "train.jsonl").write_text(json.dumps({"words": row["words"]}) + "\n")
    assert "tags" in fails([*words, "--data", str(bad), "--out", str(tmp_path / "two")], capsys)
    assert "is not a run folder" in fails(["table", run, str(tmp_path)], capsys)
    assert "--k is about runs on facts" in fails(["table", run, "--k", "3"], capsys)
    assert "has no figures of 'val'" in fails(["table", run, "--split", "val"], capsys)
    asked = ["ask", run, "--relation", "capital", "--subject", "Rome"]
    assert "holds a run of tune; give one made by train or rerank" in fails(asked, capsys)
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "two").exists()


def test_a_mistake_leaves_no_folder_behind(
    made: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was refused can be put right and run again with the same words."""
    root, words = made
    own = tmp_path / "data"
    own.mkdir()
    (own / "train.jsonl").write_text('{"words": ["Paris"], "tags": ["O", "O"]}\n')
    there = ["--data", str(own), "--out", str(tmp_path / "run")]
    assert "train.jsonl, line 1" in fails([*words, *there], capsys)
    mixed = [*words, *there, "--method", "mpt2", "--mixture.tasks", "one=.", "two=."]
    assert "line 1" in fails(mixed, capsys)
    for name in ("train", "dev", "test"):
        (own / f"{name}.jsonl").write_text((root / f"data/{name}.jsonl").read_text())
    cli.main([*words, *there])
    assert "PT-2" in capsys.readouterr().out
    (own / "run").mkdir()
    (own / "run/notes.txt").write_text("mine")
    assert "is not a run folder" in fails([*words, *there[:3], str(own / "run")], capsys)


def test_a_class_that_training_has_not_is_refused_in_a_file_to_predict(
    made: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, words = made
    write_toy(tmp_path / "data", "sequence")
    run = str(tmp_path / "run")
    own = ["--task.kind", "sequence", "--data", str(tmp_path / "data"), "--out", run]
    cli.main([*words, *own])
    file = tmp_path / "mine.jsonl"
    file.write_text('{"text": "Rome", "label": "land"}\n{"text": "Lima", "label": "sea"}\n')
    said = fails(["predict", run, str(file), "--device", "cpu"], capsys)
    assert "mine.jsonl, line 2: the label 'sea' does not occur in training, which has land" in said
    file.write_text('{"text": "Rome"}\n')
    cli.main(["predict", run, str(file), "--device", "cpu"])
    assert "probability" in capsys.readouterr().out


def test_a_file_of_any_size_is_predicted_in_a_stream(
    made: tuple[Path, list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, words = made
    write_toy(tmp_path / "data", "sequence")
    run = str(tmp_path / "run")
    own = ["--task.kind", "sequence", "--data", str(tmp_path / "data"), "--out", run]
    cli.main([*words, *own])
    task = TaskRun.load(run)
    file = tmp_path / "data/test.jsonl"
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


def test_tags_that_training_has_not_are_told(
    made: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some tags are rare, so a tagged file is no mistake, but its figures need the note."""
    _, words = made
    run = str(tmp_path / "run")
    cli.main([*words, "--out", run])
    file = tmp_path / "mine.jsonl"
    file.write_text('{"words": ["Rome", "the"], "tags": ["B-RIVER", "O"]}\n')
    capsys.readouterr()
    cli.main(["predict", run, str(file), "--device", "cpu"])
    said = capsys.readouterr().out
    assert "note: labels that training does not have, counted as missed: 'B-RIVER' (1)." in said
    assert run_notes({"unseen": ["'B-X' (test.txt, line 3; 1 in test)"] * 7}) == [
        "labels that training does not have are never predicted: "
        + ", ".join(["'B-X' (test.txt, line 3; 1 in test)"] * 5)
        + " and 2 more"
    ]


def test_examples_that_a_pattern_cut_are_told() -> None:
    cut = {"train": {"examples": 0, "tokens": 0}, "val": {"examples": 3, "tokens": 40}}
    assert run_notes({"pattern": "p", "cut": cut}) == [
        "examples too long, the ends of their longest fields left out: 3 of val (40 tokens)"
    ]
    assert run_notes({}) == []


def test_any_file_of_two_texts_is_learned_and_predicted(
    made: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, words = made
    toy = write_toy(tmp_path / "toy", "pair") / "train.jsonl"
    rows = [json.loads(line) for line in toy.read_text().splitlines()]
    texts = [f"{row['first']}\t{row['second']}" for row in rows]
    labelled = [f"{text}\t{row['label']}" for text, row in zip(texts, rows, strict=True)]

    def written(name: str, *lines: str) -> str:
        path = tmp_path / f"{name}.tsv"
        path.write_text("".join(line + "\n" for line in lines))
        return str(path)

    def tuned(name: str, file: str, *more: str) -> str:
        out = str(tmp_path / name)
        cli.main([*words, "--task.kind", "auto", "--data", file, "--out", out, *more])
        return capsys.readouterr().err

    def predicted(name: str, file: str) -> tuple[list[Any], dict[str, float]]:
        cli.main(["predict", str(tmp_path / name), file, "--device", "cpu", "--json"])
        found = json.loads(capsys.readouterr().out)
        return [row["prediction"] for row in found["predictions"]], found["metrics"]

    known = written("known", "premise\thypothesis\tgold_label", *labelled)
    said = tuned("by-name", known)
    assert "kind of task: 1/1 pair, by what is in" in said
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
    assert predicted("by-number", str(tmp_path / "headless.tsv"))[1]["accuracy"] > 0


def test_predict_takes_texts_standard_input_and_the_columns_of_training(
    made: tuple[Path, list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, words = made
    data = write_toy(tmp_path / "data", "sequence")
    for file in data.iterdir():
        renamed = file.read_text().replace('"text"', '"ticket"').replace('"label"', '"team"')
        file.write_text(renamed)
    run = str(tmp_path / "run")
    own = ["--task.kind", "auto", "--columns", "text=ticket", "label=team"]
    cli.main([*words, *own, "--data", str(data), "--out", run])
    assert "kind of task: 1/1 sequence, by what is in" in capsys.readouterr().err

    def predict(*more: str) -> list[dict[str, Any]]:
        capsys.readouterr()
        cli.main(["predict", run, *more, "--device", "cpu", "--json"])
        found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["predictions"]
        return found

    stored = predict(str(data / "test.jsonl"), "--probabilities")
    rows = [json.loads(line) for line in (data / "test.jsonl").read_text().splitlines()]
    texts = [row["ticket"] for row in rows]
    assert [row["text"] for row in stored] == texts
    assert [row["gold"] for row in stored] == [row["team"] for row in rows]
    for row in stored:
        assert set(row["probabilities"]) == {"land", "tongue"}
        assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert max(row["probabilities"].values()) == row["probability"]
    labels = [row["prediction"] for row in stored]
    assert [row["prediction"] for row in predict("--text", *texts)] == labels
    lines = ["", texts[0], json.dumps({"ticket": texts[1]}), *texts[2:]]
    given = io.TextIOWrapper(io.BytesIO("\n".join(lines).encode()))
    monkeypatch.setattr("sys.stdin", given)
    assert [row["prediction"] for row in predict("-")] == labels
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    assert "standard input, line 1: the bytes are not UTF-8" in fails(["predict", run, "-"], capsys)
    cli.main(["predict", run, "--text", texts[0], "--device", "cpu", "--probabilities"])
    shown = capsys.readouterr().out
    assert texts[0] in shown
    assert "land 0." in shown
    out = tmp_path / "out.jsonl"
    out.write_text("mine")
    to = ["predict", run, "--text", "Rome", "--device", "cpu", "--out", str(out)]
    assert f"{out} exists; choose another --out, or give --overwrite" in fails(to, capsys)
    assert out.read_text() == "mine"
    cli.main([*to, "--overwrite"])
    assert json.loads(out.read_text())["text"] == "Rome"
    assert "name a FILE to predict for, or -" in fails(["predict", run], capsys)
    both = ["predict", run, str(out), "--text", "Rome"]
    assert "name a FILE to predict for, or -" in fails(both, capsys)


def test_probabilities_of_tags_are_refused_and_a_pair_takes_two_texts(
    made: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, words = made
    write_toy(tmp_path / "data", "pair")
    there = ["--data", str(tmp_path / "data"), "--out", str(tmp_path / "pairs")]
    cli.main([*words, "--task.kind", "pair", *there])
    cli.main([*words, "--out", str(tmp_path / "tags")])
    asked = ["predict", str(tmp_path / "tags"), "--text", "the Kenya", "--device", "cpu"]
    assert "predicts no classes" in fails([*asked, "--probabilities"], capsys)
    cli.main([*asked, "--json"])
    (row,) = json.loads(capsys.readouterr().out)["predictions"]
    assert (row["text"], len(row["prediction"])) == ("the Kenya", 2)
    asked = ["predict", str(tmp_path / "pairs"), "--device", "cpu", "--json", "--text", "the"]
    cli.main([*asked, "old Kenya", "in", "Rome"])
    found = json.loads(capsys.readouterr().out)["predictions"]
    assert [row["text"] for row in found] == ["the | old Kenya", "in | Rome"]
    assert "('the',) is not first and second" in fails(asked, capsys)
