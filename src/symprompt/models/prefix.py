"""Learned keys and values that the layers' attention reads before the tokens' own.

P-tuning v2 (Liu et al., 2022) and prefix tuning learn, for each layer, a few keys and values. They
are handed to the model through transformers' attention interface: within a pass that reads a
prefix, the model's attention function is ours, which puts the learned keys and values before the
tokens' and calls the function the model had. The output keeps its t positions: [CLS] stays first,
and labels and answer positions need no shift.

- Every token sees the whole prefix in every layer, or in those that were chosen, under a sliding
  window too (in a cache of past keys it would slide out of sight).
- Prefix keys are used as they are: no rotary angle, no relative position.
- DeBERTa, v1 and v2, and MPNet compute their attention themselves, which the interface does not
  reach: their modules get a forward of ours. Both score a pair by content and by relative position.
  A learned key has no place among the tokens, so it takes part by its content alone: its score is
  query times key, scaled as the tokens' scores are, and its position terms are zero (as in the
  reference code of P-tuning v2).
- A family that neither uses the interface nor is served so (Bloom) is refused when its first prefix
  is to be read: attention calls are counted, at set-up and in every pass. GLM's mask (part of a
  sentence is seen both ways) is not covered.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from symprompt.config import layers_of
from symprompt.errors import ModelError

_NAME = "symprompt_prefix"
# The memory-efficient attention kernel copies a mask whose rows are not multiples of this.
_ALIGNMENT = 8
Attended = tuple[Tensor, Tensor | None]
Attend = Callable[..., Attended]


class PrefixShape(NamedTuple):
    """How many layers read a prefix, and the size of their keys and values."""

    layers: int
    kv_heads: int
    head_dim: int

    @property
    def width(self) -> int:
        """The size of one key, all heads together."""
        return self.kv_heads * self.head_dim


@dataclass(frozen=True)
class Prefix:
    """Keys and values per layer for the rows of a batch.

    Attributes:
        states: [tasks, layers, 2, kv_heads, length, head_dim]; keys, then values, of the layers
            that read them.
        row: [b], which task's prefix each row reads; None: all read the first.
        shift_positions: whether token positions begin at the prefix's length, as after a cache of
            past keys, or at 0.
        visible: [tasks, length], false where a task's prefix is shorter; None: none is.
        dropout: the share of the prefix's entries dropped, drawn for each row and layer.
        layers: which layers read it, as configs name them: all, last:6, 1,3,5.
    """

    states: Tensor
    row: Tensor | None = None
    shift_positions: bool = False
    visible: Tensor | None = None
    dropout: float = 0.0
    layers: str = "all"

    @property
    def length(self) -> int:
        """The number of keys before the tokens, of the longest task."""
        return int(self.states.shape[4])

    def rows_visible(self, rows: int) -> Tensor | None:
        """Return [b, length], which keys each row sees; None: all."""
        if self.visible is None:
            return None
        if self.row is None:
            return self.visible[:1].expand(rows, -1)
        return self.visible.index_select(0, self.row)

    def positions(self, rows: int, tokens: int) -> Tensor:
        """Return shifted positions [b, t]: each row's begin at its own prefix's length."""
        place = torch.arange(tokens, device=self.states.device)
        visible = self.rows_visible(rows)
        if visible is None:
            return (place + self.length).expand(rows, -1)
        return place + visible.sum(1, keepdim=True)


class Slot:
    """What one attention module reads in a pass; final.

    Attributes:
        base: the attention function the module had.
        states: for each call of the module in a pass, [tasks, 2, kv_heads, length, head_dim], of
            no length for a layer that reads none; empty outside a pass that reads a prefix. ALBERT
            calls one module for many layers.
        row: [b], the task each row reads; None: the first.
        visible: [b, length], which keys each row sees; None: all.
        dropout: the share of keys' and values' entries dropped, drawn for each row and call.
        calls: how often the module was called in this pass by code that is not compiled.
    """

    def __init__(self, base: Attend) -> None:
        self.base = base
        self.states: list[Tensor] = []
        self.row: Tensor | None = None
        self.visible: Tensor | None = None
        self.dropout = 0.0
        self.calls = 0

    def take(self, rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return this call's keys and values, each [b, kv_heads, length, head_dim].

        And [b, length], which of them each row sees; None: all.

        Raises:
            ModelError: the module is called more often than at set-up.
        """
        call = 0
        # Compiled code counts nothing: it would be compiled again for every count. Layers that are
        # compiled have a module of their own each, so that theirs is the first call. Export runs
        # this code once and as it is.
        if not torch.compiler.is_compiling() or torch.compiler.is_exporting():
            call, self.calls = self.calls, self.calls + 1
            if call >= len(self.states):
                raise ModelError(
                    "an attention module was called more often than when the model was set up, so "
                    "it is not known which layer's prefix it reads; make one pass at a time."
                )
        own = self.states[call]
        if self.row is None:
            both = own[:1].expand(rows, -1, -1, -1, -1)
        else:
            both = own.index_select(0, self.row)
        both = both.to(dtype)
        if self.dropout > 0:
            both = functional.dropout(both, self.dropout)
        return both[:, 0], both[:, 1], self.visible if both.shape[3] else None


