"""The contract of a kind of task: examples to tensors, a head, scores to predictions, figures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from symprompt.files.reading import Source
from symprompt.tasks.config import HeadConfig, SpanConfig, TuneConfig
from symprompt.tasks.data.examples import NO_LABEL, Columns, Example, LabelSet, Read, TaskData
from symprompt.tasks.features import Batch, Features, Sheet


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

    labels: ClassVar[str] = "labels"
    """The target that says whether a row, or a token, has a label."""

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
        known = batch.targets[self.labels] != NO_LABEL
        return known.view(len(known), -1).sum(1).float()

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


def take_at(values: Tensor, places: Tensor) -> Tensor:
    """Return the vectors [b, n, k] of values [b, t, k] at places [b, n]."""
    return values.gather(1, places[..., None].expand(-1, -1, values.shape[2]))


E = TypeVar("E", bound=Example)
P = TypeVar("P")
Scores = NDArray[np.floating]


@dataclass(frozen=True)
class Target:
    """What a task asks for: its labels, and the settings of how they are predicted; final.

    Attributes:
        labels: the labels that are known; others, and None, become -100.
        relations: the relations between spans that are known.
        every_token: label every token of a word, not its first alone.
        pooled: windows of one text are learned together, by the mean of their scores.
    """

    labels: LabelSet
    relations: LabelSet = field(default_factory=lambda: LabelSet(()))
    head: HeadConfig = field(default_factory=HeadConfig)
    span: SpanConfig = field(default_factory=SpanConfig)
    every_token: bool = False
    pooled: bool = False

    @classmethod
    def of(cls, config: TuneConfig, data: TaskData) -> Target:
        """Return what a run asks for."""
        task = config.task
        return cls(
            data.labels,
            data.relations,
            config.head,
            config.span,
            every_token=task.label_all_tokens,
            pooled=task.windows == "pooled",
        )


class Kind(ABC, Generic[E, P]):
    """A kind of labelled task; abstract. One file and one line in ``KINDS`` add another.

    Attributes:
        read: reads a file of a user's own: where it is, its columns, its split, and whether every
            example must have its label; None takes what is there.
        inputs: the roles of the columns that hold what is asked about, see ``Columns``.
        predicted: the field of an example that holds what is predicted; None if not known.
        metric: what a training is chosen by.
        settings: the keys of a config that concern this kind, and others perhaps not.
        has_labels: whether training must say which labels there are.
        per_token: whether scores have one entry for each token of a row.
        closed: whether a label that training does not have is an error; of tags and spans some
            are rare, so these count as missed.
        rare: whether labels that training does not have count as missed in files of one's own too.
        loosest: the threshold at which predictions are made that a threshold is chosen on.
    """

    read: Callable[[Source, Columns, str, bool | None], Read]
    inputs: tuple[str, ...] = ("words",)
    predicted: str
    metric: ClassVar[str] = "f1"
    settings: ClassVar[tuple[str, ...]] = ()
    has_labels: ClassVar[bool] = True
    per_token: ClassVar[bool] = False
    closed: ClassVar[bool] = False
    rare: ClassVar[bool] = False
    loosest: ClassVar[float] = 0.0

    def label_set(self, train: Read) -> LabelSet:
        """Return the labels of the training examples.

        Raises:
            DataError: there are too few.
        """
        return LabelSet(())

    def relation_set(self, train: Read) -> LabelSet:
        """Return the relations of the training examples."""
        return LabelSet(())

    def is_labelled(self, example: E) -> bool:
        """Return whether what is predicted of an example is known."""
        return getattr(example, self.predicted) is not None

    @abstractmethod
    def tensorise(self, examples: Sequence[E], sheet: Sheet, target: Target) -> Features:
        """Return examples as rows of tokens with their targets; what is too long is split.

        Raises:
            DataError: an example's other parts leave no room for the text that is split.
        """

    @abstractmethod
    def head(
        self, width: int, target: Target, *, causal: bool, generator: torch.Generator | None = None
    ) -> Head:
        """Return a head on hidden states of a width.

        Args:
            causal: whether the model reads from left to right only.
            generator: draws the weights.
        """

    def kept(self, scores: Tensor) -> Tensor:
        """Return what decoding reads of a head's scores."""
        return scores

    @abstractmethod
    def decode(
        self,
        scores: Scores,
        features: Features,
        examples: Sequence[E],
        target: Target,
        *,
        threshold: float | None = None,
    ) -> list[P]:
        """Return one prediction for each example from the scores of all rows."""

    @abstractmethod
    def measure(self, examples: Sequence[E], predictions: Sequence[P]) -> dict[str, float]:
        """Return the metrics of predictions for labelled examples, as fractions."""

    @abstractmethod
    def row(self, example: E, prediction: P) -> dict[str, Any]:
        """Return a prediction as plain values to store, with "gold" where it is known."""

    def threshold(
        self, train: Sequence[E], unanswerable: Literal["data", "always"] = "data"
    ) -> float | None:
        """Return the threshold of predictions before any is chosen; None if there is none."""
        return None

    def best_threshold(self, examples: Sequence[E], predictions: Sequence[P]) -> float:
        """Return the threshold with the best figures on predictions made at ``loosest``."""
        raise TypeError(f"predictions of {type(self).__name__} have no threshold")

    def too_long(self, examples: Sequence[E], target: Target) -> int:
        """Return how many labels of examples are longer than those that are scored."""
        return 0
