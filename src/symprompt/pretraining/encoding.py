"""States and logits at the queried positions alone, for every masked family that can be trained.

BERT's kind (BERT, RoBERTa, XLM-R, ELECTRA) and MPNet run here layer by layer. Of the last layer
keys and values are needed of every token; the query, the output projection and the feed-forward
part, five sixths of its weights, only at the queried positions: with MLM 19 of 128. The result is
the same. ALBERT, DistilBERT, DeBERTa and ModernBERT run their own body, and the head at the queried
positions.

Embedding tables may be in float32 when the rest is bfloat16: the gradient of a frequent word or of
a position is a sum of many thousand terms, and in bfloat16 such a sum stops growing early.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

_BERT = ("bert", "roberta", "xlm-roberta", "camembert", "electra")
_MPNET = "mpnet"
_OWN = ("albert", "distilbert", "deberta", "deberta-v2", "modernbert")
FAMILIES = (*_BERT, _MPNET, *_OWN)
"""The ``model_type`` of every model that can be trained."""

# What a head does before the last product, by the attribute that tells its kind.
_TRANSFORMS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    # DeBERTa's newer head.
    "lm_predictions": lambda model, z: model.lm_predictions.lm_head.LayerNorm(
        model.lm_predictions.lm_head.transform_act_fn(model.lm_predictions.lm_head.dense(z))
    ),
    "cls": lambda model, z: model.cls.predictions.transform(z),
    "generator_predictions": lambda model, z: model.generator_predictions(z),
    "lm_head": lambda model, z: model.lm_head.layer_norm(functional.gelu(model.lm_head.dense(z))),
    "vocab_transform": lambda model, z: model.vocab_layer_norm(
        model.activation(model.vocab_transform(z))
    ),
    "predictions": lambda model, z: model.predictions.LayerNorm(
        model.predictions.activation(model.predictions.dense(z))
    ),
    "head": lambda model, z: model.head(z),
}


class Reader:
    """How one family reads tokens and answers at the queried positions; final.

    Args:
        model: a masked language model of transformers, of one of ``FAMILIES``.

    Attributes:
        has_bias: whether attention adds a bias of its own to the scores, for which not every kernel
            has a gradient.
        longest: the most tokens that a sequence may have.
    """

    def __init__(self, model: Any) -> None:
        kind = model.config.model_type
        self._model = model
        self._body = body = model.base_model
        self._transform = next(own for name, own in _TRANSFORMS.items() if hasattr(model, name))
        self.has_bias = kind == _MPNET
        self._runs_body = kind in _OWN
        places = getattr(body.embeddings, "position_embeddings", None)
        after_padding = getattr(places, "padding_idx", None)
        self._first = 0 if after_padding is None else after_padding + 1
        self.longest = int(model.config.max_position_embeddings) - self._first
        if self._runs_body:
            rows = int(getattr(model.config, "type_vocab_size", 0) or 0)
            arguments = inspect.signature(body.forward).parameters
            self._reads_types = rows > 1 and "token_type_ids" in arguments
            for table in self.tables():
                table.register_forward_hook(self._narrow)

    def tables(self) -> list[nn.Embedding]:
        """Return the tables of vectors that are looked up; of relative positions, MPNet's alone."""
        tables = [
            each for each in self._body.embeddings.modules() if isinstance(each, nn.Embedding)
        ]
        return [*tables, self._body.encoder.relative_attention_bias] if self.has_bias else tables

    def states_at(
        self, ids: Tensor, lengths: Tensor | None, segments: Tensor, positions: Tensor
    ) -> Tensor:
        """Return z [b, n, h] of the last layer at the positions.

        Args:
            ids: [b, t].
            lengths: [b], tokens that are no padding; None where every token is one.
            segments: [b, t], 0 or 1.
            positions: [b, n] int64; one may stand several times.
        """
        body, there = self._body, None
        if lengths is not None:
            there = torch.arange(ids.shape[1], device=lengths.device) < lengths[:, None]
        if self._runs_body:
            given: dict[str, Any] = {"input_ids": ids}
            if there is not None:
                given["attention_mask"] = there.long()
            if self._reads_types:
                given["token_type_ids"] = segments.long()
            return take(body(**given).last_hidden_state, positions)
        state = embed(body.embeddings, ids, segments, self._first)
        if hasattr(body, "embeddings_project"):
            state = body.embeddings_project(state)
        if self.has_bias:
            return encode_biased_at(body.encoder, state, there, positions)
        # [b, 1, t, t]: with four axes transformers takes it as it is, values unread.
        mask = None if there is None else there[:, None, None].expand(-1, 1, ids.shape[1], -1)
        return encode_at(body.encoder, state, mask, positions)

    def _narrow(self, _table: nn.Module, _given: Any, vectors: Tensor) -> Tensor:
        """Give vectors of a float32 table the dtype of what reads them."""
        embeddings = self._body.embeddings
        norm = embeddings.norm if hasattr(embeddings, "norm") else embeddings.LayerNorm
        return vectors.to(norm.weight.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return [n, v], the logits W_V z_i (11.2.1), z_i after the transform of the head."""
        model = self._model
        state = self._transform(model, hidden)
        product = model.get_output_embeddings()
        weight = product.weight
        if hasattr(model, "lm_predictions"):  # It hides the product, which is by the embeddings.
            product, weight = model.lm_predictions.lm_head, model.get_input_embeddings().weight
        return functional.linear(state, weight.to(state.dtype), product.bias)


def embed(tables: Any, ids: Tensor, segments: Tensor, first: int = 0) -> Tensor:
    """Return the sum of word, position and segment embeddings, normalised, [b, t, e].

    As the model's own module does, but for the gradients: a position's or a segment's is a sum over
    all sequences, done as such and not as a lookup's.

    Args:
        tables: the model's own module.
        ids, segments: [b, t].
        first: the position of a sequence's first token.
    """
    words, norm = tables.word_embeddings, tables.LayerNorm
    places = tables.position_embeddings.weight[first : first + ids.shape[1]]
    state = functional.embedding(ids, words.weight, words.padding_idx) + places
    if hasattr(tables, "token_type_embeddings"):
        kinds = tables.token_type_embeddings.weight
        kind = kinds[0]
        if len(kinds) > 1:
            # Segments are 0 or 1.
            kind = kind + segments[:, :, None].to(kinds.dtype) * (kinds[1] - kinds[0])
        state = state + kind
    return cast(Tensor, tables.dropout(norm(state.to(norm.weight.dtype))))


def encode_at(encoder: nn.Module, state: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
    """Return z [b, n, h] of the last layer of BERT's kind of encoder at the positions [b, n].

    Args:
        encoder: of a BERT, RoBERTa or ELECTRA model of transformers.
        state: [b, t, h], the embedded tokens.
        mask: [b, 1, t, t] bool, or None where every token is seen; its rows are all the same.
        positions: [b, n] int64; one may stand several times.
    """
    *below, last = cast(Any, encoder.layer)
    for layer in below:
        state = layer(state, mask)
    inner, asked = last.attention.self, take(state, positions)
    shown = None if mask is None else mask[:, :, :1].expand(-1, -1, asked.shape[1], -1)
    parts = inner.query, inner.key, inner.value
    attended = last.attention.output(_attend(inner, parts, asked, state, shown), asked)
    return cast(Tensor, last.output(last.intermediate(attended), attended))


def encode_biased_at(
    encoder: Any, state: Tensor, there: Tensor | None, positions: Tensor
) -> Tensor:
    """Return z [b, n, h] of the last layer of MPNet's encoder at the positions [b, n].

    The bias of relative positions is made once for all layers. It is added to the scores where
    attention is computed, in the dtype of the passes.

    Args:
        state: [b, t, h], the embedded tokens.
        there: [b, t] bool, or None where every token is seen.
        positions: [b, n] int64.
    """
    # [1, heads, t, t], or [b, ...] with padding; in the dtype of the table.
    bias = encoder.compute_position_bias(state[:1])
    shown = bias.to(state.dtype)
    if there is not None:
        shown = shown.masked_fill(~there[:, None, None], float("-inf"))
    *below, last = encoder.layer
    for layer in below:
        state = _biased_layer(layer, state, state, shown)
    # Rows are gathered in the table's dtype, as their gradient is a sum too.
    rows = bias[0].transpose(0, 1).index_select(0, positions.flatten())
    rows = rows.to(state.dtype).unflatten(0, positions.shape).transpose(1, 2).contiguous()
    if there is not None:
        rows = rows.masked_fill(~there[:, None, None], float("-inf"))
    return _biased_layer(last, take(state, positions), state, rows)


def _biased_layer(layer: Any, asked: Tensor, state: Tensor, bias: Tensor) -> Tensor:
    outer, inner = layer.attention, layer.attention.attn
    mixed = inner.o(_attend(inner, (inner.q, inner.k, inner.v), asked, state, bias))
    attended = outer.LayerNorm(outer.dropout(mixed) + asked)
    return cast(Tensor, layer.output(layer.intermediate(attended), attended))


def _attend(
    inner: Any, parts: tuple[Any, Any, Any], asked: Tensor, state: Tensor, mask: Tensor | None
) -> Tensor:
    """Return what the asked states [b, n, h] mix of all states [b, t, h], heads side by side."""
    query, key, value = parts

    def heads(values: Tensor) -> Tensor:
        return values.view(*values.shape[:2], inner.num_attention_heads, -1).transpose(1, 2)

    mixed = functional.scaled_dot_product_attention(
        heads(query(asked)),
        heads(key(state)),
        heads(value(state)),
        attn_mask=mask,
        dropout_p=inner.dropout.p if inner.training else 0.0,
    )
    return mixed.transpose(1, 2).flatten(2)


def take(hidden: Tensor, positions: Tensor) -> Tensor:
    """Return [b, n, h], the states at the positions [b, n]."""
    rows, length, size = hidden.shape
    first = torch.arange(rows, device=hidden.device)[:, None] * length
    found = hidden.reshape(rows * length, size).index_select(0, (first + positions).flatten())
    return found.view(*positions.shape, size)
