"""What a model can do, found out by asking it; nothing is compiled for that."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from symprompt.accel.packing import pack
from symprompt.accel.rows import RowLayers
from symprompt.errors import ModelError
from symprompt.models.inputs import Inputs

if TYPE_CHECKING:
    from symprompt.models.language_model import LanguageModel


def find_row_layers(backbone: LanguageModel) -> RowLayers | None:
    """Return the model's layers for packed rows if they give the states that the model gives."""
    layers = RowLayers.of(backbone.model.base_model, backbone.places.first)
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
            # Whatever a model or the kernels' compiler says: then its own layers are used.
            return None
    return layers if _near(backbone, one, other) else None


def _near(backbone: LanguageModel, one: Tensor, other: Tensor) -> bool:
    """Say whether what should be the same numbers are, as far as the dtype goes."""
    spread = float((one - one.mean(0)).abs().max())
    allowed = 0.1 if backbone.dtype.itemsize == 2 else 1e-3
    return bool(torch.isfinite(other).all()) and float((one - other).abs().max()) <= (
        allowed * spread
    )


def can_pack(backbone: LanguageModel) -> bool:
    """Say whether packed sentences get the answers that padded ones get."""
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
            # Whatever a model or the kernels' compiler says: then sentences are padded.
            return False
    return _near(backbone, one, other)


def check_causal(backbone: LanguageModel) -> None:
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
