"""What each sentence's queries see of its states, as one CUDA kernel each way, written in Triton.

One program does a sentence and all heads, whose queries are as wide as the states: nothing but the
states themselves is read of a token, and nothing but their gradient written. Both are taken in
pieces of the width, twice: once for the scores, once for what is seen with them.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from symprompt.accel.packing import padded_size

_CLEARING = 32
"""So many programs clear the gradient of tokens that belong to no sentence."""


@triton.jit
def _there(inside, columns, width: tl.constexpr, PIECE: tl.constexpr):
    # Decided when compiled: what has nothing to leave out is read in larger pieces.
    rows = inside[:, None]
    return rows if width % PIECE == 0 else rows & (columns < width)[None, :]


@triton.jit
def _load(states, at, start, inside, width: tl.constexpr, PIECE: tl.constexpr):
    """Return a piece of some rows, zeros outside."""
    columns = start + tl.arange(0, PIECE)
    there = _there(inside, columns, width, PIECE)
    return tl.load(states + at[:, None] + columns[None, :], mask=there, other=0.0)


@triton.jit
def _store(states, numbers, at, start, inside, width: tl.constexpr, PIECE: tl.constexpr):
    columns = start + tl.arange(0, PIECE)
    there = _there(inside, columns, width, PIECE)
    numbers = numbers.to(states.dtype.element_ty)
    tl.store(states + at[:, None] + columns[None, :], numbers, mask=there)


@triton.jit
def _where(starts, sentence, sentences, heads, width, BLOCK: tl.constexpr, HEADS: tl.constexpr):
    """Return where a sentence's tokens and queries start, and which of them there are."""
    first = tl.load(starts + sentence).to(tl.int64)
    rows, own = tl.arange(0, BLOCK), tl.arange(0, HEADS)
    inside = rows < tl.load(starts + sentence + 1) - first
    asking = (own.to(tl.int64) * sentences + sentence) * width
    return (first + rows) * width, inside, asking, own < heads


@triton.jit
def _weights(scores, inside, scale):
    # In powers of two, which the chip computes.
    scores = tl.where(inside[None, :], scores * (scale * 1.4426950408889634), -1e30)
    raised = tl.exp2(scores - tl.max(scores, 1)[:, None])
    return raised / tl.sum(raised, 1)[:, None]


@triton.jit
def _forth(
    query, states, out, starts, sentences, scale, heads, width: tl.constexpr,
    BLOCK: tl.constexpr, HEADS: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    token, inside, asking, real = _where(
        starts, tl.program_id(0), sentences, heads, width, BLOCK, HEADS
    )
    scores = tl.zeros((HEADS, BLOCK), dtype=tl.float32)
    for start in range(0, width, PIECE):
        q = _load(query, asking, start, real, width, PIECE)
        x = _load(states, token, start, inside, width, PIECE)
        scores = tl.dot(q, tl.trans(x), scores)
    weights = _weights(scores, inside, scale).to(states.dtype.element_ty)
    for start in range(0, width, PIECE):
        x = _load(states, token, start, inside, width, PIECE)
        _store(out, tl.dot(weights, x), asking, start, real, width, PIECE)


@triton.jit
def _back(
    query, states, gradient, to_query, to_states, starts, sentences, tokens, scale, heads,
    width: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr, PIECE: tl.constexpr,
    CLEARING: tl.constexpr,
):  # fmt: skip
    sentence = tl.program_id(0)
    if sentence >= sentences:
        # Tokens that belong to no sentence.
        rows = tl.arange(0, 16)
        nothing = tl.zeros((16, PIECE), dtype=tl.float32)
        first = tl.load(starts + sentences).to(tl.int64) + (sentence - sentences) * 16
        for row in range(first, tokens, 16 * CLEARING):
            for start in range(0, width, PIECE):
                own = row + rows
                _store(to_states, nothing, own * width, start, own < tokens, width, PIECE)
    else:
        token, inside, asking, real = _where(
            starts, sentence, sentences, heads, width, BLOCK, HEADS
        )
        scores = tl.zeros((HEADS, BLOCK), dtype=tl.float32)
        raw = tl.zeros((HEADS, BLOCK), dtype=tl.float32)
        for start in range(0, width, PIECE):
            q = _load(query, asking, start, real, width, PIECE)
            g = _load(gradient, asking, start, real, width, PIECE)
            x = tl.trans(_load(states, token, start, inside, width, PIECE))
            scores = tl.dot(q, x, scores)
            raw = tl.dot(g, x, raw)
        weights = _weights(scores, inside, scale)
        to_scores = weights * (raw - tl.sum(raw * weights, 1)[:, None]) * scale
        weights = weights.to(states.dtype.element_ty)
        to_scores = to_scores.to(states.dtype.element_ty)
        for start in range(0, width, PIECE):
            q = _load(query, asking, start, real, width, PIECE)
            g = _load(gradient, asking, start, real, width, PIECE)
            x = _load(states, token, start, inside, width, PIECE)
            _store(to_query, tl.dot(to_scores, x), asking, start, real, width, PIECE)
            found = tl.dot(tl.trans(weights), g, tl.dot(tl.trans(to_scores), q))
            _store(to_states, found, token, start, inside, width, PIECE)


def _options(query: Tensor, block: int, *, back: bool) -> dict[str, Any]:
    heads, _, width = query.shape
    # The quickest on an H200; of much at once nothing is loaded ahead, as chips have no room.
    short = block <= 32 and heads <= 32
    piece = 64 if short and not back else 128
    return {
        "heads": heads,
        "width": width,
        "BLOCK": block,
        "HEADS": padded_size(heads),
        "PIECE": min(piece, padded_size(width)),
        "num_warps": 1 + back if short else 4,
        "num_stages": 3 if short else 1,
    }


@torch.library.custom_op("symprompt::attend_asked", mutates_args=(), device_types="cuda")
def attend_asked(query: Tensor, states: Tensor, starts: Tensor, block: int, scale: float) -> Tensor:
    """Return what each sentence's queries see of its states, [heads, s, h].

    Args:
        query: [heads, s, h].
        states: [n, h].
        starts, block: of the ``Packing``.
    """
    query, states = query.contiguous(), states.contiguous()
    out = torch.empty_like(query)
    sentences = query.shape[1]
    options = _options(query, block, back=False)
    _forth[(sentences,)](query, states, out, starts, sentences, scale, **options)
    return out


@attend_asked.register_fake
def _(query, states, starts, block, scale):
    return query.new_empty(query.shape)


@torch.library.custom_op("symprompt::attend_asked_back", mutates_args=(), device_types="cuda")
def attend_asked_back(
    gradient: Tensor, query: Tensor, states: Tensor, starts: Tensor, block: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the queries [heads, s, h] and of the states [n, h]."""
    query, states = query.contiguous(), states.contiguous()
    to_query, to_states = torch.empty_like(query), torch.empty_like(states)
    sentences = query.shape[1]
    _back[(sentences + _CLEARING,)](
        query, states, gradient.contiguous(), to_query, to_states, starts, sentences, len(states),
        scale, CLEARING=_CLEARING, **_options(query, block, back=True),
    )  # fmt: skip
    return to_query, to_states


@attend_asked_back.register_fake
def _(gradient, query, states, starts, block, scale):
    return query.new_empty(query.shape), states.new_empty(states.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    query, states, starts, *ctx.options = inputs
    ctx.save_for_backward(query, states, starts)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    found = attend_asked_back(gradient, *ctx.saved_tensors, *ctx.options)
    return (*found, None, None, None)


attend_asked.register_autograd(_gradients, setup_context=_keep)
