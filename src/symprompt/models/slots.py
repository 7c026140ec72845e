"""What each attention module of a model reads before the tokens' own keys and values."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from symprompt.errors import ModelError

# The memory-efficient attention kernel copies a mask whose rows are not multiples of this.
_ALIGNMENT = 8


class Slot:
    """What one attention module reads in a pass; final.

    Attributes:
        base: the attention function the module had; None where the module computes itself.
        states: for each call of the module in a pass, [tasks, 2, kv_heads, length, head_dim]; empty
            outside a pass that reads a prefix. ALBERT calls one module for many layers.
        row: [b], the task each row reads; None: the first.
        visible: [b, length], which keys each row sees; None: all.
        dropout: the share of keys' and values' entries dropped, drawn for each row and call.
        calls: how often the module was called in this pass by code that is not compiled.
    """

    def __init__(self, base: Callable[..., Any] | None = None) -> None:
        self.base = base
        self.states: list[Tensor] = []
        self.row: Tensor | None = None
        self.visible: Tensor | None = None
        self.dropout = 0.0
        self.calls = 0

    def take(self, rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return this call's keys and values, each [b, kv_heads, length, head_dim].

        Raises:
            ModelError: the module is called more often than at set-up.
        """
        call = 0
        # Compiled code counts nothing: it would be compiled again for every count. Layers that are
        # compiled have a module of their own each, so that theirs is the first call.
        if not torch.compiler.is_compiling():
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
        return both[:, 0], both[:, 1]

    def clear(self) -> None:
        """Let go of a pass's tensors."""
        self.states, self.row, self.visible = [], None, None


class Call(NamedTuple):
    """One attention call that was seen at set-up.

    Attributes:
        tokens: (b, queries, keys).
        keys: (heads, size) of the keys.
        values: (heads, size) of the values.
    """

    module: nn.Module
    tokens: tuple[int, int, int]
    keys: tuple[int, int]
    values: tuple[int, int]


class Probe:
    """The pass made at set-up; final.

    Attributes:
        base: gives the attention function a module had.
    """

    def __init__(self, base: Callable[[nn.Module], Callable[..., Any]]) -> None:
        self.base = base
        self.calls: list[Call] = []

    def see(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Note a call with queries, keys and values [b, heads, t, size]."""
        tokens = (query.shape[0], query.shape[2], key.shape[2])
        keys, values = ((own.shape[1], own.shape[3]) for own in (key, value))
        self.calls.append(Call(module, tokens, keys, values))


PROBE: ContextVar[Probe | None] = ContextVar("probe", default=None)


def slot_of(module: nn.Module) -> Slot | None:
    """Return a module's slot, if it has been given one."""
    slot: Slot | None = getattr(module, "prefix_slot", None)
    return slot


def give_slot(module: nn.Module, slot: Slot) -> None:
    """Give a module its slot."""
    module.prefix_slot = slot  # type: ignore[assignment]


def widen(
    tokens: Tensor | None,
    visible: Tensor | None,
    *,
    length: int,
    sizes: tuple[int, int, int],
    like: tuple[torch.dtype, torch.device],
) -> Tensor:
    """Return what attention adds to the scores of prefix and tokens.

    Its shape is [b, 1 or heads, q, length + k].

    Args:
        tokens: what a query sees of the tokens, true or false, or what is added to their scores, of
            a shape that broadcasts to [b, 1 or heads, q, k]; None: all of them.
        visible: [b, length], which prefix keys a row sees; None: all.
        length: of the prefix.
        sizes: (b, q, k).
        like: dtype and device.
    """
    rows, queries, keys = sizes
    dtype, device = like
    # Half of the least number: adding a score or casting to bfloat16 must not make it infinite.
    low = torch.finfo(dtype).min / 2
    width = length + keys
    heads = 1 if tokens is None else tokens.shape[1]
    padded = -(-width // _ALIGNMENT) * _ALIGNMENT
    mask = torch.zeros(rows, heads, queries, padded, dtype=dtype, device=device)
    if tokens is not None and tokens.dtype == torch.bool:
        mask[..., length:width].masked_fill_(~tokens, low)
    elif tokens is not None:
        mask[..., length:width] = tokens.clamp(min=low)
    if visible is not None:
        mask[..., :length].masked_fill_(~visible[:, None, None], low)
    return mask[..., :width]
