"""A model's layers, whatever its kind: add to what each reads, or train the last ones alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from symprompt.errors import ConfigError, ModelError

Added = Callable[[int], Tensor]
ALL = -1
"""Every weight of the body."""


class LayerInputs:
    """The inputs of each layer of a model; final.

    The layers are the outermost list of modules that is called as often as the config counts layers
    (ALBERT calls one module many times), each time with the hidden states [b, t, width] as its
    first argument. A model without such a list is refused, and so is a pass that calls it less
    often than it should: nothing is ever left out silently.

    Attributes:
        count: how many layers.
        width: the size of the hidden states between them.

    Args:
        body: the model without its head.
        count: how many layers the config states.
    """

    width: int

    def __init__(self, body: nn.Module, count: int) -> None:
        self.count = count
        self._body = body
        self._added: Added | None = None
        self._calls = 0

    @contextmanager
    def probing(self, rows: int, tokens: int) -> Iterator[None]:
        """Find the layers in the one pass that is made within, of ``rows`` of ``tokens``.

        Raises:
            ModelError: no such list.
        """
        lists = [module for module in self._body.modules() if isinstance(module, nn.ModuleList)]
        seen: list[list[tuple[int, ...]]] = [[] for _ in lists]
        handles = [
            layer.register_forward_pre_hook(partial(_note, shapes), with_kwargs=True)
            for layers, shapes in zip(lists, seen, strict=True)
            for layer in dict.fromkeys(layers)
        ]
        try:
            with torch.no_grad():
                yield
        finally:
            for handle in handles:
                handle.remove()
        for layers, shapes in zip(lists, seen, strict=True):
            alike = len(shapes) == self.count and len(set(shapes)) == 1
            if alike and len(shapes[0]) == 3 and shapes[0][:2] == (rows, tokens):
                self.width = shapes[0][2]
                for layer in dict.fromkeys(layers):
                    layer.register_forward_pre_hook(self._add, with_kwargs=True)
                return
        raise ModelError(
            f"{type(self._body).__name__} has no list of {self.count} layers that pass hidden "
            "states on, so nothing can be learned between them; learn vectors at the input alone."
        )

    def _add(
        self, _layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self._added is None:
            return None
        layer, self._calls = self._calls, self._calls + 1
        if layer == 0:
            return None
        hidden = args[0] if args else kwargs["hidden_states"]
        moved = hidden + self._added(layer).to(hidden.dtype)
        if args:
            return (moved, *args[1:]), kwargs
        return args, kwargs | {"hidden_states": moved}

    @contextmanager
    def adding(self, added: Added) -> Iterator[None]:
        """Add to what each layer but the first reads, in the one pass that is made within.

        Args:
            added: layer, from 1 on -> [b, t, width].

        Raises:
            ModelError: the pass did not go through every layer once.
        """
        self._added, self._calls = added, 0
        try:
            yield
        finally:
            self._added = None
        if self._calls != self.count:
            raise ModelError(
                f"{type(self._body).__name__} called {self._calls} of its {self.count} layers in a "
                "pass, so what was to be added between them was not; learn vectors at the input "
                "alone."
            )


def _note(
    shapes: list[tuple[int, ...]], _layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    first = args[0] if args else kwargs.get("hidden_states")
    shapes.append(tuple(first.shape) if isinstance(first, Tensor) else ())


def trained_parameters(model: Any, layers: int) -> dict[str, nn.Parameter]:
    """Return the parameters of a model's body that are trained, by name.

    What comes after the last layer, such as a final norm, is trained with it; embeddings, and
    parameters that all layers read, are not.

    Args:
        model: of transformers.
        layers: -1 for every weight, 0 for none, or how many layers, counted from the last.

    Raises:
        ConfigError: the model has not that many layers.
        ModelError: the model's layers are not a list of modules with weights of their own.
    """
    body: nn.Module = model.base_model
    named = dict(body.named_parameters())
    if layers == ALL:
        return named
    if layers == 0:
        return {}
    count = int(model.config.get_text_config().num_hidden_layers)
    if layers > count:
        raise ConfigError(
            f"weights.layers is {layers}, and the model has {count} layers; take -1 for every "
            "weight, or at most that many."
        )
    calls = _calls(model)
    found = _layers(body, calls, count)
    if found is None:
        raise ModelError(
            f"{type(model).__name__} has no list of {count} layers with weights of their own, so "
            "its last ones cannot be trained alone; set weights.layers to -1 or 0."
        )
    end = calls.index(found[-1])
    early = set(calls[:end])
    later = [module for module in calls[end:] if module not in early]
    chosen = {
        id(value) for module in (*found[-layers:], *later) for value in module.parameters(True)
    }
    return {name: value for name, value in named.items() if id(value) in chosen}


@torch.no_grad()
def _calls(model: Any) -> list[nn.Module]:
    """Return the modules below a model's body in the order in which a pass calls them."""
    order: list[nn.Module] = []
    body = model.base_model
    handles = [
        module.register_forward_pre_hook(lambda module, _inputs: order.append(module))
        for module in body.modules()
        if module is not body
    ]
    try:
        table = model.get_input_embeddings().weight
        body(inputs_embeds=table.new_zeros(1, 2, table.shape[1]))
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
