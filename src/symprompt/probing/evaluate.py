"""Query a split's facts: ranks by object score, candidates, and their subject scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from symprompt.engine.batches import make_batches
from symprompt.files.progress import Tick, silent
from symprompt.probing.config import LearningConfig
from symprompt.probing.methods.base import Method, Sentences, Vectors
from symprompt.probing.predictions import Predictions
from symprompt.probing.queries import APART, OBJECT_PART
from symprompt.probing.rank import ranks, top_k

_FACTS_AT_ONCE = 2048


@torch.no_grad()
def predict(
    method: Method,
    sentences: Sentences,
    vectors: Vectors,
    *,
    allowed: Tensor,
    k: int,
    max_tokens: int,
    tick: Tick = silent,
    stage: str = "asking",
) -> Predictions:
    """Rank every fact's object and, where the method has a subject prompt, re-score the top k.

    Args:
        allowed: [relation, v] bool, the answers each relation may give.
        k: candidates per fact.

    Returns:
        Predictions in the order of the facts.
    """
    parts: list[Predictions] = []
    passes = _query_passes(method, sentences, k if method.has_subject_prompt else 0, max_tokens)
    done = 0
    for rows in passes:
        parts.append(_predict_rows(method, sentences, rows, vectors, allowed, k, max_tokens))
        done += len(rows)
        tick(stage, done, len(sentences), "")
    found = Predictions.concatenate(parts)
    return found.take(np.argsort(np.concatenate(passes), kind="stable"))


@torch.no_grad()
def add_subject_scores(
    method: Method,
    sentences: Sentences,
    vectors: Vectors,
    found: Predictions,
    *,
    max_tokens: int,
    tick: Tick = silent,
    stage: str = "scoring subjects",
) -> Predictions:
    """Return predictions with the subject scores of their candidates, whoever found these.

    Args:
        method: one with a subject prompt.
        sentences: the facts of the predictions, in their order.
    """
    subject_score = np.zeros_like(found.object_score)
    done = 0
    for rows in _query_passes(method, sentences, found.candidates.shape[1], max_tokens):
        candidates = torch.from_numpy(found.candidates[rows]).to(method.backbone.device)
        scores = method.subject_scores(sentences, rows, candidates, vectors, max_tokens=max_tokens)
        subject_score[rows] = scores.float().cpu().numpy()
        done += len(rows)
        tick(stage, done, len(sentences), "")
    return replace(found, subject_score=subject_score, terms={})


def _query_passes(
    method: Method, sentences: Sentences, k: int, max_tokens: int
) -> list[np.ndarray]:
    """Return the row sets in which a split is queried, with k subject scores of each fact."""
    # Subject scores read k sentences for every subject token, or k for a causal model; passes are
    # kept to what these can hold.
    lengths = sentences.subject_prompt.subject_lengths
    tokens = np.ones_like(lengths) if method.backbone.causal else lengths
    return _passes(sentences, 1 + k * tokens, max_tokens)


def _predict_rows(
    method: Method,
    sentences: Sentences,
    rows: np.ndarray,
    vectors: Vectors,
    allowed: Tensor,
    k: int,
    max_tokens: int,
) -> Predictions:
    index = torch.from_numpy(rows).to(method.backbone.device)
    gold, relation = sentences.gold[index], sentences.object_prompt.relation[index]
    known = sentences.known[index]
    scores = method.scores(sentences, rows, vectors)
    scores = scores.masked_fill(~allowed[relation], -torch.inf)
    raw, filtered = ranks(scores, gold), ranks(scores, gold, known)
    object_score, candidates = top_k(scores, k)
    if method.has_subject_prompt:
        subject_score = method.subject_scores(
            sentences, rows, candidates, vectors, max_tokens=max_tokens
        ).float()
    else:
        subject_score = torch.full_like(object_score, torch.nan)
    is_known = (candidates[:, :, None] == known[:, None, :]).any(2)
    columns = {
        "relation": relation,
        "gold": gold,
        "gold_score": scores.gather(1, gold[:, None])[:, 0],
        "better": raw.better,
        "equal": raw.equal,
        "better_filtered": filtered.better,
        "equal_filtered": filtered.equal,
        "candidates": candidates,
        "object_score": object_score,
        "subject_score": subject_score,
        "known": is_known & (candidates != gold[:, None]),
    }
    return Predictions.from_columns({name: own.cpu().numpy() for name, own in columns.items()})


@torch.no_grad()
def dev_scores(
    method: Method,
    sentences: Sentences,
    config: LearningConfig,
    *,
    allowed: Tensor,
    max_tokens: int,
) -> Mapping[str, np.ndarray]:
    """Return each part's dev score per relation, higher is better.

    The object prompt is scored by ``config.select``, other parts by their negative loss.
    """
    vectors = {part: value.detach() for part, value in method.vectors().items()}
    relations = len(allowed)
    totals: dict[str, Tensor] = {}
    count = torch.bincount(sentences.object_prompt.relation, minlength=relations).double()
    counts = method.sentences_per_fact(sentences, np.arange(len(sentences)))
    for rows in _passes(sentences, counts, max_tokens):
        index = torch.from_numpy(rows).to(method.backbone.device)
        relation = sentences.object_prompt.relation[index]
        scores = method.scores(sentences, rows, vectors)
        values = {
            OBJECT_PART: _select(scores, sentences.gold[index], allowed[relation], config.select)
        }
        values |= {
            part: -loss for part, loss in method.dev_losses(sentences, rows, vectors).items()
        }
        for part, value in values.items():
            total = totals.setdefault(part, torch.zeros_like(count))
            total.index_add_(0, relation, value.double())
    return {part: (total / count).cpu().numpy() for part, total in totals.items()}


def _select(scores: Tensor, gold: Tensor, allowed: Tensor, select: str) -> Tensor:
    if select == "loss":
        return -functional.nll_loss(scores, gold, reduction="none")
    rank = ranks(scores.masked_fill(~allowed, -torch.inf), gold).realistic
    return (rank <= 1).double() if select == "p@1" else 1 / rank


def _passes(sentences: Sentences, counts: np.ndarray, max_tokens: int) -> list[np.ndarray]:
    """Return row sets, short sentences first, small enough for one forward pass each.

    Args:
        counts: how many sentences each fact is asked by.
    """
    found = make_batches(
        sentences.object_prompt.lengths,
        max_tokens,
        sequences=counts,
        apart=APART,
        most=_FACTS_AT_ONCE,
    )
    return [batch.rows for batch in found]
