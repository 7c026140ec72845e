"""Slow passes that read a prefix, made without the attention interface.

Three ways, each for the families it fits: a cache of past keys, tokens beside the sentence whose
keys and values are exchanged for the prefix's, and attention written out pair by pair (DeBERTa,
MPNet). ``reference`` chooses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from symprompt.models import Inputs, LanguageModel, Prefix

LOW = -1e30


def seen(backbone: LanguageModel, mask: Tensor, window: int | None = None) -> Tensor:
    """What tokens see of tokens, [b, 1, t, t], from a mask [b, t]; a window is one-sided here."""
    tokens = mask.shape[1]
    gap = torch.arange(tokens)[:, None] - torch.arange(tokens)
    own = mask[:, None, None] & torch.ones(tokens, tokens, dtype=torch.bool)
    if backbone.causal:
        own = own & (gap >= 0)
    return own if window is None else own & (gap.abs() < window)


def added(backbone: LanguageModel, mask: Tensor, length: int, *, after: bool = False) -> Any:
    """What is added to scores of prefix and tokens; for families with windows, one per kind."""
    config = backbone.model.config

    def one(window: int | None) -> Tensor:
        own = seen(backbone, mask, window)
        prefix = torch.ones(*own.shape[:3], length, dtype=torch.bool)
        own = torch.cat((own, prefix) if after else (prefix, own), -1)
        return torch.zeros(own.shape, dtype=backbone.dtype).masked_fill(~own, LOW)

    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds == {"full_attention"}:
        return one(None)
    # ModernBERT's window is half its width and includes both ends.
    window = config.sliding_window + (0 if backbone.causal else 1)
    return {"full_attention": one(None), "sliding_attention": one(window)}


def positions(backbone: LanguageModel, tokens: int, shift: int) -> Tensor:
    """Where tokens stand; RoBERTa's kind begins after the padding index."""
    first = backbone.model.config.model_type in ("roberta", "xlm-roberta", "mpnet")
    start = backbone.model.config.pad_token_id + 1 if first else 0
    return torch.arange(tokens)[None] + shift + start


def by_cache(backbone: LanguageModel, inputs: Inputs, states: Tensor, *, shift: bool) -> Tensor:
    """The body's states after a cache of past keys and values [layers, 2, heads, length, size]."""
    rows, tokens, _ = inputs.embeddings.shape
    cache = DynamicCache()
    for layer, (key, value) in enumerate(states):
        cache.update(key.expand(rows, -1, -1, -1), value.expand(rows, -1, -1, -1), layer)
    length = states.shape[3]
    assert inputs.mask is not None
    output = backbone.model.base_model(
        inputs_embeds=inputs.embeddings,
        attention_mask=added(backbone, inputs.mask, length),
        position_ids=positions(backbone, tokens, length if shift else 0),
        past_key_values=cache,
    )
    found: Tensor = output.last_hidden_state
    return found


@contextmanager
def _exchanged(backbone: LanguageModel, states: Tensor) -> Iterator[None]:
    """Exchange the last tokens' keys and values for the prefix's, layer by layer."""
    length = states.shape[3]
    # A shared module (ALBERT) is called once for every layer.
    calls: dict[str, int] = {}
    flat = states.transpose(2, 3).flatten(3)
    handles = []

    def put(part: str, names: tuple[str, ...], module: Any) -> None:
        def hook(_module: Any, _args: Any, output: Tensor) -> Tensor:
            layer = calls[part] = calls.get(part, -1) + 1
            width = flat.shape[-1]
            output = output.clone()
            for name in names:
                start = {"key": width, "value": 2 * width}[name] if len(names) > 1 else 0
                own = flat[layer, 0 if name == "key" else 1]
                output[:, -length:, start : start + width] = own
            return output

        handles.append(module.register_forward_hook(hook))

    for path, module in backbone.model.base_model.named_modules():
        last = path.rsplit(".", 1)[-1]
        if last in ("key", "k_lin"):
            put("key", ("key",), module)
        elif last in ("value", "v_lin"):
            put("value", ("value",), module)
        elif last == "Wqkv":
            put("both", ("key", "value"), module)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def by_tokens(backbone: LanguageModel, inputs: Inputs, states: Tensor, *, shift: bool) -> Tensor:
    """The body's states beside tokens whose keys and values are the prefix's.

    They stand at position 0, where rotary angles turn nothing.
    """
    rows, tokens, width = inputs.embeddings.shape
    length = states.shape[3]
    assert inputs.mask is not None
    own = positions(backbone, tokens, length if shift else 0).expand(rows, -1)
    masks = added(backbone, inputs.mask, length, after=True)

    def square(mask: Tensor) -> Tensor:
        below = torch.zeros(rows, 1, length, tokens + length, dtype=mask.dtype)
        return torch.cat((mask, below), 2)

    whole = {k: square(m) for k, m in masks.items()} if isinstance(masks, dict) else square(masks)
    extra = torch.zeros(rows, length, width, dtype=inputs.embeddings.dtype)
    with _exchanged(backbone, states):
        output = backbone.model.base_model(
            inputs_embeds=torch.cat((inputs.embeddings, extra), 1),
            attention_mask=whole,
            position_ids=torch.cat((own, torch.zeros(rows, length, dtype=torch.long)), 1),
        )
    found: Tensor = output.last_hidden_state[:, :tokens]
    return found


