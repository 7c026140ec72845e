"""SQuAD's metrics, from their definition: exact match and F1 of normalised answers.

Rajpurkar et al. (2016) and (2018): answers are compared in lower case without punctuation,
articles and extra spaces, each with the right answer it fits best. A question without an answer
counts 1 where none is predicted, else 0. All figures are fractions.

How good predicted spans and relations are.

How good predictions are: classes, entities, roles, and several answers to one question.

All figures are fractions. Entities are counted as conlleval and seqeval count them; a test holds
the two against each other, and ``seqeval_scores`` asks seqeval itself.
"""

from __future__ import annotations

import importlib
import re
import string
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from typing import TypeVar

import numpy as np

from symprompt.errors import DataError, SympromptError
from symprompt.tasks.data.examples import (
    Example,
    QuestionExample,
    RolesExample,
    Span,
    SpanExample,
    TaggedExample,
    TaskData,
    TaskKind,
    spans_of,
)
from symprompt.tasks.decoding import AnswerPrediction, Prediction, Related, SpanPrediction

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(answer: str) -> str:
    """Return an answer in lower case, without punctuation, articles and extra spaces."""
    plain = answer.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def exact_match(predicted: str, gold: str) -> float:
    """Return 1 if two answers are the same once normalised, else 0."""
    return float(normalise(predicted) == normalise(gold))


def answer_f1(predicted: str, gold: str) -> float:
    """Return the F1 of two answers' words; an empty one fits an empty one alone."""
    left, right = normalise(predicted).split(), normalise(gold).split()
    if not left or not right:
        return float(left == right)
    shared = sum((Counter(left) & Counter(right)).values())
    return 2 * shared / (len(left) + len(right))


def question_scores(example: QuestionExample, predicted: str) -> tuple[float, float]:
    """Return exact match and F1 of one prediction: the best over the right answers.

    Answers that are nothing once normalised are left out, as in the official script; a question
    that is left with none has no answer.
    """
    gold = [entry.text for entry in example.answers if normalise(entry.text)] or [""]
    return (
        max(exact_match(predicted, text) for text in gold),
        max(answer_f1(predicted, text) for text in gold),
    )


def squad_scores(
    examples: Sequence[QuestionExample], predictions: Sequence[AnswerPrediction]
) -> dict[str, float]:
    """Return exact match and F1 over all questions.

    Where some questions have no answer, also over those with and those without one, and what the
    best threshold on no answer would give. That threshold is chosen on the very same questions, so
    the figures that begin with "oracle" are no measure of a model that is used.
    """
    if len(examples) != len(predictions):
        raise DataError(
            f"got {len(predictions)} prediction(s) for {len(examples)} question(s); every "
            "question needs one."
        )
    pairs = zip(examples, predictions, strict=True)
    scores = np.array([question_scores(example, entry.text) for example, entry in pairs])
    scores = scores.reshape(-1, 2)
    found = {"exact": _mean(scores[:, 0]), "f1": _mean(scores[:, 1])}
    impossible = np.array([_no_answer(example) for example in examples], np.bool_)
    if impossible.any():
        for name, chosen in (("answerable", ~impossible), ("unanswerable", impossible)):
            found[f"{name}_exact"] = _mean(scores[chosen, 0])
            found[f"{name}_f1"] = _mean(scores[chosen, 1])
        for column, name in enumerate(("exact", "f1")):
            threshold, best = best_threshold(examples, predictions, column=column)
            found[f"oracle_{name}"] = best
            found[f"oracle_{name}_threshold"] = threshold
    return found


def best_threshold(
    examples: Sequence[QuestionExample],
    predictions: Sequence[AnswerPrediction],
    *,
    column: int = 1,
) -> tuple[float, float]:
    """Return the threshold on ``null_score`` with the highest score, and that score.

    A question is answered if its null score is not above the threshold. To be fair, choose it on
    questions held out from training. Of equal scores the lowest threshold is taken, as in the
    official script; scores that tie are passed together, as a threshold cannot part them.

    Args:
        column: 0 for exact match, 1 for F1.
    """
    if not examples:
        raise DataError("no threshold can be chosen on no questions; hold some out.")
    best_texts = [entry.at(None).text for entry in predictions]
    pairs = zip(examples, best_texts, strict=True)
    answered = np.array([question_scores(example, text)[column] for example, text in pairs])
    silent = np.array([float(_no_answer(example)) for example in examples])
    # Any text is wrong where there is no answer, even one that is nothing once normalised.
    answered[(silent > 0) & np.array([bool(text) for text in best_texts])] = 0.0
    null = np.array([entry.null_score for entry in predictions])
    order = np.argsort(null, kind="stable")
    totals = silent.sum() + np.cumsum((answered - silent)[order])
    # Answer nothing, or everything up to the last of equal null scores.
    last = np.append(null[order][1:] != null[order][:-1], True) & np.isfinite(null[order])
    thresholds = np.append(null.min() - 1.0, null[order][last])
    values = np.append(silent.sum(), totals[last])
    place = int(values.argmax())
    return float(thresholds[place]), float(values[place]) / len(examples)


