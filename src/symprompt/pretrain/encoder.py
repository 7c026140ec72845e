"""The layers of BERT and ELECTRA, the last one at the positions alone that are asked for.

Of the last layer's states only those that a head reads are used, 19 of 128 tokens with MLM. Keys
and values are needed of every token; the query, the output projection and the feed-forward part,
five sixths of the layer's weights, only where something is asked. The result is the same.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional


def encode_at(encoder: nn.Module, state: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
    """Return z [b, n, h] of the encoder's last layer at the positions [b, n].

    Args:
        encoder: of a BERT or ELECTRA model of transformers.
        state: [b, t, h], the embedded tokens.
        mask: [b, 1, t, t] bool, or None where every token is seen; its rows are all the same.
        positions: [b, n] int64; one may stand several times.
    """
    *below, last = cast(nn.ModuleList, encoder.layer)
    for layer in below:
        state = layer(state, mask)
    return _layer_at(last, state, mask, positions)


def _layer_at(layer: Any, state: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
    inner = layer.attention.self
    asked = take(state, positions)

    def heads(values: Tensor) -> Tensor:
        return values.view(*values.shape[:2], inner.num_attention_heads, -1).transpose(1, 2)

    mixed = functional.scaled_dot_product_attention(
        heads(inner.query(asked)),
        heads(inner.key(state)),
        heads(inner.value(state)),
        attn_mask=None if mask is None else mask[:, :, :1].expand(-1, -1, asked.shape[1], -1),
        dropout_p=inner.dropout.p if layer.training else 0.0,
    )
    attended = layer.attention.output(mixed.transpose(1, 2).flatten(2), asked)
    return cast(Tensor, layer.output(layer.intermediate(attended), attended))


def take(hidden: Tensor, positions: Tensor) -> Tensor:
    """Return [b, n, h], the states at the positions [b, n]."""
    rows, length, size = hidden.shape
    first = torch.arange(rows, device=hidden.device)[:, None] * length
    found = hidden.reshape(rows * length, size).index_select(0, (first + positions).flatten())
    return found.view(*positions.shape, size)
