"""The CUDA kernels against their plain twins, on a CPU through Triton's interpreter.

``make interpret`` runs this file. Triton is as large as torch and comes with builds of torch for
CUDA alone, where the other tests make the same comparisons on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from symprompt.accel import (
    adam_kernels,
    attention_kernels,
    gelu_kernels,
    packing,
    query_kernels,
    recurrence_kernels,
)
from symprompt.engine.stacked_adam import adam_update
from symprompt.prompts import encoders

Draw = Callable[..., Tensor]
REAL = torch.tensor([0, 1, 2, 4, 5])
"""Sentences with tokens, of six."""


@pytest.fixture
def draw() -> Draw:
    """Give random tensors."""
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(shape, generator=generator)


def near(one: Tensor, other: Tensor) -> None:
    """Assert that two tensors differ by rounding alone."""
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def inner(work: Any) -> Callable[..., Any]:
    """Return the function behind an operator that is registered for CUDA."""
    found: Callable[..., Any] = work._init_fn
    return found


def make_packing(longest: int) -> tuple[packing.Packing, int]:
    """Return six sentences, one of them empty, and how many tokens they have; five are left."""
    lengths = torch.tensor([17, 1, min(40, longest), 0, longest, 9])
    total = int(lengths.sum())
    return packing.pack(lengths, total + 5, int(lengths.max()))[0], total


# Windows of 128 tokens and of 64. A program has one head, or two where a chip has the room.
@pytest.mark.parametrize("longest", [70, 30])
@pytest.mark.parametrize(
    ("heads", "size", "room", "by_distance"),
    [(2, 16, 0, True), (5, 24, 1 << 20, False), (4, 24, 1 << 20, True)],
)
def test_attention_of_packed_rows(
    draw: Draw,
    longest: int,
    heads: int,
    size: int,
    room: int,
    by_distance: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention_kernels, "room_on", lambda _: room)
    where, total = make_packing(longest)
    width, scale = heads * size, size**-0.5
    # The products of a layer joined.
    joined = draw(total + 5, 3 * width).requires_grad_()
    bias = draw(heads, 2 * packing.LONGEST - 1) if by_distance else torch.zeros(0)
    options = (where.within, bias, heads, where.window, scale)
    wanted = packing.attend_row(joined, *options)
    near(inner(attention_kernels.attend_row)(joined.detach(), *options)[:total], wanted[:total])
    weight = draw(total + 5, width)
    weight[total:] = 0
    (true,) = torch.autograd.grad((wanted * weight).sum(), [joined])
    near(inner(attention_kernels.attend_row_back)(weight, joined.detach(), *options), true)
    # As transformers' attention interface calls it.
    states = [draw(1, heads, total + 5, size).requires_grad_() for _ in range(3)]
    bare = [one.detach() for one in states]
    mask = where.as_mask()
    wanted, _ = packing.packed_attention(torch.nn.Module(), *states, mask, scaling=scale)
    end = (where.within, where.window, scale)
    near(inner(attention_kernels.attend)(*bare, *end)[:, :total], wanted[:, :total])
    weight = draw(*wanted.shape)
    weight[:, total:] = 0
    truth = torch.autograd.grad((wanted * weight).sum(), states)
    made = inner(attention_kernels.attend_back)(weight, *bare, *end)
    for one, other in zip(made, truth, strict=True):
        near(one[:, :total], other.transpose(1, 2)[:, :total])


# In one piece, in several, and with a last one that is not full.
@pytest.mark.parametrize(("heads", "width"), [(2, 32), (8, 256), (5, 200), (40, 80)])
def test_attention_of_one_query_a_sentence(draw: Draw, heads: int, width: int) -> None:
    where, total = make_packing(40)
    options = where.starts, where.block, width**-0.5
    query = draw(heads, 6, width).requires_grad_()
    states = draw(total + 5, width).requires_grad_()
    bare = query.detach(), states.detach()
    wanted = packing.attend_asked(query, states, *options)
    near(inner(query_kernels.attend_asked)(*bare, *options)[:, REAL], wanted[:, REAL])
    weight = draw(heads, 6, width)
    weight[:, 3] = 0
    truth = torch.autograd.grad((wanted * weight).sum(), (query, states))
    made = inner(query_kernels.attend_asked_back)(weight, *bare, *options)
    near(made[0][:, REAL], truth[0][:, REAL])
    near(made[1], truth[1])


def test_gelu(draw: Draw) -> None:
    states, weight = (4 * draw(3, 1000)).requires_grad_(), draw(3, 1000)
    wanted = functional.gelu(states)
    near(inner(gelu_kernels.gelu)(states.detach()), wanted)
    (true,) = torch.autograd.grad((wanted * weight).sum(), [states])
    near(inner(gelu_kernels.gelu_back)(weight, states.detach()), true)


@pytest.mark.parametrize("hidden", [16, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_of_lstms(draw: Draw, hidden: int, dtype: torch.dtype) -> None:
    drive, outputs = draw(2, 5, 8 * hidden), draw(2, 5, 2 * hidden)
    recurrent = (draw(4, 4 * hidden, hidden) / 4).to(dtype).mT
    wanted = encoders._recur(drive, recurrent)
    for one, other in zip(recurrence_kernels.recur(drive, recurrent), wanted, strict=True):
        near(one, other)
    given = (outputs, *wanted[2:], recurrent)
    truth = encoders._recur_back(*given)
    for one, other in zip(recurrence_kernels.recur_back(*given), truth, strict=True):
        near(one, other)


# A parameter of more axes is seen as more matrices or as taller ones.
@pytest.mark.parametrize(
    ("shape", "batch"), [((3, 40, 24), 3), ((3, 2, 40, 150), 6), ((3, 2, 40, 150), 3)]
)
@pytest.mark.parametrize(("decay", "decoupled"), [(0.0, False), (0.1, False), (0.1, True)])
def test_adam_from_factors_of_a_gradient(
    draw: Draw, shape: tuple[int, ...], batch: int, decay: float, decoupled: bool
) -> None:
    active = torch.tensor([1.0, 0.0, 1.0])
    correction = torch.tensor([0.5, 0.6, 0.7])
    numbers = torch.stack(
        (active * 0.1, active * 0.001, active * 0.01, correction, 1 - active * 0.001)
    )
    own = [draw(*shape), draw(*shape) * 0.1, draw(*shape).square() * 0.01]
    left, right = (draw(batch, 9, size) for size in own[0].view(batch, -1, shape[-1]).shape[1:])
    gradient = torch.einsum("bno,bni->boi", left, right).reshape(3, -1)
    wanted = [one.clone().view(3, -1) for one in own]
    rest = (numbers, 1e-8, decay, decoupled)
    adam_update(wanted[0], gradient, wanted[1], wanted[2], *rest)
    adam_kernels.update_by_factors(*own, left, right, *rest)
    for one, other in zip(own, wanted, strict=True):
        near(one.view(3, -1), other)