class Call(NamedTuple):
    """One attention call that was seen at set-up: its slot and the shapes of its tensors."""

    slot: Slot
    query: tuple[int, ...]
    key: tuple[int, ...]
    value: tuple[int, ...]


# While a model is set up: gives the attention function a module had, and the calls seen so far.
_PROBE: ContextVar[tuple[Callable[[nn.Module], Attend], list[Call]] | None] = ContextVar(
    "probe", default=None
)


class _Reading(NamedTuple):
    """The prefix that is read now: its length, what each row sees of it [b, length]."""

    length: int
    visible: Tensor | None
    partly: bool
    """Whether some layers read none."""


_READING: ContextVar[_Reading | None] = ContextVar("reading", default=None)


class PrefixAttention:
    """A model's attention calls, each of which can read a prefix; final.

    One pass within ``probing`` finds them.

    Attributes:
        shape: layers, key-value heads and head size.

    Args:
        body: the model without its head.
        count: how many layers the config states.
    """

    shape: PrefixShape

    def __init__(self, body: nn.Module, count: int) -> None:
        self._name = type(body).__name__
        self._body = body
        self._count = count
        self._slots: list[Slot] = []
        configs = [getattr(module, "config", None) for module in body.modules()]
        self._configs = list(
            {id(own): own for own in configs if isinstance(own, PreTrainedConfig)}.values()
        )

    @contextmanager
    def probing(self, rows: int, tokens: int) -> Iterator[None]:
        """Find the attention calls in the one pass that is made within, of ``rows`` of ``tokens``.

        Raises:
            ModelError: not every layer calls the attention interface once, or layers differ in
                size.
        """
        for module in self._body.modules():
            _serve(module)
        calls: list[Call] = []
        eager = self._configs[0]._attn_implementation == "eager"
        token = _PROBE.set((_eager if eager else lambda _module: sdpa_attention_forward, calls))
        try:
            with self._ours(), torch.no_grad(), torch.compiler.set_stance("force_eager"):
                yield
        finally:
            _PROBE.reset(token)
        own = [call for call in calls if call.query[0] == rows]
        own = [call for call in own if call.query[2] == call.key[2] == tokens]
        if len(own) != self._count or len(calls) != self._count:
            raise ModelError(
                f"{self._name} called transformers' attention interface {len(own)} times for its "
                f"{self._count} layers, so a deep prefix would not be read; learn prompts at the "
                "input alone, or take another model."
            )
        sizes = {(own[1], own[3]) for call in calls for own in (call.key, call.value)}
        if len(sizes) > 1:
            raise ModelError(
                f"the layers of {self._name} have keys and values of different sizes, which one "
                "prefix does not fit; learn prompts at the input alone, or take another model."
            )
        self.shape = PrefixShape(self._count, *sizes.pop())
        self._slots = [call.slot for call in calls]

    @contextmanager
    def _ours(self) -> Iterator[None]:
        """Make our attention function the model's, for a pass."""
        old = [config._attn_implementation for config in self._configs]
        for config in self._configs:
            config._attn_implementation = _NAME
        try:
            yield
        finally:
            for config, name in zip(self._configs, old, strict=True):
                config._attn_implementation = name

    @contextmanager
    def reading(self, prefix: Prefix, rows: int) -> Iterator[None]:
        """Have every chosen layer read a prefix in the one pass that is made within.

        Args:
            prefix: for the rows of the batch.
            rows: b.

        Raises:
            ModelError: the prefix is not of this model's shape, or was not read by every layer.
            ConfigError: the model has not the layers that are to read it.
        """
        chosen = layers_of(prefix.layers, self.shape.layers)
        self._fits(prefix, rows, len(chosen))
        visible = prefix.rows_visible(rows)
        slots = list(dict.fromkeys(self._slots))
        for slot in slots:
            slot.states, slot.calls = [], 0
            slot.row, slot.visible, slot.dropout = prefix.row, visible, prefix.dropout
        read = dict(zip(chosen, prefix.states.unbind(1), strict=True))
        for place, slot in enumerate(self._slots):
            slot.states.append(read.get(place, prefix.states[:, 0, ..., :0, :]))
        partly = len(chosen) < self.shape.layers
        token = _READING.set(_Reading(prefix.length, visible, partly))
        try:
            with self._ours():
                yield
        finally:
            _READING.reset(token)
            for slot in slots:
                slot.states, slot.row, slot.visible = [], None, None
        counted = sum(slot.calls for slot in slots)
        # Compiled layers do not count their calls.
        if counted != self.shape.layers and not any(
            module._compiled_call_impl is not None for module in self._body.modules()
        ):
            raise ModelError(
                f"{self._name} read the prefix in {counted} of its {self.shape.layers} layers in a "
                "pass; learn prompts at the input alone, or take another model."
            )

    def _fits(self, prefix: Prefix, rows: int, layers: int) -> None:
        got = tuple(prefix.states.shape)
        _, heads, size = self.shape
        if len(got) != 6 or (*got[1:4], got[5]) != (layers, 2, heads, size):
            raise ModelError(
                f"a prefix of shape {got} was given, and {self._name} reads [tasks, {layers}, 2, "
                f"{heads}, length, {size}]; a prefix serves only the model it was learned for."
            )
        if prefix.row is not None and tuple(prefix.row.shape) != (rows,):
            raise ModelError(
                f"the rows' tasks have shape {tuple(prefix.row.shape)} for a batch of {rows} rows; "
                "give one task for each row."
            )
        if prefix.visible is not None and tuple(prefix.visible.shape) != (got[0], got[4]):
            raise ModelError(
                f"the mask of the prefix's lengths has shape {tuple(prefix.visible.shape)}, and "
                f"its states are of {got[0]} tasks of {got[4]} keys; give one [tasks, length]."
            )


