"""From scores of rows back to examples: classes, tags of words, answers as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from symprompt.tasks.arrays import Features
from symprompt.tasks.examples import QuestionExample
from symprompt.tasks.labels import LabelSet, repaired
from symprompt.tasks.span_decoding import SpanPrediction

Scores = NDArray[np.floating]
Combine = Literal["first", "mean"]
_CHUNK = 2048


@dataclass(frozen=True)
class Candidate:
    """A possible answer: its text, score, and the characters of the context it covers."""

    text: str
    score: float
    start: int
    end: int


@dataclass(frozen=True)
class AnswerPrediction:
    """What a model answers; final.

    Attributes:
        text: the answer; empty for none.
        null_score: the score of no answer, less that of the best answer: higher means that the
            question is less likely to have one.
        candidates: the best answers, best first.
    """

    text: str
    null_score: float
    candidates: tuple[Candidate, ...]

    def at(self, threshold: float | None) -> AnswerPrediction:
        """Return the prediction with no answer if ``null_score`` is above a threshold.

        None always answers, as SQuAD 1.1 asks for.
        """
        best = self.candidates[0].text if self.candidates else ""
        none = threshold is not None and self.null_score > threshold
        return replace(self, text="" if none else best)


Prediction = str | tuple[str, ...] | AnswerPrediction | SpanPrediction


def class_scores(features: Features, scores: Scores) -> Scores:
    """Return each example's log-probabilities [examples, classes], the mean over its rows."""
    total = np.zeros((features.examples, scores.shape[1]))
    np.add.at(total, features.example, scores.astype(np.float64))
    counts = np.bincount(features.example, minlength=features.examples)
    mean = total / counts[:, None]
    peak = mean.max(1, keepdims=True)
    found: Scores = mean - peak - np.log(np.exp(mean - peak).sum(1, keepdims=True))
    return found


def decode_classes(features: Features, scores: Scores, labels: LabelSet) -> list[str]:
    """Return each example's class from log-probabilities of rows [n, classes]; ties: the first."""
    return [labels.names[best] for best in class_scores(features, scores).argmax(1).tolist()]


