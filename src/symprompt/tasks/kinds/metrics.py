"""Metrics that several kinds of task share; all of them are fractions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def f1(right: int, found: int, given: int) -> dict[str, float]:
    """Return F1, precision and recall of counts; 0 where one is not defined."""
    return {
        "f1": 2 * right / (found + given) if found + given else 0.0,
        "precision": right / max(1, found),
        "recall": right / max(1, given),
    }


def set_scores(gold: Sequence[set[T]], found: Sequence[set[T]]) -> dict[str, float]:
    """Return F1, precision and recall of sets, one of each for every example."""
    right = sum(len(left & other) for left, other in zip(gold, found, strict=True))
    return f1(right, sum(map(len, found)), sum(map(len, gold)))


def accuracy(gold: Sequence[Hashable], predicted: Sequence[Hashable]) -> float:
    """Return the share of predictions that are right; 0 of nothing."""
    right = sum(left == right for left, right in zip(gold, predicted, strict=True))
    return right / max(1, len(gold))


def macro_f1(gold: Sequence[Hashable], predicted: Sequence[Hashable]) -> float:
    """Return the mean F1 over the classes that occur in gold or predictions, as scikit-learn."""
    right = Counter(left for left, other in zip(gold, predicted, strict=True) if left == other)
    given, found = Counter(gold), Counter(predicted)
    names = given.keys() | found.keys()
    # Exact, as a set has another order in every process.
    total = math.fsum(f1(right[name], found[name], given[name])["f1"] for name in names)
    return total / max(1, len(names))


def matthews(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """Return Matthews' correlation of any number of classes; 0 where it is not defined."""
    right = sum(left == other for left, other in zip(gold, predicted, strict=True))
    given, found, total = Counter(gold), Counter(predicted), len(gold)
    chance = sum(count * found[name] for name, count in given.items())
    spread = [total**2 - sum(count**2 for count in own.values()) for own in (given, found)]
    below = math.prod(spread)
    return (right * total - chance) / math.sqrt(below) if below else 0.0


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
    f1a = f1(hits, sum(map(bool, predicted)), sum(map(bool, gold)))["f1"]
    return {"em": sum(not entry for entry in wrong.values()) / max(1, len(wrong)), "f1a": f1a}
