"""Heads for spans: which of all spans up to a length are of interest, of what kind, how related.

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

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from symprompt.tasks.config import HeadConfig, SpanConfig
from symprompt.tasks.features import Batch
from symprompt.tasks.kinds.base import Head, make_linear

NULL = 0
_ROWS = 64
"""Rows whose pairs of spans are scored at once."""


@dataclass(frozen=True)
class TokenParts:
    """What a classifier's first layer makes of each token.

    Attributes:
        start, end: its products as a span's first and last token [b, t, k].
        inside: its product as one within [b, t, k].
        summed: the sums of ``inside`` up to each token, zero first [b, t + 1, k].
    """

    start: Tensor
    end: Tensor
    inside: Tensor
    summed: Tensor


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

    def tokens(self, states: Tensor, parts: SpanStates) -> TokenParts:
        """Return the products of all tokens."""
        inside = self.inside(states)
        start, end = self.start(parts.start(states)), self.end(parts.end(states))
        return TokenParts(start, end, inside, _summed(inside))

    def forward(
        self, tokens: TokenParts, starts: Tensor, ends: Tensor, weights: Tensor | None
    ) -> Tensor:
        """Return the layer's output for spans by their first and last tokens [b, n, k]."""
        ends_of = _at(tokens.start, starts) + _at(tokens.end, ends)
        if weights is None:
            return ends_of + _mean(tokens.summed, starts, ends)
        return ends_of + weights @ tokens.inside


