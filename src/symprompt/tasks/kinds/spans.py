"""Spans of a sentence and their types, which may lie in one another, and relations between them.

Section 11.5.2 of the chapter on masked language models (Jurafsky and Martin): a span is the
concatenation of its start, its end and a summary of its tokens (equations 11.22, 11.25), and a
feed-forward network classifies it (equation 11.27), NULL among the classes. Spans are of words;
their tokens are all tokens of those words.

The network's first layer is a sum of three products, one for each part of the concatenation, so
each token is multiplied once and a span costs additions. Equation 11.26 leaves open how what a
self-attention gives for each token becomes one vector; here the tokens' queries are averaged, so
that a span attends to its tokens once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from symprompt.tasks.config import HeadConfig, SpanConfig
from symprompt.tasks.data.examples import LabelSet, Read, Span, SpanExample
from symprompt.tasks.data.sentences import read_spans
from symprompt.tasks.features import Batch, Features, Ints, Sheet, first_words, tensorise_sentences
from symprompt.tasks.kinds.base import Head, Kind, Scores, Target, make_linear, take_at
from symprompt.tasks.kinds.metrics import set_scores

NULL = 0
LOWEST = -8.0
"""Log-odds below which no span is ever taken, also when a threshold is chosen."""
_ROWS = 64
"""Rows whose pairs of spans are scored at once."""
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


class Spans(Kind[SpanExample, SpanPrediction]):
    """The spans of a sentence and their types, and how every two of them are related; final.

    Targets: words, as ``tensorise_sentences`` gives them; firsts and lasts, first and last token
    of each word of the row, -1 for none [n, t]; owned, whether this row answers for the word
    [n, t]; spans, labelled spans: first word within the row, words beside it, label [n, g, 3];
    pairs, relations: places of the two spans in ``spans``, label [n, p, 3]; -1 for none.
    """

    settings = ("task.choose_threshold", "span")
    loosest = LOWEST

    def __init__(self, *, related: bool) -> None:
        self.related = related
        self.read = partial(read_spans, related=related)
        self.predicted = "relations" if related else "spans"

    def label_set(self, train: Read) -> LabelSet:
        """Return NULL and the types of spans of the training examples."""
        types = (span[0] for x in train.examples for span in x.spans or ())
        return self._named(types, train, "a span; add some")

    def relation_set(self, train: Read) -> LabelSet:
        """Return NULL and the relations of the training examples."""
        if not self.related:
            return LabelSet(())
        names = (own.name for x in train.examples for own in x.relations or ())
        wanted = "a relation between its spans; add some, or read the file as spans"
        return self._named(names, train, wanted)

    def _named(self, names: Iterable[str], train: Read, wanted: str) -> LabelSet:
        found = LabelSet.of_spans(names)
        if len(found) < 2:
            raise train.wrong(f"no training example has {wanted}.")
        return found

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

    def head(
        self, width: int, target: Target, *, causal: bool, generator: torch.Generator | None = None
    ) -> Head:
        """Return a head that scores every span, and every pair of the best ones."""
        # Fewer candidates for relations, as pairs are their square.
        count = target.span.candidates or (32 if self.related else 64)
        shape = replace(target.span, candidates=count)
        relations = len(target.relations) if self.related else 0
        return SpanHead(
            width, len(target.labels), shape, target.head, generator, relations=relations
        )

    def decode(
        self,
        scores: Scores,
        features: Features,
        examples: Sequence[SpanExample],
        target: Target,
        *,
        threshold: float | None = None,
    ) -> list[SpanPrediction]:
        """Return the spans of each example from candidates of rows.

        Spans are taken greedily, best first. Whether one is taken does not depend on those after
        it, so a higher threshold gives the same spans, fewer of them.

        Args:
            scores: as the head gives them: candidates [n, c, 4], with relations [n, 2 c, 4 + 2 c].
            threshold: what a span's log-odds against NULL must be above.
        """
        base = first_words(features.notes["words"]).tolist()
        count = scores.shape[1] // 2 if self.related else scores.shape[1]
        found: list[list[tuple[float, Span, int, int]]] = [[] for _ in examples]
        rows, places = np.nonzero(scores[:, :count, 3] > max(threshold or 0.0, LOWEST))
        for row, place in zip(rows.tolist(), places.tolist(), strict=True):
            span, odds = _span(scores[row, place], base[row], target.labels)
            found[int(features.example[row])].append((odds, span, row, place))
        predictions = []
        for candidates in found:
            taken = _taken(candidates, target.span.overlaps)
            between: tuple[Related, ...] = ()
            if self.related:
                chosen = {(row, place): span for _, span, row, place in taken}
                between = tuple(_relations(scores, chosen, count, 0, target.relations))
            spans = tuple(span for _, span, _, _ in taken)
            predictions.append(SpanPrediction(spans, tuple(x[0] for x in taken), between))
        if not self.related:
            return predictions
        given: list[list[Related]] = [[] for _ in found]
        for row in range(len(scores)):
            own = {
                (row, place): _span(scores[row, place], base[row], target.labels)[0]
                for place in range(count, 2 * count)
                if np.isfinite(scores[row, place, 3])
            }
            known = _relations(scores, own, count, count, target.relations)
            given[int(features.example[row])] += known
        return [replace(x, given=tuple(own)) for x, own in zip(predictions, given, strict=True)]

    def measure(
        self, examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction]
    ) -> dict[str, float]:
        """Return precision, recall and F1 of spans, or of relations.

        Of a span type, first and last word must be right. For spans that do not overlap these are
        the figures of conlleval and seqeval. Where some right spans lie in others,
        ``inner_recall`` is the share of those that are found, and ``outer_recall`` that of all
        others; tags can say only the latter.

        Of a relation its name and two spans must be right. ``span_f1`` is that of the spans;
        ``given_f1`` is that of relations between the right spans, as if they had been given.
        """
        gold = [set(entry.spans or ()) for entry in examples]
        found = [set(entry.spans) for entry in predictions]
        measured = set_scores(gold, found)
        if self.related:
            wanted = [
                {(own.name, x.spans[own.one], x.spans[own.other]) for own in x.relations or ()}
                for x in examples
                if x.spans is not None
            ]
            given = set_scores(wanted, [set(entry.given or ()) for entry in predictions])
            others = {"span_f1": measured["f1"], "given_f1": given["f1"]}
            return {**set_scores(wanted, [set(x.relations) for x in predictions]), **others}
        inner = [{span for span in own if _lies_in_another(span, own)} for own in gold]
        if any(inner):
            outer = [own - within for own, within in zip(gold, inner, strict=True)]
            measured["inner_recall"] = set_scores(inner, found)["recall"]
            measured["outer_recall"] = set_scores(outer, found)["recall"]
        return measured

    def row(self, example: SpanExample, prediction: SpanPrediction) -> dict[str, Any]:
        """Return spans, in the order of the sentence, and relations as plain values."""
        order = sorted(
            zip(prediction.spans, prediction.odds, strict=True), key=lambda pair: pair[0][1:]
        )
        place = {span: number for number, (span, _) in enumerate(order)}
        row: dict[str, Any] = {
            "id": example.id,
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
        if example.spans is not None:
            row["gold"] = [list(span) for span in example.spans]
        return row

    def threshold(
        self, train: Sequence[SpanExample], unanswerable: Literal["data", "always"] = "data"
    ) -> float | None:
        """Return 0: a type must score higher than none."""
        return 0.0

    def best_threshold(
        self, examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction]
    ) -> float:
        """Return the threshold on spans with the best F1."""
        given = sum(len(set(entry.spans or ())) for entry in examples)
        pairs = [
            (odds, span in wanted)
            for example, prediction in zip(examples, predictions, strict=True)
            for wanted in [set(example.spans or ())]
            for span, odds in zip(prediction.spans, prediction.odds, strict=True)
        ]
        if not pairs or not given:
            return 0.0
        odds = np.array([value for value, _ in pairs])
        order = np.argsort(-odds, kind="stable")
        right = np.cumsum(np.array([hit for _, hit in pairs])[order])
        scores = 2 * right / (np.arange(1, len(pairs) + 1) + given)
        # A threshold cannot part equals.
        ordered = odds[order]
        last = np.append(ordered[1:] != ordered[:-1], True)
        best = int(np.where(last, scores, -1.0).argmax())
        lower = ordered[best + 1] if best + 1 < len(ordered) else max(LOWEST, ordered[best] - 1.0)
        return float((ordered[best] + lower) / 2)

    def too_long(self, examples: Sequence[SpanExample], target: Target) -> int:
        """Return how many spans are longer than those that are scored."""
        most = target.span.length
        return sum(end - start > most for x in examples for _, start, end in x.spans or ())


def _row_spans(
    examples: Sequence[SpanExample], features: Features, target: Target
) -> tuple[Ints, Ints, int]:
    """Return the spans and relations of each row, and how many sentences lost some."""
    labels, relations = target.labels, target.relations
    words = features.notes["words"]
    begins, ends = first_words(words).tolist(), (words.max(1) + 1).tolist()
    # The last word that each row answers for, and the first row of each example.
    lasts = np.where(features.notes["own"], words, -1).max(1).tolist()
    first_rows = np.searchsorted(features.example, np.arange(len(examples))).tolist()
    spans: list[list[tuple[int, int, int]]] = [[] for _ in range(len(features))]
    pairs: list[list[tuple[int, int, int]]] = [[] for _ in range(len(features))]
    lost = 0
    for entry, first_row in zip(examples, first_rows, strict=True):
        whole = True
        found: dict[int, tuple[int, int]] = {}
        for place, (name, start, end) in enumerate(entry.spans or ()):
            row = first_row
            while lasts[row] < start:
                row += 1
            if end > ends[row]:
                whole = False
            elif name in labels:
                found[place] = row, len(spans[row])
                spans[row].append((start - begins[row], end - start - 1, labels.index[name]))
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
    words, own = np.asarray(features.targets["words"], np.int64), features.notes["own"]
    row, column = np.nonzero(words >= 0)
    place = words[row, column]
    firsts, lasts = (np.full(words.shape, -1) for _ in range(2))
    owned = np.zeros(words.shape, np.bool_)
    lasts[row, place] = column
    owned[row, place] = own[row, column]
    firsts[row[::-1], place[::-1]] = column[::-1]
    return {"firsts": firsts, "lasts": lasts, "owned": owned}


def _table(rows: Sequence[Sequence[tuple[int, int, int]]]) -> Ints:
    """Return lists of three numbers as an array, filled up with -1."""
    most = max(1, max(map(len, rows), default=0))
    table = np.full((len(rows), most, 3), -1, np.int32)
    for place, entries in enumerate(rows):
        if entries:
            table[place, : len(entries)] = entries
    return table


def _span(candidate: NDArray[np.floating], base: int, labels: LabelSet) -> tuple[Span, float]:
    first, more, label, odds = candidate[:4].tolist()
    start = base + int(first)
    return (labels.names[int(label)], start, start + int(more) + 1), odds


def _taken(
    candidates: Sequence[tuple[float, Span, int, int]], overlaps: str
) -> list[tuple[float, Span, int, int]]:
    """Return the candidates that may stand together, best first."""
    kept: list[tuple[float, Span, int, int]] = []
    for entry in sorted(candidates, key=lambda entry: (-entry[0], entry[1][1], entry[1][2])):
        if not any(_clash(entry[1], other[1], overlaps) for other in kept):
            kept.append(entry)
    return kept


def _clash(span: Span, other: Span, overlaps: str) -> bool:
    (_, start, end), (_, other_start, other_end) = span, other
    if (start, end) == (other_start, other_end):
        return True
    if overlaps == "all" or end <= other_start or other_end <= start:
        return False
    within = other_start <= start and end <= other_end
    around = start <= other_start and other_end <= end
    return overlaps == "flat" or not (within or around)


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


def _lies_in_another(span: Span, spans: set[Span]) -> bool:
    return any(
        other[1:] != span[1:] and other[1] <= span[1] and span[2] <= other[2] for other in spans
    )


# ------------------------------------------------------------------------------------- the head


class SpanStates(nn.Module):
    """The parts of span representations, token by token; final."""

    def __init__(self, width: int, shape: SpanConfig, generator: torch.Generator | None) -> None:
        super().__init__()
        self.shape = shape
        ffn = shape.boundary == "ffn"
        self.size = shape.hidden if ffn else width
        self.start = _make_ffn(width, shape.hidden, generator) if ffn else nn.Identity()
        self.end = _make_ffn(width, shape.hidden, generator) if ffn else nn.Identity()
        attends = shape.summary == "attention"
        self.query = make_linear(width, shape.hidden, generator) if attends else None
        self.key = make_linear(width, shape.hidden, generator) if attends else None

    def weights(self, states: Tensor, starts: Tensor, ends: Tensor) -> Tensor | None:
        """Return what each span's summary takes of each token [b, n, t]; None is the mean."""
        if self.query is None or self.key is None:
            return None
        query = _mean(_summed(self.query(states)), starts, ends)
        scores = query @ self.key(states).transpose(1, 2) / self.shape.hidden**0.5
        places = torch.arange(states.shape[1], device=states.device)
        within = (places >= starts[..., None]) & (places <= ends[..., None])
        return torch.softmax(scores.masked_fill(~within, -torch.inf), -1)


