"""What reads labels off a model's last hidden states: the base of every kind's head."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

from symprompt.tasks.config import HeadConfig
from symprompt.tasks.data.examples import NO_LABEL
from symprompt.tasks.features import Batch


class Head(nn.Module, ABC):
    """Scores from hidden states [b, t, h]; abstract.

    The parameters and the scores are float32 (float64 for float64 states) whatever the body
    computes in: half precision scores tie.

    Args:
        width: h, the size of a hidden state.
        outputs: the number of scores for each position.
        config: a linear layer, or two with tanh between them; dropout before each of them.
        generator: draws the weights; without one they come from torch's own.
    """

    def __init__(
        self,
        width: int,
        outputs: int,
        config: HeadConfig,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(config.dropout)
        deep = config.kind == "mlp"
        self.hidden = make_linear(width, width, generator) if deep else None
        self.output = make_linear(width, outputs, generator)

    @abstractmethod
    def loss(self, states: Tensor, batch: Batch) -> Tensor:
        """Return each row's loss [b]; a row without a label has loss 0."""

    @abstractmethod
    def scores(self, states: Tensor, batch: Batch) -> Tensor:
        """Return what decoding needs, at least float32."""

    def weights(self, batch: Batch) -> Tensor:
        """Return what each row's loss counts in a mean over a batch [b]: 1, or 0 without a label.

        For tags it is the number of labelled tokens, so that every word counts the same.
        """
        return (batch.need("labels") != NO_LABEL).float()

    def logits(self, states: Tensor) -> Tensor:
        """Return the scores [..., outputs] of states [..., h]."""
        weight = self.output.weight
        # Autocast would take the product back to half precision.
        with torch.autocast(states.device.type, enabled=False):
            found = self.dropout(states.to(weight.dtype))
            if self.hidden is not None:
                found = self.dropout(torch.tanh(self.hidden(found)))
            return functional.linear(found, weight, self.output.bias)


def make_linear(width: int, outputs: int, generator: torch.Generator | None) -> nn.Linear:
    """Make a layer as transformers starts its heads: N(0, 0.02) and no bias."""
    # Made without memory first: torch's own start would draw from the global generator.
    layer = nn.Linear(width, outputs, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        layer.weight.normal_(0.0, 0.02, generator=generator)
        layer.bias.zero_()
    return layer