def tag_positions(features: Features) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return row and column of each word's first token, word by word, example by example.

    Every word of every example is there once, so scores can be gathered before they leave a GPU.
    """
    first, own = _tag_arrays(features)[:2]
    rows, columns = np.nonzero(first & own)
    return rows, columns


def decode_tags(
    features: Features,
    scores: Scores | NDArray[np.integer],
    labels: LabelSet,
    *,
    combine: Combine = "first",
) -> list[tuple[str, ...]]:
    """Return a tag for each word of each example, as valid IOB2.

    Args:
        scores: log-probabilities [n, t, tags]; or of [words, tags], as gathered at
            ``tag_positions``; or the best tags [n, t], whole numbers, if ``combine`` is "first".
        combine: read a word's tag off its first token, or off the mean over its tokens.
    """
    first, own, words = _tag_arrays(features)
    if np.issubdtype(scores.dtype, np.integer):
        best = scores[first[:, : scores.shape[1]] & own[:, : scores.shape[1]]]
    elif scores.ndim == 2:
        best = scores.argmax(-1)
    elif combine == "first":
        rows, columns = np.nonzero(first & own)
        best = scores[rows, columns].argmax(-1)
    else:
        rows, columns = np.nonzero(own)
        starts = np.flatnonzero(first[rows, columns])
        total = np.add.reduceat(scores[rows, columns].astype(np.float64), starts, axis=0)
        best = total.argmax(-1)
    counts = np.zeros(features.examples, np.int64)
    np.maximum.at(counts, features.example, words.max(1) + 1)
    if len(best) != counts.sum():
        raise ValueError(f"got tags for {len(best)} words, but there are {counts.sum()}")
    names = [labels.names[place] for place in best.tolist()]
    ends = np.cumsum(counts).tolist()
    return [
        repaired(names[end - count : end]) for end, count in zip(ends, counts.tolist(), strict=True)
    ]


def decode_answers(
    features: Features,
    scores: Scores,
    examples: Sequence[QuestionExample],
    *,
    threshold: float | None = 0.0,
    candidates: int = 20,
    longest: int = 30,
) -> list[AnswerPrediction]:
    """Return an answer to each question from logits of first and last tokens [n, t, 2].

    As in SQuAD's baselines: an answer's score is the sum of its two logits, the best of all rows
    of an example compete, and no answer has the lowest score that any row gives it.

    Args:
        threshold: no answer is given if its score is higher than the best answer's by more than
            this; None always answers.
        candidates: how many first and last tokens are tried, and how many answers are kept.
        longest: the most tokens of an answer.
    """
    if features.offsets is None or features.null is None:
        raise ValueError("these features are not of questions")
    rows = np.arange(len(features))
    null = scores[rows, features.null].astype(np.float64).sum(-1)
    lowest = np.full(features.examples, np.inf)
    np.minimum.at(lowest, features.example, null)
    found: list[list[tuple[float, int, int]]] = [[] for _ in examples]
    for begin in range(0, len(features), _CHUNK):
        chunk = slice(begin, begin + _CHUNK)
        width = scores.shape[1]
        covered = features.offsets[chunk, :width]
        best = _best_spans(scores[chunk], covered[..., 0] >= 0, candidates, longest)
        for row, score, start, end in zip(*(part.tolist() for part in best), strict=True):
            place = features.example[begin + row]
            found[place].append((score, int(covered[row, start, 0]), int(covered[row, end, 1])))
    return [
        _answer(example, spans, float(none), candidates).at(threshold)
        for example, spans, none in zip(examples, found, lowest, strict=True)
    ]


def _tag_arrays(
    features: Features,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.int32]]:
    if features.first is None or features.own is None or features.words is None:
        raise ValueError("these features are not of words with tags")
    return features.first, features.own, features.words


def _best_spans(
    scores: Scores, allowed: NDArray[np.bool_], count: int, longest: int
) -> tuple[NDArray[np.int64], Scores, NDArray[np.int64], NDArray[np.int64]]:
    """Return row, score, first and last token of the best answers of each row."""
    logits = np.where(allowed[..., None], scores.astype(np.float64), -np.inf)
    count = min(count, logits.shape[1])
    # Sorted by score and, among equals, by place, so that nothing depends on the rows around.
    tops = np.argsort(-logits, axis=1, kind="stable")[:, :count]
    starts, ends = tops[..., 0], tops[..., 1]
    totals = (
        np.take_along_axis(logits[..., 0], starts, 1)[:, :, None]
        + np.take_along_axis(logits[..., 1], ends, 1)[:, None, :]
    )
    length = ends[:, None, :] - starts[:, :, None]
    flat = np.where((length >= 0) & (length < longest), totals, -np.inf).reshape(len(totals), -1)
    best = np.argsort(-flat, axis=1, kind="stable")[:, :count]
    values = np.take_along_axis(flat, best, 1)
    rows, kept = np.nonzero(np.isfinite(values))
    chosen = best[rows, kept]
    return (
        rows,
        values[rows, kept],
        starts[rows, chosen // count],
        ends[rows, chosen % count],
    )


def _answer(
    example: QuestionExample, spans: list[tuple[float, int, int]], null: float, count: int
) -> AnswerPrediction:
    """Return the best answers of an example; the same text from two windows is kept once."""
    kept: dict[tuple[int, int], Candidate] = {}
    for score, start, end in sorted(spans, key=lambda span: (-span[0], span[1], span[2])):
        text = example.context[start:end].strip()
        if text and (start, end) not in kept:
            kept[start, end] = Candidate(text, score, start, end)
        if len(kept) == count:
            break
    best = tuple(kept.values())
    return AnswerPrediction("", null - best[0].score if best else float("inf"), best)
