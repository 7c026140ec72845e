"""Learned keys and values that every layer's attention reads before the tokens' own.

P-tuning v2 (Liu et al., 2022) and prefix tuning learn, for each layer, a few keys and values. They
are handed to the model through transformers' attention interface: within a pass that reads a
prefix, the model's attention function is ours, which puts the learned keys and values before the
tokens' and calls the function the model had. The output keeps its t positions: [CLS] stays first,
and labels and answer positions need no shift.

- Every token sees the whole prefix in every layer, under a sliding window too (in a cache of past
  keys it would slide out of sight).
- Prefix keys are used as they are: no rotary angle, no relative position.
- DeBERTa computes its attention itself; ``symprompt.models.deberta`` serves it.
- A family that neither uses the interface nor is served there (MPNet) is refused when its first
  prefix is to be read: attention calls are counted, at set-up and in every pass. GLM's mask (part
  of a sentence is seen both ways) is not covered.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from symprompt.errors import ModelError
from symprompt.models.deberta import serve
from symprompt.models.slots import PROBE, Call, Probe, Slot, give_slot, slot_of, widen

_NAME = "symprompt_prefix"


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
        states: [tasks, layers, 2, kv_heads, length, head_dim]; keys, then values.
        row: [b], which task's prefix each row reads; None: all read the first.
        shift_positions: whether token positions begin at the prefix's length, as after a cache of
            past keys, or at 0.
        visible: [tasks, length], false where a task's prefix is shorter; None: none is.
        dropout: the share of the prefix's entries dropped, drawn for each row and layer.
    """

    states: Tensor
    row: Tensor | None = None
    shift_positions: bool = False
    visible: Tensor | None = None
    dropout: float = 0.0

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


class PrefixAttention:
    """A model's attention calls, each of which can read a prefix; final.

    Attributes:
        shape: layers, key-value heads and head size.

    Args:
        body: the model without its head.
        count: how many layers the config states.
        shape: (b, t) of what ``run`` gives the model.
        run: makes one pass.

    Raises:
        ModelError: not every layer calls the attention interface once, or layers differ in size.
    """

    def __init__(
        self, body: nn.Module, count: int, *, shape: tuple[int, int], run: Callable[[], object]
    ) -> None:
        self._name = type(body).__name__
        self._body = body
        configs = [getattr(module, "config", None) for module in body.modules()]
        self._configs = list(
            {id(own): own for own in configs if isinstance(own, PreTrainedConfig)}.values()
        )
        base = _eager if self._configs[0]._attn_implementation == "eager" else _sdpa
        calls = self._probe(Probe(base), run)
        self._check(calls, count, shape)
        self.shape = PrefixShape(count, *calls[0].keys)
        self._slots: list[Slot] = []
        for call in calls:
            slot = slot_of(call.module)
            if slot is None:
                slot = Slot(base(call.module))
                give_slot(call.module, slot)
            self._slots.append(slot)

    def _probe(self, probe: Probe, run: Callable[[], object]) -> list[Call]:
        """Make one pass and return the attention calls in their order."""
        for module in self._body.modules():
            serve(module)
        token = PROBE.set(probe)
        try:
            with self._ours(), torch.no_grad(), torch.compiler.set_stance("force_eager"):
                run()
        finally:
            PROBE.reset(token)
        return probe.calls

    def _check(self, calls: list[Call], count: int, shape: tuple[int, int]) -> None:
        own = [call for call in calls if call.tokens == (*shape, shape[1])]
        if len(own) != count or len(calls) != count:
            raise ModelError(
                f"{self._name} called transformers' attention interface {len(own)} times for its "
                f"{count} layers, so a deep prefix would not be read; learn prompts at the input "
                "alone, or take another model."
            )
        if len({call.keys for call in calls}) > 1 or calls[0].keys != calls[0].values:
            raise ModelError(
                f"the layers of {self._name} have keys and values of different sizes, which one "
                "prefix does not fit; learn prompts at the input alone, or take another model."
            )

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
        """Have every layer read a prefix in the one pass that is made within.

        Args:
            prefix: for the rows of the batch.
            rows: b.

        Raises:
            ModelError: the prefix is not of this model's shape, or was not read by every layer.
        """
        self._fits(prefix, rows)
        visible = prefix.rows_visible(rows)
        slots = list(dict.fromkeys(self._slots))
        for slot in slots:
            slot.states, slot.calls = [], 0
            slot.row, slot.visible, slot.dropout = prefix.row, visible, prefix.dropout
        for slot, own in zip(self._slots, prefix.states.unbind(1), strict=True):
            slot.states.append(own)
        token = _READING.set((prefix.length, visible))
        try:
            with self._ours():
                yield
        finally:
            _READING.reset(token)
            for slot in slots:
                slot.clear()
        counted = sum(slot.calls for slot in slots)
        if counted != self.shape.layers and not _compiled(self._body):
            raise ModelError(
                f"{self._name} read the prefix in {counted} of its {self.shape.layers} layers in a "
                "pass; learn prompts at the input alone, or take another model."
            )

    def _fits(self, prefix: Prefix, rows: int) -> None:
        got = tuple(prefix.states.shape)
        layers, heads, size = self.shape
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


