"""BERT's kind of layers over a packed row: the same states from fewer and larger products.

Queries, keys and values of a layer are one product instead of three, computed with the layer below:
the gradients of its states are then added up where they are used. Of the last layer only what is
queried is computed, at one position of each sentence, and neither keys nor values: with W the
keys' weights of a head, q · (W x) = (Wᵀ q) · x, so each query is multiplied instead of every token,
and so are weighted sums of states instead of values. The keys' bias is left out, since it moves all
scores of a query alike.
MPNet's layers are of this kind too, but for a part of each score that is given by the distance of
two tokens: there the last layer is computed like the others.
The weights are frozen, so their joined copies stay true; ``fits`` sees to it. In bfloat16 on CUDA,
GELU is a kernel of its own (``gelu_kernels``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from symprompt.accel.compiling import SWITCHES, compile_function
from symprompt.accel.packing import LONGEST, attend_asked, attend_row

if TYPE_CHECKING:
    from symprompt.models.language_model import Inputs

Weights = tuple[Tensor, ...]
Pair = tuple[Tensor, Tensor]
Product = tuple[Tensor, Tensor | None]
"""States [n, h], and the product that the next layer reads; the last reads none."""
Act = Callable[[Tensor], Tensor]
_SELF = ("query", "key", "value")
_FUSING: dict[str, Any] = {"pattern_matcher": False}
"""A product is never added to what is there: that is copied first, which a sum alone is not."""


class RowLayers:
    """The embeddings and layers of a BERT, RoBERTa, ELECTRA or MPNet of transformers; final.

    ``of`` makes one.

    Args:
        body: the model without its head.
        first: the position of a sentence's first token.
    """

    def __init__(self, body: Any, first: int) -> None:
        self._body = body
        self._first = first
        layers = list(body.encoder.layer)
        inner, between = _attention(layers[0]), layers[0].intermediate
        self._heads = int(inner.num_attention_heads)
        self._size = int(inner.attention_head_size)
        weight = between.dense.weight
        half = weight.is_cuda and weight.dtype == torch.bfloat16
        has_kernel = half and body.config.hidden_act == "gelu" and SWITCHES["gelu"]
        self._act: Act = _gelu if has_kernel else between.intermediate_act_fn
        self._epsilon = float(layers[0].output.LayerNorm.eps)
        embeddings, norm = body.embeddings, body.embeddings.LayerNorm
        places = embeddings.position_embeddings.weight
        by_distance = getattr(body.encoder, "relative_attention_bias", None)
        # MPNet has no segments.
        kinds = places.new_zeros(1, places.shape[1])
        if by_distance is None:
            kinds = embeddings.token_type_embeddings.weight
        self._embedding: Weights = (places, kinds, norm.weight, norm.bias)
        if hasattr(body, "embeddings_project"):
            self._embedding += body.embeddings_project.weight, body.embeddings_project.bias
        self._embedding_epsilon = float(norm.eps)
        self._own = [_own_weights(layer) for layer in layers]
        self._others: Weights = () if by_distance is None else (by_distance.weight,)
        self._bias = torch.zeros(0, device=places.device)
        if by_distance is not None:
            self._bias = _by_distance(body.encoder, places)
        self._seen = self._marks()
        # A model that reads more is refused: adapters, or embeddings of something else.
        known = {id(body.get_input_embeddings().weight), *(mark for mark, _ in self._seen)}
        for part in (body.embeddings, body.encoder):
            if any(id(one) not in known for one in part.parameters()):
                raise TypeError("a model with more weights is of another kind")
        with torch.no_grad():
            # Of the last layer, where scores are products alone, what is queried is computed.
            joined = self._own if len(self._bias) else self._own[:-1]
            self._products: list[Weights] = [*map(_join, joined), ()]
            self._asking = _split_heads(self._own[-1], self._heads, self._size)
        self._rest = [own[6:] for own in self._own]
        self._first_product: Callable[..., Product] = _first_product
        self._layer: Callable[..., Product] = _layer
        self._last: Callable[..., Tensor] = _last_layer

    @classmethod
    def of(cls, body: nn.Module, first: int) -> RowLayers | None:
        """Return a model's layers, or None where they are not of this kind."""
        try:
            return cls(body, first)
        except (AttributeError, TypeError):
            # Some part has another name, or is not there.
            return None

    def compile(self, options: Mapping[str, Any] | None = None) -> None:
        """Fuse element-wise work; functions are compiled for all layers and shapes at once.

        ``_layer`` is compiled once more for the layer that no product follows.

        Args:
            options: more of torch's compiler.
        """
        options = _FUSING | dict(options or {})
        self._first_product = compile_function(_first_product, options=options)
        self._layer = compile_function(_layer, options=options)
        self._last = compile_function(_last_layer, options=options)

    def fits(self, inputs: Inputs) -> bool:
        """Return whether a row can be read: embeddings alone, and the weights as they were."""
        plain = inputs.added is None and inputs.prefix is None and inputs.types is None
        return plain and not self._body.training and self._marks() == self._seen

    def _marks(self) -> list[tuple[int, int]]:
        every = (self._embedding, self._others, *self._own)
        return [(id(one), one._version) for own in every for one in own]

    def states_at(self, inputs: Inputs, at: Tensor) -> Tensor:
        """Return the last layer's states [s, h] at one position of each sentence.

        Args:
            inputs: a packed row.
            at: [s] positions, counting through the row.
        """
        packing = inputs.packing
        assert packing is not None
        # Not taken out by an index, whose gradient is cleared and copied into.
        words, places = inputs.embeddings.squeeze(0), packing.place + self._first
        self._mark(words, places, packing.within, packing.starts)
        options = (self._heads, self._size**-0.5, self._act, self._epsilon)
        windows = packing.within, self._bias, packing.window, *options
        sentences = packing.starts, packing.block, *options
        epsilon, joined = self._embedding_epsilon, iter(self._products)
        state, product = self._first_product(words, places, epsilon, next(joined), self._embedding)
        for rest, following in zip(self._rest[: len(self._products) - 1], joined, strict=True):
            self._mark(state, product)
            state, product = self._layer(state, product, *windows, following, rest)
        if len(self._bias):
            return state.index_select(0, at)
        # Apart from what is compiled, which would copy the states' gradient to add to it.
        asked, state = _Ask.apply(state, at)  # type: ignore[no-untyped-call]
        self._mark(state, asked)
        return self._last(state, asked, *sentences, *self._asking, self._rest[-1])

    def _mark(self, *tensors: Tensor | None) -> None:
        """Let what is compiled be for any number of tokens and sentences."""
        if self._layer is not _layer:
            for tensor in tensors:
                if tensor is not None:
                    torch._dynamo.maybe_mark_dynamic(tensor, 0)


