"""Add something to what every layer of a model reads, whatever the model's kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from symprompt.errors import ModelError

Added = Callable[[int], Tensor]


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
        shape: (b, t) of what ``run`` gives the model.
        run: makes one pass.

    Raises:
        ModelError: no such list.
    """

    def __init__(
        self, body: nn.Module, count: int, *, shape: tuple[int, int], run: Callable[[], object]
    ) -> None:
        self.count = count
        self._name = type(body).__name__
        self._added: Added | None = None
        self._calls = 0
        lists = [module for module in body.modules() if isinstance(module, nn.ModuleList)]
        found = next((own for own in lists if self._fits(own, shape, run)), None)
        if found is None:
            raise ModelError(
                f"{self._name} has no list of {count} layers that pass hidden states on, so "
                "nothing can be learned between them; learn vectors at the input alone."
            )
        for layer in dict.fromkeys(found):
            layer.register_forward_pre_hook(self._add, with_kwargs=True)

    def _fits(self, layers: nn.ModuleList, shape: tuple[int, int], run: Callable[[], Any]) -> bool:
        """Say whether a list is that of the layers; keep the hidden states' width if it is."""
        seen: list[tuple[int, ...]] = []

        def look(_layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            first = args[0] if args else kwargs.get("hidden_states")
            seen.append(tuple(first.shape) if isinstance(first, Tensor) else ())

        handles = [
            layer.register_forward_pre_hook(look, with_kwargs=True)
            for layer in dict.fromkeys(layers)
        ]
        try:
            run()
        finally:
            for handle in handles:
                handle.remove()
        alike = len(seen) == self.count and len(set(seen)) == 1
        if not alike or len(seen[0]) != 3 or seen[0][:2] != shape:
            return False
        self.width = seen[0][2]
        return True

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
                f"{self._name} called {self._calls} of its {self.count} layers in a pass, so what "
                "was to be added between them was not; learn vectors at the input alone."
            )
