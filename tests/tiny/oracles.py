"""Slow versions: figures as libraries count them, heads and layers by hand, ranks by sorting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
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


def slow_cosine(one: np.ndarray, other: np.ndarray) -> float:
    """The cosine of two vectors, number by number."""
    product = float(sum(a * b for a, b in zip(one, other, strict=True)))
    return product / float(np.sqrt((one**2).sum() * (other**2).sum()))


def hidden_states(backbone: LanguageModel, tokens: Sequence[int]) -> list[Tensor]:
    """The states [t, h] of each layer by the model's ordinary pass, special tokens around."""
    ids = [*backbone.vocabulary.prefix, *tokens, *backbone.vocabulary.suffix]
    with torch.no_grad():
        found = backbone.model.base_model(
            input_ids=torch.tensor([ids]), output_hidden_states=True
        ).hidden_states
    return [state[0] for state in found]


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


def _attended(three: Sequence[Tensor], heads: int, later: Tensor | None = None) -> Tensor:
    """Attention of queries, keys and values [b, t, h], head by head."""
    parts = []
    for query, key, value in zip(*(own.chunk(heads, -1) for own in three), strict=True):
        raw = query @ key.mT / query.shape[-1] ** 0.5
        raw = raw if later is None else raw.masked_fill(later, -torch.inf)
        parts.append(raw.softmax(-1) @ value)
    return torch.cat(parts, -1)


def slow_bert_layer(layer: Any, hidden: Tensor, unseen: Tensor | None = None) -> Tensor:
    """Post-norm attention and feed-forward, from the layer's weights alone.

    Equations 11.1 to 11.6 of Jurafsky and Martin's chapter; tokens that are not seen are marked.
    """
    own, output = layer.attention.self, layer.attention.output
    three = [part(hidden) for part in (own.query, own.key, own.value)]
    found = _attended(three, own.num_attention_heads, unseen)
    hidden = output.LayerNorm(output.dense(found) + hidden)
    inner = nn.functional.gelu(layer.intermediate.dense(hidden))
    return layer.output.LayerNorm(layer.output.dense(inner) + hidden)  # type: ignore[no-any-return]


def slow_gpt2_layer(layer: Any, hidden: Tensor, backbone: LanguageModel) -> Tensor:
    """Pre-norm causal attention and feed-forward."""
    three = layer.attn.c_attn(layer.ln_1(hidden)).split(hidden.shape[-1], -1)
    later = torch.ones(hidden.shape[1], hidden.shape[1]).triu(1).bool()
    found = _attended(three, backbone.model.config.n_head, later)
    hidden = hidden + layer.attn.c_proj(found)
    inner = layer.mlp.act(layer.mlp.c_fc(layer.ln_2(hidden)))
    return hidden + layer.mlp.c_proj(inner)  # type: ignore[no-any-return]


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