def _no_answer(example: QuestionExample) -> bool:
    return not example.answers


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0


T = TypeVar("T")


def span_metrics(
    examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction]
) -> dict[str, float]:
    """Return precision, recall and F1 of spans: type, first and last word must be right.

    For spans that do not overlap these are the figures of conlleval and seqeval. Where some right
    spans lie in others, ``inner_recall`` is the share of those that are found, and ``outer_recall``
    that of all others; tags can say only the latter.
    """
    gold = [set(entry.spans or ()) for entry in examples]
    found = [set(entry.spans) for entry in predictions]
    measured = scores_of(gold, found)
    inner = [{span for span in own if _lies_in_another(span, own)} for own in gold]
    if any(inner):
        outer = [own - within for own, within in zip(gold, inner, strict=True)]
        measured["inner_recall"] = scores_of(inner, found)["recall"]
        measured["outer_recall"] = scores_of(outer, found)["recall"]
    return measured


def relation_metrics(
    examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction]
) -> dict[str, float]:
    """Return precision, recall and F1 of relations whose name and two spans are all right.

    ``span_f1`` is that of the spans; ``given_f1`` is that of relations between the right spans, as
    if they had been given.
    """
    gold = [set(related(entry)) for entry in examples]
    measured = scores_of(gold, [set(entry.relations) for entry in predictions])
    measured["span_f1"] = span_metrics(examples, predictions)["f1"]
    measured["given_f1"] = scores_of(gold, [set(entry.given or ()) for entry in predictions])["f1"]
    return measured


def related(example: SpanExample) -> list[Related]:
    """Return the right relations of a sentence, with their spans."""
    spans = example.spans or ()
    return [(entry.name, spans[entry.one], spans[entry.other]) for entry in example.relations or ()]


def scores_of(gold: Sequence[set[T]], found: Sequence[set[T]]) -> dict[str, float]:
    """Return precision, recall and F1 of sets; 0 where one is not defined."""
    pairs = list(zip(gold, found, strict=True))
    right = sum(len(left & other) for left, other in pairs)
    given = sum(len(left) for left, _ in pairs)
    taken = sum(len(other) for _, other in pairs)
    score = 2 * right / (given + taken) if given + taken else 0.0
    return {"f1": score, "precision": right / max(1, taken), "recall": right / max(1, given)}


def _lies_in_another(span: Span, spans: set[Span]) -> bool:
    return any(
        other[1:] != span[1:] and other[1] <= span[1] and span[2] <= other[2] for other in spans
    )


PREDICATE = "V"
# What a training is chosen by, for each kind of task.
MAIN_METRIC: dict[TaskKind, str] = {
    "sequence": "accuracy",
    "pair": "accuracy",
    "tagging": "f1",
    "roles": "f1",
    "question": "f1",
    "spans": "f1",
    "relations": "f1",
}


def evaluate(
    kind: TaskKind,
    data: TaskData,
    split: str,
    predictions: Sequence[Prediction],
    *,
    library: bool = False,
) -> dict[str, float]:
    """Return the metrics of a split's predictions, one prediction for each example, in order.

    Args:
        library: have seqeval count the entities (the extra [nlu]).

    Raises:
        DataError: the split has no labels, or another number of examples.
    """
    return evaluate_examples(kind, data.split(split), predictions, name=split, library=library)


def evaluate_examples(
    kind: TaskKind,
    examples: Sequence[Example],
    predictions: Sequence[Prediction],
    *,
    name: str = "these examples",
    library: bool = False,
) -> dict[str, float]:
    """Return the metrics of predictions for examples; see ``evaluate``."""
    if len(examples) != len(predictions):
        raise DataError(
            f"got {len(predictions)} prediction(s) for the {len(examples)} example(s) of {name}; "
            "every example needs one."
        )
    if kind == "question":
        questions = [entry for entry in examples if isinstance(entry, QuestionExample)]
        answers = [entry for entry in predictions if isinstance(entry, AnswerPrediction)]
        if any(not entry.answers and not entry.impossible for entry in questions):
            raise _unlabelled(name)
        return squad_scores(questions, answers)
    if kind in ("spans", "relations"):
        sentences = [entry for entry in examples if isinstance(entry, SpanExample)]
        spans = [entry for entry in predictions if isinstance(entry, SpanPrediction)]
        wanted = "relations" if kind == "relations" else "spans"
        if any(getattr(entry, wanted) is None for entry in sentences):
            raise _unlabelled(name)
        measure = relation_metrics if kind == "relations" else span_metrics
        return measure(sentences, spans)
    if kind in ("tagging", "roles"):
        gold = [entry.tags for entry in examples if isinstance(entry, TaggedExample | RolesExample)]
        tags = [entry for entry in predictions if isinstance(entry, tuple)]
        known = [entry for entry in gold if entry is not None]
        if len(known) < len(examples):
            raise _unlabelled(name)
        if kind == "roles":
            return role_scores(known, tags)
        return seqeval_scores(known, tags) if library else entity_scores(known, tags)
    classes = [getattr(entry, "label", None) for entry in examples]
    named = [entry for entry in classes if entry is not None]
    if len(named) < len(classes):
        raise _unlabelled(name)
    return class_metrics(named, [str(entry) for entry in predictions])


