"""Deep prefixes for DeBERTa, v1 and v2, whose attention transformers' interface does not reach.

Disentangled attention scores a pair by content and by relative position. A learned key has no place
among the tokens, so it takes part by its content alone: its score is query times key, scaled as the
tokens' scores are, and its position terms are zero (as in the reference code of P-tuning v2).
"""

from __future__ import annotations

import functools
import math
import sys
from typing import Any

import torch
from torch import Tensor, nn

from symprompt.models.slots import PROBE, Slot, give_slot, slot_of, widen


def serve(module: nn.Module) -> None:
    """Have a DeBERTa attention module read its slot's prefix; leave all other modules alone."""
    if slot_of(module) is not None:
        return
    parts = _FAMILIES.get(type(module).__module__)
    own = getattr(sys.modules[type(module).__module__], "DisentangledSelfAttention", None)
    if parts is None or own is None or type(module) is not own:
        return
    slot = Slot()
    give_slot(module, slot)
    plain = module.forward

    @functools.wraps(plain)
    def forward(
        hidden_states: Tensor,
        attention_mask: Tensor,
        output_attentions: bool = False,
        query_states: Tensor | None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Tensor | None = None,
    ) -> Any:
        if slot.states:
            found = parts(module, hidden_states, relative_pos, rel_embeddings)
            return _attend(module, slot, *found, attention_mask), None
        probe = None if torch.compiler.is_compiling() else PROBE.get()
        if probe is not None:
            own = _heads(module, hidden_states)
            probe.see(module, own, own, own)
        return plain(
            hidden_states,
            attention_mask,
            output_attentions,
            query_states=query_states,
            relative_pos=relative_pos,
            rel_embeddings=rel_embeddings,
        )

    module.forward = forward


def _heads(module: Any, hidden: Tensor) -> Tensor:
    """Return something of the shape of the module's keys, [b, heads, t, size]."""
    rows, tokens, _ = hidden.shape
    return hidden.new_empty(rows, module.num_attention_heads, tokens, module.attention_head_size)


def _parts_v1(
    module: Any, hidden: Tensor, relative: Tensor | None, places: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return scaled queries, keys, values [b, heads, t, size] and the position terms."""
    all_three = module.transpose_for_scores(module.in_proj(hidden))
    query, key, value = all_three.chunk(3, dim=-1)
    query = query + module.transpose_for_scores(module.q_bias[None, None])
    value = value + module.transpose_for_scores(module.v_bias[None, None])
    factor = 1 + len(module.pos_att_type)
    query = query / math.sqrt(query.shape[-1] * factor)
    bias = None
    if module.relative_attention and places is not None and relative is not None:
        dropped = module.pos_dropout(places)
        bias = module.disentangled_att_bias(query, key, relative, dropped, factor)
    return query, key, value, bias


def _parts_v2(
    module: Any, hidden: Tensor, relative: Tensor | None, places: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return scaled queries, keys, values [b, heads, t, size] and the position terms."""
    heads = module.num_attention_heads
    query, key, value = (
        module.transpose_for_scores(project(hidden), heads)
        for project in (module.query_proj, module.key_proj, module.value_proj)
    )
    factor = 1 + sum(kind in module.pos_att_type for kind in ("c2p", "p2c"))
    bias = None
    if module.relative_attention:
        dropped = module.pos_dropout(places)
        bias = module.disentangled_attention_bias(query, key, relative, dropped, factor)
        bias = bias.unflatten(0, (-1, heads))
    query, key, value = (own.unflatten(0, (-1, heads)) for own in (query, key, value))
    return query / math.sqrt(query.shape[-1] * factor), key, value, bias


def _attend(
    module: Any,
    slot: Slot,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    mask: Tensor,
) -> Tensor:
    """Attend to prefix and tokens, [b, t, heads x size]; talking heads (v1) mix both alike."""
    rows, _, tokens, _ = query.shape
    keys, values = slot.take(rows, key.dtype)
    scores = query @ key.mT
    if bias is not None:
        scores = scores + bias
    scores = torch.cat((query @ keys.mT, scores), dim=-1)
    if getattr(module, "head_logits_proj", None) is not None:
        scores = module.head_logits_proj(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    added = widen(
        mask.bool(),
        slot.visible,
        length=keys.shape[2],
        sizes=(rows, tokens, tokens),
        like=(scores.dtype, scores.device),
    )
    shares = module.dropout((scores + added).softmax(-1))
    if getattr(module, "head_weights_proj", None) is not None:
        shares = module.head_weights_proj(shares.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    context: Tensor = shares @ torch.cat((values, value), dim=2)
    return context.transpose(1, 2).flatten(2)


_FAMILIES = {
    "transformers.models.deberta.modeling_deberta": _parts_v1,
    "transformers.models.deberta_v2.modeling_deberta_v2": _parts_v2,
}
