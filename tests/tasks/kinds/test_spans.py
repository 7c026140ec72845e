"""Spans from file to figure: loaders, rows, decoding, thresholds, metrics, runs, heads by loops."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from symprompt.config import build
from symprompt.errors import ConfigError, DataError
from symprompt.models import LanguageModel
from symprompt.tasks.config import HeadConfig, SpanConfig, TuneConfig
from symprompt.tasks.data.examples import LabelSet, Relation, SpanExample, spans_of
from symprompt.tasks.data.load import load_task
from symprompt.tasks.features import Batch, Features, first_words
from symprompt.tasks.kinds import KINDS, Target
from symprompt.tasks.kinds.spans import (
    LOWEST,
    Projection,
    SpanHead,
    SpanPrediction,
    SpanStates,
)
from symprompt.tasks.predict import CARD, Card, predict_file
from symprompt.tasks.tables import run_notes
from tiny.labelled import read_lines, write_spans
from tiny.models import PLAIN_WORDS
from tiny.oracles import generator, seqeval_scores
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
    data = load_task(tmp_path, "conll2004", kind="relations")
    example = data.split("dev")[0]
    assert example.spans == (("Peop", 0, 2), ("Loc", 3, 4), ("Org", 5, 6))
    assert example.relations == (Relation("Live_In", 0, 1), Relation("Work_For", 0, 2))
    assert data.labels.names == ("NULL", "Loc", "Org", "Peop")
    assert data.relations.names == ("NULL", "Live_In", "Work_For")
    spans = load_task(tmp_path, "conll2004", kind="spans")
    assert spans.kind == "spans"
    assert spans.split("test")[0].spans == example.spans
    assert load_task(tmp_path, "conll2004").kind == "tagging"


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
        load_task(tmp_path, "conll2004", kind="relations")


def test_sets_without_spans_or_relations_say_so(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match="not as relations; sets that can be are conll2004",
    ):
        load_task(tmp_path, "conll2003", kind="relations")
    with pytest.raises(ConfigError, match="rte is read as pair, not as spans"):
        load_task(tmp_path, "rte", kind="spans")


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


# A sentence of six words, a token each.
WORDS = np.arange(6, dtype=np.int32)[None]
SIX = Features(WORDS, np.array([6]), np.array([0]), notes={"words": WORDS})
ONE = [SpanExample("a", ("w",) * 6)]


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
    target = Target(LABELS, span=SpanConfig(overlaps=overlaps))
    (found,) = KINDS["spans"].decode(CANDIDATES, SIX, ONE, target, threshold=threshold)
    assert list(found.spans) == wanted
    (low,) = KINDS["spans"].decode(CANDIDATES, SIX, ONE, target, threshold=LOWEST)
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
    names = LabelSet.of_spans(["R"])
    (found,) = KINDS["relations"].decode(scores, SIX, ONE, Target(LABELS, names))
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


# ------------------------------------------------------------------------------------------ heads

WIDTH = 6
SHAPE = SpanConfig(length=3, hidden=5, candidates=64)
PARTS = list(itertools.product(["plain", "ffn"], ["mean", "attention"]))


def make_batch() -> tuple[Tensor, Batch]:
    """Two rows; words of one to three tokens, the last word of the first row another row's."""
    firsts = torch.tensor([[1, 2, 4, 7, -1, -1, -1, -1, -1], [1, 3] + [-1] * 7])
    lasts = torch.tensor([[1, 3, 6, 7, -1, -1, -1, -1, -1], [2, 3] + [-1] * 7])
    owned = torch.tensor([[True, True, True] + [False] * 6, [True, True] + [False] * 7])
    spans = torch.tensor(
        [[[0, 0, 1], [1, 1, 2], [2, 0, 1], [0, 3, 2]], [[1, 0, 2]] + [[-1] * 3] * 3]
    )
    pairs = torch.tensor([[[0, 1, 1], [2, 0, 2]], [[-1] * 3] * 2])
    batch = Batch(
        torch.zeros(2, 9).long(),
        torch.tensor([9, 5]),
        targets={
            "firsts": firsts,
            "lasts": lasts,
            "owned": owned,
            "spans": spans,
            "pairs": pairs,
        },
    )
    states = torch.randn(2, 9, WIDTH, generator=generator(3), dtype=torch.float64)
    return states, batch


