"""A model with numbers of its own for each relation, all relations in one pass.

torch.func.vmap turns the products of one model into batched products over the stack. Attention is
the plain ("eager") kind: its batching rules loop over nothing, on any device, and sentences here
are a few tens of tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import vmap

from symprompt.backbone.inputs import Inputs
from symprompt.backbone.model import Backbone
from symprompt.backbone.tuning import Tuning
from symprompt.errors import ModelError

_EXACT = (torch.float32, torch.float64)
_PROBE_LENGTH = 512
# What training keeps of every number: itself, two gradients, two moments, the best epoch's, and
# three that the optimiser's step passes through.
_COPIES = 9
# Some kernels count the numbers of a tensor in 32 bits.
_MOST_NUMBERS = (1 << 31) - 1


class StackedModel:
    """Runs a model with a row of numbers for each relation; final.

    It works on a copy of the model, so that the backbone's own answers stay as they are.

    Args:
        backbone: the model, in float32 or float64: small steps vanish in half precision.
        make_tuning: says which numbers are each relation's own, given the copy of the model.

    Raises:
        ModelError: half precision, or a model that answers otherwise when it is stacked.
    """

    def __init__(self, backbone: Backbone, make_tuning: Callable[[nn.Module], Tuning]) -> None:
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
        """Return the logits at one position of each sentence, [relation, b, v].

        Args:
            rows: [relation, n], each relation's numbers.
            ids, mask: [relation, b, t] token ids, and true on real tokens.
            at: [relation, b] positions.
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
    def _check(self, backbone: Backbone) -> None:
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

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.model = backbone.model
        self.backbone = backbone
        self.adds_mask = False

    def forward(self, ids: Tensor, mask: Tensor, at: Tensor) -> Tensor:
        """Return the logits at one position of each sentence, [b, v]."""
        embeddings = self.backbone.embed(ids)
        if self.adds_mask:
            lowest = torch.finfo(embeddings.dtype).min
            hidden = torch.zeros_like(mask, dtype=embeddings.dtype).masked_fill(~mask, lowest)
            mask = hidden[:, None, None, :].expand(-1, 1, ids.shape[1], -1)
        return self.backbone.logits_at(Inputs(embeddings, mask), at)
