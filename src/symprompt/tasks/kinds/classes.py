"""One class for a text or for a pair of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from symprompt.errors import DataError
from symprompt.files.reading import TABLES
from symprompt.tasks.config import HeadConfig
from symprompt.tasks.data.classes import CLASS_SETS, ClassTable, own_table, read_classes, read_lines
from symprompt.tasks.data.examples import NO_LABEL, LabelSet, PairExample, TextExample
from symprompt.tasks.data.files import Columns, Read
from symprompt.tasks.features import (
    Batch,
    Features,
    Part,
    Ragged,
    Sheet,
    assemble,
    encode,
    make_windows,
    something,
)
from symprompt.tasks.kinds.base import Head, Kind, Scores, Target
from symprompt.tasks.metrics import accuracy, macro_f1, matthews

C = TypeVar("C", TextExample, PairExample)


@dataclass(frozen=True)
class ClassPrediction:
    """A class and its probability; final."""

    label: str
    probability: float


class Classes(Kind[C, ClassPrediction]):
    """Classification; abstract. Targets: labels [n]."""

    metric = "accuracy"
    closed = True

    def label_set(self, train: Read) -> LabelSet:
        """Return the classes of the training examples."""
        labels = LabelSet.of_classes(label for entry in train.examples for label in entry.labels)
        missing = sum(not entry.labels for entry in train.examples)
        if missing or len(labels) < 2:
            path, line = train.places[0]
            raise DataError(
                f"{path}, line {line}: training needs a label for every example and at least two "
                f"different ones, but {missing} have none and {len(labels)} occur; correct the "
                "file."
            )
        return labels

    def is_labelled(self, example: C) -> bool:
        """Return whether the class is known."""
        return example.label is not None

    def head(
        self, width: int, target: Target, *, causal: bool, generator: torch.Generator | None = None
    ) -> Head:
        """Return a head at [CLS], or at a causal model's last token."""
        return SequenceHead(width, len(target.labels), target.head, generator, causal=causal)

    def decode(
        self,
        scores: Scores,
        features: Features,
        examples: Sequence[C],
        target: Target,
        *,
        threshold: float | None = None,
    ) -> list[ClassPrediction]:
        """Return each example's class from log-probabilities of rows [n, classes]."""
        found = class_scores(features, scores)
        names = target.labels.names
        best, sure = found.argmax(1).tolist(), np.exp(found.max(1)).tolist()
        return [ClassPrediction(names[k], share) for k, share in zip(best, sure, strict=True)]

    def measure(
        self, examples: Sequence[C], predictions: Sequence[ClassPrediction]
    ) -> dict[str, float]:
        """Return accuracy, macro-F1 and Matthews' correlation."""
        gold = [str(entry.label) for entry in examples]
        predicted = [entry.label for entry in predictions]
        return {
            "accuracy": accuracy(gold, predicted),
            "macro_f1": macro_f1(gold, predicted),
            "matthews": matthews(gold, predicted),
        }

    def row(self, example: C, prediction: ClassPrediction) -> dict[str, Any]:
        """Return the class and its probability."""
        return {
            "prediction": prediction.label,
            "probability": round(prediction.probability, 6),
        }

    def gold(self, example: C) -> Any:
        """Return the class."""
        return example.label

    def _read(
        self,
        path: Path,
        columns: Columns,
        texts: tuple[str, ...],
        split: str,
        labelled: bool | None,
        name: str,
    ) -> Read:
        """Read a table; one of a standard set may have its own names of columns."""
        if name in CLASS_SETS and columns == Columns() and path.suffix.lower() in TABLES:
            return read_classes(path, own_table(name, texts), split, labelled=labelled)
        table = ClassTable(tuple((text,) for text in texts), (columns.label,), (columns.id,))
        return read_classes(path, table, split, labelled=labelled)


