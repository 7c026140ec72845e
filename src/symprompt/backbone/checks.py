"""What a model can do, found out by asking it."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import torch

from symprompt.backbone.inputs import Inputs
from symprompt.backbone.packing import pack
from symprompt.errors import ModelError

if TYPE_CHECKING:
    from symprompt.backbone.model import Backbone


def can_pack(backbone: Backbone) -> bool:
    """Say whether packed sentences get the answers that padded ones get."""
    if "position_ids" not in inspect.signature(backbone.model.forward).parameters:
        return False
    lengths = torch.tensor([3, 5, 4], device=backbone.device)
    ids = torch.arange(15, device=backbone.device).view(3, 5)
    mask = torch.arange(5, device=backbone.device) < lengths[:, None]
    packing, owner = pack(lengths, 14, 5)
    row = Inputs(backbone.embed(ids[owner, packing.place])[None], None, packing=packing)
    with torch.no_grad():
        one = backbone.logits_at(Inputs(backbone.embed(ids), mask), lengths - 1)
        try:
            other = backbone.logits_at(row, lengths.cumsum(0) - 1)
        except Exception:
            # Whatever a model or the kernels' compiler says: then sentences are padded.
            return False
    spread = float((one - one.mean(0)).abs().max())
    allowed = 0.1 if backbone.dtype.itemsize == 2 else 1e-3
    return bool(torch.isfinite(other).all()) and float((one - other).abs().max()) <= (
        allowed * spread
    )


def check_causal(backbone: Backbone) -> None:
    """Refuse a model whose answers change with what follows (XLNet has a causal-LM head too).

    Raises:
        ModelError: the model sees what follows.
    """
    ids = torch.tensor([[0, 1, 1, 1], [0, 2, 2, 2]], device=backbone.device)
    inputs = Inputs(backbone.embed(ids), torch.ones_like(ids, dtype=torch.bool))
    with torch.no_grad():
        one, other = backbone.logits_at(inputs, torch.zeros_like(ids[:, 0]))
    near = 1e-2 * float(one.abs().max().nan_to_num())
    if not torch.allclose(one, other, rtol=1e-2, atol=near, equal_nan=True):
        raise ModelError(
            f"{backbone.source} is a {backbone.model.config.model_type} model, whose answers "
            "change with what comes after them, so it is not causal; give a masked or a causal "
            "language model."
        )