class SpanClassHead(Head):
    """A class, or none, for every span of up to so many words; final.

    Scores are candidates: the best spans of each row as (first word, words beside it, class,
    log-odds of the class against NULL) [b, candidates, 4].
    """

    def __init__(
        self,
        width: int,
        labels: int,
        shape: SpanConfig,
        config: HeadConfig,
        generator: torch.Generator | None = None,
    ) -> None:
        # The layers before the last one are the spans' own.
        super().__init__(shape.hidden, labels, HeadConfig(dropout=config.dropout), generator)
        self.spans = _SpanScorer(width, shape, generator)

    def loss(self, states: Tensor, batch: Batch) -> Tensor:
        """Return each row's cross-entropy over its spans, by word [b]."""
        with torch.autocast(states.device.type, enabled=False):
            return self.spans.loss(self, states, batch)

    def weights(self, batch: Batch) -> Tensor:
        """Return the words each row answers for [b]."""
        return batch.need("owned").sum(1).float()

    def scores(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the best spans of each row [b, candidates, 4]."""
        with torch.autocast(states.device.type, enabled=False):
            return self.spans.candidates(self, states, batch)


class RelationHead(Head):
    """Spans with their classes, and how every two of them are related; final.

    A relation is read off the two spans' representations, their classes and the mean of what stands
    between them. It is trained on pairs of labelled spans; what is asked are pairs of candidates,
    and of the labelled spans where they are known.

    Scores are rows of candidates as in ``SpanClassHead``, each with the best relation to every
    other and its log-odds against NULL, then the same for the labelled spans [b, 2 c, 4 + 2 c].
    """

    def __init__(
        self,
        width: int,
        labels: int,
        relations: int,
        shape: SpanConfig,
        config: HeadConfig,
        generator: torch.Generator | None = None,
    ) -> None:
        # The layers before the last one are the spans' own.
        super().__init__(shape.hidden, labels, HeadConfig(dropout=config.dropout), generator)
        self.spans = _SpanScorer(width, shape, generator)
        size, hidden = self.spans.states.size, shape.hidden
        self.one = Projection(width, size, hidden, generator)
        self.other = Projection(width, size, hidden, generator)
        self.between = make_linear(width, hidden, generator)
        # A product with a one-hot class: what the class adds to the first layer.
        self.one_class = make_linear(labels, hidden, generator)
        self.other_class = make_linear(labels, hidden, generator)
        self.related = make_linear(hidden, relations, generator)

    def loss(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the cross-entropy over spans by word and over pairs of labelled spans [b]."""
        with torch.autocast(states.device.type, enabled=False):
            return self.spans.loss(self, states, batch) + self._pair_loss(states, batch)

    def weights(self, batch: Batch) -> Tensor:
        """Return the words each row answers for [b]."""
        return batch.need("owned").sum(1).float()

    def scores(self, states: Tensor, batch: Batch) -> Tensor:
        """Return candidates and labelled spans with their relations [b, 2 c, 4 + 2 c]."""
        found = []
        with torch.autocast(states.device.type, enabled=False):
            places = torch.arange(len(states), device=states.device)
            for rows in torch.split(places, _ROWS):
                own, part = states[rows], batch.select(rows)
                best = self.spans.candidates(self, own, part)
                asked = [self._related(own, part, best)]
                given = _labelled(part.need("spans"), self.spans.shape.candidates).to(best.dtype)
                asked.append(self._related(own, part, given))
                found.append(torch.cat(asked, 1))
        return torch.cat(found)

    def _pair_loss(self, states: Tensor, batch: Batch) -> Tensor:
        spans, pairs = batch.need("spans"), batch.need("pairs")
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
        parts = self.spans.states
        weights = parts.weights(states, starts, ends)
        left = self.one(self.one.tokens(states, parts), starts, ends, weights)
        right = self.other(self.other.tokens(states, parts), starts, ends, weights)
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


class _SpanScorer(nn.Module):
    """All spans of rows, scored: what both heads share; final. The last layer is the head's."""

    def __init__(self, width: int, shape: SpanConfig, generator: torch.Generator | None) -> None:
        super().__init__()
        self.shape = shape
        self.states = SpanStates(width, shape, generator)
        self.project = Projection(width, self.states.size, shape.hidden, generator)

    def loss(self, head: Head, states: Tensor, batch: Batch) -> Tensor:
        logits, legal = self.logits(head, states, batch)
        labels = self._labels(batch)
        losses = functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
        taken = legal
        if self.shape.negatives and self.training:
            others = (legal & (labels == NULL)).sum(1, keepdim=True).clamp(min=1)
            drawn = torch.rand_like(losses) * others < self.shape.negatives
            taken = legal & ((labels != NULL) | drawn)
        words = batch.need("owned").sum(1).clamp(min=1)
        return torch.where(taken, losses, 0.0).sum(1) / words

    def candidates(self, head: Head, states: Tensor, batch: Batch) -> Tensor:
        logits, legal = self.logits(head, states, batch)
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

    def logits(self, head: Head, states: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the classes' scores of all spans [b, t * length, classes], and which are spans.

        A row's spans are ordered by first word, then by length.
        """
        states = head.dropout(states.to(head.output.weight.dtype))
        starts, ends, legal = enumerate_spans(batch, self.shape.length)
        weights = self.states.weights(states, starts, ends)
        hidden = self.project(self.project.tokens(states, self.states), starts, ends, weights)
        return head.output(head.dropout(functional.gelu(hidden))), legal

    def _labels(self, batch: Batch) -> Tensor:
        spans, length = batch.need("spans"), self.shape.length
        count = batch.need("firsts").shape[1] * length
        labels = torch.zeros(len(spans), count + 1, dtype=torch.long, device=spans.device)
        # A span that is too long is none of those that are scored.
        fits = (spans[..., 2] >= 0) & (spans[..., 1] < length)
        place = torch.where(fits, spans[..., 0] * length + spans[..., 1], count)
        return labels.scatter_(1, place, spans[..., 2].clamp(min=0))[:, :-1]


def enumerate_spans(batch: Batch, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return first and last token of every span of up to ``length`` words, and which there are.

    Returns:
        [b, t * length] each; those that are none are tokens 0 to 0.
    """
    firsts, lasts = batch.need("firsts"), batch.need("lasts")
    ends = functional.pad(lasts, (0, length - 1), value=-1).unfold(1, length, 1)
    starts = firsts[:, :, None].expand_as(ends)
    legal = (ends >= 0) & (starts >= 0) & batch.need("owned")[:, :, None]
    starts, ends = (torch.where(legal, part, 0).flatten(1) for part in (starts, ends))
    return starts, ends, legal.flatten(1)


def _tokens_of(spans: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return first and last token of spans of words [b, c]."""
    known = spans[..., 2] >= 0
    first = torch.where(known, spans[..., 0], 0).long()
    last = first + torch.where(known, spans[..., 1], 0).long()
    # Candidates that only fill a row up may lie behind its last word.
    most = batch.need("firsts").shape[1] - 1
    starts = batch.need("firsts").gather(1, first.clamp(max=most)).clamp(min=0)
    ends = batch.need("lasts").gather(1, last.clamp(max=most))
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
    return (_at(summed, ends + 1) - _at(summed, starts)) / size


def _at(values: Tensor, places: Tensor) -> Tensor:
    return values.gather(1, places[..., None].expand(-1, -1, values.shape[2]))


def _make_ffn(width: int, hidden: int, generator: torch.Generator | None) -> nn.Module:
    """Make a network of two layers (equations 11.23, 11.24)."""
    return nn.Sequential(
        make_linear(width, hidden, generator), nn.GELU(), make_linear(hidden, hidden, generator)
    )
