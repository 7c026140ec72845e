"""Whole names as answers: objects of one token or several, each with an id of its own.

Where a model's tokens are the answers, an answer's id is its token. Here a table of names takes the
place of the tokens, so that ranks, candidates and counts are kept the same way for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from symprompt.models import Vocabulary
from symprompt.prompts.layout import pad_rows


@dataclass(frozen=True)
class NameTable:
    """The answers of all relations; an answer's id is its place here.

    Attributes:
        texts: [n] each name as it is written; names that read as the same tokens are one.
        tokens: [n, t] int64 on the device, filled up with zeros.
        length: [n] int64 on the device, each name's number of tokens.
        lengths: [n] the same as an array, to plan passes.
        words: [n, t] array, the word of the name that each token is of, 0 for the first.
    """

    texts: tuple[str, ...]
    tokens: Tensor
    length: Tensor
    lengths: np.ndarray
    words: np.ndarray
    places: dict[tuple[int, ...], int]

    def __len__(self) -> int:
        return len(self.texts)

    def find(self, tokens: Sequence[int]) -> int | None:
        """Return the id of the name that reads as these tokens, or None."""
        return self.places.get(tuple(tokens))

    def to(self, device: torch.device) -> NameTable:
        """Return the names with their tensors on a device."""
        return replace(self, tokens=self.tokens.to(device), length=self.length.to(device))


def make_name_table(
    vocabulary: Vocabulary, relations: Sequence[tuple[Sequence[str], bool]]
) -> tuple[NameTable, list[list[int]]]:
    """Return the names that relations may answer with, and each relation's ids.

    Args:
        relations: per relation its names and whether they stand after a space. Those that are
            not readable (see ``read_names``) are left out.
    """
    pairs = sorted({(name, spaced) for names, spaced in relations for name in names})
    read = read_names(vocabulary, [name for name, _ in pairs], [spaced for _, spaced in pairs])
    places: dict[tuple[int, ...], int] = {}
    texts: list[str] = []
    spacing: list[bool] = []
    for (name, spaced), ids in zip(pairs, read, strict=True):
        if ids is not None and places.setdefault(tuple(ids), len(texts)) == len(texts):
            texts.append(name)
            spacing.append(spaced)
    tokens, lengths = pad_rows(list(places))
    of_pair = {
        pair: places[tuple(ids)] for pair, ids in zip(pairs, read, strict=True) if ids is not None
    }
    found = NameTable(
        texts=tuple(texts),
        tokens=torch.from_numpy(tokens),
        length=torch.from_numpy(lengths),
        lengths=lengths,
        words=_words(vocabulary, texts, spacing, tokens),
        places=places,
    )
    return found, [
        sorted({of_pair[name, spaced] for name in names if (name, spaced) in of_pair})
        for names, spaced in relations
    ]


def read_names(
    vocabulary: Vocabulary, names: Sequence[str], after_space: Sequence[bool]
) -> list[list[int] | None]:
    """Return each name's tokens; None where it has none, an unknown one or the mask."""
    unreadable = {vocabulary.unknown_id, vocabulary.mask_id} - {None}
    return [
        ids if name.strip() and ids and not unreadable.intersection(ids) else None
        for name, ids in zip(names, vocabulary.encode_names(names, after_space), strict=True)
    ]


def _words(
    vocabulary: Vocabulary, texts: Sequence[str], spacing: Sequence[bool], tokens: np.ndarray
) -> np.ndarray:
    """Return which word, parted by white space, each token of each name is of, [n, t].

    A tokenizer whose token runs over a word's end makes one word of the two.
    """
    words = np.zeros_like(tokens)
    beginnings = [
        (row, " ".join(parts[:count]))
        for row, parts in enumerate(text.split() for text in texts)
        for count in range(1, len(parts))
    ]
    found = vocabulary.encode_names(
        [text for _, text in beginnings], [spacing[row] for row, _ in beginnings]
    )
    for (row, _), ids in zip(beginnings, found, strict=True):
        if ids == tokens[row, : len(ids)].tolist():
            words[row, len(ids) :] += 1
    return words