class TextClasses(Classes[TextExample]):
    """The class of a text; a long one is split into windows, whose scores are averaged; final."""

    def read(
        self, path: Path, columns: Columns, split: str, *, labelled: bool | None, name: str = ""
    ) -> Read:
        """Read a table with a text in each row, or a .txt file of texts without labels."""
        if path.suffix.lower() == ".txt" and not labelled:
            return read_lines(path, split)
        return self._read(path, columns, (columns.text,), split, labelled, name)

    def tensorise(self, examples: Sequence[TextExample], sheet: Sheet, target: Target) -> Features:
        """Return texts as rows."""
        tokens = _tokens([entry.text for entry in examples], sheet)
        room = np.full(len(examples), sheet.room(pair=False), np.int64)
        windows = make_windows(tokens.lengths, room, sheet.stride)
        row = windows.example
        rows = assemble(
            sheet, Part(tokens.values, tokens.starts[row] + windows.start, windows.length)
        )
        return Features(
            len(examples),
            rows.ids,
            rows.lengths,
            row.astype(np.int32),
            rows.types,
            {"labels": _labels(examples, target)[row]},
        )


class PairClasses(Classes[PairExample]):
    """The class of a pair of texts; of a long pair the longer text is split; final."""

    def read(
        self, path: Path, columns: Columns, split: str, *, labelled: bool | None, name: str = ""
    ) -> Read:
        """Read a table with two texts in each row."""
        return self._read(path, columns, (columns.first, columns.second), split, labelled, name)

    def tensorise(self, examples: Sequence[PairExample], sheet: Sheet, target: Target) -> Features:
        """Return pairs as rows."""
        first = _tokens([entry.first for entry in examples], sheet)
        second = _tokens([entry.second for entry in examples], sheet)
        longer = np.maximum(first.lengths, second.lengths)
        room = sheet.room(pair=True) - np.minimum(first.lengths, second.lengths)
        sheet.check_room(room, longer <= room, [entry.id for entry in examples], "shorter text")
        windows = make_windows(longer, room, sheet.stride)
        row = windows.example
        split_first = (first.lengths >= second.lengths)[row]
        parts = []
        for tokens, is_split in ((first, split_first), (second, ~split_first)):
            start = tokens.starts[row] + np.where(is_split, windows.start, 0)
            length = np.where(is_split, windows.length, tokens.lengths[row])
            parts.append(Part(tokens.values, start, length))
        rows = assemble(sheet, *parts)
        return Features(
            len(examples),
            rows.ids,
            rows.lengths,
            row.astype(np.int32),
            rows.types,
            {"labels": _labels(examples, target)[row]},
        )


class SequenceHead(Head):
    """One class for a row: from [CLS], or a causal model's last real token; final."""

    def __init__(
        self,
        width: int,
        outputs: int,
        config: HeadConfig,
        generator: torch.Generator | None = None,
        *,
        causal: bool,
    ) -> None:
        super().__init__(width, outputs, config, generator)
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


def class_scores(features: Features, scores: Scores) -> Scores:
    """Return each example's log-probabilities [examples, classes], the mean over its rows."""
    total = np.zeros((features.examples, scores.shape[1]))
    np.add.at(total, features.example, scores.astype(np.float64))
    counts = np.bincount(features.example, minlength=features.examples)
    mean = total / counts[:, None]
    peak = mean.max(1, keepdims=True)
    found: Scores = mean - peak - np.log(np.exp(mean - peak).sum(1, keepdims=True))
    return found


def _tokens(texts: Sequence[str], sheet: Sheet) -> Ragged:
    ids = encode(sheet.vocabulary, texts)["input_ids"]
    return Ragged.of(something(ids, sheet.vocabulary))


def _labels(examples: Sequence[TextExample] | Sequence[PairExample], target: Target) -> np.ndarray:
    find = target.labels.index.get
    known = [NO_LABEL if x.label is None else find(x.label, NO_LABEL) for x in examples]
    return np.array(known, np.int32)
