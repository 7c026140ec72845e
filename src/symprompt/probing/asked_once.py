"""How likely subjects are given candidate objects, every sentence read once.

What is masked of a subject makes sentences of many facts alike. A subject that is masked whole
leaves the relation, the object and a number of masks; a chain's token leaves those before it too;
one masked token leaves all others. So a sentence is known by its object and by the token's view:
what the mask leaves of the subject. Facts with the same view and object share the sentence, and
each looks its own token up in the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from symprompt.engine.batches import make_batches
from symprompt.models import LanguageModel
from symprompt.probing.queries import (
    APART,
    Average,
    Masking,
    TokenLikelihoods,
    exact_dtype,
    one_sentence,
    subject_logits,
    tokens_of,
)
from symprompt.prompts import Layout, NameTable
from symprompt.runs.environment import send

_QUERIES_AT_ONCE = 1 << 17


@dataclass(frozen=True, eq=False)
class AskedBack:
    """What is asked of some facts' subjects, on the CPU.

    Attributes:
        layout: the sentences by which they are asked.
        rows: [b] facts; those of a relation share sentences where they stand together.
        candidates: [b, k] tokens, or ids of names; -1 is none, is not queried and scores 0.
        tokens: [b, t] the subjects; beyond a subject's end stands anything.
    """

    layout: Layout
    rows: np.ndarray
    candidates: np.ndarray
    tokens: np.ndarray

    @classmethod
    def fetch(cls, layout: Layout, rows: np.ndarray, candidates: Tensor) -> AskedBack:
        """Gather it; a GPU is waited for, and by ``score_subjects`` no more."""
        index = send(rows, layout.ids.device)
        steps = torch.arange(int(layout.subject_lengths[rows].max(initial=1)), device=index.device)
        at = (layout.subject_at[index][:, None] + steps).clamp(max=layout.ids.shape[1] - 1)
        tokens = layout.ids[index].gather(1, at).cpu().numpy()
        return cls(layout, rows, candidates.cpu().numpy(), tokens)


def score_subjects(
    backbone: LanguageModel,
    asked: AskedBack,
    vectors: Tensor | None,
    *,
    masking: Masking,
    average: Average,
    max_tokens: int,
    names: NameTable | None = None,
    done: Callable[[float], None] | None = None,
) -> Tensor:
    """Return each row's subject score for each candidate object, [b, k].

    While a GPU reads the sentences of some relations, those of the next are gathered.

    Args:
        max_tokens: most tokens of a pass.
        done: called with the share of the rows that are done.
    """
    layout, rows, given, tokens = asked.layout, asked.rows, asked.candidates, asked.tokens
    counts, relations = layout.subject_lengths[rows], layout.relations[rows]
    views = token_views(tokens, counts, relations, causal=backbone.causal, masking=masking)
    reader = _Reader(backbone, layout, vectors, masking, max_tokens, names)
    found = torch.zeros(given.shape, dtype=exact_dtype(backbone), device=layout.ids.device)
    for part in _groups(relations, counts * (given >= 0).sum(1)):

        def report(share: float, part: slice = part) -> None:
            if done is not None:
                done((part.start + share * (part.stop - part.start)) / max(1, len(rows)))

        fact, rank = np.nonzero(given[part] >= 0)
        if len(fact):
            fact += part.start
            owner, offset = tokens_of(counts[fact])
            likelihoods = TokenLikelihoods(
                reader.likelihoods(
                    rows[fact[owner]],
                    offset,
                    given[fact, rank][owner],
                    views[fact[owner], offset],
                    tokens[fact[owner], offset],
                    report,
                ),
                send(owner, found.device),
                send(counts[fact], found.device),
            )
            index = send(fact, found.device), send(rank, found.device)
            found[index] = likelihoods.average(average)
        report(1.0)
    return found


def token_views(
    tokens: np.ndarray,
    counts: np.ndarray,
    relations: np.ndarray,
    *,
    masking: Masking,
    causal: bool = False,
) -> np.ndarray:
    """Return a number for what is left of each subject where a token of it is queried, [b, t].

    Two numbers are the same where the same relation is asked with the same tokens in the same
    places, and as many of them masked.

    Args:
        tokens: [b, t] the subjects; what stands beyond a subject's end does not count.
        counts: [b] how many tokens each subject has.
        causal: whether one sentence is read for all tokens, by a model that masks none.
    """
    begin = np.unique(np.stack([relations, counts]), axis=1, return_inverse=True)[1].reshape(-1)
    before = _numbers_before(tokens, counts, begin)
    if causal or masking == "whole":
        # Nothing before the first token is seen, or all that stands before the last one.
        place = counts - 1 if causal else np.zeros_like(counts)
        found = np.take_along_axis(before, place[:, None], 1)
        return np.broadcast_to(found, tokens.shape)
    if masking == "chain":
        return before
    # What stands after a token stands before it where the subject is read backwards.
    turned = np.clip(counts[:, None] - 1 - np.arange(tokens.shape[1]), 0, None)
    backwards = np.take_along_axis(tokens, turned, 1)
    after = _numbers_before(backwards, counts, np.zeros_like(counts))
    after = np.take_along_axis(after, turned, 1)
    both = before * (int(after.max(initial=0)) + 1) + after
    return np.unique(both, return_inverse=True)[1].reshape(both.shape)


def _numbers_before(tokens: np.ndarray, counts: np.ndarray, begin: np.ndarray) -> np.ndarray:
    """Return a number for each token's place and all that stands before it, [b, t].

    Args:
        begin: [b] a number that rows must share to share others.
    """
    found = np.zeros(tokens.shape, dtype=np.int64)
    size = int(tokens.max(initial=0)) + 1
    now, rows, first = begin, np.arange(len(tokens)), 0
    for place in range(tokens.shape[1]):
        if place:
            rows = np.flatnonzero(counts > place)
            key = (found[rows, place - 1] - first) * size + tokens[rows, place - 1]
            first += int(now.max(initial=-1)) + 1
            now = np.unique(key, return_inverse=True)[1].reshape(-1)
        found[rows, place] = first + now
    return found


@dataclass(frozen=True)
class _Reader:
    """Reads queries about subjects' tokens, each sentence once."""

    backbone: LanguageModel
    layout: Layout
    vectors: Tensor | None
    masking: Masking
    max_tokens: int
    names: NameTable | None

    def likelihoods(
        self,
        rows: np.ndarray,
        offset: np.ndarray,
        objects: np.ndarray,
        views: np.ndarray,
        targets: np.ndarray,
        done: Callable[[float], None],
    ) -> Tensor:
        """Return the log-likelihood of each query's token, [q].

        Args:
            rows, offset: [q] facts, and which token of their subjects is queried.
            objects: [q] what stands in the object's place.
            views: [q] queries of one view and object share a sentence.
            targets: [q] the queried tokens.
            done: called with the share of the queries that are done, until all are.
        """
        keys = views * (int(objects.max()) + 1) + objects
        _, first, sentence = np.unique(keys, return_index=True, return_inverse=True)
        several, rows, objects = self._several, rows[first], objects[first]
        # A sentence has a line of logits for every token that is read there.
        lines = self.layout.subject_lengths[rows] if several else np.ones_like(rows)
        order = self._passes(rows, objects)
        ends = np.cumsum(lines[np.concatenate(order)])
        begin = np.empty_like(ends)
        begin[np.concatenate(order)] = ends - lines[np.concatenate(order)]
        line = begin[sentence] + several * offset
        turn = np.argsort(line, kind="stable")
        device = self.layout.ids.device
        at, target = send(line[turn], device), send(targets[turn], device)
        parts, start, above = list[Tensor](), 0, 0
        for own in order:
            logits = self._logits(rows[own], offset[first[own]], objects[own])
            stop = int(np.searchsorted(line[turn], above + len(logits)))
            scores = functional.log_softmax(logits, dim=1)
            parts.append(scores[at[start:stop] - above, target[start:stop]])
            start, above = stop, above + len(logits)
            if stop < len(turn):
                done(stop / len(turn))
        found = torch.cat(parts)
        return torch.empty_like(found).scatter_(0, send(turn, device), found)

    @property
    def _several(self) -> bool:
        return one_sentence(self.backbone, self.masking)

    def _passes(self, rows: np.ndarray, objects: np.ndarray) -> list[np.ndarray]:
        """Return which sentences are read together, the short ones first."""
        lengths = self.layout.lengths[rows]
        if self.names is not None:
            lengths = lengths - self.layout.object_lengths[rows] + self.names.lengths[objects]
        packed = not self._several and int(lengths.max()) <= self.backbone.longest_packed
        batches = make_batches(lengths, self.max_tokens, apart=None if packed else APART)
        return [batch.rows for batch in batches]

    def _logits(self, rows: np.ndarray, offset: np.ndarray, objects: np.ndarray) -> Tensor:
        """Return the logits of a pass, ``subject_logits`` with these objects."""
        layout, replaced = self.layout, send(objects, self.layout.ids.device)
        given: Tensor | None = replaced
        if self.names is not None:
            layout = layout.filled(rows, self.names.tokens[replaced], self.names.lengths[objects])
            rows, given = np.arange(len(rows)), None
        return subject_logits(
            self.backbone,
            layout,
            rows,
            offset,
            self.vectors,
            masking=self.masking,
            objects=given,
        )


def _groups(relations: np.ndarray, queries: np.ndarray) -> Iterator[slice]:
    """Yield facts that are read together: whole relations, with a good many queries."""
    every, start = np.concatenate([[0], np.cumsum(queries)]), 0
    for end in (*(np.flatnonzero(np.diff(relations)) + 1).tolist(), len(relations)):
        if end == len(relations) or every[end] - every[start] >= _QUERIES_AT_ONCE:
            yield slice(start, end)
            start = end
