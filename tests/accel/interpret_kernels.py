"""Check the CUDA kernels on a CPU, through Triton's interpreter, against their plain twins.

    pip install triton
    python tests/interpret_kernels.py

No test of the suite: Triton is as large as torch, and comes with builds of torch for CUDA alone,
where the suite runs the same comparisons on the device.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch import Tensor
from torch.nn import functional

from symprompt.accel import adam_kernels, gelu_kernels, packing, recurrence_kernels
from symprompt.accel import attention_kernels as packed_kernels
from symprompt.accel import attention_kernels as row_kernels
from symprompt.accel import query_kernels as asked_kernels
from symprompt.engine.stacked_adam import adam_update
from symprompt.prompts import encoders

REAL = torch.tensor([0, 1, 2, 4, 5])
"""Sentences with tokens, of six."""


def near(about: str, one: Tensor, other: Tensor) -> None:
    """Stop where two tensors differ by more than rounding."""
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, msg=lambda why: f"{about}: {why}")


def plain(work: Any) -> Callable[..., Any]:
    """Return the function behind an operator that is registered for CUDA."""
    found: Callable[..., Any] = work._init_fn
    return found


def check_attention(draw: Callable[..., Tensor]) -> None:
    """Check attention of packed rows, of joined products, and of one query a sentence."""
    # Windows of 128 tokens, and of 64; sentences of 128 at most, 64, and 32.
    for longest in (70, 40, 30):
        lengths = torch.tensor([17, 1, min(40, longest), 0, longest, 9])
        total = int(lengths.sum())
        where, _ = packing.pack(lengths, total + 5, int(lengths.max()))
        check_rows(draw, where, total)


def check_rows(draw: Callable[..., Tensor], where: packing.Packing, total: int) -> None:
    """Check attention of one row of sentences."""
    tokens = total + 5
    # Of one head a program, and of two, which take turns where a chip has the room.
    for heads, size, room in ((2, 16, 0), (5, 24, 1 << 20), (6, 16, 1 << 20), (4, 24, 1 << 20)):
        packed_kernels.room_on = lambda _, room=room: room  # type: ignore[misc,assignment]
        width, options = heads * size, (heads, where.window, size**-0.5)
        joined = draw(tokens, 3 * width).requires_grad_()
        wanted = packing.attend_row(joined, where.within, *options)
        found = plain(row_kernels.attend_row)(joined.detach(), where.within, *options)
        near("row", found[:total], wanted[:total])
        weight = draw(tokens, width)
        weight[total:] = 0
        (true,) = torch.autograd.grad((wanted * weight).sum(), [joined])
        back = plain(row_kernels.attend_row_back)
        near("row, back", back(weight, joined.detach(), where.within, *options), true)
        check_generic(draw, where, total, heads, size)
    # In one piece, in several, and with a last one that is not full.
    for heads, width in ((2, 32), (8, 512), (5, 200), (40, 80)):
        check_asked(draw, where, heads, width)


def check_asked(
    draw: Callable[..., Tensor], where: packing.Packing, heads: int, width: int
) -> None:
    """Check what the queries of a sentence see of its states."""
    options = where.starts, where.block, width**-0.5
    pair = draw(heads, 6, width).requires_grad_(), draw(len(where.place), width).requires_grad_()
    bare = [one.detach() for one in pair]
    wanted = packing.attend_asked(*pair, *options)
    found = plain(asked_kernels.attend_asked)(*bare, *options)
    near("asked", found[:, REAL], wanted[:, REAL])
    weight = draw(heads, 6, width)
    weight[:, 3] = 0
    truth = torch.autograd.grad((wanted * weight).sum(), pair)
    made = plain(asked_kernels.attend_asked_back)(weight, *bare, *options)
    near("asked, back to queries", made[0][:, REAL], truth[0][:, REAL])
    near("asked, back to states", made[1], truth[1])


def check_generic(
    draw: Callable[..., Tensor], where: packing.Packing, total: int, heads: int, size: int
) -> None:
    """Check attention as transformers' interface calls it."""
    tokens, scale = total + 5, size**-0.5
    states = [draw(1, heads, tokens, size).requires_grad_() for _ in range(3)]
    bare = [one.detach() for one in states]
    wanted = packing._attend_masked(*states, where.within, scale)
    found = plain(packed_kernels.attend)(*bare, where.within, where.window, scale)
    near("packed", found[:, :total], wanted[:, :total])
    weight = draw(*wanted.shape)
    weight[:, total:] = 0
    truth = torch.autograd.grad((wanted * weight).sum(), states)
    back = plain(packed_kernels.attend_back)
    made = back(weight, *bare, where.within, where.window, scale)
    for one, other in zip(made, truth, strict=True):
        near("packed, back", one[:, :total], other.transpose(1, 2)[:, :total])


