"""How good predictions are: classes, entities, roles, and several answers to one question.

All figures are fractions. Entities are counted as conlleval and seqeval count them; a test holds
the two against each other, and ``seqeval_scores`` asks seqeval itself.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Collection, Hashable, Sequence

import numpy as np

from symprompt.errors import DataError, SympromptError
from symprompt.tasks.decoding import AnswerPrediction, Prediction
from symprompt.tasks.examples import (
    Example,
    QuestionExample,
    RolesExample,
    SpanExample,
    TaggedExample,
    TaskData,
    TaskKind,
)
from symprompt.tasks.labels import spans_of
from symprompt.tasks.span_decoding import SpanPrediction
from symprompt.tasks.span_metrics import relation_metrics, span_metrics
from symprompt.tasks.squad import squad_scores

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
