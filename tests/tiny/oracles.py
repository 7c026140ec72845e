"""Slow versions: figures as libraries count them, heads and layers by hand, ranks by sorting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from seqeval import metrics
from torch import Tensor, nn

from symprompt.models import LanguageModel
from symprompt.probing.results import Ranks
from symprompt.tasks.kinds.base import Head


def seqeval_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Return F1, precision and recall of entities and the share of right tags."""
    tags = [list(entry) for entry in gold], [list(entry) for entry in predicted]
    return {
        "f1": float(metrics.f1_score(*tags, zero_division=0)),
        "precision": float(metrics.precision_score(*tags, zero_division=0)),
        "recall": float(metrics.recall_score(*tags, zero_division=0)),
        "word_accuracy": float(metrics.accuracy_score(*tags)),
    }


WIDTH = 8


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_states(rows: int = 3, tokens: int = 5) -> Tensor:
    return torch.randn(rows, tokens, WIDTH, generator=generator(1), dtype=torch.float64)


def slow_logits(head: Head, state: Tensor) -> list[float]:
    values = state
    if head.hidden is not None:
        values = torch.tanh(head.hidden.weight @ values + head.hidden.bias)
    return (head.output.weight @ values + head.output.bias).tolist()


def slow_loss(logits: list[float], label: int) -> float:
    total = sum(math.exp(value) for value in logits if value > -math.inf)
    return math.log(total) - logits[label]


def slow_bert_layer(layer: Any, hidden: Tensor) -> Tensor:
    """Post-norm attention and feed-forward, head by head, from the layer's weights alone."""
    own = layer.attention.self
    parts = []
    for head in range(4):
        here = slice(8 * head, 8 * head + 8)
        query, key, value = (part(hidden)[..., here] for part in (own.query, own.key, own.value))
        share = (query @ key.mT / 8**0.5).softmax(-1)
        parts.append(share @ value)
    output = layer.attention.output
    hidden = output.LayerNorm(output.dense(torch.cat(parts, -1)) + hidden)
    inner = nn.functional.gelu(layer.intermediate.dense(hidden))
    found: Tensor = layer.output.LayerNorm(layer.output.dense(inner) + hidden)
    return found


def slow_gpt2_layer(layer: Any, hidden: Tensor, backbone: LanguageModel) -> Tensor:
    """Pre-norm causal attention and feed-forward, head by head."""
    heads, width = backbone.model.config.n_head, hidden.shape[-1]
    size = width // heads
    attention = layer.attn
    query, key, value = attention.c_attn(layer.ln_1(hidden)).split(width, -1)
    later = torch.ones(hidden.shape[1], hidden.shape[1]).triu(1).bool()
    parts = []
    for head in range(heads):
        here = slice(size * head, size * head + size)
        raw = query[..., here] @ key[..., here].mT / size**0.5
        parts.append(raw.masked_fill(later, -torch.inf).softmax(-1) @ value[..., here])
    hidden = hidden + attention.c_proj(torch.cat(parts, -1))
    mlp = layer.mlp
    inner = mlp.act(mlp.c_fc(layer.ln_2(hidden)))
    found: Tensor = hidden + mlp.c_proj(inner)
    return found


def reranked_ranks(
    scores: Tensor, gold: Tensor, candidates: Tensor, joint: Tensor, ignore: Tensor | None = None
) -> Ranks[Tensor]:
    """Count who beats or ties with the gold when the candidates come first, by joint score.

    All others follow by their scores; ignored ids are not counted.
    """
    better, equal = [], []
    for row, true in enumerate(gold.tolist()):
        order = {token: (0.0, score) for token, score in enumerate(scores[row].tolist())}
        first = zip(candidates[row].tolist(), joint[row].tolist(), strict=True)
        order |= {token: (1.0, score) for token, score in first}
        left_out = set() if ignore is None else set(ignore[row].tolist())
        kept = [key for token, key in order.items() if token != true and token not in left_out]
        better.append(sum(key > order[true] for key in kept))
        equal.append(sum(key == order[true] for key in kept))
    return Ranks(torch.tensor(better), torch.tensor(equal))
