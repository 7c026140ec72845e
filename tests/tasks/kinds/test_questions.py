"""Answers to questions: rows of every tokenizer, a slow search for answers, SQuAD's metrics."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from symprompt.errors import DataError, ModelError
from symprompt.models.vocabulary import Vocabulary
from symprompt.tasks.config import HeadConfig
from symprompt.tasks.data.examples import Answer, LabelSet, QuestionExample
from symprompt.tasks.features import Batch, Features
from symprompt.tasks.kinds import KINDS, Target
from symprompt.tasks.kinds import questions as own
from symprompt.tasks.kinds.questions import (
    AnswerHead,
    AnswerPrediction,
    Candidate,
    best_threshold,
    normalise,
    question_scores,
)
from tiny.oracles import WIDTH, generator, make_states, slow_logits, slow_loss
from tiny.tasks import tensorise

QUESTIONS, NO_LABELS = KINDS["question"], Target(LabelSet(()))
CONTEXT = (
    "The old city of Rome lies in Italy. Paris, the capital of France, is located in New York."
)
ANSWERS = ("Italy", "The old", "France", "New York", "capital of", "York.")


def ask(name: str, answer: str | None, context: str = CONTEXT) -> QuestionExample:
    if answer is None:
        return QuestionExample(name, "The capital of Cuba is", context, ())
    found = (Answer(context.index(answer), answer),)
    return QuestionExample(name, " The capital of France", context, found)


@pytest.mark.parametrize("max_length", [44, 120])
def test_answers_are_found_again(vocabulary: Vocabulary, max_length: int) -> None:
    context = "old river, " * 3 + CONTEXT if max_length == 44 else CONTEXT
    examples = [ask(str(place), answer, context) for place, answer in enumerate(ANSWERS)]
    examples += [ask("none", None, context), QuestionExample("?", "in", context)]
    features = tensorise(
        "question", examples, LabelSet(()), vocabulary, max_length=max_length, stride=12
    )
    assert (features.lengths <= max_length).all()
    starts, ends, null, offsets = (
        features.targets["starts"],
        features.targets["ends"],
        features.notes["null"],
        features.notes["offsets"],
    )
    found: set[int] = set()
    for row in range(len(features)):
        example = examples[features.example[row]]
        if example.id == "?":
            assert starts[row] == ends[row] == -100
            continue
        if starts[row] == null[row]:
            assert ends[row] == null[row]
            assert offsets[row, null[row]].tolist() == [-1, -1]
            continue
        text = context[offsets[row, starts[row], 0] : offsets[row, ends[row], 1]]
        # A token may be more than the answer ("York." is one token somewhere), never less.
        assert example.answers[0].text in text
        assert len(text.strip()) <= len(example.answers[0].text) + 1
        found.add(int(features.example[row]))
    assert found == set(range(len(ANSWERS)))
    wanted = features.lengths - 1 if vocabulary.causal else 0 * features.lengths
    assert null.tolist() == wanted.tolist()
    batch = features.batch()
    allowed = batch.targets["allowed"]
    assert int(allowed.sum()) == int((offsets[..., 0] >= 0).sum()) + len(features)


def test_a_question_that_leaves_no_room_is_refused(plain: Vocabulary) -> None:
    example = QuestionExample("long-one", "Paris " * 50, CONTEXT)
    with pytest.raises(DataError, match="'long-one' is longer than 40 tokens and its question"):
        tensorise("question", [example], LabelSet(()), plain, max_length=40)


def test_a_tokenizer_without_offsets_is_refused(plain: Vocabulary) -> None:
    class Slow:
        is_fast = False

        def __getattr__(self, name: str) -> object:
            return getattr(plain.tokenizer, name)

        def __call__(self, *texts: object, **settings: object) -> object:
            return plain.tokenizer(*texts, **settings)

    with pytest.raises(ModelError, match="fast tokenizer"):
        tensorise(
            "question",
            [ask("0", "Italy")],
            LabelSet(()),
            Vocabulary(Slow(), name="x"),
            max_length=90,
        )


def test_losses_are_those_of_a_loop() -> None:
    states = make_states()
    allowed = torch.tensor([[1, 0, 1, 1, 1], [1, 0, 0, 0, 0], [1, 0, 1, 0, 0]], dtype=torch.bool)
    targets = {
        "starts": torch.tensor([2, 0, -100]),
        "ends": torch.tensor([4, 0, -100]),
        "allowed": allowed,
    }
    batch = Batch(torch.zeros(3, 5).long(), torch.tensor([5, 2, 3]), targets=targets)
    head = AnswerHead(WIDTH, 2, HeadConfig(dropout=0.0), generator()).double()
    losses, scores = head.loss(states, batch).tolist(), head.scores(states, batch)
    assert torch.isinf(scores[~allowed]).all()
    for row in range(3):
        terms = []
        for side, labels in enumerate((targets["starts"], targets["ends"])):
            if labels[row] < 0:
                continue
            logits = [
                slow_logits(head, states[row, at])[side] if allowed[row, at] else -math.inf
                for at in range(5)
            ]
            terms.append(slow_loss(logits, int(labels[row])))
        wanted = sum(terms) / 2 if terms else 0.0
        assert losses[row] == pytest.approx(wanted, abs=1e-12)
    assert head.weights(batch).tolist() == [1, 1, 0]


ASKED = [
    replace(ask(str(number), answer), question="in")
    for number, answer in enumerate(["Italy", "old city", "New York", None, "The"])
]


def slow_answers(
    features: Features, scores: np.ndarray, example: int, tries: int, longest: int
) -> tuple[float, list[tuple[float, str]]]:
    """All pairs of the best tokens of every window, one by one."""
    null, found, offsets = np.inf, {}, features.notes["offsets"]
    for row in np.flatnonzero(features.example == example):
        at = features.notes["null"][row]
        null = min(null, scores[row, at, 0] + scores[row, at, 1])
        inside = [t for t in range(scores.shape[1]) if offsets[row, t, 0] >= 0]
        firsts = sorted(inside, key=lambda t: -scores[row, t, 0])[:tries]
        lasts = sorted(inside, key=lambda t: -scores[row, t, 1])[:tries]
        for first in firsts:
            for last in lasts:
                if first <= last < first + longest:
                    begin, end = offsets[row, first, 0], offsets[row, last, 1]
                    score = scores[row, first, 0] + scores[row, last, 1]
                    if CONTEXT[begin:end].strip():
                        found[begin, end] = max(score, found.get((begin, end), -np.inf))
    ranked = sorted(
        ((score, CONTEXT[b:e].strip()) for (b, e), score in found.items()), reverse=True
    )
    return null, ranked


def test_answers_are_those_of_a_slow_search(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own, "_CANDIDATES", 4)
    monkeypatch.setattr(own, "_LONGEST", 6)
    examples = ASKED
    features = tensorise("question", examples, LabelSet(()), vocabulary, max_length=30, stride=8)
    scores = np.random.default_rng(2).normal(size=(*features.ids.shape, 2))
    found = QUESTIONS.decode(scores, features, examples, NO_LABELS, threshold=0.5)
    for number, prediction in enumerate(found):
        null, ranked = slow_answers(features, scores, number, 4, 6)
        assert prediction.null_score == pytest.approx(null - ranked[0][0])
        assert prediction.text == ("" if null - ranked[0][0] > 0.5 else ranked[0][1])
        assert prediction.at(None).text == ranked[0][1]
        assert prediction.candidates[0].score == pytest.approx(ranked[0][0])
        scored = [entry.score for entry in prediction.candidates]
        assert scored == sorted(scored, reverse=True)
        assert len(scored) <= 4
        for entry in prediction.candidates:
            assert entry.text in CONTEXT


def test_a_model_that_allows_nothing_gives_no_answer(vocabulary: Vocabulary) -> None:
    examples = ASKED[:1]
    features = tensorise("question", examples, LabelSet(()), vocabulary, max_length=90, stride=8)
    scores = np.full((*features.ids.shape, 2), -np.inf)
    scores[np.arange(len(features)), features.notes["null"]] = 0.0
    (found,) = QUESTIONS.decode(scores, features, examples, NO_LABELS, threshold=0.0)
    assert (found.text, found.candidates) == ("", ())
    assert found.at(None).text == ""


def question(*answers: str) -> QuestionExample:
    context = " ".join(answers)
    found = tuple(Answer(context.index(text), text) for text in answers)
    return QuestionExample("q", "?", context, found)


def predict(text: str, null: float = 0.0, best: str | None = None) -> AnswerPrediction:
    kept = text if best is None else best
    return AnswerPrediction(text, null, (Candidate(kept, 0.0),))


@pytest.mark.parametrize(
    ("raw", "plain"),
    [
        ("The  Eiffel-Tower!", "eiffeltower"),
        ("a an the", ""),
        ("An apple a day.", "apple day"),
        ("theatre", "theatre"),
        ("U.S.", "us"),
        ("«the»", "« »"),
        ("1,000 km", "1000 km"),
    ],
)
def test_normalised_answers(raw: str, plain: str) -> None:
    assert normalise(raw) == plain


@pytest.mark.parametrize(
    ("predicted", "gold", "exact", "f1"),
    [
        ("the Denver Broncos", "Denver Broncos", 1, 1),
        ("Broncos", "Denver Broncos", 0, 2 / 3),
        ("in the city of Paris", "Paris", 0, 0.4),
        ("Paris", "London", 0, 0),
        ("", "London", 0, 0),
        ("", "", 1, 1),
        ("the", "", 1, 1),
        ("to be to", "to to to", 0, 2 / 3),
    ],
)
def test_answers_by_hand(predicted: str, gold: str, exact: int, f1: float) -> None:
    example = question(gold) if gold else question()
    assert question_scores(example, predicted) == (exact, pytest.approx(f1))


def test_the_best_of_several_answers_counts() -> None:
    assert question_scores(question("Denver Broncos", "Broncos"), "Broncos") == (1, 1)
    assert question_scores(question(), "") == (1, 1)
    assert question_scores(question(), "x") == (0, 0)
    assert question_scores(question("The", "Beatles"), "") == (0, 0)


def test_questions_without_answer_are_counted_apart() -> None:
    found = QUESTIONS.measure([question("x y"), question("z")], [predict("x"), predict("z")])
    assert found == {"exact": 0.5, "f1": pytest.approx((2 / 3 + 1) / 2)}
    examples = [question("x"), question("y"), question(), question()]
    predictions = [predict("x"), predict("", best="y"), predict(""), predict("z")]
    found = QUESTIONS.measure(examples, predictions)
    assert found["exact"] == 0.5
    assert (found["answerable_exact"], found["unanswerable_exact"]) == (0.5, 0.5)


def slow_threshold(
    examples: list[QuestionExample], predictions: list[AnswerPrediction]
) -> tuple[float, float]:
    """The best threshold by trying each."""
    nulls = sorted({entry.null_score for entry in predictions})
    tried = []
    for threshold in [nulls[0] - 1, *nulls]:
        texts = [entry.at(threshold).text for entry in predictions]
        scores = [
            question_scores(left, text)[1] for left, text in zip(examples, texts, strict=True)
        ]
        tried.append((sum(scores) / len(scores), -threshold))
    best, threshold = max(tried)
    return -threshold, best


@pytest.mark.parametrize("seed", range(6))
def test_the_best_threshold_is_that_of_trying_each(seed: int) -> None:
    draw = random.Random(seed)
    examples, predictions = [], []
    for _ in range(30):
        answers = draw.choice([(), ("x",), ("x y",)])
        examples.append(question(*answers))
        predictions.append(
            predict("", draw.choice([-2.0, -1.0, 0.5, 1.5, 3.0]), draw.choice("xyz"))
        )
    threshold, best = best_threshold(examples, predictions)
    assert (threshold, best) == pytest.approx(slow_threshold(examples, predictions))
    chosen = [entry.at(threshold) for entry in predictions]
    found = QUESTIONS.measure(examples, chosen)
    assert found["f1"] == pytest.approx(best)
    assert found["oracle_f1"] == pytest.approx(best)


def test_no_questions_have_no_threshold() -> None:
    with pytest.raises(DataError, match="hold some out"):
        best_threshold([], [])
