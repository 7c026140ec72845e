"""A split as token arrays, laid out once: ids, labels, and what decoding needs to get back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from symprompt.backbone.vocabulary import Vocabulary
from symprompt.errors import ConfigError, DataError
from symprompt.tasks.batches import Batch
from symprompt.tasks.examples import Example, TaskData, TaskKind
from symprompt.tasks.labels import LabelSet
from symprompt.tasks.windows import Flags, Ints

LongTexts = Literal["windows", "cut"]


@dataclass(frozen=True)
class Features:
    """A split's rows; an example that is too long for the model has several; final.

    n rows, t tokens of the longest row.

    Attributes:
        kind: the kind of task.
        examples: the number of examples of the split.
        ids: tokens, padded [n, t].
        lengths: real tokens of each row [n].
        types: 0 in the first segment, 1 in the second [n, t]; None if not wanted.
        example: which example of the split each row shows, ascending [n].
        labels: classes [n], or tags [n, t] with -100 where there is none; None for questions.
            Every word of an example has its tag in one row only.
        starts, ends: first and last token of the answer [n]; ``null`` if the row does not show it
            whole; -100 where it is not known. Questions only.
        null: the token that stands for "no answer": the first one, or a causal model's last [n].
        words: which word of the example each token is of, -1 for none [n, t]; tags only.
        first: whether it is its word's first token in this row [n, t]; tags only.
        own: whether this row answers for the token's word: overlaps of rows are parted [n, t].
        offsets: the characters of the context that each token covers, -1 outside the context
            [n, t, 2]; questions only.
        cut: how many examples were shortened, which only happens when it is asked for.
    """

    kind: TaskKind
    examples: int
    ids: Ints
    lengths: Ints
    example: Ints
    types: NDArray[np.uint8] | None = None
    labels: Ints | None = None
    starts: Ints | None = None
    ends: Ints | None = None
    null: Ints | None = None
    words: Ints | None = None
    first: Flags | None = None
    own: Flags | None = None
    offsets: Ints | None = None
    cut: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def batch(self, rows: NDArray[np.int64] | None = None) -> Batch:
        """Return some rows, or all, as tensors, cut to the longest of them."""
        chosen = np.arange(len(self)) if rows is None else rows
        width = int(self.lengths[chosen].max(initial=1))
        tags = self.labels is not None and self.labels.ndim > 1
        return Batch(
            ids=_long(self.ids[chosen, :width]),
            lengths=_long(self.lengths[chosen]),
            types=None if self.types is None else _long(self.types[chosen, :width]),
            labels=None
            if self.labels is None
            else _long(self.labels[chosen, :width] if tags else self.labels[chosen]),
            starts=None if self.starts is None else _long(self.starts[chosen]),
            ends=None if self.ends is None else _long(self.ends[chosen]),
            allowed=self._allowed(chosen, width),
        )

    def _allowed(self, rows: NDArray[np.int64], width: int) -> Tensor | None:
        if self.offsets is None or self.null is None:
            return None
        allowed = self.offsets[rows, :width, 0] >= 0
        allowed[np.arange(len(rows)), self.null[rows]] = True
        return torch.from_numpy(allowed)


def make_features(
    data: TaskData,
    split: str,
    vocabulary: Vocabulary,
    *,
    max_length: int,
    stride: int = 128,
    label_all_tokens: bool = False,
    token_types: bool | None = None,
    long_texts: LongTexts = "windows",
) -> Features:
    """Lay out a split of a data set; see ``lay_out``."""
    return lay_out(
        data.kind,
        data.split(split),
        data.labels,
        vocabulary,
        max_length=max_length,
        stride=stride,
        label_all_tokens=label_all_tokens,
        token_types=token_types,
        long_texts=long_texts,
    )


def lay_out(
    kind: TaskKind,
    examples: Sequence[Example],
    labels: LabelSet,
    vocabulary: Vocabulary,
    *,
    max_length: int,
    stride: int = 128,
    label_all_tokens: bool = False,
    token_types: bool | None = None,
    long_texts: LongTexts = "windows",
) -> Features:
    """Lay out examples of one kind as arrays; nothing is cut unless ``long_texts`` says so.

    Args:
        labels: the labels that are known; others, and None, become -100.
        max_length: the most tokens of a row, special tokens included.
        stride: tokens that two neighbouring windows of a long text share, as transformers counts
            it; never more than half of a window.
        label_all_tokens: label every token of a word, not its first alone. The others of a word
            that starts a phrase are then I-.
        token_types: whether to make segment types; without a word, if the tokenizer has them.
        long_texts: what happens to texts and pairs that are too long: "windows" splits the longer
            text of the example (its score is the mean over its windows), "cut" drops the end of the
            longer text and counts it. Sentences with tags and contexts are always split.

    Raises:
        DataError: an example's other parts leave no room for the text that is split.
        ConfigError: the settings leave no room for any text.
    """
    raise NotImplementedError


def _long(values: NDArray[np.generic]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).long()