def _eager(module: nn.Module) -> Attend:
    """Return a family's own attention function; soft caps on scores (Gemma 2) need it."""
    own = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if not callable(own):
        raise ModelError(
            f"{type(module).__name__} has no attention function that could be called with a "
            "prefix; learn prompts at the input alone, or take another model."
        )
    return own  # type: ignore[no-any-return]


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> Attended:
    """Attend to the prefix and the tokens; options are transformers' own, handed on as they are."""
    slot: Slot | None = getattr(module, "prefix_slot", None)
    if slot is None or not slot.states:
        base = _see(module, query, key, value).base
        return base(module, query, key, value, attention_mask, **options)
    keys, values, visible = slot.take(query.shape[0], key.dtype)
    causal = options.get("is_causal")
    causal = bool(getattr(module, "is_causal", False)) if causal is None else causal
    mask = _mask(attention_mask, query, key, keys.shape[2], visible, causal=causal)
    bias = options.get("position_bias")
    if bias is not None:
        options["position_bias"] = functional.pad(bias, (keys.shape[2], 0))
    options["is_causal"] = False
    if keys.shape[2]:
        key, value = torch.cat((keys, key), dim=2), torch.cat((values, value), dim=2)
    return slot.base(module, query, key, value, mask, **options)


def _see(module: nn.Module, *states: Tensor) -> Slot:
    """Note a call with queries, keys and values at set-up; return the module's slot."""
    probe = _PROBE.get()
    if probe is None:
        raise ModelError(
            f"{type(module).__name__} attends in a place that was not there when the model was "
            "set up, so it has no prefix; load the model again."
        )
    base, calls = probe
    if not hasattr(module, "prefix_slot"):
        module.prefix_slot = Slot(base(module))  # type: ignore[assignment]
    slot: Slot = module.prefix_slot  # type: ignore[assignment]
    calls.append(Call(slot, *(tuple(own.shape) for own in states)))
    return slot


def _mask(
    given: Tensor | None,
    query: Tensor,
    key: Tensor,
    length: int,
    visible: Tensor | None,
    *,
    causal: bool,
) -> Tensor | None:
    """Return what is added to the scores of prefix and tokens; None: nothing.

    Mostly it is ready, from ``_make_mask``. A mask that the caller made is of the tokens alone.
    """
    rows, _, queries, _ = query.shape
    tokens = key.shape[2]
    if given is not None and given.shape[-1] >= length + tokens:
        return _part(given, length, tokens).to(query.dtype)
    if given is None and causal:
        # Left out for the kernel's own causal mask, which must be square.
        given = torch.ones(queries, tokens, dtype=torch.bool, device=query.device)
        given = given.tril(tokens - queries)[None, None]
    if given is None and visible is None:
        return None
    return _widen(
        given,
        visible,
        length=length,
        sizes=(rows, queries, tokens),
        like=(query.dtype, query.device),
    )


