"""Spans of a sentence and their types, which may lie in one another, and relations between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from symprompt.errors import DataError
from symprompt.tasks.config import SpanConfig
from symprompt.tasks.data.examples import LabelSet, Span, SpanExample
from symprompt.tasks.data.files import IN_COLUMNS, Columns, Read, has_column
from symprompt.tasks.data.spans import read_spans
from symprompt.tasks.data.tags import read_own_columns, read_rows_of_words, with_spans
from symprompt.tasks.features import Features, Ints, Sheet, first_words, tensorise_sentences
from symprompt.tasks.kinds.base import Head, Kind, Scores, Target
from symprompt.tasks.kinds.span_heads import RelationHead, SpanClassHead
from symprompt.tasks.metrics import set_scores

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


class _SentenceSpans(Kind[SpanExample, SpanPrediction]):
    """Span extraction; abstract.

    Targets: words, as ``tensorise_sentences`` gives them; firsts and lasts, first and last token
    of each word of the row, -1 for none [n, t]; owned, whether this row answers for the word
    [n, t]; spans, labelled spans: first word within the row, words beside it, label [n, g, 3];
    pairs, relations: places of the two spans in ``spans``, label [n, p, 3]; -1 for none.
    """

    settings = ("task.choose_threshold", "span")
    loosest = LOWEST
    candidates: ClassVar[int]

    def label_set(self, train: Read) -> LabelSet:
        """Return NULL and the types of spans of the training examples."""
        spans = (entry.spans or () for entry in train.examples if isinstance(entry, SpanExample))
        types = LabelSet.of_spans(span[0] for own in spans for span in own)
        if len(types) < 2:
            path, line = train.places[0]
            raise DataError(f"{path}, line {line}: no training example has a span; add some.")
        return types

    def is_labelled(self, example: SpanExample) -> bool:
        """Return whether the spans are known."""
        return example.spans is not None

    def tensorise(self, examples: Sequence[SpanExample], sheet: Sheet, target: Target) -> Features:
        """Return sentences as rows, with the spans that each row answers for.

        A span is the row's that answers for its first word, if that row shows it whole; spans that
        no row shows whole, and relations of two rows, are left out and their sentences counted as
        cut.
        """
        features = tensorise_sentences([entry.words for entry in examples], sheet)
        spans, pairs, lost = _row_spans(examples, features, target)
        targets = {**features.targets, **_word_tokens(features), "spans": spans, "pairs": pairs}
        return replace(features, targets=targets, cut=features.cut + lost)

    def shape(self, target: Target) -> SpanConfig:
        """Return how spans are represented, and how many of a row are kept for decoding."""
        return replace(target.span, candidates=target.span.candidates or self.candidates)

    def decode(
        self,
        scores: Scores,
        features: Features,
        examples: Sequence[SpanExample],
        target: Target,
        *,
        threshold: float | None = None,
    ) -> list[SpanPrediction]:
        """Return the spans of each example from candidates of rows."""
        return decode_spans(
            features,
            scores,
            target.labels,
            threshold=threshold or 0.0,
            overlaps=target.span.overlaps,
            relations=target.relations,
        )

    def row(self, example: SpanExample, prediction: SpanPrediction) -> dict[str, Any]:
        """Return spans, in the order of the sentence, and relations as plain values."""
        order = sorted(
            zip(prediction.spans, prediction.odds, strict=True), key=lambda pair: pair[0][1:]
        )
        place = {span: number for number, (span, _) in enumerate(order)}
        row: dict[str, Any] = {
            "prediction": [list(span) for span, _ in order],
            "texts": [" ".join(example.words[start:end]) for (_, start, end), _ in order],
            "odds": [round(odds, 4) for _, odds in order],
        }
        if prediction.relations or example.relations is not None:
            row["relations"] = [
                [name, place[one], place[other]] for name, one, other in prediction.relations
            ]
        if example.relations is not None:
            row["gold_relations"] = [
                [entry.name, entry.one, entry.other] for entry in example.relations
            ]
        return row

    def gold(self, example: SpanExample) -> Any:
        """Return the right spans."""
        return None if example.spans is None else [list(span) for span in example.spans]

    def threshold(
        self, train: Sequence[SpanExample], unanswerable: Literal["data", "always"] = "data"
    ) -> float | None:
        """Return 0: a type must score higher than none."""
        return 0.0

    def best_threshold(
        self, examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction]
    ) -> float:
        """Return the threshold on spans with the best F1."""
        return best_span_threshold(examples, predictions)[0]

    def too_long(self, examples: Sequence[SpanExample], target: Target) -> int:
        """Return how many spans are longer than those that are scored."""
        most = target.span.length
        return sum(end - start > most for x in examples for _, start, end in x.spans or ())


class Spans(_SentenceSpans):
    """The spans of a sentence and their types; final."""

    candidates = 64

    def read(
        self, path: Path, columns: Columns, split: str, *, labelled: bool | None, name: str = ""
    ) -> Read:
        """Read a table with a sentence and its spans in each row, or tags in place of spans."""
        if path.suffix.lower() in IN_COLUMNS:
            return with_spans(read_own_columns(path, columns, split, labelled))
        if has_column(path, columns.tags, but_not=columns.spans):
            return with_spans(read_rows_of_words(path, columns, split, labelled))
        return read_spans(path, columns, split, labelled=labelled, related=False)

    def head(
        self, width: int, target: Target, *, causal: bool, generator: torch.Generator | None = None
    ) -> Head:
        """Return a head that scores every span."""
        return SpanClassHead(
            width, len(target.labels), self.shape(target), target.head, generator=generator
        )

    def measure(
        self, examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction]
    ) -> dict[str, float]:
        """Return F1, precision and recall of spans."""
        return span_metrics(examples, predictions)


class Relations(_SentenceSpans):
    """The spans of a sentence and how every two of them are related; final."""

    candidates = 32
    """Fewer, as pairs are their square."""

    def read(
        self, path: Path, columns: Columns, split: str, *, labelled: bool | None, name: str = ""
    ) -> Read:
        """Read a table with a sentence, its spans and their relations in each row."""
        return read_spans(path, columns, split, labelled=labelled, related=True)

    def relation_set(self, train: Read) -> LabelSet:
        """Return NULL and the relations of the training examples."""
        related = (x.relations or () for x in train.examples if isinstance(x, SpanExample))
        found = LabelSet.of_spans(entry.name for own in related for entry in own)
        if len(found) < 2:
            path, line = train.places[0]
            raise DataError(
                f"{path}, line {line}: no training example has a relation between its spans; add "
                "some, or read the file as spans."
            )
        return found

    def is_labelled(self, example: SpanExample) -> bool:
        """Return whether the relations are known."""
        return example.relations is not None

    def head(
        self, width: int, target: Target, *, causal: bool, generator: torch.Generator | None = None
    ) -> Head:
        """Return a head that scores every span and every pair of the best ones."""
        return RelationHead(
            width,
            len(target.labels),
            len(target.relations),
            self.shape(target),
            target.head,
            generator=generator,
        )

    def measure(
        self, examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction]
    ) -> dict[str, float]:
        """Return F1, precision and recall of relations, and the F1 of spans."""
        return relation_metrics(examples, predictions)


def _row_spans(
    examples: Sequence[SpanExample], features: Features, target: Target
) -> tuple[Ints, Ints, int]:
    """Return the spans and relations of each row, and how many sentences lost some."""
    labels, relations = target.labels, target.relations
    rows = _Rows(features)
    spans: list[list[tuple[int, int, int]]] = [[] for _ in range(len(features))]
    pairs: list[list[tuple[int, int, int]]] = [[] for _ in range(len(features))]
    lost = 0
    for number, entry in enumerate(examples):
        whole = True
        found: dict[int, tuple[int, int]] = {}
        for place, (name, start, end) in enumerate(entry.spans or ()):
            row = rows.owner(number, start)
            if end > rows.end[row]:
                whole = False
            elif name in labels:
                found[place] = row, len(spans[row])
                spans[row].append((start - rows.begin[row], end - start - 1, labels.index[name]))
        for relation in entry.relations or ():
            one, other = found.get(relation.one), found.get(relation.other)
            if one is None or other is None or one[0] != other[0]:
                whole = False
            elif relation.name in relations:
                pairs[one[0]].append((one[1], other[1], relations.index[relation.name]))
        lost += not whole
    return _table(spans), _table(pairs), lost


def _word_tokens(features: Features) -> dict[str, NDArray[Any]]:
    """Return the first and last token of each word of a row, and whether the row answers for it."""
    words, own = np.asarray(features.targets["words"], np.int64), features.note("own")
    row, column = np.nonzero(words >= 0)
    place = words[row, column]
    firsts, lasts = (np.full(words.shape, -1) for _ in range(2))
    owned = np.zeros(words.shape, np.bool_)
    lasts[row, place] = column
    owned[row, place] = own[row, column]
    firsts[row[::-1], place[::-1]] = column[::-1]
    return {"firsts": firsts, "lasts": lasts, "owned": owned}


class _Rows:
    """Which words of which example each row shows and answers for."""

    def __init__(self, features: Features) -> None:
        words, own = features.note("words"), features.note("own")
        self.begin = first_words(words).tolist()
        self.end = (words.max(1) + 1).tolist()
        self._last = np.where(own, words, -1).max(1).tolist()
        self._first = np.searchsorted(features.example, np.arange(features.examples)).tolist()

    def owner(self, example: int, word: int) -> int:
        """Return the row that answers for a word of an example."""
        row = self._first[example]
        while self._last[row] < word:
            row += 1
        return int(row)


def _table(rows: Sequence[Sequence[tuple[int, int, int]]]) -> Ints:
    """Return lists of three numbers as an array, filled up with -1."""
    most = max(1, max(map(len, rows), default=0))
    table = np.full((len(rows), most, 3), -1, np.int32)
    for place, entries in enumerate(rows):
        if entries:
            table[place, : len(entries)] = entries
    return table


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
    base = first_words(features.note("words"))
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
    measured = set_scores(gold, found)
    inner = [{span for span in own if _lies_in_another(span, own)} for own in gold]
    if any(inner):
        outer = [own - within for own, within in zip(gold, inner, strict=True)]
        measured["inner_recall"] = set_scores(inner, found)["recall"]
        measured["outer_recall"] = set_scores(outer, found)["recall"]
    return measured


def relation_metrics(
    examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction]
) -> dict[str, float]:
    """Return precision, recall and F1 of relations whose name and two spans are all right.

    ``span_f1`` is that of the spans; ``given_f1`` is that of relations between the right spans, as
    if they had been given.
    """
    gold = [set(related(entry)) for entry in examples]
    measured = set_scores(gold, [set(entry.relations) for entry in predictions])
    measured["span_f1"] = span_metrics(examples, predictions)["f1"]
    measured["given_f1"] = set_scores(gold, [set(entry.given or ()) for entry in predictions])["f1"]
    return measured


def related(example: SpanExample) -> list[Related]:
    """Return the right relations of a sentence, with their spans."""
    spans = example.spans or ()
    return [(entry.name, spans[entry.one], spans[entry.other]) for entry in example.relations or ()]


def _lies_in_another(span: Span, spans: set[Span]) -> bool:
    return any(
        other[1:] != span[1:] and other[1] <= span[1] and span[2] <= other[2] for other in spans
    )
