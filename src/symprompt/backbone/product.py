"""The product onto the vocabulary in float32, whatever the dtype of the model's body."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional


def keep_in_float32(decoder: nn.Linear, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Make the vocabulary product run on float32 copies of its weights; return these."""
    weight = decoder.weight.detach().to(device, torch.float32, copy=True)
    bias = None if decoder.bias is None else decoder.bias.detach().to(device, torch.float32)
    # On the tensor cores of a GPU, a product of float32 weights with a bfloat16 state is exact but
    # for the order of summing if the weights are given as three bfloat16 parts.
    parts = split_weights(weight) if device.type == "cuda" else None

    def forward(hidden: Tensor) -> Tensor:
        if parts is not None and hidden.dtype == torch.bfloat16:
            rows = hidden.reshape(-1, hidden.shape[-1])
            product: Tensor = _SplitProduct.apply(rows, parts)  # type: ignore[no-untyped-call]
            logits = product if bias is None else product + bias
            return logits.view(*hidden.shape[:-1], -1)
        return functional.linear(hidden.to(torch.float32), weight, bias)

    decoder.forward = forward  # type: ignore[method-assign, assignment]
    return weight, bias


def split_weights(weight: Tensor) -> Tensor:
    """Return bfloat16 [v, 3h] whose three parts add up to float32 weights [v, h]."""
    parts, rest = [], weight
    for _ in range(3):
        parts.append(rest.to(torch.bfloat16))
        rest = rest - parts[-1].float()
    return torch.cat(parts, dim=1)


class _SplitProduct(torch.autograd.Function):
    """bfloat16 states [n, h] times weights in three parts [v, 3h], float32 [n, v].

    The gradient of the states, bfloat16 like them, takes the first part alone.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, parts: Tensor) -> Tensor:
        ctx.save_for_backward(parts)
        return torch.mm(rows.repeat(1, 3), parts.mT, out_dtype=torch.float32)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (parts,) = ctx.saved_tensors
        first = parts[:, : parts.shape[1] // 3]
        return torch.mm(gradients[0].to(parts.dtype), first), None
