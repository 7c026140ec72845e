"""The hidden states of a model's body, for heads of one's own."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from symprompt.backbone.model import Backbone, Inputs
from symprompt.backbone.prefix import Prefix, PrefixShape
from symprompt.errors import ModelError


def body_states(
    backbone: Backbone, inputs: Inputs, *, prefix: Prefix | None = None, grad_model: bool = False
) -> Tensor:
    """Return the last hidden states [b, t, h] of the model's body; its head is not run.

    Args:
        backbone: masked (every token sees every other) or causal (right padding is seen by none).
        inputs: embeddings, mask, token types and what layers read.
        prefix: keys and values before the tokens', in place of ``inputs.prefix``; the output has a
            state for each token and none for the prefix.
        grad_model: whether the model's weights are being trained. If not, they must be frozen, as
            ``Backbone`` leaves them, and a pass that reads nothing learned keeps nothing for a
            gradient.

    Raises:
        ModelError: the prefix does not fit the model, or the body gave no state for each token.
    """
    if prefix is not None:
        inputs = replace(inputs, prefix=prefix)
    learned = inputs.embeddings.requires_grad or inputs.added is not None
    if inputs.prefix is not None:
        learned = learned or inputs.prefix.states.requires_grad
    wanted = torch.is_grad_enabled() and (grad_model or learned)
    with torch.set_grad_enabled(wanted), backbone.passing(inputs) as given:
        states: Tensor = backbone.model.base_model(**given).last_hidden_state
    if states.shape[:2] != inputs.embeddings.shape[:2]:
        raise ModelError(
            f"the body of {type(backbone.model).__name__} gave states of shape "
            f"{tuple(states.shape[:2])} for tokens of shape {tuple(inputs.embeddings.shape[:2])}, "
            "so labels would not line up with tokens; take another model."
        )
    return states


def prefix_shape(backbone: Backbone) -> PrefixShape:
    """Return the layers, key-value heads and head size a prefix for this model has.

    Raises:
        ModelError: a prefix would not be read by every layer of this kind of model.
    """
    return backbone.attention.shape