def _bucket(gap: int, buckets: int, most: int) -> int:
    """DeBERTa-v2's logarithmic bucket of a distance."""
    middle = buckets // 2
    if buckets <= 0 or abs(gap) <= middle:
        return gap
    far = math.log(abs(gap) / middle) / math.log((most - 1) / middle) * (middle - 1)
    return int(math.copysign(math.ceil(far) + middle, gap))


def _deberta_parts(attention: Any, hidden: Tensor, places: Tensor, head: int) -> tuple[Tensor, ...]:
    """One head's queries, keys, values, position keys and position queries, for one sentence."""
    size = attention.attention_head_size
    here = slice(head * size, (head + 1) * size)
    if hasattr(attention, "in_proj"):
        own = attention.in_proj.weight[head * 3 * size : (head + 1) * 3 * size]
        query, key, value = (hidden @ part.T for part in own.chunk(3))
        query, value = query + attention.q_bias[here], value + attention.v_bias[here]
        return (
            query,
            key,
            value,
            attention.pos_proj(places)[:, here],
            attention.pos_q_proj(places)[:, here],
        )
    to_key = attention.key_proj if attention.share_att_key else attention.pos_key_proj
    to_query = attention.query_proj if attention.share_att_key else attention.pos_query_proj
    query, key, value = (
        project(hidden)[:, here]
        for project in (attention.query_proj, attention.key_proj, attention.value_proj)
    )
    return query, key, value, to_key(places)[:, here], to_query(places)[:, here]


def _deberta_attention(layer: Any, hidden: Tensor, places: Tensor, states: Tensor) -> Tensor:
    """Disentangled attention of one sentence, pair by pair; a prefix key has content alone."""
    attention = layer.attention.self
    tokens, most = hidden.shape[0], attention.max_relative_positions
    buckets = getattr(attention, "position_buckets", 0)
    if hasattr(attention, "in_proj"):
        span = min(tokens, most)
        places = places[most - span : most + span]
    else:
        span = attention.pos_ebd_size
    scale = math.sqrt(attention.attention_head_size * 3)
    heads = []
    for head in range(attention.num_attention_heads):
        query, key, value, far_key, far_query = _deberta_parts(attention, hidden, places, head)
        rows = []
        for i in range(tokens):
            scores = [query[i] @ own for own in states[0, head]]
            for j in range(tokens):
                at = min(max(_bucket(i - j, buckets, most) + span, 0), 2 * span - 1)
                scores.append(query[i] @ key[j] + query[i] @ far_key[at] + key[j] @ far_query[at])
            share = (torch.stack(scores) / scale).softmax(0)
            rows.append(share @ torch.cat((states[1, head], value)))
        heads.append(torch.stack(rows))
    return torch.cat(heads, -1)


def _mpnet_bucket(gap: int) -> int:
    """T5's bucket of a distance to a key, 16 for keys behind and 16 for keys ahead."""
    far = abs(gap)
    own = far if far < 8 else min(8 + int(math.log(far / 8) / math.log(128 / 8) * 8), 15)
    return own + (16 if gap > 0 else 0)


def _mpnet_attention(attention: Any, biases: Tensor, hidden: Tensor, states: Tensor) -> Tensor:
    """Attention of one sentence, pair by pair; a prefix key has no bias."""
    size, tokens = attention.attention_head_size, len(hidden)
    heads = []
    for head in range(attention.num_attention_heads):
        here = slice(head * size, (head + 1) * size)
        query, key, value = (
            project(hidden)[:, here] for project in (attention.q, attention.k, attention.v)
        )
        rows = []
        for i in range(tokens):
            scores = [query[i] @ own / math.sqrt(size) for own in states[0, head]]
            for j in range(tokens):
                bias = biases[_mpnet_bucket(j - i), head]
                scores.append(query[i] @ key[j] / math.sqrt(size) + bias)
            share = torch.stack(scores).softmax(0)
            rows.append(share @ torch.cat((states[1, head], value)))
        heads.append(torch.stack(rows))
    found: Tensor = attention.o(torch.cat(heads, -1))
    return found


