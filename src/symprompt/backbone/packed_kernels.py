"""Attention within short sentences as one CUDA kernel each way, written in Triton.

Of half-precision states: in float32 products take minutes to compile, and twice the room.

One program does one sentence and some of its heads, one after the other: all of a sentence's tokens
fit in a block, so that scores never leave the chip and the gradient computes them again. Programs
count through a sentence's heads first: what they read together lies together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from symprompt.backbone.packing import kept_bytes, padded_size, room_on


@triton.jit
def _load(states, first, rows, inside, columns, head, token_step, head_step, size):
    at = (first + rows)[:, None] * token_step + head * head_step + columns[None, :]
    return tl.load(states + at, mask=inside[:, None] & (columns < size)[None, :], other=0.0)


@triton.jit
def _store(states, numbers, first, rows, inside, columns, head, step, size):
    at = (first + rows)[:, None] * step + head * size + columns[None, :]
    tl.store(
        states + at,
        numbers.to(states.dtype.element_ty),
        mask=inside[:, None] & (columns < size)[None, :],
    )


@triton.jit
def _weights(query, key, inside, scale):
    scores = tl.dot(query, tl.trans(key)) * scale
    scores = tl.where(inside[None, :], scores, -1e30)
    raised = tl.exp(scores - tl.max(scores, 1)[:, None])
    return raised / tl.sum(raised, 1)[:, None]


@triton.jit
def _forth_one(
    query, key, value, out, first, count, scale, head, heads, size,
    query_token, query_head, key_token, key_head, value_token, value_head,
    BLOCK: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    rows, columns = tl.arange(0, BLOCK), tl.arange(0, SIZE)
    inside = rows < count
    q = _load(query, first, rows, inside, columns, head, query_token, query_head, size)
    k = _load(key, first, rows, inside, columns, head, key_token, key_head, size)
    v = _load(value, first, rows, inside, columns, head, value_token, value_head, size)
    weights = _weights(q, k, inside, scale)
    found = tl.dot(weights.to(v.dtype), v)
    _store(out, found, first, rows, inside, columns, head, heads * size, size)


@triton.jit
def _clear(states, first, tokens, head, step, size, SIZE: tl.constexpr):
    rows, columns = tl.arange(0, 16), tl.arange(0, SIZE)
    nothing = tl.zeros((16, SIZE), dtype=tl.float32)
    for start in range(first, tokens, 16):
        inside = start + rows < tokens
        _store(states, nothing, start, rows, inside, columns, head, step, size)


@triton.jit
def _forth(
    query, key, value, out, starts, sentences, tokens, scale, heads, size,
    query_token, query_head, key_token, key_head, value_token, value_head,
    ABOVE: tl.constexpr, BLOCK: tl.constexpr, SIZE: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    sentence, own = tl.program_id(0) // (heads // HEADS), tl.program_id(0) % (heads // HEADS)
    first = tl.load(starts + sentence).to(tl.int64)
    if sentence == sentences:
        # Tokens that belong to no sentence.
        if ABOVE == 0:
            for head in range(own * HEADS, own * HEADS + HEADS):
                _clear(out, first, tokens, head, heads * size, size, SIZE)
    else:
        count = tl.load(starts + sentence + 1) - first
        if (count > ABOVE) & (count <= BLOCK):
            for head in range(own * HEADS, own * HEADS + HEADS):
                _forth_one(
                    query, key, value, out, first, count, scale, head, heads, size,
                    query_token, query_head, key_token, key_head, value_token, value_head,
                    BLOCK, SIZE,
                )  # fmt: skip


@triton.jit
def _back_one(
    query, key, value, out_gradient, query_gradient, key_gradient, value_gradient,
    first, count, scale, head, heads, step, size,
    query_token, query_head, key_token, key_head, value_token, value_head,
    BLOCK: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    rows, columns = tl.arange(0, BLOCK), tl.arange(0, SIZE)
    inside = rows < count
    q = _load(query, first, rows, inside, columns, head, query_token, query_head, size)
    k = _load(key, first, rows, inside, columns, head, key_token, key_head, size)
    v = _load(value, first, rows, inside, columns, head, value_token, value_head, size)
    gradient = _load(out_gradient, first, rows, inside, columns, head, heads * size, size, size)
    gradient = gradient.to(v.dtype)
    weights = _weights(q, k, inside, scale)
    to_value = tl.dot(tl.trans(weights.to(v.dtype)), gradient)
    _store(value_gradient, to_value, first, rows, inside, columns, head, step, size)
    raw = tl.dot(gradient, tl.trans(v))
    mean = tl.sum(raw * weights, 1)[:, None]
    to_scores = (weights * (raw - mean) * scale).to(v.dtype)
    to_query = tl.dot(to_scores, k)
    _store(query_gradient, to_query, first, rows, inside, columns, head, step, size)
    to_key = tl.dot(tl.trans(to_scores), q)
    _store(key_gradient, to_key, first, rows, inside, columns, head, step, size)


@triton.jit
def _back(
    query, key, value, out_gradient, query_gradient, key_gradient, value_gradient,
    starts, sentences, tokens, scale, heads, step, size,
    query_token, query_head, key_token, key_head, value_token, value_head,
    ABOVE: tl.constexpr, BLOCK: tl.constexpr, SIZE: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    sentence, own = tl.program_id(0) // (heads // HEADS), tl.program_id(0) % (heads // HEADS)
    first = tl.load(starts + sentence).to(tl.int64)
    if sentence == sentences:
        if ABOVE == 0:
            for head in range(own * HEADS, own * HEADS + HEADS):
                _clear(query_gradient, first, tokens, head, step, size, SIZE)
                _clear(key_gradient, first, tokens, head, step, size, SIZE)
                _clear(value_gradient, first, tokens, head, step, size, SIZE)
    else:
        count = tl.load(starts + sentence + 1) - first
        if (count > ABOVE) & (count <= BLOCK):
            for head in range(own * HEADS, own * HEADS + HEADS):
                _back_one(
                    query, key, value, out_gradient, query_gradient, key_gradient, value_gradient,
                    first, count, scale, head, heads, step, size,
                    query_token, query_head, key_token, key_head, value_token, value_head,
                    BLOCK, SIZE,
                )  # fmt: skip


_AT_ONCE = 4
"""Most heads of one program: with fewer, starting programs takes longer than what they do."""


def options_of(query: Tensor, block: int, *, ahead: bool) -> Iterator[dict[str, Any]]:
    """Give the options of each launch: sentences of a length are done by a kernel of that size.

    In one kernel for all, short sentences would wait for room that long ones need.

    Args:
        query: [1, heads, n, size].
        block: a power of two from 16 on; no sentence has more tokens.
        ahead: load the next heads while one is computed, where the chip has twice the room.
    """
    _, heads, _, numbers = query.shape
    above, room = 0, room_on(query.device)
    while above < block:
        # One of 32 takes no longer for 16 tokens than a launch of their own.
        size = max(min(block, 32), 2 * above)
        yield {
            "ABOVE": above,
            "BLOCK": size,
            "SIZE": padded_size(numbers),
            "HEADS": max(one for one in range(1, _AT_ONCE + 1) if heads % one == 0),
            "num_warps": max(1, size // 32),
            "num_stages": 3 if ahead and 2 * kept_bytes(size, numbers) <= room else 1,
        }
        above = size


def launch_forth(
    states: tuple[Tensor, Tensor, Tensor], out: Tensor, starts: Tensor, block: int, scale: float
) -> None:
    """Write attention of queries, keys and values [1, heads, n, size] into [n, heads x size]."""
    _, heads, tokens, size = states[0].shape
    sentences = len(starts) - 1
    for options in options_of(states[0], block, ahead=True):
        _forth[((sentences + 1) * heads // options["HEADS"],)](
            *states, out, starts, sentences, tokens, scale, heads, size,
            *_steps(states), **options,
        )  # fmt: skip


def launch_back(
    gradient: Tensor,
    states: tuple[Tensor, Tensor, Tensor],
    found: tuple[Tensor, Tensor, Tensor],
    starts: Tensor,
    block: int,
    scale: float,
) -> None:
    """Write the gradients of queries, keys and values, whose tokens are one step apart."""
    _, heads, tokens, size = states[0].shape
    sentences, step, gradient = len(starts) - 1, found[0].stride(2), gradient.contiguous()
    # Not ahead: there are no registers left for it.
    for options in options_of(states[0], block, ahead=False):
        _back[((sentences + 1) * heads // options["HEADS"],)](
            *states, gradient, *found, starts, sentences, tokens,
            scale, heads, step, size, *_steps(states), **options,
        )  # fmt: skip


def _steps(states: tuple[Tensor, Tensor, Tensor]) -> list[int]:
    return [step for one in states for step in (one.stride(2), one.stride(1))]


def _dense(states: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (one if one.stride(-1) == 1 else one.contiguous() for one in states)
    return query, key, value


@torch.library.custom_op("symprompt::attend_packed", mutates_args=(), device_types="cuda")
def attend(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, block: int, scale: float
) -> Tensor:
    """Return attention within each sentence, [1, n, heads, size].

    Args:
        query, key, value: [1, heads, n, size].
        starts: [s + 1] int32.
        block: a power of two from 16 on; no sentence has more tokens.
    """
    out = _like(query)
    launch_forth(_dense((query, key, value)), out, starts, block, scale)
    return out


@attend.register_fake
def _(query, key, value, starts, block, scale):
    return _like(query)


@torch.library.custom_op("symprompt::attend_packed_back", mutates_args=(), device_types="cuda")
def attend_back(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Tensor,
    block: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value, [1, n, heads, size] each."""
    found = _like(query), _like(query), _like(query)
    seen = found[0].transpose(1, 2), found[1].transpose(1, 2), found[2].transpose(1, 2)
    launch_back(gradient, _dense((query, key, value)), seen, starts, block, scale)
    return found


@attend_back.register_fake
def _(gradient, query, key, value, starts, block, scale):
    return _like(query), _like(query), _like(query)


def _like(query: Tensor) -> Tensor:
    _, heads, tokens, size = query.shape
    return query.new_empty(1, tokens, heads, size)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    query, key, value, starts, ctx.block, ctx.scale = inputs
    ctx.save_for_backward(query, key, value, starts)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    found = attend_back(gradient, *ctx.saved_tensors, ctx.block, ctx.scale)
    return (*(one.transpose(1, 2) for one in found), None, None, None)


attend.register_autograd(_gradients, setup_context=_keep)