def class_metrics(gold: Sequence[str], predicted: Sequence[str]) -> dict[str, float]:
    """Return accuracy, macro-F1 and Matthews' correlation of classes."""
    return {
        "accuracy": accuracy(gold, predicted),
        "macro_f1": macro_f1(gold, predicted),
        "matthews": matthews(gold, predicted),
    }


def accuracy(gold: Sequence[Hashable], predicted: Sequence[Hashable]) -> float:
    """Return the share of predictions that are right; 0 of nothing."""
    right = sum(left == right for left, right in zip(gold, predicted, strict=True))
    return right / max(1, len(gold))


def macro_f1(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """Return the mean F1 over the classes that occur in gold or predictions, as scikit-learn."""
    right = Counter(left for left, other in zip(gold, predicted, strict=True) if left == other)
    given, found = Counter(gold), Counter(predicted)
    names = given.keys() | found.keys()
    total = sum(_f1(right[name], found[name], given[name])[2] for name in names)
    return total / max(1, len(names))


def matthews(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """Return Matthews' correlation of any number of classes; 0 where it is not defined."""
    names = sorted(set(gold) | set(predicted))
    place = {name: index for index, name in enumerate(names)}
    table = np.zeros((len(names), len(names)))
    for left, right in zip(gold, predicted, strict=True):
        table[place[left], place[right]] += 1
    total, right_count = table.sum(), np.trace(table)
    given, found = table.sum(1), table.sum(0)
    below = (total**2 - found @ found) * (total**2 - given @ given)
    return float((right_count * total - given @ found) / np.sqrt(below)) if below > 0 else 0.0


def entity_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Return precision, recall and F1 over entities of all types, and the share of right tags."""
    words = [tag for tags in gold for tag in tags]
    others = [tag for tags in predicted for tag in tags]
    return {**span_scores(gold, predicted), "word_accuracy": accuracy(words, others)}


def role_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Return precision, recall and F1 over arguments of all roles, predicates left out.

    ``f1_with_predicates`` counts the predicates' own spans too, which are given away by the
    question; some published figures do.
    """
    found = span_scores(gold, predicted, without=(PREDICATE,))
    return {**found, "f1_with_predicates": span_scores(gold, predicted)["f1"]}


def span_scores(
    gold: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[str]],
    *,
    without: Collection[str] = (),
) -> dict[str, float]:
    """Return precision, recall and F1 of phrases: type, first and last word must all be right."""
    right = found = given = 0
    for left, other in zip(gold, predicted, strict=True):
        if len(left) != len(other):
            raise DataError(
                f"got {len(other)} predicted tag(s) for {len(left)} word(s), so they are not "
                "aligned; every word needs one."
            )
        wanted = {span for span in spans_of(left) if span[0] not in without}
        spans = {span for span in spans_of(other) if span[0] not in without}
        right += len(wanted & spans)
        found += len(spans)
        given += len(wanted)
    precision, recall, score = _f1(right, found, given)
    return {"f1": score, "precision": precision, "recall": recall}


def seqeval_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Return what ``entity_scores`` does, counted by seqeval.

    Raises:
        SympromptError: seqeval is not installed.
    """
    try:
        library = importlib.import_module("seqeval.metrics")
    except ImportError as error:
        raise SympromptError(
            f"counting entities with seqeval needs packages that are not installed ({error}); "
            "install them with: pip install 'symprompt[nlu]'."
        ) from None
    tags = [list(entry) for entry in gold], [list(entry) for entry in predicted]
    names = {"f1": "f1_score", "precision": "precision_score", "recall": "recall_score"}
    found = {
        key: float(getattr(library, name)(*tags, zero_division=0)) for key, name in names.items()
    }
    return {**found, "word_accuracy": float(library.accuracy_score(*tags))}


def multirc_scores(
    questions: Sequence[Hashable], gold: Sequence[bool], predicted: Sequence[bool]
) -> dict[str, float]:
    """Return MultiRC's EM, the share of questions with every answer judged right, and F1a.

    Args:
        questions: which question each answer belongs to.
        gold, predicted: whether each answer is right; F1a is the F1 of that over all answers.
    """
    wrong: dict[Hashable, bool] = {}
    for question, left, right in zip(questions, gold, predicted, strict=True):
        wrong[question] = wrong.get(question, False) or left != right
    hits = sum(bool(left and right) for left, right in zip(gold, predicted, strict=True))
    f1a = _f1(hits, sum(map(bool, predicted)), sum(map(bool, gold)))[2]
    return {"em": sum(not entry for entry in wrong.values()) / max(1, len(wrong)), "f1a": f1a}


def _f1(right: int, found: int, given: int) -> tuple[float, float, float]:
    """Return precision, recall and F1 of counts; 0 where one is not defined."""
    precision, recall = right / max(1, found), right / max(1, given)
    return precision, recall, 2 * right / (found + given) if found + given else 0.0


def _unlabelled(name: str) -> DataError:
    return DataError(f"{name} has examples without labels, so it cannot be scored; use another.")
