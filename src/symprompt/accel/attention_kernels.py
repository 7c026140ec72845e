"""Attention within short sentences as one CUDA kernel each way, written in Triton.

Of half-precision states: in float32 products take minutes to compile, and twice the room.

One program does a window of whole sentences and one or two of its heads: all of its tokens fit in a
block, so that scores never leave the chip and the gradient computes them again. Several sentences
at once fill the products that one of a dozen tokens would leave half empty. Programs count through
a window's heads first: what they read together lies together.

Attention on the joined product of a layer: queries, keys and values, and their gradients.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from symprompt.accel.packing import LONGEST, kept_bytes, padded_size, room_on


@triton.jit
def _own(inside, columns, size: tl.constexpr):
    # Decided when compiled: what has nothing to leave out is read in larger pieces.
    if columns.shape[0] == size:
        found = inside[:, None]
    else:
        found = inside[:, None] & (columns < size)[None, :]
    return found


@triton.jit
def _load(states, first, rows, inside, columns, head, token_step, head_step, size: tl.constexpr):
    at = (first + rows)[:, None] * token_step + head * head_step + columns[None, :]
    return tl.load(states + at, mask=_own(inside, columns, size), other=0.0)


@triton.jit
def _store(states, numbers, first, rows, inside, columns, head, step, size: tl.constexpr):
    at = (first + rows)[:, None] * step + head * size + columns[None, :]
    tl.store(states + at, numbers.to(states.dtype.element_ty), mask=_own(inside, columns, size))


@triton.jit
def _scores(query, key, same, scale, bias, head, rows, REACH: tl.constexpr):
    # In powers of two, which the chip computes.
    found = tl.dot(query, tl.trans(key)) * (scale * 1.4426950408889634)
    if REACH > 0:
        # Within a sentence tokens are as far apart as in the window.
        far = head * (2 * REACH - 1) + REACH - 1 + rows[None, :] - rows[:, None]
        found += tl.load(bias + far) * 1.4426950408889634
    return tl.where(same, found, -1e30)


@triton.jit
def _window(within, tokens, heads, BLOCK: tl.constexpr, HEADS: tl.constexpr):
    """Return a program's first head, its window's first token and length, and which rows see which.

    Before the last: which of the window's rows there are.
    """
    groups = heads // HEADS
    window, own = tl.program_id(0) // groups, tl.program_id(0) % groups * HEADS
    rows = tl.arange(0, BLOCK)
    first = tl.load(within + tokens + window).to(tl.int64)
    count = tl.load(within + tokens + window + 1) - first
    inside = rows < count
    sentence = tl.load(within + first + rows, mask=inside, other=-1)
    return own, first, count, inside, sentence[:, None] == sentence[None, :]


@triton.jit
def _forth(
    query, key, value, out, within, bias, tokens, scale, heads,
    query_token, query_head, key_token, key_head, value_token, value_head,
    size: tl.constexpr, BLOCK: tl.constexpr, SIZE: tl.constexpr, HEADS: tl.constexpr,
    REACH: tl.constexpr,
):  # fmt: skip
    own, first, count, inside, same = _window(within, tokens, heads, BLOCK, HEADS)
    rows, columns = tl.arange(0, BLOCK), tl.arange(0, SIZE)
    if count > 0:
        for head in range(own, own + HEADS):
            q = _load(query, first, rows, inside, columns, head, query_token, query_head, size)
            k = _load(key, first, rows, inside, columns, head, key_token, key_head, size)
            v = _load(value, first, rows, inside, columns, head, value_token, value_head, size)
            scores = _scores(q, k, same, scale, bias, head, rows, REACH)
            raised = tl.exp2(scores - tl.max(scores, 1)[:, None])
            found = tl.dot(raised.to(v.dtype), v) / tl.sum(raised, 1)[:, None]
            _store(out, found, first, rows, inside, columns, head, heads * size, size)


@triton.jit
def _back(
    query, key, value, out_gradient, query_gradient, key_gradient, value_gradient,
    within, bias, tokens, scale, heads, step,
    query_token, query_head, key_token, key_head, value_token, value_head,
    size: tl.constexpr, BLOCK: tl.constexpr, SIZE: tl.constexpr, HEADS: tl.constexpr,
    REACH: tl.constexpr,
):  # fmt: skip
    own, first, count, inside, same = _window(within, tokens, heads, BLOCK, HEADS)
    rows, columns = tl.arange(0, BLOCK), tl.arange(0, SIZE)
    if count > 0:
        for head in range(own, own + HEADS):
            q = _load(query, first, rows, inside, columns, head, query_token, query_head, size)
            k = _load(key, first, rows, inside, columns, head, key_token, key_head, size)
            v = _load(value, first, rows, inside, columns, head, value_token, value_head, size)
            gradient = _load(
                out_gradient, first, rows, inside, columns, head, heads * size, size, size
            ).to(v.dtype)
            scores = _scores(q, k, same, scale, bias, head, rows, REACH)
            raised = tl.exp2(scores - tl.max(scores, 1)[:, None])
            weights = raised / tl.sum(raised, 1)[:, None]
            to_value = tl.dot(tl.trans(weights.to(v.dtype)), gradient)
            _store(value_gradient, to_value, first, rows, inside, columns, head, step, size)
            raw = tl.dot(gradient, tl.trans(v))
            mean = tl.sum(raw * weights, 1)[:, None]
            to_scores = (weights * (raw - mean) * scale).to(v.dtype)
            to_query = tl.dot(to_scores, k)
            _store(query_gradient, to_query, first, rows, inside, columns, head, step, size)
            to_key = tl.dot(tl.trans(to_scores), q)
            _store(key_gradient, to_key, first, rows, inside, columns, head, step, size)


def _options(query: Tensor, window: int, bias: Tensor | None) -> dict[str, Any]:
    """Return how the programs for queries [1, heads, n, size] are made.

    One of two heads loads the second while it computes the first, where the chip has the room.
    """
    _, heads, _, size = query.shape
    ahead = heads % 2 == 0 and 2 * kept_bytes(window, size) <= room_on(query.device)
    return {
        "size": size,
        "BLOCK": window,
        "SIZE": padded_size(size),
        "HEADS": 1 + ahead,
        "REACH": 0 if bias is None or not bias.numel() else LONGEST,
        "num_warps": window // 16,
        "num_stages": 1 + ahead,
    }


def launch_forth(
    states: tuple[Tensor, Tensor, Tensor],
    out: Tensor,
    within: Tensor,
    window: int,
    scale: float,
    bias: Tensor | None = None,
) -> None:
    """Write attention of queries, keys and values [1, heads, n, size] into [n, heads x size]."""
    _, heads, tokens, _ = states[0].shape
    options = _options(states[0], window, bias)
    _forth[((len(within) - tokens - 1) * heads // options["HEADS"],)](
        *states, out, within, bias if options["REACH"] else within, tokens, scale, heads,
        *_steps(states), **options,
    )  # fmt: skip


def launch_back(
    gradient: Tensor,
    states: tuple[Tensor, Tensor, Tensor],
    found: tuple[Tensor, Tensor, Tensor],
    within: Tensor,
    window: int,
    scale: float,
    bias: Tensor | None = None,
) -> None:
    """Write the gradients of queries, keys and values, whose tokens are one step apart."""
    _, heads, tokens, _ = states[0].shape
    options = _options(states[0], window, bias)
    _back[((len(within) - tokens - 1) * heads // options["HEADS"],)](
        *states, gradient.contiguous(), *found, within, bias if options["REACH"] else within,
        tokens, scale, heads, found[0].stride(2), *_steps(states), **options,
    )  # fmt: skip


def _steps(states: tuple[Tensor, Tensor, Tensor]) -> list[int]:
    return [step for one in states for step in (one.stride(2), one.stride(1))]


def _dense(states: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (one if one.stride(-1) == 1 else one.contiguous() for one in states)
    return query, key, value


@torch.library.custom_op("symprompt::attend_packed", mutates_args=(), device_types="cuda")
def attend(
    query: Tensor, key: Tensor, value: Tensor, within: Tensor, window: int, scale: float
) -> Tensor:
    """Return attention within each sentence, [1, n, heads, size].

    Args:
        query, key, value: [1, heads, n, size].
        within, window: of the ``Packing``.
    """
    out = _like(query)
    launch_forth(_dense((query, key, value)), out, within, window, scale)
    return out


@attend.register_fake
def _(query, key, value, within, window, scale):
    return _like(query)


@torch.library.custom_op("symprompt::attend_packed_back", mutates_args=(), device_types="cuda")
def attend_back(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    within: Tensor,
    window: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value, [1, n, heads, size] each."""
    found = _like(query), _like(query), _like(query)
    seen = found[0].transpose(1, 2), found[1].transpose(1, 2), found[2].transpose(1, 2)
    launch_back(gradient, _dense((query, key, value)), seen, within, window, scale)
    return found


