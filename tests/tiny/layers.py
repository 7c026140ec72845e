"""Layers of two families written out by hand, from their weights alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from symprompt.models import LanguageModel


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
