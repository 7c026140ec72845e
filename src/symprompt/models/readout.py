"""A model's answers in two steps: the states its head multiplies last, and that product.

Sums of logits over many sentences are then sums of small states: with W the last matrix,
sum_i w_i (W h_i + b) = W (sum_i w_i h_i) + b for weights that sum to one.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from symprompt.accel.compiling import compile_function
from symprompt.accel.product import Weigh, weigh_losses
from symprompt.models.language_model import Inputs, LanguageModel


class ReadOut:
    """States at asked positions, and the logits that follow from them; final.

    A head that does more after its last product than add a bias (a soft cap, a scale), or that
    keeps the product hidden, has its logits as states: the same answers, of larger states.

    Attributes:
        width: the size of one state.
    """

    def __init__(self, backbone: LanguageModel) -> None:
        self._backbone = backbone
        self._weight: Tensor | None = None
        self._bias: Tensor | None = None
        if backbone.last_product is not None:
            self._weight, self._bias = backbone.last_product
            if not self._is_all():
                self._weight = self._bias = None
        product = self._weight
        self.width = backbone.vocabulary_size if product is None else product.shape[1]

    @torch.no_grad()
    def _is_all(self) -> bool:
        """Say whether the product of the states is what the model answers."""
        backbone = self._backbone
        ids = torch.arange(4, device=backbone.device)[None] % len(backbone.vocabulary)
        inputs = Inputs(backbone.embed(ids), torch.ones_like(ids, dtype=torch.bool))
        at = torch.tensor([2], device=backbone.device)
        assert self._weight is not None
        # Nothing is compiled for so little.
        with torch.compiler.set_stance("force_eager"):
            states = self._states_at(inputs, at).to(self._weight.dtype)
            wanted = backbone.logits_at(inputs, at)
        if states.shape != (1, self._weight.shape[1]):
            return False
        near = 1e-4 * float(wanted.abs().max())
        return torch.allclose(self.logits(states), wanted, rtol=1e-4, atol=near)

    def _states_at(self, inputs: Inputs, positions: Tensor) -> Tensor:
        """Return what the product onto the vocabulary would read; what follows it is still done."""
        decoder: Any = self._backbone.decoder
        forward = decoder.forward
        decoder.forward = lambda hidden: hidden
        try:
            return self._backbone.logits_at(inputs, positions)
        finally:
            decoder.forward = forward

    def states_at(self, inputs: Inputs, positions: Tensor) -> Tensor:
        """Return the states [b, width] at one position of each sentence; float32, or float64."""
        if self._weight is None:
            return self._backbone.logits_at(inputs, positions)
        return self._states_at(inputs, positions).to(self._weight.dtype)

    def weighted_losses(
        self, inputs: Inputs, positions: Tensor, target: Tensor, share: Tensor
    ) -> Tensor:
        """Return the cross-entropies at one position of each sentence times shares, [b].

        Args:
            target: [b] the right tokens.
            share: [b].
        """
        split = self._backbone.split_product
        if split is None or self._weight is None or not self._backbone.compiled:
            logits = self._backbone.logits_at(inputs, positions)
            losses = functional.cross_entropy(logits, target, reduction="none")
            return losses * share.to(losses.dtype)
        states = self._states_at(inputs, positions)
        for tensor in (states, target, share):
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
        return split.losses(states, target, share, self._weigh)

    @cached_property
    def _weigh(self) -> Weigh:
        return compile_function(weigh_losses)

    def logits(self, states: Tensor, share: Tensor | None = None) -> Tensor:
        """Return the logits [b, v] of states, or of sums of states.

        Args:
            states: [b, width].
            share: [b] the sum of the weights in each sum; None is one.
        """
        if self._weight is None:
            return states
        if self._bias is None or share is None:
            return functional.linear(states, self._weight, self._bias)
        return functional.linear(states, self._weight) + share[:, None] * self._bias