def _make_mask(**options: Any) -> Tensor | None:
    """Make one pass's mask for prefix and tokens together, once for all layers that share it.

    The options are those of transformers' mask functions; a mask that is all zeros is left out only
    where that is known without looking at numbers on the device.
    """
    length, visible, partly = _READING.get() or _Reading(0, None, False)
    bare = options.get("attention_mask") is None and visible is None
    skip = bare and bool(options.pop("allow_is_bidirectional_skip", False))
    options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": skip}
    tokens = sdpa_mask(**options)
    if tokens is None:
        return None
    rows, _, queries, keys = tokens.shape
    dtype, device = options.get("dtype", torch.float32), tokens.device
    if torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    return _widen(
        tokens,
        visible,
        length=length,
        sizes=(rows, queries, keys),
        like=(dtype, device),
        again=partly,
    )


def _part(added: Tensor, length: int, tokens: int) -> Tensor:
    """Return what a layer that reads a prefix of this length, perhaps 0, adds to its scores."""
    return added[..., : length + tokens] if length else added[..., added.shape[-1] - tokens :]


def _widen(
    tokens: Tensor | None,
    visible: Tensor | None,
    *,
    length: int,
    sizes: tuple[int, int, int],
    like: tuple[torch.dtype, torch.device],
    again: bool = False,
) -> Tensor:
    """Return what attention adds to the scores of prefix and tokens.

    Its shape is [b, 1 or heads, q, length + k]; with ``again`` it ends with k more.

    Args:
        tokens: what a query sees of the tokens, true or false, or what is added to their scores, of
            a shape that broadcasts to [b, 1 or heads, q, k]; None: all of them.
        visible: [b, length], which prefix keys a row sees; None: all.
        length: of the prefix.
        sizes: (b, q, k).
        like: dtype and device.
        again: have the tokens' part stand behind once more, for layers that read no prefix.
    """
    rows, queries, keys = sizes
    dtype, device = like
    # Half of the least number: adding a score or casting to bfloat16 must not make it infinite.
    low = torch.finfo(dtype).min / 2
    width = length + keys
    heads = 1 if tokens is None else tokens.shape[1]
    second = _aligned(width)
    padded = second + _aligned(keys) if again else second
    mask = torch.zeros(rows, heads, queries, padded, dtype=dtype, device=device)
    for start in (length, second) if again else (length,):
        if tokens is not None and tokens.dtype == torch.bool:
            mask[..., start : start + keys].masked_fill_(~tokens, low)
        elif tokens is not None:
            mask[..., start : start + keys] = tokens.clamp(min=low)
    if visible is not None:
        mask[..., :length].masked_fill_(~visible[:, None, None], low)
    return mask[..., : second + keys if again else width]


