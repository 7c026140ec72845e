"""What reads a label off the model's last hidden states: heads for texts, words and answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from symprompt.tasks.batches import Batch
from symprompt.tasks.data.examples import NO_LABEL, TaskKind

HeadKind = Literal["linear", "mlp"]


class Head(nn.Module, ABC):
    """Scores from hidden states [b, t, h]; abstract.

    The parameters and the scores are float32 (float64 for float64 states) whatever the body
    computes in: half precision scores tie.

    Args:
        width: h, the size of a hidden state.
        outputs: the number of scores for each place.
        kind: a linear layer, or two with tanh between them.
        dropout: of the states before each layer, while training.
        generator: draws the weights; without one they come from torch's own.
    """

    def __init__(
        self,
        width: int,
        outputs: int,
        *,
        kind: HeadKind = "linear",
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.hidden = make_linear(width, width, generator) if kind == "mlp" else None
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


class SequenceHead(Head):
    """One class for a text or a pair: from [CLS], or a causal model's last real token; final."""

    def __init__(
        self,
        width: int,
        outputs: int,
        *,
        causal: bool,
        kind: HeadKind = "linear",
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(width, outputs, kind=kind, dropout=dropout, generator=generator)
        self.causal = causal

    def loss(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the cross-entropy of each row's label [b]."""
        logits = self.logits(self._read(states, batch))
        labels = batch.need("labels")
        return functional.cross_entropy(logits, labels, reduction="none", ignore_index=NO_LABEL)

    def scores(self, states: Tensor, batch: Batch) -> Tensor:
        """Return log-probabilities [b, classes]."""
        return torch.log_softmax(self.logits(self._read(states, batch)), -1)

    def _read(self, states: Tensor, batch: Batch) -> Tensor:
        if not self.causal:
            return states[:, 0]
        last = (batch.lengths - 1).view(-1, 1, 1).expand(-1, 1, states.shape[-1])
        return states.gather(1, last).squeeze(1)


class TaggingHead(Head):
    """One tag for each token; final."""

    def loss(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the mean cross-entropy over each row's labelled tokens [b]."""
        labels = batch.need("labels")
        losses = functional.cross_entropy(
            self.logits(states).transpose(1, 2), labels, reduction="none", ignore_index=NO_LABEL
        )
        return losses.sum(1) / (labels != NO_LABEL).sum(1).clamp(min=1)

    def weights(self, batch: Batch) -> Tensor:
        """Return each row's number of labelled tokens [b]."""
        return (batch.need("labels") != NO_LABEL).sum(1).float()

    def scores(self, states: Tensor, batch: Batch) -> Tensor:
        """Return log-probabilities [b, t, tags]."""
        return torch.log_softmax(self.logits(states), -1)


class SpanHead(Head):
    """The first and the last token of an answer; final.

    Only tokens of the context and the one that means "no answer" can be chosen, in training as in
    decoding, so that padding and the question take no part.
    """

    def __init__(
        self,
        width: int,
        *,
        kind: HeadKind = "linear",
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(width, 2, kind=kind, dropout=dropout, generator=generator)

    def loss(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the mean of the cross-entropies of first and last token [b]."""
        logits = self.scores(states, batch)
        losses = [
            functional.cross_entropy(
                logits[..., side], batch.need(name), reduction="none", ignore_index=NO_LABEL
            )
            for side, name in enumerate(("starts", "ends"))
        ]
        return (losses[0] + losses[1]) / 2

    def weights(self, batch: Batch) -> Tensor:
        """Return 1 for each row with a known answer [b]."""
        return (batch.need("starts") != NO_LABEL).float()

    def scores(self, states: Tensor, batch: Batch) -> Tensor:
        """Return logits [b, t, 2]; a token that cannot be chosen has -inf."""
        allowed = batch.need("allowed")
        return self.logits(states).masked_fill(~allowed[..., None], float("-inf"))


def make_head(
    task: TaskKind,
    width: int,
    labels: int,
    *,
    causal: bool,
    kind: HeadKind = "linear",
    dropout: float = 0.0,
    generator: torch.Generator | None = None,
) -> Head:
    """Make the head of a kind of task; ``labels`` is the size of its label set."""
    if task == "question":
        return SpanHead(width, kind=kind, dropout=dropout, generator=generator)
    if task in ("tagging", "roles"):
        return TaggingHead(width, labels, kind=kind, dropout=dropout, generator=generator)
    return SequenceHead(
        width, labels, causal=causal, kind=kind, dropout=dropout, generator=generator
    )


def make_linear(width: int, outputs: int, generator: torch.Generator | None) -> nn.Linear:
    """Make a layer as transformers starts its heads: N(0, 0.02) and no bias."""
    # Made without memory first: torch's own start would draw from the global generator.
    layer = nn.Linear(width, outputs, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        layer.weight.normal_(0.0, 0.02, generator=generator)
        layer.bias.zero_()
    return layer