def make_head(shape: SpanConfig = SHAPE, relations: int = 0) -> SpanHead:
    config = HeadConfig(dropout=0.0)
    head = SpanHead(WIDTH, 3, shape, config, generator(), relations=relations).double().eval()
    # Large enough weights to matter.
    draws = generator(7)
    with torch.no_grad():
        for value in head.parameters():
            value.normal_(0, 0.7, generator=draws)
    return head


def slow_representation(parts: SpanStates, states: Tensor, start: int, end: int) -> list[Tensor]:
    """Return start, end and summary of one span's tokens (equations 11.21 to 11.26)."""
    tokens = states[start : end + 1]
    summary = tokens.mean(0)
    if parts.query is not None and parts.key is not None:
        query = sum(parts.query(token) for token in tokens) / len(tokens)
        scores = torch.stack([query @ parts.key(token) for token in tokens])
        weights = torch.softmax(scores / math.sqrt(parts.shape.hidden), 0)
        summary = sum(weight * token for weight, token in zip(weights, tokens, strict=True))
    return [parts.start(tokens[0]), parts.end(tokens[-1]), summary]


def slow_first_layer(project: Projection, representation: list[Tensor]) -> Tensor:
    """Return one product with the concatenation of a span's parts."""
    layers = (project.start, project.end, project.inside)
    weight = torch.cat([layer.weight for layer in layers], 1)
    return weight @ torch.cat(representation) + sum(layer.bias for layer in layers)


def slow_spans(batch: Batch, row: int, length: int) -> list[tuple[int, int, int, int]]:
    """Return every span of a row: first word, words beside it, first and last token."""
    firsts, lasts = batch.targets["firsts"][row].tolist(), batch.targets["lasts"][row].tolist()
    count = sum(token >= 0 for token in firsts)
    return [
        (word, more, firsts[word], lasts[word + more])
        for word in range(count)
        for more in range(length)
        if word + more < count and batch.targets["owned"][row, word]
    ]


def slow_logits(head: SpanHead, states: Tensor, start: int, end: int) -> Tensor:
    parts = slow_representation(head.states, states, start, end)
    return head.output(functional.gelu(slow_first_layer(head.project, parts)))


@pytest.mark.parametrize(("boundary", "summary"), PARTS)
def test_losses_are_those_of_a_loop_over_spans(boundary: str, summary: str) -> None:
    states, batch = make_batch()
    head = make_head(replace(SHAPE, boundary=boundary, summary=summary))
    losses = head.loss(states, batch)
    for row in range(2):
        gold = {(a, b): c for a, b, c in batch.targets["spans"][row].tolist() if c >= 0}
        total, spans = 0.0, slow_spans(batch, row, 3)
        for word, more, start, end in spans:
            scores = torch.log_softmax(slow_logits(head, states[row], start, end), -1)
            total -= scores[gold.get((word, more), 0)].item()
        words = int(batch.targets["owned"][row].sum())
        assert losses[row].item() == pytest.approx(total / words, abs=1e-10)
    assert head.weights(batch).tolist() == [3, 2]


@pytest.mark.parametrize(("boundary", "summary"), PARTS)
def test_candidates_are_the_best_spans_of_a_loop(boundary: str, summary: str) -> None:
    states, batch = make_batch()
    head = make_head(replace(SHAPE, boundary=boundary, summary=summary))
    found = head.scores(states, batch)
    assert found.shape == (2, 64, 4)
    for row in range(2):
        wanted = []
        for word, more, start, end in slow_spans(batch, row, 3):
            scores = torch.log_softmax(slow_logits(head, states[row], start, end), -1).tolist()
            label = max((1, 2), key=lambda place, own=scores: own[place])
            wanted.append([word, more, label, scores[label] - scores[0]])
        wanted.sort(key=lambda entry: -entry[3])
        own = [entry for entry in found[row].tolist() if math.isfinite(entry[3])]
        assert [entry[:3] for entry in own] == [entry[:3] for entry in wanted]
        odds = [entry[3] for entry in wanted]
        assert [entry[3] for entry in own] == pytest.approx(odds, abs=1e-10)


def test_few_candidates_are_the_best_of_many() -> None:
    states, batch = make_batch()
    head = make_head()
    many = head.scores(states, batch)
    head.shape = replace(SHAPE, candidates=2)
    assert torch.equal(head.scores(states, batch), many[:, :2])


