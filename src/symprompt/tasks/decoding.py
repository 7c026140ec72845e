"""From candidates back to sentences: spans that may stand together, and relations between them.

From scores of rows back to examples: classes, tags of words, answers as text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from symprompt.tasks.data.examples import LabelSet, QuestionExample, Span, SpanExample, repaired
from symprompt.tasks.features import Features

Overlaps = Literal["flat", "nested", "all"]
LOWEST = -8.0
"""Log-odds below which no span is ever taken, also when a threshold is chosen."""
Related = tuple[str, Span, Span]


@dataclass(frozen=True)
class SpanPrediction:
    """The spans of a sentence, best first, and relations between them; final.

    Attributes:
        spans: (type, first word, word after the last).
        odds: each span's log-odds against being none.
        relations: (name, the one span, the other).
        given: relations between the spans that are right, where those are known.
    """

    spans: tuple[Span, ...]
    odds: tuple[float, ...]
    relations: tuple[Related, ...] = ()
    given: tuple[Related, ...] | None = None

    def at(self, threshold: float) -> SpanPrediction:
        """Return the prediction with the spans above a threshold alone."""
        kept = sum(value > threshold for value in self.odds)
        spans = self.spans[:kept]
        relations = tuple(entry for entry in self.relations if {*entry[1:]} <= {*spans})
        return SpanPrediction(spans, self.odds[:kept], relations, self.given)


def decode_spans(
    features: Features,
    scores: NDArray[np.floating],
    labels: LabelSet,
    *,
    threshold: float = 0.0,
    overlaps: Overlaps = "flat",
    relations: LabelSet | None = None,
) -> list[SpanPrediction]:
    """Return the spans of each example from candidates of rows.

    Spans are taken greedily, best first. Whether one is taken does not depend on those after it, so
    a higher threshold gives the same spans, fewer of them.

    Args:
        scores: as the heads give them: candidates [n, c, 4], with relations [n, 2 c, 4 + 2 c].
        threshold: what a span's log-odds against NULL must be above.
        overlaps: "flat": no two spans share a word; "nested": one may lie in another; "all".
        relations: the names of relations, if there are any.
    """
    base = features.first_words()
    joint = scores.shape[2] > 4
    count = scores.shape[1] // 2 if joint else scores.shape[1]
    found: list[list[tuple[float, Span, int, int]]] = [[] for _ in range(features.examples)]
    rows, places = np.nonzero(scores[:, :count, 3] > max(threshold, LOWEST))
    for row, place in zip(rows.tolist(), places.tolist(), strict=True):
        span, odds = _span(scores[row, place], int(base[row]), labels)
        found[int(features.example[row])].append((odds, span, row, place))
    taken = [_taken(candidates, overlaps) for candidates in found]
    between: list[list[Related]] = [[] for _ in taken]
    given: list[list[Related]] = [[] for _ in taken]
    if joint and relations is not None:
        for example, candidates in enumerate(taken):
            chosen = {(row, place): span for _, span, row, place in candidates}
            between[example] = list(_relations(scores, chosen, count, 0, relations))
        for row in range(len(scores)):
            own = {
                (row, place): _span(scores[row, place], int(base[row]), labels)[0]
                for place in range(count, 2 * count)
                if np.isfinite(scores[row, place, 3])
            }
            known = _relations(scores, own, count, count, relations)
            given[int(features.example[row])] += known
    return [
        SpanPrediction(
            tuple(span for _, span, _, _ in candidates),
            tuple(odds for odds, _, _, _ in candidates),
            tuple(between[example]),
            tuple(given[example]) if joint else None,
        )
        for example, candidates in enumerate(taken)
    ]


def best_span_threshold(
    examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction]
) -> tuple[float, float]:
    """Return the threshold that gives the best F1 of spans, and that F1.

    Args:
        predictions: decoded with the lowest threshold there is, ``LOWEST``.
    """
    given = sum(len(set(entry.spans or ())) for entry in examples)
    pairs = [
        (odds, span in wanted)
        for example, prediction in zip(examples, predictions, strict=True)
        for wanted in [set(example.spans or ())]
        for span, odds in zip(prediction.spans, prediction.odds, strict=True)
    ]
    if not pairs or not given:
        return 0.0, 0.0
    odds = np.array([value for value, _ in pairs])
    order = np.argsort(-odds, kind="stable")
    right = np.cumsum(np.array([hit for _, hit in pairs])[order])
    scores = 2 * right / (np.arange(1, len(pairs) + 1) + given)
    # A threshold cannot part equals.
    ordered = odds[order]
    last = np.append(ordered[1:] != ordered[:-1], True)
    best = int(np.where(last, scores, -1.0).argmax())
    lower = ordered[best + 1] if best + 1 < len(ordered) else max(LOWEST, ordered[best] - 1.0)
    return float((ordered[best] + lower) / 2), float(scores[best])


def _span(candidate: NDArray[np.floating], base: int, labels: LabelSet) -> tuple[Span, float]:
    first, more, label, odds = candidate[:4].tolist()
    start = base + int(first)
    return (labels.names[int(label)], start, start + int(more) + 1), odds


def _taken(
    candidates: Sequence[tuple[float, Span, int, int]], overlaps: Overlaps
) -> list[tuple[float, Span, int, int]]:
    """Return the candidates that may stand together, best first."""
    kept: list[tuple[float, Span, int, int]] = []
    seen: set[tuple[int, int]] = set()
    for entry in sorted(candidates, key=lambda entry: (-entry[0], entry[1][1], entry[1][2])):
        start, end = entry[1][1:]
        if (start, end) in seen:
            continue
        if any(_clash(start, end, *other[1][1:], overlaps) for other in kept):
            continue
        kept.append(entry)
        seen.add((start, end))
    return kept


def _clash(start: int, end: int, other_start: int, other_end: int, overlaps: Overlaps) -> bool:
    if overlaps == "all" or end <= other_start or other_end <= start:
        return False
    if overlaps == "flat":
        return True
    within = other_start <= start and end <= other_end
    around = start <= other_start and other_end <= end
    return not (within or around)


def _relations(
    scores: NDArray[np.floating],
    chosen: dict[tuple[int, int], Span],
    count: int,
    shift: int,
    relations: LabelSet,
) -> Iterator[Related]:
    """Yield the relations between chosen spans of one row."""
    for (row, place), one in chosen.items():
        for (other_row, other_place), other in chosen.items():
            column = 4 + other_place - shift
            if row == other_row and scores[row, place, column + count] > 0:
                yield relations.names[int(scores[row, place, column])], one, other


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
