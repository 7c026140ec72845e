"""Metrics against seqeval, scikit-learn, slow versions and hand-made cases."""

from __future__ import annotations

import importlib
import random
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symprompt.errors import DataError, SympromptError
from symprompt.tasks.data.examples import (
    Answer,
    LabelSet,
    PairExample,
    QuestionExample,
    TaggedExample,
    TaskData,
    TextExample,
)
from symprompt.tasks.decoding import AnswerPrediction, Candidate
from symprompt.tasks.metrics import (
    answer_f1,
    best_threshold,
    class_metrics,
    entity_scores,
    evaluate,
    exact_match,
    macro_f1,
    matthews,
    multirc_scores,
    normalise,
    question_scores,
    role_scores,
    seqeval_scores,
    squad_scores,
)

TAGS = ["O", "B-A", "I-A", "B-R-A", "I-R-A", "B-V", "I-V"]


def random_tags(seed: int, sentences: int = 40) -> list[list[str]]:
    draw = random.Random(seed)
    sizes = random.Random(7)
    return [draw.choices(TAGS, k=sizes.randint(1, 9)) for _ in range(sentences)]


@pytest.mark.parametrize("seed", range(4))
def test_entities_are_counted_as_seqeval_counts_them(seed: int) -> None:
    gold, predicted = random_tags(seed), random_tags(seed + 10)
    for left, right in zip(gold, predicted, strict=True):
        right[: len(left) // 2] = left[: len(left) // 2]
    assert entity_scores(gold, predicted) == pytest.approx(seqeval_scores(gold, predicted))
    assert 0 < entity_scores(gold, predicted)["f1"] < 1


def test_no_entities_at_all_score_zero() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert seqeval_scores([["O"]], [["O"]])["f1"] == 0
    assert entity_scores([["O"]], [["O"]])["f1"] == 0


def test_a_missing_seqeval_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(SympromptError, match=r"pip install 'symprompt\[nlu\]'"):
        seqeval_scores([["O"]], [["O"]])


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abcd")), min_size=1))
def test_classes_are_scored_as_scikit_learn_does(pairs: list[tuple[str, str]]) -> None:
    library = importlib.import_module("sklearn.metrics")
    gold, predicted = [left for left, _ in pairs], [right for _, right in pairs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = library.f1_score(gold, predicted, average="macro", zero_division=0)
        correlation = library.matthews_corrcoef(gold, predicted)
    assert macro_f1(gold, predicted) == pytest.approx(wanted)
    assert matthews(gold, predicted) == pytest.approx(correlation, abs=1e-12)


def test_classes_by_hand() -> None:
    found = class_metrics(["a", "a", "b", "b"], ["a", "b", "b", "b"])
    assert found["accuracy"] == 0.75
    assert found["macro_f1"] == pytest.approx((2 / 3 + 0.8) / 2)
    assert found["matthews"] == pytest.approx(1 / 3**0.5)
    assert class_metrics([], []) == {"accuracy": 0.0, "macro_f1": 0.0, "matthews": 0.0}


def test_roles_leave_the_predicate_out() -> None:
    gold = [["B-ARG0", "B-V", "B-ARG1", "I-ARG1"], ["B-V", "B-C-ARG1", "O"]]
    predicted = [["B-ARG0", "B-V", "B-ARG1", "B-ARG1"], ["B-V", "I-C-ARG1", "B-ARG0"]]
    found = role_scores(gold, predicted)
    # Right: ARG0 and C-ARG1 of three gold and five predicted arguments.
    assert found["precision"] == pytest.approx(2 / 5)
    assert found["recall"] == pytest.approx(2 / 3)
    assert found["f1"] == pytest.approx(4 / 8)
    assert found["f1_with_predicates"] == pytest.approx(8 / 12)


def test_multirc_by_hand() -> None:
    questions = [0, 0, 1, 1, 1, 2]
    gold = [True, False, True, True, False, False]
    predicted = [True, False, True, False, True, False]
    found = multirc_scores(questions, gold, predicted)
    assert found["em"] == pytest.approx(2 / 3)
    assert found["f1a"] == pytest.approx(2 * 2 / (3 + 3))
    assert multirc_scores([0], [False], [False]) == {"em": 1.0, "f1a": 0.0}


# ------------------------------------------------------------------------------------------ SQuAD


def question(*answers: str) -> QuestionExample:
    context = " ".join(answers)
    found = tuple(Answer(context.index(text), text) for text in answers)
    return QuestionExample("q", "?", context, found, impossible=not answers)


def predict(text: str, null: float = 0.0, best: str | None = None) -> AnswerPrediction:
    kept = text if best is None else best
    return AnswerPrediction(text, null, (Candidate(kept, 0.0, 0, len(kept)),))


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
    assert exact_match(predicted, gold) == exact
    assert answer_f1(predicted, gold) == pytest.approx(f1)


def test_the_best_of_several_answers_counts() -> None:
    assert question_scores(question("Denver Broncos", "Broncos"), "Broncos") == (1, 1)
    assert question_scores(question(), "") == (1, 1)
    assert question_scores(question(), "x") == (0, 0)
    assert question_scores(question("The", "Beatles"), "") == (0, 0)


def test_a_set_where_all_can_be_answered_has_two_figures() -> None:
    found = squad_scores([question("x y"), question("z")], [predict("x"), predict("z")])
    assert found == {"exact": 0.5, "f1": pytest.approx((2 / 3 + 1) / 2)}


def test_questions_without_answer_are_counted_apart() -> None:
    examples = [question("x"), question("y"), question(), question()]
    predictions = [predict("x"), predict("", best="y"), predict(""), predict("z")]
    found = squad_scores(examples, predictions)
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
    found = squad_scores(examples, chosen)
    assert found["f1"] == pytest.approx(best)
    assert found["oracle_f1"] == pytest.approx(best)


def test_no_questions_have_no_threshold() -> None:
    with pytest.raises(DataError, match="hold some out"):
        best_threshold([], [])


# --------------------------------------------------------------------------------------- evaluate


def test_every_kind_is_evaluated() -> None:
    pairs = [PairExample("0", "x", "y", "a"), PairExample("1", "x", "y", "b")]
    data = TaskData("pair", "p", {"dev": pairs}, LabelSet(("a", "b")))
    assert evaluate("pair", data, "dev", ["a", "a"])["accuracy"] == 0.5
    tagged = [TaggedExample("0", ("x", "y"), ("B-A", "O"))]
    data = TaskData("tagging", "t", {"dev": tagged}, LabelSet.of_tags(["B-A"]))
    for library in (False, True):
        found = evaluate("tagging", data, "dev", [("B-A", "B-A")], library=library)
        assert found["f1"] == pytest.approx(2 / 3)
    data = TaskData("question", "q", {"dev": [question("x")]}, LabelSet(()))
    assert evaluate("question", data, "dev", [predict("x")])["f1"] == 1


@pytest.mark.parametrize(
    ("kind", "example", "prediction"),
    [
        ("sequence", TextExample("0", "x"), "a"),
        ("tagging", TaggedExample("0", ("x",)), ("O",)),
        ("question", QuestionExample("0", "q", "c"), predict("c")),
    ],
)
def test_what_cannot_be_scored_is_refused(kind: str, example: object, prediction: object) -> None:
    data = TaskData(kind, "d", {"test": [example]}, LabelSet(("a",)))  # type: ignore[arg-type, list-item]
    with pytest.raises(DataError, match="test has examples without labels"):
        evaluate(kind, data, "test", [prediction])  # type: ignore[arg-type, list-item]
    with pytest.raises(DataError, match=r"got 0 prediction\(s\) for the 1"):
        evaluate(kind, data, "test", [])  # type: ignore[arg-type]


def test_tags_that_do_not_fit_are_refused() -> None:
    data = TaskData("tagging", "t", {"dev": [TaggedExample("0", ("x",), ("O",))]}, LabelSet(("O",)))
    with pytest.raises(DataError, match="not aligned"):
        evaluate("tagging", data, "dev", [("O", "O")])
    assert len(data.labels) == 1
