"""SQuAD's metrics, from their definition: exact match and F1 of normalised answers.

Rajpurkar et al. (2016) and (2018): answers are compared in lower case without punctuation,
articles and extra spaces, each with the right answer it fits best. A question without an answer
counts 1 where none is predicted, else 0. All figures are fractions.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

from symprompt.errors import DataError
from symprompt.tasks.decoding import AnswerPrediction
from symprompt.tasks.examples import QuestionExample

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
