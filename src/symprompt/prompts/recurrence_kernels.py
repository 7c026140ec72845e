"""The recurrence of many LSTMs side by side, one CUDA kernel a step, written in Triton.

A step is bound by reading every LSTM's recurrent weights once. What is element-wise is done where
the sums are: forth a program makes the gates of some units, back it sums what the next step's gates
send to some units and goes on to their own gates.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

_WHOLE = False
_WHOLE_UNITS = 32
_WHOLE_BACK = 64, 128
_WHOLE_WARPS = 16
_CACHE = 1 << 40
"""Bytes of weights that are read at every step without reading them from memory again."""


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
def _units(
    drive, matrix, state, gates, states, cells, units, columns, inside, known, hidden,
):  # fmt: skip
    """Make the gates of some units, their cells and their states after this step."""
    take = tl.sigmoid(_raw_gate(drive, matrix, state, units, columns, inside, known, hidden, 0))
    forget = tl.sigmoid(_raw_gate(drive, matrix, state, units, columns, inside, known, hidden, 1))
    new = _tanh(_raw_gate(drive, matrix, state, units, columns, inside, known, hidden, 2))
    show = tl.sigmoid(_raw_gate(drive, matrix, state, units, columns, inside, known, hidden, 3))
    cell = forget * tl.load(cells + units, mask=inside, other=0.0) + take * new
    tl.store(gates + units, take, mask=inside)
    tl.store(gates + hidden + units, forget, mask=inside)
    tl.store(gates + 2 * hidden + units, new, mask=inside)
    tl.store(gates + 3 * hidden + units, show, mask=inside)
    tl.store(cells + hidden + units, cell, mask=inside)
    tl.store(states + hidden + units, show * _tanh(cell), mask=inside)


@triton.jit
def _units_back(
    outputs, gates, cells, raw, carried, sent, batch, place, units, inside, hidden,
):  # fmt: skip
    """Make the gradients of some units' gates from what the next step sends to their states."""
    at = place * 4 * hidden + units
    state = sent + tl.load(outputs + place * hidden + units, mask=inside, other=0.0)
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


@triton.jit
def _forth(
    drive, weights, gates, states, cells, first, step, steps, hidden,
    UNITS: tl.constexpr, HIDDEN: tl.constexpr,
):  # fmt: skip
    batch = first + tl.program_id(0).to(tl.int64)
    units = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    columns = tl.arange(0, HIDDEN)
    inside, known = units < hidden, columns < hidden
    before = (batch * (steps + 1) + step) * hidden
    state = tl.load(states + before + columns, mask=known, other=0.0)
    matrix = weights + batch * 4 * hidden * hidden
    at = (batch * steps + step) * 4 * hidden
    _units(
        drive + at, matrix, state, gates + at, states + before, cells + before,
        units, columns, inside, known, hidden,
    )  # fmt: skip


@triton.jit
def _back(
    outputs, gates, cells, weights, raw, carried, first, step, steps, hidden,
    LAST: tl.constexpr, UNITS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    batch = first + tl.program_id(0).to(tl.int64)
    units = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    inside = units < hidden
    place = batch * steps + step
    state = tl.zeros((UNITS,), dtype=tl.float32)
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
    _units_back(outputs, gates, cells, raw, carried, state, batch, place, units, inside, hidden)


@triton.jit
def _forth_whole(
    drive, weights, gates, states, cells, steps, hidden, UNITS: tl.constexpr, HIDDEN: tl.constexpr
):
    batch = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, HIDDEN)
    known = columns < hidden
    matrix = weights + batch * 4 * hidden * hidden
    for step in range(steps):
        before = (batch * (steps + 1) + step) * hidden
        at = (batch * steps + step) * 4 * hidden
        own = drive + at
        state = tl.load(states + before + columns, mask=known, other=0.0)
        for start in range(0, hidden, UNITS):
            units = start + tl.arange(0, UNITS)
            inside = units < hidden
            _units(
                own, matrix, state, gates + at, states + before, cells + before,
                units, columns, inside, known, hidden,
            )  # fmt: skip
        # The next step reads the states of all units.
        tl.debug_barrier()


@triton.jit
def _back_whole(
    outputs, gates, cells, weights, raw, carried, steps, hidden,
    UNITS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(0).to(tl.int64)
    matrix = weights + batch * 4 * hidden * hidden
    for back in range(steps):
        place = batch * steps + steps - 1 - back
        for start in range(0, hidden, UNITS):
            units = start + tl.arange(0, UNITS)
            inside = units < hidden
            sums = tl.zeros((ROWS, UNITS), dtype=tl.float32)
            # Nothing follows the last step.
            end = tl.where(back == 0, 0, 4 * hidden)
            for first in range(0, end, ROWS):
                rows = first + tl.arange(0, ROWS)
                known = rows < 4 * hidden
                sent = tl.load(raw + (place + 1) * 4 * hidden + rows, mask=known, other=0.0)
                tile = tl.load(
                    matrix + rows[:, None] * hidden + units[None, :],
                    mask=known[:, None] & inside[None, :],
                    other=0.0,
                )
                sums += sent[:, None] * tile.to(tl.float32)
            _units_back(
                outputs, gates, cells, raw, carried, tl.sum(sums, 0), batch, place, units, inside,
                hidden,
            )  # fmt: skip
        tl.debug_barrier()


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
    if _WHOLE:
        _forth_whole[(batch,)](
            drive, weights, gates, states, cells, steps, hidden,
            UNITS=_WHOLE_UNITS, HIDDEN=columns, num_warps=_WHOLE_WARPS,
        )  # fmt: skip
        return gates, states, cells
    units = max(1, min(16, 4096 // columns))
    for first, count in _groups(weights):
        for step in range(steps):
            _forth[(count, triton.cdiv(hidden, units))](
                drive, weights, gates, states, cells, first, step, steps, hidden,
                UNITS=units, HIDDEN=columns,
            )  # fmt: skip
    return gates, states, cells


def _groups(weights: Tensor) -> Iterator[tuple[int, int]]:
    """Give first and number of LSTMs whose weights stay in a GPU's cache from step to step."""
    most = max(1, _CACHE // (weights[0].numel() * weights.itemsize))
    for first in range(0, len(weights), most):
        yield first, min(most, len(weights) - first)


def recur_back(
    outputs: Tensor, gates: Tensor, cells: Tensor, recurrent: Tensor
) -> tuple[Tensor, ...]:
    """Return the gradient of what the inputs drive, [b, n, 4h], from that of the states."""
    outputs, weights = outputs.contiguous(), recurrent.mT.contiguous()
    batch, steps, hidden = outputs.shape
    raw = torch.empty_like(gates)
    carried = outputs.new_zeros(batch, hidden)
    if _WHOLE:
        _back_whole[(batch,)](
            outputs, gates, cells, weights, raw, carried, steps, hidden,
            UNITS=_WHOLE_BACK[0], ROWS=_WHOLE_BACK[1], num_warps=_WHOLE_WARPS,
        )  # fmt: skip
        return (raw,)
    for first, count in _groups(weights):
        for step in reversed(range(steps)):
            _back[(count, triton.cdiv(hidden, 32))](
                outputs, gates, cells, weights, raw, carried, first, step, steps, hidden,
                LAST=step == steps - 1, UNITS=32, ROWS=128,
            )  # fmt: skip
    return (raw,)
