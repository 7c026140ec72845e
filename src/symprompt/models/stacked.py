"""Which of a model's weights are each relation's own: all of them, or low-rank adapters.

One relation's weights are one flat row, so that a stack of relations is one tensor [relation, n]:
its optimiser step, its best epoch and its copies are one operation each.

A model with weights of its own for each relation, all relations in one pass.

torch.func.vmap turns the products of one model into batched products over the stack. Attention is
the plain ("eager") kind: its batching rules loop over nothing, on any device, and sentences here
are a few tens of tokens.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from transformers.pytorch_utils import Conv1D

from symprompt.errors import ConfigError, ModelError
from symprompt.models.language_model import Inputs, LanguageModel
from symprompt.runs.environment import make_generator


class Tuning(ABC):
    """Abstract: weights of a model that are put in place for one pass.

    Args:
        shapes: of the tensors a row is made of, by the names they are stored under, in order.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = dict(shapes)
        self._sizes = [math.prod(shape) for shape in shapes.values()]

    @property
    def size(self) -> int:
        """How many weights one relation has of its own."""
        return sum(self._sizes)

    def to_tensors(self, row: Tensor) -> dict[str, Tensor]:
        """Return a row as named tensors, which are views of it."""
        parts = zip(self.shapes.items(), torch.split(row, self._sizes), strict=True)
        return {name: part.view(shape) for (name, shape), part in parts}

    def to_row(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return named tensors as a row.

        Raises:
            ValueError: one is missing, of another shape, or too many.
        """
        found = {name: tuple(value.shape) for name, value in tensors.items()}
        odd = sorted(
            name for name in self.shapes | found if self.shapes.get(name) != found.get(name)
        )
        if odd:
            raise ValueError(f"{odd[0]} does not fit the model")
        return torch.cat([tensors[name].flatten() for name in self.shapes])

    @abstractmethod
    def start(self, relations: Sequence[str], seed: tuple[object, ...]) -> Tensor:
        """Return the rows that training starts from, [relation, n]; they may share memory."""

    @abstractmethod
    def call(self, asked: nn.Module, row: Tensor, arguments: tuple[Tensor, ...]) -> Tensor:
        """Return what a module gives whose ``model`` has a row's weights in place."""


class FullTuning(Tuning):
    """Every parameter of the model, tied ones once; final."""

    def __init__(self, model: Any) -> None:
        # Each parameter with all its names.
        self._values: dict[nn.Parameter, list[str]] = {}
        for name, value in model.named_parameters(remove_duplicate=False):
            self._values.setdefault(value, []).append(name)
        super().__init__({names[0]: tuple(value.shape) for value, names in self._values.items()})

    def start(self, relations: Sequence[str], seed: tuple[object, ...]) -> Tensor:
        """Return the model's own parameters, the same for every relation."""
        row = torch.cat([value.detach().flatten() for value in self._values])
        return row.expand(len(relations), -1)

    def call(self, asked: nn.Module, row: Tensor, arguments: tuple[Tensor, ...]) -> Tensor:
        """Return what the module gives with the row for parameters."""
        # Tied names are given the same tensor here, so that its gradient is the sum.
        named = {
            f"model.{name}": value
            for names, value in zip(
                self._values.values(), self.to_tensors(row).values(), strict=True
            )
            for name in names
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
        head = model.get_output_embeddings()
        layers: dict[str, Any] = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear | Conv1D) and module is not head
        }
        ends = tuple(f".{end}" for end in targets) or ("",)
        self.targets = [name for name in layers if f".{name}".endswith(ends)]
        if not self.targets:
            last = sorted({name.rsplit(".", 1)[-1] for name in layers})
            raise ConfigError(
                f"tuning.lora_targets is {list(targets)}, and no linear layer is called so; this "
                f"model's are: {', '.join(last)}."
            )
        self.transposed = any(isinstance(layers[name], Conv1D) for name in self.targets)
        shapes = {}
        for name in self.targets:
            outputs, inputs = layers[name].weight.shape
            if isinstance(layers[name], Conv1D):
                outputs, inputs = inputs, outputs
            shapes[f"base_model.model.{name}.lora_A.weight"] = (rank, inputs)
            shapes[f"base_model.model.{name}.lora_B.weight"] = (outputs, rank)
        super().__init__(shapes)
        first = next(iter(model.parameters()))
        self._device, self._dtype = first.device, first.dtype
        self._now: dict[str, tuple[Tensor, Tensor]] = {}
        for name in self.targets:
            layers[name].register_forward_hook(partial(self._add, name))

    def start(self, relations: Sequence[str], seed: tuple[object, ...]) -> Tensor:
        """Return adapters that change nothing yet, A drawn from each relation's own generator."""
        rows = []
        for relation in relations:
            generator = make_generator(*seed, "lora", relation)
            row = torch.zeros(self.size)
            for part in list(self.to_tensors(row).values())[::2]:
                draws = torch.rand(part.shape, generator=generator) * 2 - 1
                part.copy_(draws / math.sqrt(part.shape[1]))
            rows.append(row)
        return torch.stack(rows).to(self._device, self._dtype)

    def call(self, asked: nn.Module, row: Tensor, arguments: tuple[Tensor, ...]) -> Tensor:
        """Return what the module gives with the row's adapters beside its linear layers."""
        parts = list(self.to_tensors(row).values())
        pairs = zip(parts[::2], parts[1::2], strict=True)
        self._now = dict(zip(self.targets, pairs, strict=True))
        try:
            logits: Tensor = asked(*arguments)
        finally:
            self._now = {}
        return logits

    def _add(
        self, name: str, _layer: nn.Module, arguments: tuple[Tensor, ...], output: Tensor
    ) -> Tensor:
        down, up = self._now[name]
        return output + (arguments[0] @ down.mT) @ up.mT * self.scale


