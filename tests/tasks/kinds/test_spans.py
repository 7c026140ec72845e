"""Spans from file to figure: loaders, rows, decoding, thresholds, metrics, runs that learn them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from symprompt.config import build
from symprompt.errors import ConfigError, DataError
from symprompt.models import LanguageModel
from symprompt.tasks.config import SpanConfig, TuneConfig
from symprompt.tasks.data.examples import LabelSet, Relation, SpanExample, spans_of
from symprompt.tasks.data.load import load_task
from symprompt.tasks.features import Features, first_words
from symprompt.tasks.kinds import KINDS, Target
from symprompt.tasks.kinds.spans import (
    LOWEST,
    SpanPrediction,
)
from symprompt.tasks.predict import CARD, Card, predict_file
from symprompt.tasks.tables import run_notes
from tiny.labelled import read_lines, write_spans
from tiny.models import PLAIN_WORDS
from tiny.oracles import seqeval_scores
from tiny.tasks import run_toy, tensorise

LABELS = LabelSet.of_spans(["LOC", "PER"])
CONLL04 = """#doc 1
0\tKim\tB-Peop\t['N']\t[0]
1\tLee\tI-Peop\t['Live_In', 'Work_For']\t[3, 5]
2\tof\tO\t['N']\t[2]
3\tOslo\tB-Loc\t['N']\t[3]
4\tat\tO\t['N']\t[4]
5\tAcme\tB-Org\t['N']\t[5]
"""


# ------------------------------------------------------------------------------------------ files


def test_conll2004_has_entities_and_relations(tmp_path: Path) -> None:
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.txt").write_text(CONLL04)
    data = load_task("conll2004", tmp_path, kind="relations")
    example = data.split("dev")[0]
    assert isinstance(example, SpanExample)
    assert example.spans == (("Peop", 0, 2), ("Loc", 3, 4), ("Org", 5, 6))
    assert example.relations == (Relation("Live_In", 0, 1), Relation("Work_For", 0, 2))
    assert data.labels.names == ("NULL", "Loc", "Org", "Peop")
    assert data.relations.names == ("NULL", "Live_In", "Work_For")
    spans = load_task("conll2004", tmp_path, kind="spans")
    assert spans.kind == "spans"
    assert spans.split("test")[0].spans == example.spans  # type: ignore[union-attr]
    assert load_task("conll2004", tmp_path).kind == "tagging"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("['Live_In', 'Work_For']", "['Live_In'", "is no list of words"),
        ("[3, 5]", "[3, 'x']", "is no list of whole numbers"),
        ("[3, 5]", "[3]", "every relation needs one"),
        ("[3, 5]", "[3, 4]", "not both end an entity"),
        ("B-Loc", "Loc", "is no tag"),
    ],
)
def test_a_garbled_relation_is_named_with_its_line(
    old: str, new: str, words: str, tmp_path: Path
) -> None:
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.txt").write_text(CONLL04.replace(old, new))
    with pytest.raises(DataError, match=rf"train\.txt, line [35].*{words}"):
        load_task("conll2004", tmp_path, kind="relations")


def test_sets_without_spans_or_relations_say_so(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match="not as relations; sets that can be are conll2004",
    ):
        load_task("conll2003", tmp_path, kind="relations")
    with pytest.raises(ConfigError, match="rte is read as pair, not as spans"):
        load_task("rte", tmp_path, kind="spans")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"spans": [["LOC", 0, 3]]}, r"not within the 2 word\(s\)"),
        ({"spans": [["LOC", 1, 1]]}, "not within"),
        ({"spans": [["LOC", 0]]}, r"is not a span \[type"),
        ({"spans": [["NULL", 0, 1]]}, "NULL is taken"),
        ({"spans": [["LOC", True, 2]]}, r"is not a span \[type"),
        ({"spans": [["LOC", 0, 1], ["PER", 0, 1]]}, "the same words"),
        ({"spans": "LOC"}, "only a list is allowed"),
        ({}, "only a list is allowed"),
        ({"spans": [["A", 0, 1], ["B", 1, 2]], "relations": [["R", 0, 2]]}, "not between two"),
        ({"spans": [["A", 0, 1], ["B", 1, 2]], "relations": [["R", 1, 1]]}, "not between two"),
        ({"spans": [["A", 0, 1], ["B", 1, 2]], "relations": [0]}, r"is not a relation \[name"),
        ({"spans": [["A", 0, 1]], "relations": []}, "no training example has a relation"),
        ({"spans": [], "relations": []}, "no training example has a span"),
    ],
)
def test_bad_spans_are_one_sentence(row: dict[str, Any], words: str, tmp_path: Path) -> None:
    line = json.dumps({"words": ["in", "Oslo"], **row}) + "\n"
    for split in ("train", "dev"):
        (tmp_path / f"{split}.jsonl").write_text(line)
    with pytest.raises(DataError, match=words):
        load_task(str(tmp_path), kind="relations")


# ------------------------------------------------------------------------------------------- rows


@pytest.mark.parametrize("max_length", [10, 14, 64])
def test_every_span_is_in_the_row_that_answers_for_it(
    max_length: int, load_family: Callable[..., LanguageModel]
) -> None:
    vocabulary = load_family("bert").vocabulary
    words = tuple(PLAIN_WORDS[place % len(PLAIN_WORDS)] for place in range(20))
    spans = tuple(("LOC", place, place + 1 + place % 2) for place in range(19))
    relations = tuple(Relation("R", place, place + 1) for place in range(18))
    examples = [SpanExample("a", words, spans, relations), SpanExample("b", words[:2], (), ())]
    features = tensorise(
        "relations",
        examples,
        LABELS,
        vocabulary,
        max_length=max_length,
        stride=4,
        relations=LabelSet.of_spans(["R"]),
    )
    batch, found = features.batch(), set()
    firsts, lasts = batch.targets["firsts"], batch.targets["lasts"]
    base = first_words(features.notes["words"])
    for row in range(len(features)):
        own = [entry for entry in batch.targets["spans"][row].tolist() if entry[2] >= 0]
        for word, more, label in own:
            assert batch.targets["owned"][row, word]
            start, end = firsts[row, word], lasts[row, word + more]
            assert 0 < start <= end < features.lengths[row] - 1
            at = int(base[row]) + word
            found.add((LABELS.names[label], at, at + more + 1))
        for one, other, label in batch.targets["pairs"][row].tolist():
            assert (label >= 0) == (one >= 0) == (other >= 0)
            assert other == one + 1 or label < 0
    assert found == set(spans) if max_length == 64 else found <= set(spans)
    assert (features.cut == 0) == (max_length == 64)
    assert len(found) >= 15


# --------------------------------------------------------------------------------------- decoding


def make_features_of(examples: int, words: int) -> Features:
    table = np.tile(np.arange(words, dtype=np.int32), (examples, 1))
    return Features(
        examples,
        table,
        np.full(examples, words, np.int32),
        np.arange(examples, dtype=np.int32),
        notes={"words": table},
    )


def above(prediction: SpanPrediction, threshold: float) -> SpanPrediction:
    kept = sum(value > threshold for value in prediction.odds)
    return SpanPrediction(prediction.spans[:kept], prediction.odds[:kept])


CANDIDATES = np.array(
    [[[1, 1, 1, 3.0], [0, 2, 2, 2.5], [2, 1, 1, 2.0], [4, 0, 2, 0.5], [3, 0, 1, -1.0]]]
)


@pytest.mark.parametrize(
    ("overlaps", "threshold", "wanted"),
    [
        ("flat", 0.0, [("LOC", 1, 3), ("PER", 4, 5)]),
        ("nested", 0.0, [("LOC", 1, 3), ("PER", 0, 3), ("PER", 4, 5)]),
        ("all", 0.0, [("LOC", 1, 3), ("PER", 0, 3), ("LOC", 2, 4), ("PER", 4, 5)]),
        ("flat", 1.0, [("LOC", 1, 3)]),
        ("flat", -2.0, [("LOC", 1, 3), ("PER", 4, 5), ("LOC", 3, 4)]),
    ],
)
def test_spans_are_taken_greedily(
    overlaps: Any, threshold: float, wanted: list[tuple[str, int, int]]
) -> None:
    features, target = make_features_of(1, 6), Target(LABELS, span=SpanConfig(overlaps=overlaps))
    (found,) = KINDS["spans"].decode(CANDIDATES, features, [], target, threshold=threshold)
    assert list(found.spans) == wanted
    (low,) = KINDS["spans"].decode(CANDIDATES, features, [], target, threshold=LOWEST)
    assert above(low, threshold).spans == found.spans


def test_the_threshold_is_the_best_of_all() -> None:
    random = np.random.default_rng(0)
    examples, predictions = [], []
    for number in range(30):
        spans = tuple(("LOC", place, place + 1) for place in range(6))
        odds = np.sort(random.normal(size=6).round(1))[::-1]
        right = tuple(s for s, o in zip(spans, odds, strict=True) if o + random.normal() > 0.7)
        examples.append(SpanExample(str(number), ("w",) * 6, right))
        predictions.append(SpanPrediction(spans, tuple(odds.tolist())))

    def at(value: float) -> float:
        return KINDS["spans"].measure(examples, [above(x, value) for x in predictions])["f1"]

    threshold = KINDS["spans"].best_threshold(examples, predictions)
    assert at(threshold) == max(at(value) for value in np.arange(-4, 4, 0.05))
    assert KINDS["spans"].best_threshold([], []) == 0.0


def test_relations_stand_between_taken_spans() -> None:
    scores = np.full((1, 6, 10), -np.inf)
    scores[0, :3, :4] = [[0, 0, 1, 2.0], [0, 1, 2, 1.0], [3, 0, 2, 0.5]]
    scores[0, :3, 4:7] = 1
    scores[0, 0, 9], scores[0, 1, 9], scores[0, 2, 7] = 0.4, 3.0, -0.1
    scores[0, 3:5, :4] = [[0, 2, 1, 0.0], [4, 0, 2, 0.0]]
    scores[0, 3:, 4:7] = 1
    scores[0, 3, 8] = 2.0
    features = make_features_of(1, 6)
    names = LabelSet.of_spans(["R"])
    (found,) = KINDS["relations"].decode(scores, features, [], Target(LABELS, names))
    assert found.spans == (("LOC", 0, 1), ("PER", 3, 4))
    assert found.relations == (("R", ("LOC", 0, 1), ("PER", 3, 4)),)
    assert found.given == (("R", ("LOC", 0, 3), ("PER", 4, 5)),)
    gold = SpanExample("a", ("w",) * 6, (("LOC", 0, 3), ("PER", 4, 5)), (Relation("R", 0, 1),))
    measured = KINDS["relations"].measure([gold], [found])
    assert measured == {"f1": 0, "precision": 0, "recall": 0, "span_f1": 0, "given_f1": 1}


def test_spans_are_counted_as_seqeval_counts_tags() -> None:
    random = np.random.default_rng(1)
    tags = np.array(["O", "B-LOC", "I-LOC", "B-PER", "I-PER"])
    rows = [tuple(tags[random.integers(0, 5, 8)].tolist()) for _ in range(80)]
    gold, found = rows[:40], rows[40:]
    examples = [SpanExample(str(n), ("w",) * 8, tuple(spans_of(t))) for n, t in enumerate(gold)]
    predictions = [SpanPrediction(tuple(spans_of(t)), (1.0,) * len(spans_of(t))) for t in found]
    measured = KINDS["spans"].measure(examples, predictions)
    other = seqeval_scores(gold, found)
    assert measured == pytest.approx({key: other[key] for key in measured})


def test_inner_and_outer_spans_are_counted_apart() -> None:
    gold = SpanExample("a", ("w",) * 4, (("ORG", 0, 3), ("LOC", 2, 3), ("PER", 3, 4)))
    found = SpanPrediction((("ORG", 0, 3), ("PER", 3, 4)), (1.0, 1.0))
    measured = KINDS["spans"].measure([gold], [found])
    assert (measured["inner_recall"], measured["outer_recall"]) == (0.0, 1.0)
    assert "inner_recall" not in KINDS["spans"].measure(
        [SpanExample("a", ("w",), (("X", 0, 1),))], [found]
    )


# ------------------------------------------------------------------------------------------- runs


def test_spans_are_found_without_their_types(knowing: Path, tmp_path: Path) -> None:
    data = write_spans(tmp_path / "spans")
    run = run_toy(
        data,
        knowing,
        tmp_path / "run",
        "spans",
        learning__epochs=12,
        span__length=3,
        span__hidden=32,
        span__overlaps="nested",
        task__identify=True,
    )
    assert run.folder.load(CARD, Card)["labels"] == ["NULL", "SPAN"]
    assert run.metrics["splits"]["test"]["f1"] > 80


def test_spans_that_are_too_long_are_counted(knowing: Path, tmp_path: Path) -> None:
    data = write_spans(tmp_path / "data")
    expected = {}
    for split in ("train", "dev", "test"):
        rows = read_lines(data / f"{split}.jsonl")
        expected[split] = sum(end - start > 1 for row in rows for _, start, end in row["spans"])
    run = run_toy(
        data, knowing, tmp_path / "run", "spans", method="ft", learning__epochs=1, span__length=1
    )
    assert run.metrics["spans_too_long"] == expected
    assert min(expected.values()) > 0
    (note,) = run_notes(run.metrics)
    assert note.endswith(
        f"never found: {expected['train']} of train, {expected['dev']} of dev, "
        f"{expected['test']} of test"
    )
    assert run_notes({"dropped": {"train: no gold label": 3}}) == [
        "left out: 3 (train: no gold label)"
    ]


def test_sentences_that_no_window_shows_whole_are_told(knowing: Path, tmp_path: Path) -> None:
    data = write_spans(tmp_path / "data")
    row = json.dumps({"words": ["the"] * 60, "spans": [["LAND", 0, 60]]}) + "\n"
    with (data / "train.jsonl").open("a") as stream:
        stream.write(row)
    run = run_toy(data, knowing, tmp_path / "run", "spans", method="ft", learning__epochs=1)
    assert run.metrics["cut"] == {"train": 1}
    told = "or no window shows a span or relation whole"
    assert any(note.endswith(f"{told}: 1 of train") for note in run_notes(run.metrics))
    (tmp_path / "mine.jsonl").write_text(row)
    (note,) = predict_file(tmp_path / "run", tmp_path / "mine.jsonl", device="cpu").notes
    assert note.endswith(f"{told}: 1")


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"span": {"length": 0}}, r"span\.length is 0"),
        ({"span": {"summary": "max"}}, r"span\.summary is 'max'; allowed are"),
        ({"span": {"overlaps": "some"}}, r"span\.overlaps"),
        ({"span": {"negatives": -1}}, r"span\.negatives is -1"),
        ({"head": {"decoder": "hmm"}}, r"head\.decoder"),
        ({"head": {"decoder": "crf", "combine": "mean"}}, r"head\.combine"),
    ],
)
def test_settings_out_of_range_are_refused(table: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build(TuneConfig, table)
