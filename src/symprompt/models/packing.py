"""Whether a model answers packed rows as it answers padded sentences, found out by trying.

Nothing is compiled for that.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from symprompt.accel.packing import longest_on, pack
from symprompt.accel.rows import RowLayers
from symprompt.accel.switches import SWITCHES
from symprompt.models.inputs import Inputs

if TYPE_CHECKING:
    from symprompt.models.language_model import LanguageModel


def longest_packed(backbone: LanguageModel) -> tuple[int, str]:
    """Return how long sentences may be that are packed into a row, or 0 and the reason.

    Rows are packed on CUDA alone, where it is faster, and not for causal models, whose sentences
    end before what is asked.
    """
    if backbone.device.type != "cuda":
        return 0, f"rows are packed on CUDA alone, and the device is {backbone.device.type}"
    if backbone.causal:
        return 0, "the model is causal"
    if backbone.dtype.itemsize != 2:
        return 0, f"rows are packed in half precision alone, and the dtype is {backbone.dtype}"
    longest = longest_on(backbone.device, backbone.dtype, backbone.model.config)
    if not longest or not SWITCHES["packing"]:
        return 0, "the model's heads do not fit on this GPU"
    if not can_pack(backbone):
        return 0, (
            f"{type(backbone.model).__name__} does not answer packed sentences as it answers "
            "padded ones (relative positions, or an attention of its own)"
        )
    return longest, ""


def find_row_layers(backbone: LanguageModel) -> RowLayers | None:
    """Return the model's layers for packed rows if they give the states that the model gives."""
    layers = RowLayers.of(backbone.model.base_model, backbone.positions.first)
    if layers is None:
        return None
    lengths = torch.tensor([3, 5, 4], device=backbone.device)
    packing, _ = pack(lengths, 14, 5)
    ids = torch.arange(14, device=backbone.device)
    inputs = Inputs(backbone.embed(ids)[None], None, packing=packing)
    at = lengths.cumsum(0) - 1
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        try:
            with backbone.passing(inputs) as given:
                one = backbone.model.base_model(**given).last_hidden_state[0, at]
            other = layers.states_at(inputs, at)
        except Exception:
            # Whatever a model or the kernels' compiler raises: then its own layers are used.
            return None
    return layers if _near(backbone, one, other) else None


def _near(backbone: LanguageModel, one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal as far as the dtype goes."""
    spread = float((one - one.mean(0)).abs().max())
    allowed = 0.1 if backbone.dtype.itemsize == 2 else 1e-3
    return bool(torch.isfinite(other).all()) and float((one - other).abs().max()) <= (
        allowed * spread
    )


def can_pack(backbone: LanguageModel) -> bool:
    """Return whether packed sentences get the answers that padded ones get."""
    if "position_ids" not in inspect.signature(backbone.model.forward).parameters:
        return False
    lengths = torch.tensor([3, 5, 4], device=backbone.device)
    ids = torch.arange(15, device=backbone.device).view(3, 5)
    mask = torch.arange(5, device=backbone.device) < lengths[:, None]
    packing, owner = pack(lengths, 14, 5)
    row = Inputs(backbone.embed(ids[owner, packing.place])[None], None, packing=packing)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        one = backbone.logits_at(Inputs(backbone.embed(ids), mask), lengths - 1)
        try:
            other = backbone.logits_at(row, lengths.cumsum(0) - 1)
        except Exception:
            # Whatever a model or the kernels' compiler raises: then sentences are padded.
            return False
    return _near(backbone, one, other)
