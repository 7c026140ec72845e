"""One class for a text or for a pair of texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from symprompt.tasks.config import HeadConfig
from symprompt.tasks.data.classes import read_texts
from symprompt.tasks.data.examples import NO_LABEL, LabelSet, Read, TextExample
from symprompt.tasks.features import (
    Batch,
    Features,
    Ragged,
    Sheet,
    assemble,
    encode,
    make_windows,
    something,
)
from symprompt.tasks.kinds.base import Head, Kind, Scores, Target, take_at
from symprompt.tasks.kinds.metrics import accuracy, macro_f1, matthews

_FRACTION = re.compile(r"-?\d*\.\d*[1-9]\d*")
_SCORES = 10
"""So many different fractions may be classes; more are scores."""


@dataclass(frozen=True)
class ClassPrediction:
    """A class, its probability, and those of all classes in their order; final."""

    label: str
    probability: float
    probabilities: Sequence[float] = ()


class Classes(Kind[TextExample, ClassPrediction]):
    """The class of a text, or of a pair of texts; final. Targets: labels, text, row [n].

    A text that is too long is split into windows, whose scores are averaged; of a pair it is the
    longer one. In training each window inherits the text's label, or, pooled, the mean of a text's
    scores has it.
    """

    predicted = "label"
    metric = "accuracy"
    settings = ("task.windows",)
    closed = True

    def __init__(self, *, pair: bool) -> None:
        self.pair = pair
        self.read = partial(read_texts, pair=pair)
        self.inputs = ("first", "second") if pair else ("text",)

    def label_set(self, train: Read) -> LabelSet:
        """Return the classes of the training examples, sorted."""
        labels = LabelSet(tuple(sorted({label for x in train.examples for label in x.labels})))
        scores = [name for name in labels.names if _FRACTION.fullmatch(name)]
        if len(scores) > _SCORES:
            raise train.wrong(
                f"the labels are {len(labels)} different numbers, such as {scores[0]}, so they are "
                "scores and not classes; round them to a few, such as 0 to 5."
            )
        missing = sum(not entry.labels for entry in train.examples)
        if missing or len(labels) < 2:
            raise train.wrong(
                "training needs a label for every example and at least two different ones, but "
                f"{missing} have none and {len(labels)} occur; correct the file."
            )
        return labels

    def tensorise(self, examples: Sequence[TextExample], sheet: Sheet, target: Target) -> Features:
        """Return texts or pairs as rows."""
        texts = [
            _tokens([entry.texts[side] for entry in examples], sheet)
            for side in range(2 if self.pair else 1)
        ]
        lengths = np.stack([tokens.length for tokens in texts])
        longest = lengths.max(0)
        room = sheet.room(pair=self.pair) - (lengths.sum(0) - longest)
        sheet.check_room(room, longest <= room, [entry.id for entry in examples], "shorter text")
        windows = make_windows(longest, room, sheet.stride)
        row = windows.example
        split = lengths.argmax(0)[row]
        parts = [
            Ragged(
                tokens.values,
                tokens.start[row] + np.where(split == side, windows.start, 0),
                np.where(split == side, windows.length, tokens.length[row]),
            )
            for side, tokens in enumerate(texts)
        ]
        find = target.labels.index.get
        known = [NO_LABEL if x.label is None else find(x.label, NO_LABEL) for x in examples]
        features, _ = assemble(sheet, row, *parts)
        targets = {"labels": np.array(known, np.int32)[row]}
        if target.pooled:
            targets |= {"text": row.astype(np.int32), "row": np.arange(len(row), dtype=np.int32)}
        return replace(features, targets=targets)

    def head(
        self, width: int, target: Target, *, causal: bool, generator: torch.Generator | None = None
    ) -> Head:
        """Return a head at [CLS], or at a causal model's last token."""
        settings = {"causal": causal, "pooled": target.pooled}
        return SequenceHead(width, len(target.labels), target.head, generator, **settings)

    def decode(
        self,
        scores: Scores,
        features: Features,
        examples: Sequence[TextExample],
        target: Target,
        *,
        threshold: float | None = None,
    ) -> list[ClassPrediction]:
        """Return each example's class from log-probabilities of rows [n, classes], their mean."""
        total = np.zeros((len(examples), scores.shape[1]))
        np.add.at(total, features.example, scores.astype(np.float64))
        mean = total / np.bincount(features.example)[:, None]
        peak = mean.max(1, keepdims=True)
        found = mean - peak - np.log(np.exp(mean - peak).sum(1, keepdims=True))
        names = target.labels.names
        best, shares = found.argmax(1).tolist(), np.exp(found).tolist()
        return [ClassPrediction(names[k], own[k], own) for k, own in zip(best, shares, strict=True)]

    def measure(
        self, examples: Sequence[TextExample], predictions: Sequence[ClassPrediction]
    ) -> dict[str, float]:
        """Return accuracy, macro-F1 and Matthews' correlation."""
        gold = [str(entry.label) for entry in examples]
        predicted = [entry.label for entry in predictions]
        return {
            "accuracy": accuracy(gold, predicted),
            "macro_f1": macro_f1(gold, predicted),
            "matthews": matthews(gold, predicted),
        }

    def row(self, example: TextExample, prediction: ClassPrediction) -> dict[str, Any]:
        """Return the class and its probability."""
        return {
            "id": example.id,
            "prediction": prediction.label,
            "probability": round(prediction.probability, 6),
            **({} if example.label is None else {"gold": example.label}),
        }


class SequenceHead(Head):
    """One class for a row: from [CLS], or a causal model's last real token; final.

    Args:
        pooled: the mean of the scores of a text's rows is learned; all of them must be in a batch.
    """

    def __init__(
        self,
        width: int,
        outputs: int,
        config: HeadConfig,
        generator: torch.Generator | None = None,
        *,
        causal: bool,
        pooled: bool = False,
    ) -> None:
        super().__init__(width, outputs, config, generator)
        self.causal = causal
        self.pooled = pooled

    def loss(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the cross-entropy of each row's label [b], pooled by its text's mean logits."""
        logits = self.logits(self._read(states, batch))
        labels = batch.targets["labels"]
        if self.pooled:
            own = _windows(batch).to(logits.dtype)
            logits = own @ logits / own.sum(1, keepdim=True)
        return functional.cross_entropy(logits, labels, reduction="none", ignore_index=NO_LABEL)

    def weights(self, batch: Batch) -> Tensor:
        """Return what each row's loss counts [b]; of pooled rows a text's count 1 together."""
        known = super().weights(batch)
        return known / _windows(batch).sum(1) if self.pooled else known

    def scores(self, states: Tensor, batch: Batch) -> Tensor:
        """Return log-probabilities [b, classes].

        Their mean over a text's rows differs from that of the logits by one number for all
        classes: both give the same probabilities.
        """
        return torch.log_softmax(self.logits(self._read(states, batch)), -1)

    def _read(self, states: Tensor, batch: Batch) -> Tensor:
        if not self.causal:
            return states[:, 0]
        return take_at(states, batch.lengths[:, None] - 1).squeeze(1)


def _windows(batch: Batch) -> Tensor:
    """Return which rows show each row's text [b, b]; a row that fills a batch up counts once."""
    text, row = batch.targets["text"], batch.targets["row"]
    again = (row[:, None] == row).tril(-1).any(1)
    return (text[:, None] == text) & ~again


def _tokens(texts: Sequence[str], sheet: Sheet) -> Ragged:
    ids = encode(sheet.vocabulary, texts)["input_ids"]
    return Ragged.of(something(ids, sheet.vocabulary))
