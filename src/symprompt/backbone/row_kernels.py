"""Attention on the joined products of a layer, as CUDA kernels written in Triton.

``attend_row`` reads queries, keys and values from one product and writes their gradients into one
tensor; ``attend_asked`` is the last layer's, where each sentence is asked at one position.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from symprompt.backbone.packed_kernels import _load, _store, launch_back, launch_forth
from symprompt.backbone.packing import padded_size


def _split(joined: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values [1, heads, n, size] within their product [n, 3h]."""
    parts = joined.view(1, len(joined), 3, heads, -1).permute(2, 0, 3, 1, 4)
    return parts[0], parts[1], parts[2]


@torch.library.custom_op("symprompt::attend_row", mutates_args=(), device_types="cuda")
def attend_row(joined: Tensor, within: Tensor, heads: int, window: int, scale: float) -> Tensor:
    """Return attention within each sentence, [n, h].

    Args:
        joined: [n, 3h] queries, keys, values.
        within, window: of the ``Packing``.
    """
    out = joined.new_empty(joined.shape[0], joined.shape[1] // 3)
    launch_forth(_split(joined, heads), out, within, window, scale)
    return out


@attend_row.register_fake
def _(joined, within, heads, window, scale):
    return joined.new_empty(joined.shape[0], joined.shape[1] // 3)


@torch.library.custom_op("symprompt::attend_row_back", mutates_args=(), device_types="cuda")
def attend_row_back(
    gradient: Tensor, joined: Tensor, within: Tensor, heads: int, window: int, scale: float
) -> Tensor:
    """Return the gradient of the joined products, [n, 3h]."""
    found = torch.empty_like(joined)
    launch_back(gradient, _split(joined, heads), _split(found, heads), within, window, scale)
    return found


@attend_row_back.register_fake
def _(gradient, joined, within, heads, window, scale):
    return torch.empty_like(joined)


def _keep_row(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    joined, within, *ctx.options = inputs
    ctx.save_for_backward(joined, within)


def _row_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return attend_row_back(gradient, *ctx.saved_tensors, *ctx.options), None, None, None, None


attend_row.register_autograd(_row_gradient, setup_context=_keep_row)


@triton.jit
def _clear(states, first, tokens, head, step, size: tl.constexpr, SIZE: tl.constexpr):
    rows, columns = tl.arange(0, 16), tl.arange(0, SIZE)
    nothing = tl.zeros((16, SIZE), dtype=tl.float32)
    for start in range(first, tokens, 16):
        inside = start + rows < tokens
        _store(states, nothing, start, rows, inside, columns, head, step, size)


@triton.jit
def _asked_weights(q, k, inside, scale):
    scores = tl.where(inside, tl.sum(k * q[None, :], 1) * scale, -1e30)
    raised = tl.exp(scores - tl.max(scores, 0))
    return raised / tl.sum(raised, 0)


@triton.jit
def _asked_forth(
    query, joined, out, starts, scale, heads, width, size: tl.constexpr,
    BLOCK: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    sentence, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    rows, columns = tl.arange(0, BLOCK), tl.arange(0, SIZE)
    first = tl.load(starts + sentence).to(tl.int64)
    inside = rows < tl.load(starts + sentence + 1) - first
    real = columns < size
    own = sentence.to(tl.int64) * width + head * size + columns
    q = tl.load(query + own, mask=real, other=0.0).to(tl.float32)
    k = _load(joined, first, rows, inside, columns, head, 2 * width, size, size).to(tl.float32)
    v = _load(joined + width, first, rows, inside, columns, head, 2 * width, size, size)
    weights = _asked_weights(q, k, inside, scale)
    found = tl.sum(weights[:, None] * v.to(tl.float32), 0)
    tl.store(out + own, found.to(out.dtype.element_ty), mask=real)


@triton.jit
def _asked_back(
    query, joined, gradient, to_query, to_joined, starts, sentences, tokens,
    scale, heads, width, size: tl.constexpr,
    BLOCK: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    sentence, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    first = tl.load(starts + sentence).to(tl.int64)
    if sentence == sentences:
        # Tokens that belong to no sentence.
        _clear(to_joined, first, tokens, head, 2 * width, size, SIZE)
        _clear(to_joined + width, first, tokens, head, 2 * width, size, SIZE)
    else:
        rows, columns = tl.arange(0, BLOCK), tl.arange(0, SIZE)
        inside = rows < tl.load(starts + sentence + 1) - first
        real = columns < size
        own = sentence.to(tl.int64) * width + head * size + columns
        q = tl.load(query + own, mask=real, other=0.0).to(tl.float32)
        g = tl.load(gradient + own, mask=real, other=0.0).to(tl.float32)
        k = _load(joined, first, rows, inside, columns, head, 2 * width, size, size).to(tl.float32)
        v = _load(joined + width, first, rows, inside, columns, head, 2 * width, size, size)
        weights = _asked_weights(q, k, inside, scale)
        raw = tl.sum(v.to(tl.float32) * g[None, :], 1)
        to_scores = weights * (raw - tl.sum(raw * weights, 0)) * scale
        found = tl.sum(to_scores[:, None] * k, 0)
        tl.store(to_query + own, found.to(to_query.dtype.element_ty), mask=real)
        to_key = to_scores[:, None] * q[None, :]
        to_value = weights[:, None] * g[None, :]
        _store(to_joined, to_key, first, rows, inside, columns, head, 2 * width, size)
        _store(to_joined + width, to_value, first, rows, inside, columns, head, 2 * width, size)


def _asked_options(size: int, block: int) -> dict[str, Any]:
    return {
        "BLOCK": block,
        "SIZE": padded_size(size),
        "num_warps": 2 if block <= 32 else 4,
    }


@torch.library.custom_op("symprompt::attend_asked", mutates_args=(), device_types="cuda")
def attend_asked(
    query: Tensor, joined: Tensor, starts: Tensor, heads: int, block: int, scale: float
) -> Tensor:
    """Return what one query of each sentence sees of it, [s, h].

    Args:
        query: [s, h].
        joined: [n, 2h] keys, values.
        starts, block: of the ``Packing``.
    """
    query, joined = query.contiguous(), joined.contiguous()
    sentences, width = query.shape
    size = width // heads
    out = torch.empty_like(query)
    _asked_forth[(sentences * heads,)](
        query, joined, out, starts, scale, heads, width, size, **_asked_options(size, block)
    )
    return out


@attend_asked.register_fake
def _(query, joined, starts, heads, block, scale):
    return torch.empty_like(query)


@torch.library.custom_op("symprompt::attend_asked_back", mutates_args=(), device_types="cuda")
def attend_asked_back(
    gradient: Tensor,
    query: Tensor,
    joined: Tensor,
    starts: Tensor,
    heads: int,
    block: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the queries [s, h] and of keys and values [n, 2h]."""
    query, joined = query.contiguous(), joined.contiguous()
    sentences, width = query.shape
    size = width // heads
    to_query, to_joined = torch.empty_like(query), torch.empty_like(joined)
    _asked_back[((sentences + 1) * heads,)](
        query, joined, gradient.contiguous(), to_query, to_joined, starts, sentences, len(joined),
        scale, heads, width, size, **_asked_options(size, block),
    )  # fmt: skip
    return to_query, to_joined


@attend_asked_back.register_fake
def _(gradient, query, joined, starts, heads, block, scale):
    return torch.empty_like(query), torch.empty_like(joined)


def _keep_asked(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    query, joined, starts, *ctx.options = inputs
    ctx.save_for_backward(query, joined, starts)


def _asked_gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    found = attend_asked_back(gradient, *ctx.saved_tensors, *ctx.options)
    return (*found, None, None, None, None)


attend_asked.register_autograd(_asked_gradients, setup_context=_keep_asked)
