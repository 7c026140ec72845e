"""The recurrence of many LSTMs side by side, one CUDA kernel a step, written in Triton.

A step is bound by reading every LSTM's recurrent weights once. What is element-wise is done where
the sums are: forth a program makes the gates of some units, back it sums what the next step's gates
send to some units and goes on to their own gates.
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
def _raw_gate(drive, matrix, state, units, columns, inside, known, hidden, NUMBER: tl.constexpr):
    rows = NUMBER * hidden + units
    at = rows[:, None] * hidden + columns[None, :]
    tile = tl.load(matrix + at, mask=inside[:, None] & known[None, :], other=0.0)
    sums = tl.sum(tile.to(tl.float32) * state[None, :], 1)
    return sums + tl.load(drive + rows, mask=inside, other=0.0)


@triton.jit
def _forth(
    drive, weights, gates, states, cells, step, steps, hidden,
    UNITS: tl.constexpr, HIDDEN: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(0).to(tl.int64)
    units = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    columns = tl.arange(0, HIDDEN)
    inside, known = units < hidden, columns < hidden
    before = (batch * (steps + 1) + step) * hidden
    state = tl.load(states + before + columns, mask=known, other=0.0)
    matrix = weights + batch * 4 * hidden * hidden
    at = (batch * steps + step) * 4 * hidden
    own = drive + at
    take = tl.sigmoid(_raw_gate(own, matrix, state, units, columns, inside, known, hidden, 0))
    forget = tl.sigmoid(_raw_gate(own, matrix, state, units, columns, inside, known, hidden, 1))
    new = _tanh(_raw_gate(own, matrix, state, units, columns, inside, known, hidden, 2))
    show = tl.sigmoid(_raw_gate(own, matrix, state, units, columns, inside, known, hidden, 3))
    cell = forget * tl.load(cells + before + units, mask=inside, other=0.0) + take * new
    tl.store(gates + at + units, take, mask=inside)
    tl.store(gates + at + hidden + units, forget, mask=inside)
    tl.store(gates + at + 2 * hidden + units, new, mask=inside)
    tl.store(gates + at + 3 * hidden + units, show, mask=inside)
    tl.store(cells + before + hidden + units, cell, mask=inside)
    tl.store(states + before + hidden + units, show * _tanh(cell), mask=inside)


@triton.jit
def _back(
    outputs, gates, cells, weights, raw, carried, step, steps, hidden,
    LAST: tl.constexpr, UNITS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(0).to(tl.int64)
    units = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    inside = units < hidden
    place = batch * steps + step
    at = place * 4 * hidden + units
    state = tl.load(outputs + place * hidden + units, mask=inside, other=0.0)
    if not LAST:
        matrix = weights + batch * 4 * hidden * hidden
        sums = tl.zeros((ROWS, UNITS), dtype=tl.float32)
        for start in range(0, 4 * hidden, ROWS):
            rows = start + tl.arange(0, ROWS)
            known = rows < 4 * hidden
            sent = tl.load(raw + (place + 1) * 4 * hidden + rows, mask=known, other=0.0)
            tile = tl.load(
                matrix + rows[:, None] * hidden + units[None, :],
                mask=known[:, None] & inside[None, :],
                other=0.0,
            )
            sums += sent[:, None] * tile.to(tl.float32)
        state += tl.sum(sums, 0)
    take = tl.load(gates + at, mask=inside, other=0.0)
    forget = tl.load(gates + at + hidden, mask=inside, other=0.0)
    new = tl.load(gates + at + 2 * hidden, mask=inside, other=0.0)
    show = tl.load(gates + at + 3 * hidden, mask=inside, other=0.0)
    before = (place + batch) * hidden + units
    shown = _tanh(tl.load(cells + before + hidden, mask=inside, other=0.0))
    own = carried + batch * hidden + units
    cell = tl.load(own, mask=inside, other=0.0) + state * show * (1 - shown * shown)
    old = tl.load(cells + before, mask=inside, other=0.0)
    tl.store(raw + at, cell * new * take * (1 - take), mask=inside)
    tl.store(raw + at + hidden, cell * old * forget * (1 - forget), mask=inside)
    tl.store(raw + at + 2 * hidden, cell * take * (1 - new * new), mask=inside)
    tl.store(raw + at + 3 * hidden, state * shown * show * (1 - show), mask=inside)
    tl.store(own, cell * forget, mask=inside)


def recur(drive: Tensor, recurrent: Tensor) -> tuple[Tensor, ...]:
    """Return the gates [b, n, 4h], and states and cells [b, n + 1, h] from the first, zero, on.

    Args:
        drive: [b, n, 4h] float32, what the inputs drive.
        recurrent: [b, h, 4h], of weights that lie [b, 4h, h]; any float type.
    """
    drive, weights = drive.contiguous(), recurrent.mT.contiguous()
    batch, steps, _ = drive.shape
    hidden = recurrent.shape[1]
    gates = torch.empty_like(drive)
    states, cells = drive.new_zeros(2, batch, steps + 1, hidden)
    columns = max(16, triton.next_power_of_2(hidden))
    units = max(1, min(16, 4096 // columns))
    for step in range(steps):
        _forth[(batch, triton.cdiv(hidden, units))](
            drive, weights, gates, states, cells, step, steps, hidden,
            UNITS=units, HIDDEN=columns,
        )  # fmt: skip
    return gates, states, cells


def recur_back(
    outputs: Tensor, gates: Tensor, cells: Tensor, recurrent: Tensor
) -> tuple[Tensor, ...]:
    """Return the gradient of what the inputs drive, [b, n, 4h], from that of the states."""
    outputs, weights = outputs.contiguous(), recurrent.mT.contiguous()
    batch, steps, hidden = outputs.shape
    raw = torch.empty_like(gates)
    carried = outputs.new_zeros(batch, hidden)
    for step in reversed(range(steps)):
        _back[(batch, triton.cdiv(hidden, 32))](
            outputs, gates, cells, weights, raw, carried, step, steps, hidden,
            LAST=step == steps - 1, UNITS=32, ROWS=128,
        )  # fmt: skip
    return (raw,)