def _by_pairs_mpnet(
    backbone: LanguageModel, inputs: Inputs, states: Tensor, layers: Sequence[int], *, shift: bool
) -> Tensor:
    """MPNet's states, one sentence at a time without its padding."""
    body = backbone.model.base_model
    found = torch.zeros(*inputs.embeddings.shape[:2], body.config.hidden_size).to(backbone.dtype)
    assert inputs.mask is not None
    for row, length in enumerate(inputs.mask.sum(1).tolist()):
        hidden = body.embeddings(
            inputs_embeds=inputs.embeddings[row : row + 1, :length],
            position_ids=positions(backbone, length, states.shape[3] if shift else 0),
        )[0]
        for place, (layer, own) in enumerate(zip(body.encoder.layer, states, strict=True)):
            own = own if place in layers else own[:, :, :0]
            biases = body.encoder.relative_attention_bias.weight
            context = _mpnet_attention(layer.attention.attn, biases, hidden, own)
            middle = layer.attention.LayerNorm(context + hidden)
            hidden = layer.output(layer.intermediate(middle), middle)
        found[row, :length] = hidden
    return found


def by_pairs(
    backbone: LanguageModel, inputs: Inputs, states: Tensor, layers: Sequence[int], *, shift: bool
) -> Tensor:
    """DeBERTa's or MPNet's states, one sentence at a time without its padding."""
    if backbone.model.config.model_type == "mpnet":
        return _by_pairs_mpnet(backbone, inputs, states, layers, shift=shift)
    body = backbone.model.base_model
    places = body.encoder.get_rel_embedding()
    found = torch.zeros(*inputs.embeddings.shape[:2], body.config.hidden_size).to(backbone.dtype)
    assert inputs.mask is not None
    for row, length in enumerate(inputs.mask.sum(1).tolist()):
        hidden = body.embeddings(
            inputs_embeds=inputs.embeddings[row : row + 1, :length],
            position_ids=torch.arange(length)[None] + (states.shape[3] if shift else 0),
            mask=torch.ones(1, length),
        )[0]
        for place, (layer, own) in enumerate(zip(body.encoder.layer, states, strict=True)):
            own = own if place in layers else own[:, :, :0]
            context = _deberta_attention(layer, hidden, places, own)
            middle = layer.attention.output(context, hidden)
            hidden = layer.output(layer.intermediate(middle), middle)
        found[row, :length] = hidden
    return found


def by_leaving_out(
    backbone: LanguageModel, inputs: Inputs, states: Tensor, layers: Sequence[int], *, shift: bool
) -> Tensor:
    """The states of a pass that hands all layers a prefix, some of which leave it out again."""
    length = states.shape[3]
    calls = iter(range(len(states)))
    attention = backbone.attention

    def wrap(base: Any) -> Any:
        def attend(
            module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **more: Any
        ) -> Any:
            if next(calls) not in layers:
                key, value = key[:, :, length:], value[:, :, length:]
                mask = None if mask is None else mask[..., length:]
            return base(module, query, key, value, mask, **more)

        return attend

    with ExitStack() as stack:
        for slot in dict.fromkeys(attention._slots):
            stack.callback(setattr, slot, "base", slot.base)
            slot.base = wrap(slot.base)
        prefix = Prefix(states[None], shift_positions=shift)
        return backbone.states(inputs, prefix=prefix)


def reference(
    backbone: LanguageModel,
    inputs: Inputs,
    states: Tensor,
    *,
    shift: bool,
    layers: Sequence[int] | None = None,
) -> Tensor:
    """The body's states by the slow pass that fits the family.

    Args:
        states: of all layers.
        layers: those that read them, from 0 on; None: all.
    """
    kind = backbone.model.config.model_type
    if kind in ("deberta", "deberta-v2", "mpnet"):
        chosen = range(len(states)) if layers is None else layers
        return by_pairs(backbone, inputs, states, chosen, shift=shift)
    if layers is not None:
        return by_leaving_out(backbone, inputs, states, layers, shift=shift)
    slow = by_tokens if kind in ("albert", "distilbert", "modernbert") else by_cache
    return slow(backbone, inputs, states, shift=shift)