def slow_relation(
    head: SpanHead, states: Tensor, one: tuple[int, int, int], other: tuple[int, int, int]
) -> Tensor:
    """Return the scores of relations between two spans given by class, first and last token."""
    hidden = torch.zeros(SHAPE.hidden, dtype=torch.float64)
    sides = ((one, head.one, head.one_class), (other, head.other, head.other_class))
    for (label, start, end), project, by_class in sides:
        parts = slow_representation(head.states, states, start, end)
        hidden = hidden + slow_first_layer(project, parts)
        hidden = hidden + by_class.weight[:, label] + by_class.bias
    left, right = sorted((one[1:], other[1:]))
    between = states[left[1] + 1 : right[0]]
    if len(between):
        hidden = hidden + head.between(between.mean(0))
    return head.related(functional.gelu(hidden))


@pytest.mark.parametrize(("boundary", "summary"), PARTS)
def test_pairs_are_scored_as_a_loop_does(boundary: str, summary: str) -> None:
    states, batch = make_batch()
    head = make_head(replace(SHAPE, boundary=boundary, summary=summary, candidates=6), 3)
    plain = make_head(replace(SHAPE, boundary=boundary, summary=summary))
    plain.load_state_dict({k: v for k, v in head.state_dict().items() if k in plain.state_dict()})
    firsts, lasts = batch.targets["firsts"], batch.targets["lasts"]
    losses = head.loss(states, batch) - plain.loss(states, batch)
    scores = head.scores(states, batch)
    assert scores.shape == (2, 12, 16)
    for row in range(2):
        spans = [
            (label, int(firsts[row, word]), int(lasts[row, word + more]))
            for word, more, label in batch.targets["spans"][row].tolist()
            if label >= 0
        ]
        gold = {(a, b): c for a, b, c in batch.targets["pairs"][row].tolist() if c >= 0}
        terms = []
        for a, b in itertools.permutations(range(len(spans)), 2):
            found = slow_relation(head, states[row], spans[a], spans[b])
            found = torch.log_softmax(found, -1)
            terms.append(-found[gold.get((a, b), 0)].item())
            best = int(found[1:].argmax()) + 1
            assert scores[row, 6 + a, 4 + b] == best
            odds = (found[best] - found[0]).item()
            assert scores[row, 6 + a, 10 + b].item() == pytest.approx(odds, abs=1e-10)
        wanted = sum(terms) / max(1, len(terms))
        assert losses[row].item() == pytest.approx(wanted, abs=1e-10)
    assert torch.isneginf(scores[1, 6:, 10:]).all()


def test_candidates_are_paired_as_labelled_spans_are() -> None:
    states, batch = make_batch()
    head = make_head(replace(SHAPE, candidates=6), 3)
    scores = head.scores(states, batch)
    again = scores[:, :6, :3].long()
    again = torch.where(torch.isfinite(scores[:, :6, 3:4]), again, -1)
    assert (again[1, :, 2] > 0).sum() == 3
    given = head.scores(states, replace(batch, targets={**batch.targets, "spans": again}))
    torch.testing.assert_close(given[:, 6:, 4:], scores[:, :6, 4:])


def test_some_of_the_spans_of_no_class_are_drawn_while_training() -> None:
    states, batch = make_batch()
    head = make_head(replace(SHAPE, negatives=2))
    whole = head.loss(states, batch)
    torch.manual_seed(0)
    head.train()
    drawn = torch.stack([head.loss(states, batch) for _ in range(400)])
    assert (drawn <= whole + 1e-9).all()
    assert drawn[:, 0].std() > 0
    # The labelled ones always count, of the others two of seven.
    head.shape = replace(SHAPE, negatives=0)
    gold = torch.zeros(2, dtype=torch.float64)
    for row, count in enumerate((3, 1)):
        for word, more, label in batch.targets["spans"][row, :count].tolist():
            start = int(batch.targets["firsts"][row, word])
            end = int(batch.targets["lasts"][row, word + more])
            scores = torch.log_softmax(slow_logits(head, states[row], start, end), -1)
            gold[row] -= scores[label].item() / int(batch.targets["owned"][row].sum())
    rest = len(slow_spans(batch, 0, 3)) - 3
    share = 2 / rest
    expected = (gold + share * (whole - gold))[0].item()
    assert drawn.mean(0)[0].item() == pytest.approx(expected, rel=0.1)