# The length of the prefix that is read now, and what each row sees of it, [b, length].
_READING: ContextVar[tuple[int, Tensor | None] | None] = ContextVar("reading", default=None)


def _sdpa(_module: nn.Module) -> Callable[..., Any]:
    return sdpa_attention_forward


def _eager(module: nn.Module) -> Callable[..., Any]:
    """Return a family's own attention function; soft caps on scores (Gemma 2) need it."""
    own = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if not callable(own):
        raise ModelError(
            f"{type(module).__name__} has no attention function that could be called with a "
            "prefix; learn prompts at the input alone, or take another model."
        )
    return own  # type: ignore[no-any-return]


def _compiled(body: nn.Module) -> bool:
    return any(module._compiled_call_impl is not None for module in body.modules())


Attended = tuple[Tensor, Tensor | None]


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> Attended:
    """Attend to the prefix and the tokens; options are transformers' own, handed on as they are."""
    slot = slot_of(module)
    if slot is None or slot.base is None or not slot.states:
        return _see(module, query, key, value, attention_mask, **options)
    keys, values = slot.take(query.shape[0], key.dtype)
    causal = options.get("is_causal")
    causal = bool(getattr(module, "is_causal", False)) if causal is None else causal
    mask = _mask(attention_mask, query, key, keys.shape[2], slot.visible, causal=causal)
    bias = options.get("position_bias")
    if bias is not None:
        options["position_bias"] = torch.nn.functional.pad(bias, (keys.shape[2], 0))
    options["is_causal"] = False
    key, value = torch.cat((keys, key), dim=2), torch.cat((values, value), dim=2)
    found: Attended = slot.base(module, query, key, value, mask, **options)
    return found


def _see(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any
) -> Attended:
    """Attend as the model does without a prefix, and note the call."""
    probe = PROBE.get()
    if probe is None:
        raise ModelError(
            f"{type(module).__name__} attends in a place that was not there when the model was "
            "set up, so it has no prefix; load the model again."
        )
    probe.see(module, query, key, value)
    found: Attended = probe.base(module)(module, query, key, value, *rest, **options)
    return found


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
    if given is not None and given.shape[-1] == length + tokens:
        return given.to(query.dtype)
    if given is None and causal:
        # Left out for the kernel's own causal mask, which must be square.
        given = torch.ones(queries, tokens, dtype=torch.bool, device=query.device)
        given = given.tril(tokens - queries)[None, None]
    if given is None and visible is None:
        return None
    return widen(
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
    length, visible = _READING.get() or (0, None)
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
    return widen(tokens, visible, length=length, sizes=(rows, queries, keys), like=(dtype, device))


AttentionInterface.register(_NAME, _attend)
AttentionMaskInterface.register(_NAME, _make_mask)
