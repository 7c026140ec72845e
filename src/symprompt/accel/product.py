"""The vocabulary product of bfloat16 states and float32 weights on a GPU's tensor cores.

Its plain twin is ``functional.linear`` of float32 states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

_BIAS_COLUMNS = 8
"""Three hold the bias; the others keep rows of the matrix aligned."""
Weigh = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class SplitProduct:
    """bfloat16 states [n, h] times float32 weights [v, h], plus a bias, as one product; final.

    With the weights and the bias in three bfloat16 parts it is exact but for the order of summing.
    Losses and their gradient, which becomes bfloat16, take two parts of the weights (17 bits); the
    gradient of the states, bfloat16 like them, takes the first part alone.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.parts = split_weights(weight)
        # First, where a product of fewer parts has it too.
        if bias is not None:
            held = split_weights(bias[:, None])
            self.parts = torch.cat(
                (functional.pad(held, (0, _BIAS_COLUMNS - 3)), self.parts), dim=1
            )

    def logits(self, rows: Tensor) -> Tensor:
        """Return the logits [n, v], float32."""
        found: Tensor = _Logits.apply(rows, self.parts)  # type: ignore[no-untyped-call]
        return found

    def losses(self, rows: Tensor, target: Tensor, share: Tensor, weigh: Weigh) -> Tensor:
        """Return cross-entropies times shares, [n]; logits and their gradient are never kept.

        Args:
            target, share: [n].
            weigh: ``weigh_losses``, as it is or compiled.
        """
        found: Tensor = _Losses.apply(  # type: ignore[no-untyped-call]
            rows, self.parts, target, share, weigh
        )
        return found


def split_weights(weight: Tensor) -> Tensor:
    """Return bfloat16 [v, 3h] whose three parts add up to float32 weights [v, h]."""
    parts, rest = [], weight
    for _ in range(3):
        parts.append(rest.to(torch.bfloat16))
        rest = rest - parts[-1].float()
    return torch.cat(parts, dim=1)


def weigh_losses(logits: Tensor, target: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Return cross-entropies times shares [n], and the gradient of their sum [n, v], bfloat16."""
    share = share.to(logits.dtype)
    top = logits.amax(1, keepdim=True)
    raised = (logits - top).exp()
    total = raised.sum(1, keepdim=True)
    losses = (total.log() + top)[:, 0] - logits.gather(1, target[:, None])[:, 0]
    right = torch.arange(logits.shape[1], device=logits.device) == target[:, None]
    gradient = (raised / total - right.to(logits.dtype)) * share[:, None]
    return losses * share, gradient.to(torch.bfloat16)


def _product(rows: Tensor, parts: Tensor, count: int = 3) -> Tensor:
    """Return the product with so many parts of the weights."""
    ones = rows.new_ones(len(rows), _first(rows, parts))
    fed = torch.cat((ones, *[rows] * count), dim=1)
    parts = parts[:, : fed.shape[1]]
    if rows.is_cuda:
        return torch.mm(fed, parts.mT, out_dtype=torch.float32)
    return fed.float() @ parts.float().mT


def _first(rows: Tensor, parts: Tensor) -> int:
    """Return the column where the first part starts, after the bias."""
    return parts.shape[1] - 3 * rows.shape[1]


def _leading(rows: Tensor, parts: Tensor) -> Tensor:
    """Return the first part, [v, h]."""
    start = _first(rows, parts)
    return parts[:, start : start + rows.shape[1]]


class _Logits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, parts: Tensor) -> Tensor:
        ctx.save_for_backward(_leading(rows, parts))
        return _product(rows, parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (weight,) = ctx.saved_tensors
        return torch.mm(gradients[0].to(weight.dtype), weight), None


class _Losses(torch.autograd.Function):
    """The gradient is computed in the forward pass, while the logits are there."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, parts: Tensor, target: Tensor, share: Tensor, weigh: Weigh
    ) -> Tensor:
        losses, gradient = weigh(_product(rows, parts, 2), target, share)
        ctx.save_for_backward(torch.mm(gradient, _leading(rows, parts)))
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (states,) = ctx.saved_tensors
        return gradients[0][:, None].to(states.dtype) * states, None, None, None, None
