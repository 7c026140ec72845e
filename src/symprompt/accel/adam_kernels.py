"""Adam on matrices whose gradients are sums of a few outer products, as one CUDA kernel in Triton.

An update reads and writes a matrix and its two moments, and is bound by that. A prompt encoder sees
as many vectors as a prompt has, nine or so: its matrices' gradients are made where they are used
instead of being written and read once more.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _update(
    value, mean, square, left, right, numbers, relations, per, outs, ins, tiles,
    epsilon, weight_decay, TERMS: tl.constexpr, DECAY: tl.constexpr, OUTS: tl.constexpr,
    INS: tl.constexpr,
):  # fmt: skip
    batch = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    across = tl.cdiv(ins, INS)
    rows = tile // across * OUTS + tl.arange(0, OUTS)
    columns = tile % across * INS + tl.arange(0, INS)
    inside, known = rows < outs, columns < ins
    at = (batch * outs + rows)[:, None] * ins + columns[None, :]
    here = inside[:, None] & known[None, :]
    # First: they come from memory, all else from the cache.
    p = tl.load(value + at, mask=here, other=0.0)
    m = tl.load(mean + at, mask=here, other=0.0)
    v = tl.load(square + at, mask=here, other=0.0)
    own = numbers + batch // per
    to_mean, to_square = tl.load(own), tl.load(own + relations)
    size, correction = tl.load(own + 2 * relations), tl.load(own + 3 * relations)
    gradient = tl.zeros((OUTS, INS), dtype=tl.float32)
    for term in tl.static_range(TERMS):
        one = tl.load(left + (batch * TERMS + term) * outs + rows, mask=inside, other=0.0)
        other = tl.load(right + (batch * TERMS + term) * ins + columns, mask=known, other=0.0)
        gradient += one[:, None] * other[None, :]
    if DECAY == 2:
        p *= tl.load(own + 4 * relations)
    if DECAY == 1:
        gradient += weight_decay * p
    m += (gradient - m) * to_mean
    v += (gradient * gradient - v) * to_square
    p -= m / (tl.sqrt(v) / correction + epsilon) * size
    tl.store(value + at, p, mask=here)
    tl.store(mean + at, m, mask=here)
    tl.store(square + at, v, mask=here)


def update_by_factors(
    value: Tensor,
    mean: Tensor,
    square: Tensor,
    left: Tensor,
    right: Tensor,
    numbers: Tensor,
    epsilon: float,
    weight_decay: float,
    decoupled: bool,
) -> None:
    """Update one parameter in place; ``adam_update`` with the gradient left^T right.

    Args:
        value, mean, square: [relation, ...] float32, contiguous.
        left, right: [b, n, out], [b, n, in]; the parameter is seen as [b, out, in].
        numbers: [5, relation]: how far the moments move, step size, bias correction, shrinking.
    """
    left, right = left.contiguous(), right.contiguous()
    batch, terms, outs = left.shape
    ins, relations = right.shape[2], numbers.shape[1]
    tiles = triton.cdiv(outs, 16) * triton.cdiv(ins, 128)
    _update[(batch * tiles,)](
        value, mean, square, left, right, numbers, relations, batch // relations, outs, ins, tiles,
        epsilon, weight_decay,
        TERMS=terms, DECAY=0 if not weight_decay else 2 if decoupled else 1, OUTS=16, INS=128,
    )  # fmt: skip
