"""Batches by a budget of tokens: sequences of similar length together, as many as fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import numpy as np

Order = Literal["shortest", "longest", "given"]


class Batch(NamedTuple):
    """Which rows are in a batch, and the width they are padded to."""

    rows: np.ndarray
    width: int


def make_batches(
    lengths: np.ndarray,
    max_tokens: int,
    *,
    width: Callable[[np.ndarray], np.ndarray] | None = None,
    sequences: np.ndarray | int = 1,
    order: Order = "shortest",
    most: int = 0,
    apart: float | None = None,
    packed: bool = False,
) -> Iterator[Batch]:
    """Yield batches of rows whose tokens, padding included, are at most so many.

    One is made while a GPU still computes with those before it. A row that alone has more tokens
    gets a batch of its own.

    Args:
        lengths: [n] tokens of each row's sequences.
        max_tokens: most tokens in a batch.
        width: gives the widths that lengths are padded to; multiples of 8 if left out.
        sequences: how many sequences each row stands for.
        order: rows are taken from the shortest on, from the longest on, or as they are given.
        most: most rows in a batch; 0 takes as many as fit.
        apart: a batch also ends where the length changes, once it holds this share of
            ``max_tokens``: a batch of one length needs no padding. None never ends one so.
        packed: sequences stand one after the other, without padding.
    """
    widths = (width or multiples_of_8)(lengths)
    if order == "given":
        rows = np.arange(len(lengths))
    else:
        rows = np.argsort(lengths if order == "shortest" else -lengths, kind="stable")
    lengths, widths = lengths[rows], widths[rows]
    each = np.broadcast_to(sequences, lengths.shape)[rows]
    # No batch has more rows than this, so no more are looked at for one.
    least = lengths if packed else widths
    reach = min(most or len(rows), max(1, max_tokens // max(1, int(least.min(initial=1)))) + 1)
    start = 0
    while start < len(rows):
        here = slice(start, start + reach)
        widest = np.maximum.accumulate(widths[here])
        tokens = np.cumsum(lengths[here] * each[here]) if packed else widest * np.cumsum(each[here])
        count = max(1, int(np.searchsorted(tokens, max_tokens, side="right")))
        if apart is not None:
            changes = np.diff(lengths[here][:count]) != 0
            full = tokens[: count - 1] >= int(max_tokens * apart)
            ends = np.flatnonzero(changes & full)
            count = int(ends[0]) + 1 if len(ends) else count
        yield Batch(rows[start : start + count], int(widest[count - 1]))
        start += count


def multiples_of_8(lengths: np.ndarray) -> np.ndarray:
    """Return lengths rounded up to multiples of 8."""
    return -(-lengths // 8) * 8


def few_widths(lengths: np.ndarray, widest: int) -> np.ndarray:
    """Return widths that hold lengths: few of them, at most a quarter too large from 32 on."""
    doublings = np.ceil(np.log2(np.maximum(lengths, 1) / 32)).clip(min=0).astype(np.int64)
    grain = 8 << doublings
    widths: np.ndarray = np.minimum(-(-lengths // grain) * grain, widest)
    return widths


def join_few(widths: np.ndarray, fewest: int) -> np.ndarray:
    """Return widths among which one with fewer rows than this has become the next wider one."""
    levels, counts = np.unique(widths, return_counts=True)
    joined, waiting, held = levels.copy(), 0, 0
    for place, count in enumerate(counts.tolist()):
        held += count
        if held >= fewest or place + 1 == len(levels):
            joined[waiting : place + 1] = levels[place]
            waiting, held = place + 1, 0
    found: np.ndarray = joined[np.searchsorted(levels, widths)]
    return found
