"""BERT's kind of layers over a packed row: the same numbers from fewer and larger products.

Queries, keys and values of a layer are one product instead of three. Of the last layer only what is
asked for is computed: keys and values of every token, all else at one position of each sentence.
The weights are frozen, so their joined copies stay true; ``fits`` sees to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from symprompt.backbone.inputs import Inputs
from symprompt.backbone.packing import attend_asked, attend_row

Weights = tuple[Tensor, ...]
_SELF = ("query", "key", "value")


class RowLayers:
    """The embeddings and layers of a BERT, RoBERTa or ELECTRA of transformers; final.

    ``of`` makes one.

    Args:
        body: the model without its head.
        first: the position of a sentence's first token.
    """

    def __init__(self, body: Any, first: int) -> None:
        self._body = body
        self._first = first
        layers = list(body.encoder.layer)
        inner = layers[0].attention.self
        self._heads = int(inner.num_attention_heads)
        self._size = int(inner.attention_head_size)
        self._act = layers[0].intermediate.intermediate_act_fn
        self._epsilon = float(layers[0].output.LayerNorm.eps)
        self._own = [_own_weights(layer) for layer in layers]
        self._seen = self._marks()
        with torch.no_grad():
            self._weights = [_join(own) for own in self._own]
        self._layer: Callable[..., Tensor] = _layer
        self._last: Callable[..., Tensor] = _last_layer

    @classmethod
    def of(cls, body: nn.Module, first: int) -> RowLayers | None:
        """Return a model's layers, or None where they are not of this kind."""
        try:
            return cls(body, first)
        except (AttributeError, TypeError):
            # Some part has another name, or is not there.
            return None

    def compile(self) -> None:
        """Fuse element-wise work; each function is compiled once for all layers and shapes."""
        self._layer = torch.compile(_layer)
        self._last = torch.compile(_last_layer)

    def fits(self, inputs: Inputs) -> bool:
        """Say whether a row can be read: nothing but embeddings, and the weights as they were."""
        plain = inputs.added is None and inputs.prefix is None and inputs.types is None
        return plain and not self._body.training and self._marks() == self._seen

    def _marks(self) -> list[tuple[int, int]]:
        return [(id(one), one._version) for own in self._own for one in own]

    def states_at(self, inputs: Inputs, at: Tensor) -> Tensor:
        """Return the last layer's states [s, h] at one position of each sentence.

        Args:
            inputs: a packed row.
            at: [s] positions, counting through the row.
        """
        packing = inputs.packing
        assert packing is not None
        places = packing.place[None] + self._first
        state = self._body.embeddings(inputs_embeds=inputs.embeddings, position_ids=places)
        if hasattr(self._body, "embeddings_project"):
            state = self._body.embeddings_project(state)
        state, starts = state[0], packing.starts
        if self._layer is not _layer:
            # Compiled once for any number of tokens and sentences.
            for tensor in (state, starts, at):
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
        options = (starts, packing.block, self._heads, self._size**-0.5, self._act, self._epsilon)
        for weights in self._weights[:-1]:
            state = self._layer(state, *options, *weights)
        return self._last(state, at, *options, *self._weights[-1])


def _own_weights(layer: Any) -> Weights:
    attention = layer.attention
    linear = [getattr(attention.self, name) for name in _SELF]
    linear += [attention.output.dense, layer.intermediate.dense, layer.output.dense]
    norms = [attention.output.LayerNorm, layer.output.LayerNorm]
    found = tuple(part for one in linear + norms for part in (one.weight, one.bias))
    if any(part is None for part in found):
        raise TypeError("a layer without a bias is of another kind")
    return found


def _join(own: Weights) -> Weights:
    return torch.cat(own[0:6:2]), torch.cat(own[1:6:2]), *own[6:]


def _rest(
    attended: Tensor,
    state: Tensor,
    act: Callable[[Tensor], Tensor],
    epsilon: float,
    weights: Weights,
) -> Tensor:
    """Return what follows attention: projection, feed-forward part, and both norms."""
    out, out_bias, up, up_bias, down, down_bias, norm, norm_bias, last, last_bias = weights
    size = state.shape[-1:]
    mixed = functional.linear(attended, out, out_bias) + state
    mixed = functional.layer_norm(mixed, size, norm, norm_bias, epsilon)
    inner = act(functional.linear(mixed, up, up_bias))
    found = functional.linear(inner, down, down_bias) + mixed
    return functional.layer_norm(found, size, last, last_bias, epsilon)


def _layer(
    state: Tensor,
    starts: Tensor,
    block: int,
    heads: int,
    scale: float,
    act: Callable[[Tensor], Tensor],
    epsilon: float,
    joined: Tensor,
    joined_bias: Tensor,
    *weights: Tensor,
) -> Tensor:
    """Return a layer's states [n, h] from the ones below."""
    product = functional.linear(state, joined, joined_bias)
    attended = attend_row(product, starts, heads, block, scale)
    return _rest(attended, state, act, epsilon, weights)


def _last_layer(
    state: Tensor,
    at: Tensor,
    starts: Tensor,
    block: int,
    heads: int,
    scale: float,
    act: Callable[[Tensor], Tensor],
    epsilon: float,
    joined: Tensor,
    joined_bias: Tensor,
    *weights: Tensor,
) -> Tensor:
    """Return the last layer's states [s, h] at one position of each sentence."""
    width = state.shape[1]
    asked = state.index_select(0, at)
    query = functional.linear(asked, joined[:width], joined_bias[:width])
    product = functional.linear(state, joined[width:], joined_bias[width:])
    attended = attend_asked(query, product, starts, heads, block, scale)
    return _rest(attended, asked, act, epsilon, weights)
