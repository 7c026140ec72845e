"""Which weights of a model are trained: all, those of the last layers, or none."""

from __future__ import annotations

import torch
from torch import nn

from symprompt.backbone import Backbone, Inputs
from symprompt.backbone.hidden import body_states
from symprompt.errors import ConfigError, ModelError

ALL = -1
"""Every weight of the body."""


def trained_parameters(backbone: Backbone, layers: int) -> dict[str, nn.Parameter]:
    """Return the parameters of the body that are trained, by name.

    What comes after the last layer, such as a final norm, is trained with it; embeddings, and
    parameters that all layers read, are not.

    Args:
        layers: -1 for every weight, 0 for none, or how many layers, counted from the last.

    Raises:
        ConfigError: the model has not that many layers.
        ModelError: the model's layers are not a list of modules with weights of their own.
    """
    body: nn.Module = backbone.model.base_model
    named = dict(body.named_parameters())
    if layers == ALL:
        return named
    if layers == 0:
        return {}
    count = int(backbone.model.config.get_text_config().num_hidden_layers)
    if layers > count:
        raise ConfigError(
            f"weights.layers is {layers}, and the model has {count} layers; take -1 for every "
            "weight, or at most that many."
        )
    calls = _calls(backbone, body)
    found = _layers(body, calls, count)
    if found is None:
        raise ModelError(
            f"{type(backbone.model).__name__} has no list of {count} layers with weights of their "
            "own, so its last ones cannot be trained alone; set weights.layers to -1 or 0."
        )
    end = calls.index(found[-1])
    early = set(calls[:end])
    later = [module for module in calls[end:] if module not in early]
    chosen = {
        id(value) for module in (*found[-layers:], *later) for value in module.parameters(True)
    }
    return {name: value for name, value in named.items() if id(value) in chosen}


@torch.no_grad()
def _calls(backbone: Backbone, body: nn.Module) -> list[nn.Module]:
    """Return the modules below a body in the order in which a pass calls them."""
    order: list[nn.Module] = []
    handles = [
        module.register_forward_pre_hook(lambda module, _inputs: order.append(module))
        for module in body.modules()
        if module is not body
    ]
    try:
        ids = torch.full((1, 2), int(backbone.vocabulary.pad_id), device=backbone.device)
        inputs = Inputs(backbone.embed(ids), torch.ones_like(ids, dtype=torch.bool))
        body_states(backbone, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return order


def _layers(body: nn.Module, calls: list[nn.Module], count: int) -> list[nn.Module] | None:
    """Return the layers: the outermost list of as many modules, each called once."""
    for module in body.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            own = list(module)
            if len(set(own)) == count and all(calls.count(entry) == 1 for entry in own):
                return own
    return None
