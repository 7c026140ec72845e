"""Decoding: windows joined, n-best answers against a slow search, and the way there and back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from symprompt.models import LanguageModel
from symprompt.models.vocabulary import Vocabulary
from symprompt.tasks.data.examples import (
    Answer,
    LabelSet,
    QuestionExample,
    TaggedExample,
    TaskData,
    TextExample,
    to_iob2,
)
from symprompt.tasks.decoding import (
    class_scores,
    decode_answers,
    decode_classes,
    decode_tags,
    tag_positions,
)
from symprompt.tasks.features import Features
from symprompt.tasks.metrics import evaluate
from symprompt.tasks.tensorise import lay_out

WORDS = ("The", "city", "of", "Paris", "lies", "in", "San-Marino", ",", "Rome", "Xqz.")
CONTEXT = (
    "The old city of Rome lies in Italy. Paris, the capital of France, is located in New York."
)


@pytest.fixture(params=["bert", "roberta", "xlm-roberta", "gpt2", "llama"])
def vocabulary(
    request: pytest.FixtureRequest, load_family: Callable[..., LanguageModel]
) -> Vocabulary:
    """One tokenizer of each kind."""
    return load_family(str(request.param)).vocabulary


def test_the_windows_of_a_text_vote(vocabulary: Vocabulary) -> None:
    examples = [TextExample("0", "Rome"), TextExample("1", "Paris Rome Lima " * 12)]
    labels = LabelSet(("a", "b", "c"))
    features = lay_out("sequence", examples, labels, vocabulary, max_length=16, stride=4)
    draw = np.random.default_rng(0)
    scores = np.log(draw.dirichlet(np.ones(3), len(features)).astype(np.float32))
    found = class_scores(features, scores)
    slow = np.stack([scores[features.example == row].mean(0) for row in range(2)])
    slow -= np.log(np.exp(slow).sum(1, keepdims=True))
    np.testing.assert_allclose(found, slow, atol=1e-6)
    assert decode_classes(features, scores, labels) == [labels.names[k] for k in slow.argmax(1)]


def sentences() -> tuple[list[TaggedExample], LabelSet]:
    draw = np.random.default_rng(3)
    labels = LabelSet.of_tags(["B-X", "B-Y"])
    examples = []
    for number in range(12):
        count = int(draw.integers(1, 30))
        words = tuple(draw.choice(WORDS, count).tolist())
        tags = to_iob2([labels.names[k] for k in draw.integers(0, len(labels), count)])
        examples.append(TaggedExample(str(number), words, tags))
    return examples, labels


@pytest.mark.parametrize("everywhere", [False, True])
def test_tags_survive_the_way_there_and_back(vocabulary: Vocabulary, everywhere: bool) -> None:
    examples, labels = sentences()
    features = lay_out(
        "tagging",
        examples,
        labels,
        vocabulary,
        max_length=24,
        stride=6,
        label_all_tokens=everywhere,
    )
    assert len(features) > len(examples)
    assert features.labels is not None
    # Where there is no label the scores are noise, as loud as the labels.
    scores = np.random.default_rng(1).normal(size=(*features.ids.shape, len(labels)))
    rows, columns = np.nonzero(features.labels >= 0)
    scores[rows, columns] = -9
    scores[rows, columns, features.labels[rows, columns]] = 9
    wanted = [example.tags for example in examples]
    assert decode_tags(features, scores, labels) == wanted
    assert decode_tags(features, scores.argmax(-1), labels) == wanted
    assert decode_tags(features, scores[tag_positions(features)], labels) == wanted
    data = TaskData("tagging", "t", {"dev": examples}, labels)
    assert evaluate("tagging", data, "dev", decode_tags(features, scores, labels))["f1"] == 1


def test_tags_are_read_off_the_mean_of_a_words_tokens(vocabulary: Vocabulary) -> None:
    examples, labels = sentences()
    features = lay_out("tagging", examples, labels, vocabulary, max_length=24, stride=6)
    assert features.own is not None
    assert features.words is not None
    scores = np.random.default_rng(1).normal(size=(*features.ids.shape, len(labels)))
    found = decode_tags(features, scores, labels, combine="mean")
    for number, example in enumerate(examples):
        slow = []
        for word in range(len(example.words)):
            here = (features.example[:, None] == number) & (features.words == word) & features.own
            slow.append(labels.names[int(scores[here].mean(0).argmax())])
        assert found[number] == to_iob2(slow)


# ---------------------------------------------------------------------------------- questions


def questions() -> list[QuestionExample]:
    found = []
    for number, answer in enumerate(["Italy", "old city", "New York", None, "The"]):
        answers = () if answer is None else (Answer(CONTEXT.index(answer), answer),)
        found.append(
            QuestionExample(str(number), "in", CONTEXT, answers, impossible=answer is None)
        )
    return found


def slow_answers(
    features: Features, scores: np.ndarray, example: int, tries: int, longest: int
) -> tuple[float, list[tuple[float, str]]]:
    """All pairs of the best tokens of every window, one by one."""
    assert features.offsets is not None
    assert features.null is not None
    null, found = np.inf, {}
    for row in np.flatnonzero(features.example == example):
        at = features.null[row]
        null = min(null, scores[row, at, 0] + scores[row, at, 1])
        inside = [t for t in range(scores.shape[1]) if features.offsets[row, t, 0] >= 0]
        firsts = sorted(inside, key=lambda t: -scores[row, t, 0])[:tries]
        lasts = sorted(inside, key=lambda t: -scores[row, t, 1])[:tries]
        for first in firsts:
            for last in lasts:
                if first <= last < first + longest:
                    begin, end = features.offsets[row, first, 0], features.offsets[row, last, 1]
                    score = scores[row, first, 0] + scores[row, last, 1]
                    if CONTEXT[begin:end].strip():
                        found[begin, end] = max(score, found.get((begin, end), -np.inf))
    ranked = sorted(
        ((score, CONTEXT[b:e].strip()) for (b, e), score in found.items()), reverse=True
    )
    return null, ranked


def test_answers_are_those_of_a_slow_search(vocabulary: Vocabulary) -> None:
    examples = questions()
    features = lay_out("question", examples, LabelSet(()), vocabulary, max_length=30, stride=8)
    scores = np.random.default_rng(2).normal(size=(*features.ids.shape, 2))
    found = decode_answers(features, scores, examples, threshold=0.5, candidates=4, longest=6)
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
            assert CONTEXT[entry.start : entry.end].strip() == entry.text


def test_answers_survive_the_way_there_and_back(vocabulary: Vocabulary) -> None:
    examples = questions()
    features = lay_out("question", examples, LabelSet(()), vocabulary, max_length=30, stride=8)
    assert features.starts is not None
    assert features.ends is not None
    scores = np.random.default_rng(2).normal(size=(*features.ids.shape, 2)) * 0.01
    rows = np.arange(len(features))
    scores[rows, features.starts, 0] += 5
    scores[rows, features.ends, 1] += 5
    # A window that shows the answer says so louder than the others say that they show none.
    shown = features.starts != features.null
    scores[rows[shown], features.starts[shown], 0] += 2
    found = decode_answers(features, scores, examples)
    data = TaskData("question", "q", {"dev": examples}, LabelSet(()))
    measured = evaluate("question", data, "dev", found)
    assert measured["exact"] == 1
    assert measured["oracle_f1"] == 1


def test_a_model_that_allows_nothing_gives_no_answer(vocabulary: Vocabulary) -> None:
    examples = questions()[:1]
    features = lay_out("question", examples, LabelSet(()), vocabulary, max_length=90, stride=8)
    scores = np.full((*features.ids.shape, 2), -np.inf)
    scores[np.arange(len(features)), features.null] = 0.0
    (found,) = decode_answers(features, scores, examples)
    assert (found.text, found.candidates) == ("", ())
    assert found.at(None).text == ""


def test_features_of_another_kind_are_refused(vocabulary: Vocabulary) -> None:
    features = lay_out(
        "sequence", [TextExample("0", "x")], LabelSet(()), vocabulary, max_length=30, stride=2
    )
    with pytest.raises(ValueError, match="not of words"):
        tag_positions(features)
    with pytest.raises(ValueError, match="not of questions"):
        decode_answers(features, np.zeros((1, 3, 2)), [])