class Projection(nn.Module):
    """The first layer of a classifier over span representations; final.

    Args:
        width: the size of hidden states.
        size: the size of start and end.
    """

    def __init__(
        self, width: int, size: int, hidden: int, generator: torch.Generator | None
    ) -> None:
        super().__init__()
        self.start = make_linear(size, hidden, generator)
        self.end = make_linear(size, hidden, generator)
        self.inside = make_linear(width, hidden, generator)

    def forward(
        self,
        states: Tensor,
        parts: SpanStates,
        starts: Tensor,
        ends: Tensor,
        weights: Tensor | None,
    ) -> Tensor:
        """Return the layer's output for spans by their first and last tokens [b, n, k].

        Args:
            weights: what each span's summary takes of each token; None is the mean.
        """
        inside: Tensor = self.inside(states)
        start, end = self.start(parts.start(states)), self.end(parts.end(states))
        ends_of = take_at(start, starts) + take_at(end, ends)
        if weights is None:
            return ends_of + _mean(_summed(inside), starts, ends)
        return ends_of + weights @ inside


class SpanHead(Head):
    """A class, or none, for every span of up to so many words, and relations between them; final.

    Scores are candidates: the best spans of each row as (first word, words beside it, class,
    log-odds of the class against NULL) [b, candidates, 4].

    A relation is read off the two spans' representations, their classes and the mean of what stands
    between them. It is trained on pairs of labelled spans; what is asked are pairs of candidates,
    and of the labelled spans where they are known. Scores are then candidates, each with the best
    relation to every other and its log-odds against NULL, then the same for the labelled spans
    [b, 2 c, 4 + 2 c].

    Args:
        relations: how many there are, NULL among them; 0 reads no relations.
    """

    def __init__(
        self,
        width: int,
        labels: int,
        shape: SpanConfig,
        config: HeadConfig,
        generator: torch.Generator | None = None,
        *,
        relations: int = 0,
    ) -> None:
        # The layers before the last one are the spans' own.
        super().__init__(shape.hidden, labels, HeadConfig(dropout=config.dropout), generator)
        self.shape = shape
        self.states = SpanStates(width, shape, generator)
        size, hidden = self.states.size, shape.hidden
        self.project = Projection(width, size, hidden, generator)
        self.relations = relations
        if relations:
            self.one = Projection(width, size, hidden, generator)
            self.other = Projection(width, size, hidden, generator)
            self.between = make_linear(width, hidden, generator)
            # A product with a one-hot class: what the class adds to the first layer.
            self.one_class = make_linear(labels, hidden, generator)
            self.other_class = make_linear(labels, hidden, generator)
            self.related = make_linear(hidden, relations, generator)

    def loss(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the cross-entropy over spans by word, and over pairs of labelled spans [b]."""
        with torch.autocast(states.device.type, enabled=False):
            losses = self._span_loss(states, batch)
            return losses + self._pair_loss(states, batch) if self.relations else losses

    def weights(self, batch: Batch) -> Tensor:
        """Return the words each row answers for [b]."""
        return batch.targets["owned"].sum(1).float()

    def scores(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the best spans of each row, and the labelled ones, with their relations."""
        found = []
        with torch.autocast(states.device.type, enabled=False):
            if not self.relations:
                return self._candidates(states, batch)
            places = torch.arange(len(states), device=states.device)
            for rows in torch.split(places, _ROWS):
                own, part = states[rows], batch.select(rows)
                best = self._candidates(own, part)
                given = _labelled(part.targets["spans"], self.shape.candidates).to(best.dtype)
                found.append(torch.cat([self._related(own, part, x) for x in (best, given)], 1))
        return torch.cat(found)

    def _logits(self, states: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the classes' scores of all spans [b, t * length, classes], and which are spans.

        A row's spans are ordered by first word, then by length.
        """
        states = self.dropout(states.to(self.output.weight.dtype))
        starts, ends, legal = enumerate_spans(batch, self.shape.length)
        weights = self.states.weights(states, starts, ends)
        hidden = self.project(states, self.states, starts, ends, weights)
        return self.output(self.dropout(functional.gelu(hidden))), legal

    def _span_loss(self, states: Tensor, batch: Batch) -> Tensor:
        logits, legal = self._logits(states, batch)
        spans, length = batch.targets["spans"], self.shape.length
        count = logits.shape[1]
        labels = torch.zeros(len(spans), count + 1, dtype=torch.long, device=spans.device)
        # A span that is too long is none of those that are scored.
        fits = (spans[..., 2] >= 0) & (spans[..., 1] < length)
        place = torch.where(fits, spans[..., 0] * length + spans[..., 1], count)
        labels = labels.scatter_(1, place, spans[..., 2].clamp(min=0))[:, :-1]
        losses = functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
        taken = legal
        if self.shape.negatives and self.training:
            others = (legal & (labels == NULL)).sum(1, keepdim=True).clamp(min=1)
            drawn = torch.rand_like(losses) * others < self.shape.negatives
            taken = legal & ((labels != NULL) | drawn)
        words = batch.targets["owned"].sum(1).clamp(min=1)
        return torch.where(taken, losses, 0.0).sum(1) / words

    def _candidates(self, states: Tensor, batch: Batch) -> Tensor:
        logits, legal = self._logits(states, batch)
        found = torch.log_softmax(logits, -1)
        best, label = found[..., 1:].max(-1)
        odds = torch.where(legal, best - found[..., NULL], -torch.inf)
        short = self.shape.candidates - odds.shape[1]
        if short > 0:
            odds = functional.pad(odds, (0, short), value=-torch.inf)
            label = functional.pad(label, (0, short))
        values, places = odds.topk(self.shape.candidates)
        parts = (
            places // self.shape.length,
            places % self.shape.length,
            label.gather(1, places) + 1,
        )
        there = torch.isfinite(values)
        # What only fills a row up is all zeros, whatever its places were.
        kept = (torch.where(there, part, 0).to(values.dtype) for part in parts)
        return torch.stack((*kept, values), 2)

    def _pair_loss(self, states: Tensor, batch: Batch) -> Tensor:
        spans, pairs = batch.targets["spans"], batch.targets["pairs"]
        known = spans[..., 2] >= 0
        rows, count = known.shape
        logits = self._pairs(states, batch, spans).flatten(1, 2)
        labels = torch.zeros(rows, count * count + 1, dtype=torch.long, device=states.device)
        place = torch.where(pairs[..., 2] >= 0, pairs[..., 0] * count + pairs[..., 1], count**2)
        labels.scatter_(1, place, pairs[..., 2].clamp(min=0))
        legal = known[:, :, None] & known[:, None] & ~_diagonal(count, states.device)
        losses = functional.cross_entropy(
            logits.flatten(0, 1), labels[:, :-1].flatten(), reduction="none"
        )
        losses = losses.view(rows, -1) * legal.flatten(1)
        # By pair, so that a sentence of many names does not count their square.
        return losses.sum(1) / legal.flatten(1).sum(1).clamp(min=1)

    def _pairs(self, states: Tensor, batch: Batch, spans: Tensor) -> Tensor:
        """Return the scores of relations between any two of some spans [b, c, c, relations]."""
        states = self.dropout(states.to(self.output.weight.dtype))
        starts, ends = _tokens_of(spans, batch)
        weights = self.states.weights(states, starts, ends)
        left = self.one(states, self.states, starts, ends, weights)
        right = self.other(states, self.states, starts, ends, weights)
        names = torch.arange(self.output.out_features, device=states.device)
        classes = (spans[..., 2:3].clamp(min=0) == names).to(states.dtype)
        left, right = left + self.one_class(classes), right + self.other_class(classes)
        begin = torch.minimum(ends[:, :, None], ends[:, None]) + 1
        end = torch.maximum(starts[:, :, None], starts[:, None]) - 1
        # A causal model's last token may end a span: what follows it is beyond the row.
        begin = begin.clamp(max=states.shape[1] - 1)
        apart = (end >= begin).flatten(1)[..., None]
        summed = _summed(self.between(states))
        # Spans that touch or overlap have nothing between them.
        middle = _mean(summed, begin.flatten(1), torch.maximum(end, begin).flatten(1)) * apart
        size = spans.shape[1]
        hidden = left[:, :, None] + right[:, None] + middle.view(len(spans), size, size, -1)
        return self.related(self.dropout(functional.gelu(hidden)))  # type: ignore[no-any-return]

    def _related(self, states: Tensor, batch: Batch, spans: Tensor) -> Tensor:
        """Return spans [b, c, 4] with the best relation to every other [b, c, 4 + 2 c]."""
        found = torch.log_softmax(self._pairs(states, batch, spans), -1)
        odds, best = found[..., 1:].max(-1)
        legal = torch.isfinite(spans[..., 3])
        legal = legal[:, :, None] & legal[:, None] & ~_diagonal(spans.shape[1], states.device)
        odds = torch.where(legal, odds - found[..., NULL], -torch.inf)
        return torch.cat((spans, torch.where(legal, best + 1, 0).to(odds.dtype), odds), 2)


def enumerate_spans(batch: Batch, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return first and last token of every span of up to ``length`` words, and which there are.

    Returns:
        [b, t * length] each; those that are none are tokens 0 to 0.
    """
    firsts, lasts = batch.targets["firsts"], batch.targets["lasts"]
    ends = functional.pad(lasts, (0, length - 1), value=-1).unfold(1, length, 1)
    starts = firsts[:, :, None].expand_as(ends)
    legal = (ends >= 0) & (starts >= 0) & batch.targets["owned"][:, :, None]
    starts, ends = (torch.where(legal, part, 0).flatten(1) for part in (starts, ends))
    return starts, ends, legal.flatten(1)


def _tokens_of(spans: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return first and last token of spans of words [b, c]."""
    known = spans[..., 2] >= 0
    first = torch.where(known, spans[..., 0], 0).long()
    last = first + torch.where(known, spans[..., 1], 0).long()
    # Candidates that only fill a row up may lie behind its last word.
    most = batch.targets["firsts"].shape[1] - 1
    starts = batch.targets["firsts"].gather(1, first.clamp(max=most)).clamp(min=0)
    ends = batch.targets["lasts"].gather(1, last.clamp(max=most))
    return starts, torch.maximum(starts, ends)


def _labelled(spans: Tensor, count: int) -> Tensor:
    """Return labelled spans [b, g, 3] as candidates [b, count, 4]: sure ones, or none."""
    kept = functional.pad(spans[:, :count], (0, 0, 0, max(0, count - spans.shape[1])), value=-1)
    sure = torch.where(kept[..., 2:] >= 0, 0.0, -torch.inf)
    return torch.cat((kept.to(sure.dtype), sure), 2)


def _diagonal(count: int, device: torch.device) -> Tensor:
    return torch.eye(count, dtype=torch.bool, device=device)


def _summed(values: Tensor) -> Tensor:
    return functional.pad(values.cumsum(1), (0, 0, 1, 0))


def _mean(summed: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
    """Return the mean from a first to a last token [b, n, k] (equation 11.21)."""
    size = (ends - starts + 1)[..., None]
    return (take_at(summed, ends + 1) - take_at(summed, starts)) / size


def _make_ffn(width: int, hidden: int, generator: torch.Generator | None) -> nn.Module:
    """Make a network of two layers (equations 11.23, 11.24)."""
    return nn.Sequential(
        make_linear(width, hidden, generator), nn.GELU(), make_linear(hidden, hidden, generator)
    )
