"""Token sequences of any length as arrays, and the windows that long ones are split into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Ragged:
    """Sequences one after the other: sequence i is ``values[starts[i] : starts[i + 1]]``; final."""

    values: Ints
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> Ragged:
        """Make it from lists."""
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        starts = np.concatenate(([0], np.cumsum(lengths)))
        values = np.fromiter(chain.from_iterable(sequences), np.int32, int(starts[-1]))
        return cls(values, starts)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The length of each sequence."""
        return np.diff(self.starts)

    def take(self, rows: NDArray[np.int64]) -> Ragged:
        """Return the sequences of some rows, in their order."""
        lengths = self.lengths[rows]
        places = _places(self.starts[rows], lengths)
        return Ragged(self.values[places], np.concatenate(([0], np.cumsum(lengths))))


@dataclass(frozen=True)
class Windows:
    """Which part of which sequence each window shows; final.

    Attributes:
        example: the sequence of each window [n].
        start, length: the part it shows [n].
        own_start, own_end: the part of the sequence that this window, and no other, answers for:
            overlaps are parted in the middle, where both windows see most around a token [n].
    """

    example: NDArray[np.int64]
    start: NDArray[np.int64]
    length: NDArray[np.int64]
    own_start: NDArray[np.int64]
    own_end: NDArray[np.int64]


def make_windows(
    lengths: NDArray[np.int64],
    room: NDArray[np.int64],
    overlap: int,
    *,
    word_starts: Sequence[NDArray[np.int64]] | None = None,
) -> Windows:
    """Split sequences into windows that overlap; what fits is one window.

    Args:
        lengths: of the sequences [n].
        room: the most tokens a window of each may show, at least 1 [n].
        overlap: tokens that two neighbours share; at most half of a window.
        word_starts: each sequence's first tokens of words, ascending; windows then begin and end
            between words. No word may be longer than its sequence's room.
    """
    fits = lengths <= room
    rows: list[tuple[int, int, int, int, int]] = []
    for example in np.flatnonzero(~fits).tolist():
        words = None if word_starts is None else word_starts[example]
        rows += _split(example, int(lengths[example]), int(room[example]), overlap, words)
    whole = np.flatnonzero(fits)
    long = np.array(rows, np.int64).reshape(-1, 5)
    zeros = np.zeros(len(whole), np.int64)
    short = np.stack([whole, zeros, lengths[whole], zeros, lengths[whole]], 1)
    table = np.concatenate([short, long])
    # Stable, so that the windows of one sequence keep their order.
    table = table[np.argsort(table[:, 0], kind="stable")]
    return Windows(*(table[:, column] for column in range(5)))


def fill(
    table: NDArray[np.generic],
    column: NDArray[np.int64],
    values: NDArray[np.generic],
    start: NDArray[np.int64],
    length: NDArray[np.int64],
) -> None:
    """Write ``values[start : start + length]`` into each row of a table, from its column on."""
    rows = np.repeat(np.arange(len(table)), length)
    table[rows, _places(column, length)] = values[_places(start, length)]


def _places(start: NDArray[np.int64], length: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return start, start + 1, ... of each row, one row after the other."""
    ends = np.cumsum(length)
    total = int(ends[-1]) if len(ends) else 0
    found: NDArray[np.int64] = np.arange(total) + np.repeat(start - (ends - length), length)
    return found


def _split(
    example: int, length: int, room: int, overlap: int, words: NDArray[np.int64] | None
) -> list[tuple[int, int, int, int, int]]:
    """Return the windows of one long sequence."""
    shared = min(overlap, room // 2)
    spans = [(0, _snap(words, room, 0))]
    while spans[-1][1] < length:
        begin, end = spans[-1]
        after = _snap(words, max(begin, end - shared), begin)
        after = after if after > begin else end
        last = after + room
        spans.append((after, length if last >= length else _snap(words, last, after)))
    bounds = [0]
    for (_, end), (after, _) in pairwise(spans):
        bounds.append(max(after, _snap(words, (after + end + 1) // 2, after)))
    bounds.append(length)
    return [
        (example, begin, end - begin, bounds[place], bounds[place + 1])
        for place, (begin, end) in enumerate(spans)
    ]


def _snap(words: NDArray[np.int64] | None, place: int, least: int) -> int:
    """Return the last word start at or before a place, if it is after ``least``."""
    if words is None:
        return place
    found = int(words[np.searchsorted(words, place, side="right") - 1])
    return max(found, least)
