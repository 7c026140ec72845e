"""What SuperGLUE measures: accuracy, macro-averaged F1 (CB), EM and F1a (MultiRC), in percent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from symprompt.errors import DataError
from symprompt.tasks.verbal.superglue import VerbalExample, VerbalTask

Labels = npt.NDArray[np.int64]


def measure(
    task: VerbalTask, examples: Sequence[VerbalExample], predicted: Labels
) -> dict[str, float]:
    """Return a task's metrics, the main one first.

    Raises:
        DataError: an example has no label, or there are not as many predictions as examples.
    """
    if any(example.label is None for example in examples) or len(examples) != len(predicted):
        raise DataError(
            f"{len(predicted)} predictions cannot be measured on {len(examples)} examples of "
            f"{task.name}; every example needs a label and a prediction."
        )
    gold = np.array([example.label for example in examples], dtype=np.int64)
    found = {"accuracy": accuracy(gold, predicted)}
    if "macro_f1" in task.metrics:
        found["macro_f1"] = macro_f1(gold, predicted)
    if "em" in task.metrics:
        groups = [example.group for example in examples]
        found["em"] = exact_match(gold, predicted, groups)
        found["f1a"] = f1(gold, predicted, 1)
    return {name: found[name] for name in task.metrics}


def accuracy(gold: Labels, predicted: Labels) -> float:
    """Return the share of right labels."""
    return 100 * float((gold == predicted).mean())


def f1(gold: Labels, predicted: Labels, label: int) -> float:
    """Return the F1 of one label; 0 where it is neither right nor predicted (over all answers,
    F1a of MultiRC for label 1)."""
    both = int(((gold == label) & (predicted == label)).sum())
    either = int((gold == label).sum() + (predicted == label).sum())
    return 200 * both / either if either else 0.0


def macro_f1(gold: Labels, predicted: Labels) -> float:
    """Return the mean F1 of the labels that are right or predicted anywhere, as scikit-learn's."""
    labels = np.union1d(gold, predicted)
    return float(np.mean([f1(gold, predicted, int(label)) for label in labels]))


def exact_match(gold: Labels, predicted: Labels, groups: Sequence[str]) -> float:
    """Return the share of questions all of whose answers are labelled right."""
    right: dict[str, bool] = defaultdict(lambda: True)
    for name, same in zip(groups, gold == predicted, strict=True):
        right[name] = right[name] and bool(same)
    return 100 * sum(right.values()) / len(right)
