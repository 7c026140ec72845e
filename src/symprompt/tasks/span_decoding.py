"""From candidates back to sentences: spans that may stand together, and relations between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from symprompt.tasks.arrays import Features
from symprompt.tasks.examples import SpanExample
from symprompt.tasks.labels import LabelSet, Span

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
