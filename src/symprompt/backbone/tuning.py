"""Which of a model's numbers are each relation's own: all of them, or low-rank adapters.

One relation's numbers are one flat row, so that a stack of relations is one tensor [relation, n]:
its optimiser step, its best epoch and its copies are one operation each.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers.pytorch_utils import Conv1D

from symprompt.errors import ConfigError
from symprompt.runtime import make_generator


@dataclass(frozen=True)
class Slot:
    """A tensor's place in a row: the name it is stored under, and its shape."""

    name: str
    shape: tuple[int, ...]


class Tuning(ABC):
    """Abstract: numbers of a model that are put in place for one pass.

    Args:
        slots: the tensors a row is made of, in order.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = list(slots)
        self._sizes = [math.prod(slot.shape) for slot in slots]

    @property
    def size(self) -> int:
        """How many numbers one relation has of its own."""
        return sum(self._sizes)

    def split(self, row: Tensor) -> list[Tensor]:
        """Return the tensors of a row, as views."""
        parts = torch.split(row, self._sizes)
        return [part.view(slot.shape) for part, slot in zip(parts, self.slots, strict=True)]

    def to_tensors(self, row: Tensor) -> dict[str, Tensor]:
        """Return a row as named tensors, for storage."""
        named = zip(self.slots, self.split(row), strict=True)
        return {slot.name: value.contiguous() for slot, value in named}

    def to_row(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return named tensors as a row.

        Raises:
            ValueError: one is missing, of another shape, or too many.
        """
        wanted = {slot.name: slot.shape for slot in self.slots}
        found = {name: tuple(value.shape) for name, value in tensors.items()}
        if wanted != found:
            odd = sorted(name for name in wanted | found if wanted.get(name) != found.get(name))
            raise ValueError(f"{odd[0]} does not fit the model")
        return torch.cat([tensors[slot.name].flatten() for slot in self.slots])

    @abstractmethod
    def start(self, relations: Sequence[str], seed: tuple[object, ...]) -> Tensor:
        """Return the rows that training starts from, [relation, n]; they may share memory."""

    @abstractmethod
    def call(self, asked: nn.Module, row: Tensor, arguments: tuple[Tensor, ...]) -> Tensor:
        """Return what a module gives whose ``model`` has a row's numbers in place."""


class FullTuning(Tuning):
    """Every parameter of the model, tied ones once; final."""

    def __init__(self, model: Any) -> None:
        self._names: list[list[str]] = []
        values: dict[int, nn.Parameter] = {}
        names: dict[int, list[str]] = {}
        for name, value in model.named_parameters(remove_duplicate=False):
            values[id(value)] = value
            names.setdefault(id(value), []).append(name)
        self._values = list(values.values())
        self._names = list(names.values())
        super().__init__(
            [
                Slot(aliases[0], tuple(value.shape))
                for aliases, value in zip(self._names, self._values, strict=True)
            ]
        )

    def start(self, relations: Sequence[str], seed: tuple[object, ...]) -> Tensor:
        """Return the model's own parameters, the same for every relation."""
        row = torch.cat([value.detach().flatten() for value in self._values])
        return row.expand(len(relations), -1)

    def call(self, asked: nn.Module, row: Tensor, arguments: tuple[Tensor, ...]) -> Tensor:
        """Return what the module gives with the row for parameters."""
        # Tied names are given the same tensor here, so that its gradient is the sum.
        named = {
            f"model.{name}": value
            for aliases, value in zip(self._names, self.split(row), strict=True)
            for name in aliases
        }
        logits: Tensor = functional_call(asked, named, arguments, tie_weights=False)
        return logits


class LoraTuning(Tuning):
    """Low-rank adapters (Hu et al., 2021): W x + alpha / rank * B A x in linear layers; final.

    A starts uniform in 1 / sqrt(inputs), B at zero, as in the peft library; nothing is dropped out.

    Args:
        model: gets hooks on its linear layers; give a copy.
        rank, alpha: of the adapters.
        targets: the last parts of the layers' names; empty takes every linear layer but the one
            onto the vocabulary.

    Raises:
        ConfigError: no linear layer has such a name.
    """

    def __init__(self, model: Any, *, rank: int, alpha: float, targets: Sequence[str]) -> None:
        self.scale = alpha / rank
        self.rank = rank
        self.alpha = alpha
        layers = _linear_layers(model)
        self.targets = [name for name in layers if _matches(name, targets)]
        if not self.targets:
            last = sorted({name.rsplit(".", 1)[-1] for name in layers})
            raise ConfigError(
                f"tuning.lora_targets is {list(targets)}, and no linear layer is called so; this "
                f"model's are: {', '.join(last)}."
            )
        self.transposed = any(isinstance(layers[name], Conv1D) for name in self.targets)
        slots = []
        for name in self.targets:
            inputs, outputs = _sizes(layers[name])
            slots.append(Slot(f"base_model.model.{name}.lora_A.weight", (rank, inputs)))
            slots.append(Slot(f"base_model.model.{name}.lora_B.weight", (outputs, rank)))
        super().__init__(slots)
        first = next(iter(model.parameters()))
        self._device, self._dtype = first.device, first.dtype
        self._now: dict[str, tuple[Tensor, Tensor]] = {}
        for name in self.targets:
            layers[name].register_forward_hook(self._hook(name))

    def start(self, relations: Sequence[str], seed: tuple[object, ...]) -> Tensor:
        """Return adapters that change nothing yet, A drawn from each relation's own generator."""
        rows = []
        for relation in relations:
            generator = make_generator(*seed, "lora", relation)
            parts = []
            for down, up in zip(self.slots[::2], self.slots[1::2], strict=True):
                draws = torch.rand(down.shape, generator=generator) * 2 - 1
                parts += [(draws / math.sqrt(down.shape[1])).flatten()]
                parts += [torch.zeros(math.prod(up.shape))]
            rows.append(torch.cat(parts))
        return torch.stack(rows).to(self._device, self._dtype)

    def call(self, asked: nn.Module, row: Tensor, arguments: tuple[Tensor, ...]) -> Tensor:
        """Return what the module gives with the row's adapters beside its linear layers."""
        parts = self.split(row)
        pairs = zip(parts[::2], parts[1::2], strict=True)
        self._now = dict(zip(self.targets, pairs, strict=True))
        try:
            logits: Tensor = asked(*arguments)
        finally:
            self._now = {}
        return logits

    def _hook(self, name: str) -> Any:
        def add(_module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
            down, up = self._now[name]
            return output + (arguments[0] @ down.mT) @ up.mT * self.scale

        return add


def _linear_layers(model: Any) -> dict[str, nn.Module]:
    """Return every linear layer by name, but the one onto the vocabulary."""
    head = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not head
    }


def _sizes(layer: nn.Module) -> tuple[int, int]:
    """Return how many numbers a linear layer reads and gives."""
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    inputs, outputs = layer.weight.shape  # type: ignore[misc]
    return int(inputs), int(outputs)


def _matches(name: str, targets: Sequence[str]) -> bool:
    return not targets or any(name == end or name.endswith(f".{end}") for end in targets)
