"""The recurrence of many LSTMs side by side, one CUDA kernel a step, written in Triton.

A step is bound by reading every LSTM's recurrent weights once. What is element-wise is done where
the sums are: forth a program makes the gates of some units, back it sums what the next step's gates
send to some units and goes on to their own gates. Two LSTMs are a relation's; the second walks from
the last vector to the first, reading and writing where the vectors stand: nothing is turned round.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _raw_gate(
    drive, matrix, state, units, columns, inside, known, hidden,
    NUMBER: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    rows = NUMBER * hidden + units
    raw = tl.load(drive + rows, mask=inside, other=0.0)
    if not FIRST:
        at = rows[:, None] * hidden + columns[None, :]
        tile = tl.load(matrix + at, mask=inside[:, None] & known[None, :], other=0.0)
        raw += tl.sum(tile.to(tl.float32) * state[None, :], 1)
    return raw


@triton.jit
def _place(batch, step, steps):
    """Where a direction's step stands among the vectors of both directions."""
    direction = batch % 2
    return ((batch // 2) * steps + step + direction * (steps - 1 - 2 * step)) * 2 + direction


@triton.jit
def _forth(
    drive, weights, states, before, gates, cells, step, steps, hidden,
    FIRST: tl.constexpr, UNITS: tl.constexpr, HIDDEN: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(0).to(tl.int64)
    units = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    columns = tl.arange(0, HIDDEN)
    inside, known = units < hidden, columns < hidden
    here, at = _place(batch, step, steps), batch * steps + step
    kept = cells + at * hidden + units
    state = tl.zeros((HIDDEN,), dtype=tl.float32)
    old = tl.zeros((UNITS,), dtype=tl.float32)
    if not FIRST:
        past = states + _place(batch, step - 1, steps) * hidden
        state += tl.load(past + columns, mask=known, other=0.0)
        old += tl.load(kept - hidden, mask=inside, other=0.0)
    if tl.program_id(1) == 0:
        tl.store(before + at * hidden + columns, state, mask=known)
    matrix = weights + batch * 4 * hidden * hidden
    own = drive + here * 4 * hidden
    take = tl.sigmoid(
        _raw_gate(own, matrix, state, units, columns, inside, known, hidden, 0, FIRST)
    )
    forget = tl.sigmoid(
        _raw_gate(own, matrix, state, units, columns, inside, known, hidden, 1, FIRST)
    )
    new = _tanh(_raw_gate(own, matrix, state, units, columns, inside, known, hidden, 2, FIRST))
    show = tl.sigmoid(
        _raw_gate(own, matrix, state, units, columns, inside, known, hidden, 3, FIRST)
    )
    cell = forget * old + take * new
    gate = gates + at * 4 * hidden + units
    tl.store(gate, take, mask=inside)
    tl.store(gate + hidden, forget, mask=inside)
    tl.store(gate + 2 * hidden, new, mask=inside)
    tl.store(gate + 3 * hidden, show, mask=inside)
    tl.store(kept, cell, mask=inside)
    tl.store(states + here * hidden + units, show * _tanh(cell), mask=inside)


@triton.jit
def _back(
    outputs, gates, cells, weights, drive, raw, carried, step, steps, hidden,
    FIRST: tl.constexpr, LAST: tl.constexpr, UNITS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(0).to(tl.int64)
    units = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    inside = units < hidden
    here, at = _place(batch, step, steps), batch * steps + step
    state = tl.load(outputs + here * hidden + units, mask=inside, other=0.0)
    own = carried + batch * hidden + units
    cell = tl.zeros((UNITS,), dtype=tl.float32)
    if not LAST:
        cell += tl.load(own, mask=inside, other=0.0)
        matrix = weights + batch * 4 * hidden * hidden
        sums = tl.zeros((ROWS, UNITS), dtype=tl.float32)
        for start in range(0, 4 * hidden, ROWS):
            rows = start + tl.arange(0, ROWS)
            known = rows < 4 * hidden
            sent = tl.load(raw + (at + 1) * 4 * hidden + rows, mask=known, other=0.0)
            tile = tl.load(
                matrix + rows[:, None] * hidden + units[None, :],
                mask=known[:, None] & inside[None, :],
                other=0.0,
            )
            sums += sent[:, None] * tile.to(tl.float32)
        state += tl.sum(sums, 0)
    gate = gates + at * 4 * hidden + units
    take = tl.load(gate, mask=inside, other=0.0)
    forget = tl.load(gate + hidden, mask=inside, other=0.0)
    new = tl.load(gate + 2 * hidden, mask=inside, other=0.0)
    show = tl.load(gate + 3 * hidden, mask=inside, other=0.0)
    kept = cells + at * hidden + units
    shown = _tanh(tl.load(kept, mask=inside, other=0.0))
    cell += state * show * (1 - shown * shown)
    old = tl.zeros((UNITS,), dtype=tl.float32)
    if not FIRST:
        old += tl.load(kept - hidden, mask=inside, other=0.0)
    to_take, to_forget = cell * new * take * (1 - take), cell * old * forget * (1 - forget)
    to_new, to_show = cell * take * (1 - new * new), state * shown * show * (1 - show)
    # As the steps of this direction, which the next program and the weights' gradient read, ...
    mine = raw + at * 4 * hidden + units
    tl.store(mine, to_take, mask=inside)
    tl.store(mine + hidden, to_forget, mask=inside)
    tl.store(mine + 2 * hidden, to_new, mask=inside)
    tl.store(mine + 3 * hidden, to_show, mask=inside)
    # ... and as the inputs stand.
    theirs = drive + here * 4 * hidden + units
    tl.store(theirs, to_take, mask=inside)
    tl.store(theirs + hidden, to_forget, mask=inside)
    tl.store(theirs + 2 * hidden, to_new, mask=inside)
    tl.store(theirs + 3 * hidden, to_show, mask=inside)
    tl.store(own, cell * forget, mask=inside)


def recur(drive: Tensor, recurrent: Tensor) -> tuple[Tensor, ...]:
    """Walk through the vectors, as ``encoders._recur`` does, in float32.

    Args:
        drive: [r, n, 8h], what the inputs drive, of both directions.
        recurrent: [2r, h, 4h], of weights that lie [2r, 4h, h]; any float type.
    """
    drive, weights = drive.contiguous(), recurrent.mT.contiguous()
    steps, (batch, hidden, _) = drive.shape[1], recurrent.shape
    states = drive.new_empty(batch // 2, steps, 2 * hidden)
    before, cells = drive.new_empty(2, batch, steps, hidden)
    gates = drive.new_empty(batch, steps, 4 * hidden)
    columns = max(16, triton.next_power_of_2(hidden))
    units = max(1, min(16, 4096 // columns))
    for step in range(steps):
        _forth[(batch, triton.cdiv(hidden, units))](
            drive, weights, states, before, gates, cells, step, steps, hidden,
            FIRST=step == 0, UNITS=units, HIDDEN=columns,
        )  # fmt: skip
    return states, before, gates, cells


def recur_back(
    states: Tensor, gates: Tensor, cells: Tensor, recurrent: Tensor
) -> tuple[Tensor, ...]:
    """Return the gradient of what the inputs drive, as ``encoders._recur_back`` does."""
    states, weights = states.contiguous(), recurrent.mT.contiguous()
    batch, steps, hidden = cells.shape
    raw, carried = torch.empty_like(gates), cells.new_empty(batch, hidden)
    drive = gates.new_empty(batch // 2, steps, 8 * hidden)
    for step in reversed(range(steps)):
        _back[(batch, triton.cdiv(hidden, 32))](
            states, gates, cells, weights, drive, raw, carried, step, steps, hidden,
            FIRST=step == 0, LAST=step == steps - 1, UNITS=32, ROWS=128,
        )  # fmt: skip
    return drive, raw