_EXACT = (torch.float32, torch.float64)
_PROBE_LENGTH = 512
# What training keeps of every number: itself, two gradients, two moments, the best epoch's, and
# three that the optimiser's step passes through.
_COPIES = 9
# Some kernels count the entries of a tensor in 32 bits.
_MOST_NUMBERS = (1 << 31) - 1


class StackedModel:
    """Runs a model with a row of weights for each relation; final.

    It works on a copy of the model, so that the backbone's own answers stay as they are.

    Args:
        backbone: the model, in float32 or float64: small steps vanish in half precision.
        make_tuning: given the copy of the model, returns which weights are each relation's own.

    Raises:
        ModelError: half precision, or a model that answers otherwise when it is stacked.
    """

    def __init__(self, backbone: LanguageModel, make_tuning: Callable[[nn.Module], Tuning]) -> None:
        if backbone.dtype not in _EXACT:
            raise ModelError(
                f"the model is loaded in {str(backbone.dtype).removeprefix('torch.')}, in which "
                "small changes of weights vanish; load it with dtype float32 to fine-tune it."
            )
        self._own = copy.deepcopy(backbone, {id(backbone.vocabulary): backbone.vocabulary})
        self._own.model.set_attn_implementation("eager")
        self.tuning = make_tuning(self._own.model)
        self._asked = _Asked(self._own)
        self._check(backbone)

    @contextmanager
    def dropout(self) -> Iterator[None]:
        """Run the model with its own dropout on."""
        with self._own.dropout():
            yield

    def logits_at(self, rows: Tensor, ids: Tensor, mask: Tensor, at: Tensor) -> Tensor:
        """Return the logits at positions of each sentence, [relation, b, v] or [relation, b, m, v].

        Args:
            rows: [relation, n], each relation's weights.
            ids, mask: [relation, b, t] token ids, and true on real tokens.
            at: [relation, b] positions, or [relation, b, m].
        """

        def ask(row: Tensor, ids: Tensor, mask: Tensor, at: Tensor) -> Tensor:
            return self.tuning.call(self._asked, row, (ids, mask, at))

        logits: Tensor = vmap(ask, randomness="different")(rows, ids, mask, at)
        return logits

    def relations_at_once(self) -> int:
        """Return how many relations may be trained in one stack, by memory."""
        fit = self._own.training_memory() // (self.tuning.size * self._own.dtype.itemsize * _COPIES)
        return max(1, min(fit, _MOST_NUMBERS // self.tuning.size))

    @torch.no_grad()
    def _check(self, backbone: LanguageModel) -> None:
        """Find how the copy reads its mask when stacked; refuse one whose answers then differ.

        Most models look whether a mask [b, t] hides anything, which cannot be done in a stack:
        they are given the sums that attention adds. A few read only the former, and windowed
        attention is lost in the latter.
        """
        length = min(backbone.max_length, _PROBE_LENGTH)
        ids = torch.arange(2 * length, device=backbone.device).view(2, length)
        ids = ids % len(backbone.vocabulary)
        mask = torch.ones_like(ids, dtype=torch.bool)
        mask[1, length // 2 + 1 :] = False
        at = torch.tensor([length - 1, length // 2], device=backbone.device)
        plain = backbone.logits_at(Inputs(backbone.embed(ids), mask), at)
        rows = self.tuning.start(("probe",), (0,)).expand(2, -1)
        stacked = [value.expand(2, *value.shape) for value in (ids, mask, at)]
        near = 1e-3 * float(plain.abs().max())
        for ready in (False, True):
            self._asked.adds_mask = ready
            try:
                found = self.logits_at(rows, *stacked)
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, ValueError):
                continue
            if torch.allclose(found, plain.expand_as(found), rtol=1e-3, atol=near):
                return
        raise ModelError(
            f"a {backbone.model.config.model_type} model does not give its answers when several "
            "copies of it run in one pass, so it cannot be fine-tuned here; take another model, "
            "for example of the BERT, RoBERTa or GPT-2 kind."
        )


class _Asked(nn.Module):
    """A backbone's answers as a module, whose parameters can be put in place; final."""

    def __init__(self, backbone: LanguageModel) -> None:
        super().__init__()
        self.model = backbone.model
        self.backbone = backbone
        self.adds_mask = False

    def forward(self, ids: Tensor, mask: Tensor, at: Tensor) -> Tensor:
        """Return the logits at positions of each sentence, [b, v] or [b, m, v]."""
        embeddings = self.backbone.embed(ids)
        if self.adds_mask:
            lowest = torch.finfo(embeddings.dtype).min
            hidden = torch.zeros_like(mask, dtype=embeddings.dtype).masked_fill(~mask, lowest)
            mask = hidden[:, None, None, :].expand(-1, 1, ids.shape[1], -1)
        return self.backbone.logits_at(Inputs(embeddings, mask), at)