@attend_back.register_fake
def _(gradient, query, key, value, within, window, scale):
    return _like(query), _like(query), _like(query)


def _like(query: Tensor) -> Tensor:
    _, heads, tokens, size = query.shape
    return query.new_empty(1, tokens, heads, size)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    query, key, value, within, ctx.window, ctx.scale = inputs
    ctx.save_for_backward(query, key, value, within)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    found = attend_back(gradient, *ctx.saved_tensors, ctx.window, ctx.scale)
    return (*(one.transpose(1, 2) for one in found), None, None, None)


attend.register_autograd(_gradients, setup_context=_keep)


def _split(joined: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values [1, heads, n, size] within their product [n, 3h]."""
    parts = joined.view(1, len(joined), 3, heads, -1).permute(2, 0, 3, 1, 4)
    return parts[0], parts[1], parts[2]


@torch.library.custom_op("symprompt::attend_row", mutates_args=(), device_types="cuda")
def attend_row(
    joined: Tensor, within: Tensor, bias: Tensor, heads: int, window: int, scale: float
) -> Tensor:
    """Return attention within each sentence, [n, h]; see ``packing.attend_row``.

    Args:
        joined: [n, 3h] queries, keys, values.
        within, window: of the ``Packing``.
        bias: by distance; it has no gradient.
    """
    out = joined.new_empty(joined.shape[0], joined.shape[1] // 3)
    launch_forth(_split(joined, heads), out, within, window, scale, bias)
    return out


@attend_row.register_fake
def _(joined, within, bias, heads, window, scale):
    return joined.new_empty(joined.shape[0], joined.shape[1] // 3)


@torch.library.custom_op("symprompt::attend_row_back", mutates_args=(), device_types="cuda")
def attend_row_back(
    gradient: Tensor,
    joined: Tensor,
    within: Tensor,
    bias: Tensor,
    heads: int,
    window: int,
    scale: float,
) -> Tensor:
    """Return the gradient of the joined products, [n, 3h]."""
    found = torch.empty_like(joined)
    launch_back(gradient, _split(joined, heads), _split(found, heads), within, window, scale, bias)
    return found


@attend_row_back.register_fake
def _(gradient, joined, within, bias, heads, window, scale):
    return torch.empty_like(joined)


def _keep_row(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    joined, within, bias, *ctx.options = inputs
    ctx.save_for_backward(joined, within, bias)


def _row_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return attend_row_back(gradient, *ctx.saved_tensors, *ctx.options), *[None] * 5


attend_row.register_autograd(_row_gradient, setup_context=_keep_row)