def _gelu(states: Tensor) -> Tensor:
    # Imported here: its compiler comes with builds of torch for CUDA alone.
    from symprompt.accel import gelu_kernels

    return cast(Tensor, gelu_kernels.gelu(states))


def _norm(one: Tensor, other: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """Return the norm of a sum."""
    return functional.layer_norm(one + other, one.shape[-1:], weight, bias, epsilon)


def _first_product(
    words: Tensor, places: Tensor, epsilon: float, following: Weights, embedding: Weights
) -> Product:
    """Return what the first layer reads, of words [n, width], and its product."""
    positions, kinds, norm, norm_bias, *project = embedding
    state = words + kinds[0] + positions[places]
    state = functional.layer_norm(state, state.shape[-1:], norm, norm_bias, epsilon)
    if project:
        state = functional.linear(state, *project)
    return state, functional.linear(state, *following) if following else None


class _Ask(torch.autograd.Function):
    """Rows of states [n, h], and the states: their gradients are added up where the states' is.

    For ``attend_asked``, whose gradient nothing else reads.
    """

    @staticmethod
    def forward(ctx: Any, state: Tensor, at: Tensor) -> Pair:
        ctx.save_for_backward(at)
        return state.index_select(0, at), state.view_as(state)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        rows, states = gradients
        (at,) = ctx.saved_tensors
        return states.index_add_(0, at, rows), None


def _attention(layer: Any) -> Any:
    """Return what has a layer's heads; MPNet calls it otherwise."""
    return layer.attention.attn if hasattr(layer.attention, "attn") else layer.attention.self


def _by_distance(encoder: Any, like: Tensor) -> Tensor:
    """Return what MPNet adds to scores, by head and distance, [heads, 2 * LONGEST - 1]."""
    with torch.no_grad():
        square = encoder.compute_position_bias(like.new_empty(1, LONGEST, 1))[0]
        # The first column has the tokens before, the first row those after.
        wide = torch.promote_types(square.dtype, torch.float32)
        return torch.cat([square[:, 1:, 0].flip(1), square[:, 0]], 1).to(wide)


def _own_weights(layer: Any) -> Weights:
    attention, inner = layer.attention, _attention(layer)
    if hasattr(attention, "attn"):
        linear, norms = [inner.q, inner.k, inner.v, inner.o], [attention.LayerNorm]
    else:
        linear = [*(getattr(inner, name) for name in _SELF), attention.output.dense]
        norms = [attention.output.LayerNorm]
    linear += [layer.intermediate.dense, layer.output.dense]
    norms.append(layer.output.LayerNorm)
    found = tuple(part for one in linear + norms for part in (one.weight, one.bias))
    if any(part is None for part in found):
        raise TypeError("a layer without a bias is of another kind")
    return found


def _join(own: Weights) -> Pair:
    return torch.cat(own[0:6:2]), torch.cat(own[1:6:2])


def _split_heads(own: Weights, heads: int, size: int) -> Weights:
    """Return a layer's weights for queries, keys [heads, size, h] and values [heads, h, size]."""
    query, query_bias, key, _, value, value_bias = own[:6]
    if {len(query), len(key), len(value)} != {heads * size}:
        raise TypeError("a layer with other heads than the first is of another kind")
    key, value = (one.detach().view(heads, size, -1) for one in (key, value))
    return query, query_bias, key, value.mT, value_bias


def _rest(
    attended: Tensor,
    state: Tensor,
    act: Act,
    epsilon: float,
    weights: Weights,
) -> Tensor:
    """Return what follows attention: projection, feed-forward part, and both norms."""
    out, out_bias, up, up_bias, down, down_bias, first, first_bias, last, last_bias = weights
    mixed = _norm(functional.linear(attended, out, out_bias), state, first, first_bias, epsilon)
    inner = act(functional.linear(mixed, up, up_bias))
    return _norm(functional.linear(inner, down, down_bias), mixed, last, last_bias, epsilon)


def _layer(
    state: Tensor,
    product: Tensor,
    within: Tensor,
    bias: Tensor,
    window: int,
    heads: int,
    scale: float,
    act: Act,
    epsilon: float,
    following: Weights,
    weights: Weights,
) -> Product:
    """Return a layer's states [n, h] and the next one's product, from those of the layer below."""
    attended = attend_row(product, within, bias, heads, window, scale)
    state = _rest(attended, state, act, epsilon, weights)
    return state, functional.linear(state, *following) if following else None


def _last_layer(
    state: Tensor,
    asked: Tensor,
    starts: Tensor,
    block: int,
    heads: int,
    scale: float,
    act: Act,
    epsilon: float,
    query: Tensor,
    query_bias: Tensor,
    key: Tensor,
    value: Tensor,
    value_bias: Tensor,
    weights: Weights,
) -> Tensor:
    """Return the last layer's states [s, h] at one position of each sentence, asked for there."""
    asking = functional.linear(asked, query, query_bias).view(len(asked), heads, -1).transpose(0, 1)
    seen = attend_asked(torch.bmm(asking, key), state, starts, block, scale)
    attended = torch.bmm(seen, value).transpose(0, 1).flatten(1) + value_bias
    return _rest(attended, asked, act, epsilon, weights)
