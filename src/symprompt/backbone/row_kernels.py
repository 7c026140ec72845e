"""Attention on the joined product of a layer: queries, keys and values, and their gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from symprompt.backbone.packed_kernels import launch_back, launch_forth


def _split(joined: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values [1, heads, n, size] within their product [n, 3h]."""
    parts = joined.view(1, len(joined), 3, heads, -1).permute(2, 0, 3, 1, 4)
    return parts[0], parts[1], parts[2]


@torch.library.custom_op("symprompt::attend_row", mutates_args=(), device_types="cuda")
def attend_row(joined: Tensor, within: Tensor, heads: int, window: int, scale: float) -> Tensor:
    """Return attention within each sentence, [n, h].

    Args:
        joined: [n, 3h] queries, keys, values.
        within, window: of the ``Packing``.
    """
    out = joined.new_empty(joined.shape[0], joined.shape[1] // 3)
    launch_forth(_split(joined, heads), out, within, window, scale)
    return out


@attend_row.register_fake
def _(joined, within, heads, window, scale):
    return joined.new_empty(joined.shape[0], joined.shape[1] // 3)


@torch.library.custom_op("symprompt::attend_row_back", mutates_args=(), device_types="cuda")
def attend_row_back(
    gradient: Tensor, joined: Tensor, within: Tensor, heads: int, window: int, scale: float
) -> Tensor:
    """Return the gradient of the joined products, [n, 3h]."""
    found = torch.empty_like(joined)
    launch_back(gradient, _split(joined, heads), _split(found, heads), within, window, scale)
    return found


@attend_row_back.register_fake
def _(gradient, joined, within, heads, window, scale):
    return torch.empty_like(joined)


def _keep_row(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    joined, within, *ctx.options = inputs
    ctx.save_for_backward(joined, within)


def _row_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return attend_row_back(gradient, *ctx.saved_tensors, *ctx.options), None, None, None, None


attend_row.register_autograd(_row_gradient, setup_context=_keep_row)
