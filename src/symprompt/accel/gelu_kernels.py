"""GELU on half-precision states, as one CUDA kernel each way, written in Triton.

The library's error function takes longer than reading and writing the states. Here the tail of the
normal distribution is a polynomial times exp(-x^2 / 2) (Abramowitz and Stegun 7.1.26, off by 1e-7
at most), which the gradient needs as well.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048


@triton.jit
def _normal(x):
    """Return the distribution function of the normal distribution, and exp(-x^2 / 2)."""
    bell = tl.exp(-0.5 * x * x)
    t = 1.0 / (1.0 + 0.23164189 * tl.abs(x))
    tail = 0.7107068705 + t * (-0.7265760135 + t * 0.5307027145)
    tail = t * (0.127414796 + t * (-0.142248368 + t * tail)) * bell
    return tl.where(x < 0, tail, 1.0 - tail), bell


@triton.jit
def _forth(states, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    x = tl.load(states + at, mask=inside, other=0.0).to(tl.float32)
    share, _ = _normal(x)
    tl.store(out + at, (x * share).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _back(gradient, states, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    x = tl.load(states + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
    share, bell = _normal(x)
    found = g * (share + x * 0.3989422804 * bell)
    tl.store(out + at, found.to(out.dtype.element_ty), mask=inside)


@torch.library.custom_op("symprompt::gelu", mutates_args=(), device_types="cuda")
def gelu(states: Tensor) -> Tensor:
    """Return x times the share of the normal distribution below x."""
    states = states.contiguous()
    out = torch.empty_like(states)
    _forth[(triton.cdiv(states.numel(), _BLOCK),)](states, out, states.numel(), BLOCK=_BLOCK)
    return out


@torch.library.custom_op("symprompt::gelu_back", mutates_args=(), device_types="cuda")
def gelu_back(gradient: Tensor, states: Tensor) -> Tensor:
    """Return the gradient of the states."""
    gradient, states = gradient.contiguous(), states.contiguous()
    out = torch.empty_like(states)
    count = states.numel()
    _back[(triton.cdiv(count, _BLOCK),)](gradient, states, out, count, BLOCK=_BLOCK)
    return out


@gelu.register_fake
def _(states):
    return torch.empty_like(states, memory_format=torch.contiguous_format)


@gelu_back.register_fake
def _(gradient, states):
    return torch.empty_like(states, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradient(ctx: Any, gradient: Tensor) -> Tensor:
    found: Tensor = gelu_back(gradient, *ctx.saved_tensors)
    return found


gelu.register_autograd(_gradient, setup_context=_keep)
