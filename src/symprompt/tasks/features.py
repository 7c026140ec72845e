"""What a laid-out split is made of: arrays of rows, and rows as tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from symprompt.tasks.batches import Batch
from symprompt.tasks.data.examples import TaskKind
from symprompt.tasks.windows import Flags, Ints


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
        spans: labelled spans of each row: first word within the row, words beside it, label; -1
            where there is none [n, g, 3]; spans and relations only.
        pairs: relations of each row: places of the two spans in ``spans``, label; -1 for none
            [n, p, 3]; relations only.
        cut: how many examples were shortened: texts where that is asked for, sentences with a word
            longer than half a row, and those with spans that no row shows whole.
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
    spans: Ints | None = None
    pairs: Ints | None = None
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
            spans=None if self.spans is None else _long(self.spans[chosen]),
            pairs=None if self.pairs is None else _long(self.pairs[chosen]),
            **self._words(chosen, width),
        )

    def first_words(self) -> NDArray[np.int64]:
        """Return the word of its example that each row begins with [n]."""
        if self.words is None:
            raise ValueError("these features are not of words")
        known = np.where(self.words < 0, np.iinfo(np.int32).max, self.words)
        found: NDArray[np.int64] = known.min(1).astype(np.int64)
        return found

    def _words(self, rows: NDArray[np.int64], width: int) -> dict[str, Tensor]:
        """Return which word each token is of, and for spans each word's tokens."""
        if self.words is None or self.own is None:
            return {}
        base = self.first_words()[rows, None]
        words = self.words[rows, :width]
        place = np.where(words >= 0, words - base, -1)
        found = {"words": _long(place)}
        if self.spans is None:
            return found
        row, column = np.nonzero(place >= 0)
        firsts, lasts = (np.full(place.shape, -1) for _ in range(2))
        owned = np.zeros(place.shape, np.bool_)
        lasts[row, place[row, column]] = column
        owned[row, place[row, column]] = self.own[rows[row], column]
        firsts[row[::-1], place[row, column][::-1]] = column[::-1]
        return {
            **found,
            "firsts": _long(firsts),
            "lasts": _long(lasts),
            "owned": torch.from_numpy(owned),
        }

    def _allowed(self, rows: NDArray[np.int64], width: int) -> Tensor | None:
        if self.offsets is None or self.null is None:
            return None
        allowed = self.offsets[rows, :width, 0] >= 0
        allowed[np.arange(len(rows)), self.null[rows]] = True
        return torch.from_numpy(allowed)


def _long(values: NDArray[np.generic]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).long()
