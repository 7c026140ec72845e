"""Teach the subject prompt to tell the true object from wrong ones: hard negatives.

Equation 7 shows the subject prompt true pairs alone, but re-ranking asks it which of the object
prompt's candidates the subject goes with. So a fact's subject score s(o) is also trained to be
higher for the true object t than for N wrong candidates, by the listwise loss

    L = -log( exp s(t) / (exp s(t) + exp s(o_1) + ... + exp s(o_N)) ).

The wrong ones are drawn in every epoch from the K best answers of the object prompt to the training
fact, without those known to be true of the subject; the K are found anew every few epochs. The
score is the log-likelihood of one of the subject's tokens, drawn too and the same for all N + 1,
which is an unbiased draw of the mean over its tokens. Its query for the true object is one that
equation 7 has already, so a fact costs N further query sentences in a step, whatever its subject's
length, and finding the K a forward pass of one sentence. Where one sentence gives every token
(masking "whole", causal models) the score is their mean, at the same cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from symprompt.engine.batches import make_batches
from symprompt.probing.queries import APART, Queries, top_k
from symprompt.runs.environment import derive_seed

if TYPE_CHECKING:
    from symprompt.probing.methods.base import Method
    from symprompt.probing.problem import Sentences

_FACTS_AT_ONCE = 2048


@dataclass(frozen=True)
class Negatives:
    """What facts are told apart from in one epoch.

    Attributes:
        objects: [n, N] wrong objects, tokens or ids of names; -1 where a fact has fewer.
        offset: [n] the subject token that is asked about.
    """

    objects: np.ndarray
    offset: np.ndarray

    def take(self, rows: np.ndarray) -> Negatives:
        """Return those of some facts."""
        return Negatives(self.objects[rows], self.offset[rows])


def wrong_candidates(scores: Tensor, known: Tensor, k: int) -> Tensor:
    """Return the k best answers [b, k], best first; -1 in the place of true ones.

    Args:
        scores: [b, v] of the object prompt; ``-inf`` marks what is no candidate.
        known: [b, m] padded with -1, the true ones.
    """
    _, found = top_k(scores, min(k, scores.shape[1]))
    found = found.masked_fill((found[:, :, None] == known[:, None, :]).any(2), -1)
    return torch.nn.functional.pad(found, (0, k - found.shape[1]), value=-1)


@torch.no_grad()
def find_wrong(
    method: Method, sentences: Sentences, allowed: Tensor, *, k: int, max_tokens: int
) -> Tensor:
    """Return the wrong ones among the object prompt's k best answers to each fact, [n, k].

    Args:
        allowed: [relation, v] bool.
    """
    vectors = {part: value.detach() for part, value in method.vectors().items()}
    found = torch.full((len(sentences), k), -1, device=allowed.device)
    lengths = sentences.object_prompt.lengths
    with method.backbone.dropout(on=False):
        for rows, _ in make_batches(lengths, max_tokens, apart=APART, most=_FACTS_AT_ONCE):
            index = torch.from_numpy(rows).to(allowed.device)
            scores = method.scores(sentences, rows, vectors)
            scores = sentences.permitted(scores, rows, allowed)
            found[index] = wrong_candidates(scores, sentences.known[index], k)
    return found


def draw(
    candidates: np.ndarray,
    sentences: Sentences,
    relations: Sequence[str],
    *,
    count: int,
    seed: int,
    epoch: int,
) -> Negatives:
    """Draw each fact's wrong objects and subject token, whatever other relations there are.

    Args:
        candidates: [n, k] with -1 for what may not be drawn.
        relations: their names.
        count: most wrong objects of a fact.
    """
    k = candidates.shape[1]
    found = Negatives(
        np.full((len(candidates), count), -1, dtype=np.int64),
        np.zeros(len(candidates), dtype=np.int64),
    )
    lengths = sentences.subject_prompt.subject_lengths
    for index, name in enumerate(relations):
        rows = np.flatnonzero(sentences.relations == index)
        draws = np.random.default_rng(derive_seed(seed, "negatives", name, epoch))
        keys = draws.random((len(rows), k + 1))
        order = np.argsort(np.where(candidates[rows] >= 0, keys[:, :k], 2.0), axis=1)[:, :count]
        found.objects[rows] = np.take_along_axis(candidates[rows], order, 1)
        found.offset[rows] = (keys[:, k] * lengths[rows]).astype(np.int64)
    return found


def with_negatives(
    ask: Queries, rows: np.ndarray, negatives: Negatives, *, weight: float
) -> Queries:
    """Return a subject prompt's queries with those of wrong objects beside them.

    Args:
        rows: the facts that the queries are about, whose negatives are given.
        weight: what the listwise loss counts in a fact's loss.
    """
    lengths = ask.layout.subject_lengths[rows]
    fact, place = np.nonzero(negatives.objects >= 0)
    groups = np.full((len(rows), negatives.objects.shape[1] + 1), -1)
    groups[:, 0] = np.cumsum(lengths) - lengths + negatives.offset
    groups[fact, place + 1] = len(ask.rows) + np.arange(len(fact))
    return replace(
        ask,
        rows=np.concatenate((ask.rows, rows[fact])),
        offset=np.concatenate((ask.offset, negatives.offset[fact])),
        share=np.concatenate((ask.share, np.zeros(len(fact)))),
        owner=np.concatenate((ask.owner, fact)),
        objects=np.concatenate((np.full(len(ask.rows), -1), negatives.objects[fact, place])),
        groups=groups,
        group_weight=weight,
    )


def listwise_losses(right: Tensor, wrong: Tensor, fact: Tensor, place: Tensor) -> Tensor:
    """Return -log softmax of the true object's score among each fact's, [b].

    Args:
        right: [b] scores of true objects.
        wrong: [m] scores of wrong ones.
        fact, place: [m] whose each is, and which of the fact's it is.
    """
    count = int(place.max()) + 1 if len(place) else 0
    table = right.new_full((len(right), count), -torch.inf).index_put((fact, place), wrong)
    return torch.logsumexp(torch.cat((right[:, None], table), dim=1), dim=1) - right