def check_gelu(draw: Callable[..., Tensor]) -> None:
    """Check GELU and its gradient."""
    states, weight = (4 * draw(3, 1000)).requires_grad_(), draw(3, 1000)
    wanted = functional.gelu(states)
    near("gelu", plain(gelu_kernels.gelu)(states.detach()), wanted)
    (true,) = torch.autograd.grad((wanted * weight).sum(), [states])
    near("gelu, back", plain(gelu_kernels.gelu_back)(weight, states.detach()), true)


def check_recurrence(draw: Callable[..., Tensor]) -> None:
    """Check the steps of an LSTM, forth and back."""
    for hidden in (16, 24, 40):
        for dtype in (torch.float32, torch.bfloat16):
            drive, outputs = draw(2, 5, 8 * hidden), draw(2, 5, 2 * hidden)
            recurrent = (draw(4, 4 * hidden, hidden) / 4).to(dtype).mT
            wanted = encoders._recur(drive, recurrent)
            for one, other in zip(recurrence_kernels.recur(drive, recurrent), wanted, strict=True):
                near("recurrence", one, other)
            given = (outputs, *wanted[2:], recurrent)
            pairs = zip(
                recurrence_kernels.recur_back(*given), encoders._recur_back(*given), strict=True
            )
            for one, other in pairs:
                near("recurrence, back", one, other)


def check_adam(draw: Callable[..., Tensor]) -> None:
    """Check Adam on gradients in factors."""
    active = torch.tensor([1.0, 0.0, 1.0])
    numbers = torch.stack(
        (
            active * 0.1,
            active * 0.001,
            active * 0.01,
            torch.tensor([0.5, 0.6, 0.7]),
            1 - active * 0.001,
        )
    )
    # A parameter of more axes is seen as more matrices or as taller ones.
    for shape, batch in (((3, 40, 24), 3), ((3, 2, 40, 150), 6), ((3, 2, 40, 150), 3)):
        for decay, decoupled in ((0.0, False), (0.1, False), (0.1, True)):
            own = [draw(*shape), draw(*shape) * 0.1, draw(*shape).square() * 0.01]
            left, right = (
                draw(batch, 9, size) for size in own[0].view(batch, -1, shape[-1]).shape[1:]
            )
            gradient = torch.einsum("bno,bni->boi", left, right).reshape(3, -1)
            wanted = [one.clone().view(3, -1) for one in own]
            rest = (numbers, 1e-8, decay, decoupled)
            adam_update(wanted[0], gradient, wanted[1], wanted[2], *rest)
            adam_kernels.update_by_factors(*own, left, right, *rest)
            for one, other in zip(own, wanted, strict=True):
                near("Adam", one.view(3, -1), other)


def main() -> None:
    """Check everything, and say so."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    for check in (check_attention, check_gelu, check_recurrence, check_adam):
        check(draw)
        print(f"{check.__name__}: as their twins")


if __name__ == "__main__":
    main()