def _aligned(size: int) -> int:
    if torch.compiler.is_exporting():
        # Elsewhere it is of no use, and sizes that are not known yet round wrongly.
        return size
    return -(-size // _ALIGNMENT) * _ALIGNMENT


AttentionInterface.register(_NAME, _attend)
AttentionMaskInterface.register(_NAME, _make_mask)


def _serve(module: nn.Module) -> None:
    """Give a module that the interface does not reach a forward of ours; leave others alone."""
    forward = _SERVED.get((type(module).__module__, type(module).__name__))
    if forward is None or "forward" in vars(module):
        return
    module.prefix_slot = Slot(module.forward)  # type: ignore[assignment]
    # Bound to the module: a copy of the model gets one that is bound to the copy.
    module.forward = MethodType(forward, module)


def _see_heads(module: Any, hidden: Tensor) -> None:
    """Note a call of a served module, of which only the sizes of its heads are known."""
    if not torch.compiler.is_compiling() and _PROBE.get() is not None:
        heads = module.num_attention_heads, module.attention_head_size
        like = hidden.new_empty(*hidden.shape[:2], *heads).transpose(1, 2)
        _see(module, like, like, like)


# ------------------------------------------------------------------------------ DeBERTa


def _forward_deberta(
    module: Any,
    hidden_states: Tensor,
    attention_mask: Tensor,
    output_attentions: bool = False,
    query_states: Tensor | None = None,
    relative_pos: Tensor | None = None,
    rel_embeddings: Tensor | None = None,
) -> Any:
    slot: Slot = module.prefix_slot
    if slot.states:
        parts = _parts_v1 if hasattr(module, "in_proj") else _parts_v2
        found = parts(module, hidden_states, relative_pos, rel_embeddings)
        return _attend_deberta(module, slot, *found, attention_mask), None
    _see_heads(module, hidden_states)
    return type(module).forward(
        module,
        hidden_states,
        attention_mask,
        output_attentions,
        query_states=query_states,
        relative_pos=relative_pos,
        rel_embeddings=rel_embeddings,
    )


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


def _attend_deberta(
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
    keys, values, visible = slot.take(rows, key.dtype)
    scores = query @ key.mT
    if bias is not None:
        scores = scores + bias
    scores = torch.cat((query @ keys.mT, scores), dim=-1)
    if getattr(module, "head_logits_proj", None) is not None:
        scores = module.head_logits_proj(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    added = _widen(
        mask.bool(),
        visible,
        length=keys.shape[2],
        sizes=(rows, tokens, tokens),
        like=(scores.dtype, scores.device),
    )
    shares = module.dropout((scores + added).softmax(-1))
    if getattr(module, "head_weights_proj", None) is not None:
        shares = module.head_weights_proj(shares.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    context: Tensor = shares @ torch.cat((values, value), dim=2)
    return context.transpose(1, 2).flatten(2)


# ------------------------------------------------------------------------------ MPNet


def _forward_mpnet_layers(
    module: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, **options: Any
) -> Any:
    """Hand all layers one tensor to add: biases of relative positions, and what is not seen."""
    if _READING.get() is None:
        return type(module).forward(module, hidden_states, attention_mask, **options)
    added = _added_mpnet(module, hidden_states, attention_mask)
    module.compute_position_bias = lambda _hidden: added
    try:
        return type(module).forward(module, hidden_states, None, **options)
    finally:
        del module.compute_position_bias


def _added_mpnet(module: Any, hidden: Tensor, mask: Tensor | None) -> Tensor:
    """Return what attention adds to the scores of prefix and tokens, [b, heads, t, length + t]."""
    length, visible, partly = _READING.get() or _Reading(0, None, False)
    rows, tokens, _ = hidden.shape
    place = torch.arange(tokens, device=hidden.device)
    buckets = module.relative_position_bucket(place - place[:, None])
    biases = module.relative_attention_bias(buckets).permute(2, 0, 1)[None]
    if mask is not None:
        # Ours begins with the prefix, which is added below; the caller's has the tokens alone.
        biases = biases + mask[..., -tokens:]
    dtype, device = biases.dtype, biases.device
    if torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    return _widen(
        biases,
        visible,
        length=length,
        sizes=(rows, tokens, tokens),
        like=(dtype, device),
        again=partly,
    )


def _forward_mpnet(
    module: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    position_bias: Tensor | None = None,
    output_attentions: bool = False,
    **options: Any,
) -> Any:
    slot: Slot = module.prefix_slot
    if not slot.states:
        _see_heads(module, hidden_states)
        return type(module).forward(
            module, hidden_states, attention_mask, position_bias, output_attentions, **options
        )
    shape = (*hidden_states.shape[:2], module.num_attention_heads, module.attention_head_size)
    query, key, value = (
        project(hidden_states).view(shape).transpose(1, 2)
        for project in (module.q, module.k, module.v)
    )
    keys, values, _ = slot.take(shape[0], key.dtype)
    added = position_bias
    if added is not None:
        added = _part(added, keys.shape[2], shape[1]).to(query.dtype)
    if keys.shape[2]:
        key, value = torch.cat((keys, key), dim=2), torch.cat((values, value), dim=2)
    context = functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=added,
        dropout_p=module.dropout.p if module.training else 0.0,
    )
    return (module.o(context.transpose(1, 2).flatten(2)),)


_SERVED: dict[tuple[str, str], Callable[..., Any]] = {
    (f"transformers.models.{file}", name): forward
    for file, name, forward in (
        ("deberta.modeling_deberta", "DisentangledSelfAttention", _forward_deberta),
        ("deberta_v2.modeling_deberta_v2", "DisentangledSelfAttention", _forward_deberta),
        ("mpnet.modeling_mpnet", "MPNetEncoder", _forward_mpnet_layers),
        ("mpnet.modeling_mpnet", "MPNetSelfAttention", _forward_mpnet),
    )
}
