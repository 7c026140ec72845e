"""An epoch's sentences in passes of few shapes, so that each shape is recorded once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from symprompt.engine.batches import join_few, make_batches, multiples_of_8
from symprompt.probing.queries import Queries

_FEW = 48
"""A width with fewer sentences joins the next wider one, unless it is the widest."""


@dataclass(frozen=True)
class Shape:
    """A pass of fixed shape.

    Attributes:
        sentences: how many.
        width: tokens of each, padded; 0 if they stand one after the other.
        tokens: how many there are in all.
        longest: no sentence that stands after another has more tokens; a power of two, or 0 for
            padded ones.
    """

    sentences: int
    width: int
    tokens: int
    longest: int = 0


@dataclass(frozen=True)
class Pass:
    """One pass of a step: its shape, and where its sentences start in the epoch's table."""

    shape: Shape
    start: int


@dataclass(frozen=True, eq=False)
class EpochPasses:
    """The passes of an epoch, step by step, and the table of their sentences.

    Rows count through the layouts of the questions, one after the other. A sentence that only fills
    a pass up has no share, and the offset -1.
    """

    steps: list[list[Pass]]
    rows: Tensor
    offset: Tensor
    share: Tensor


def plan_passes(
    steps: Sequence[tuple[Sequence[Queries], np.ndarray]],
    *,
    max_tokens: int,
    packed: bool,
    device: torch.device,
) -> EpochPasses:
    """Return the passes that the steps of an epoch take.

    Sentences that ask forth and back go through the model together: a pass of a hundred sentences
    takes hardly less time than one of a thousand.

    Args:
        steps: each step's questions, and the weight of the facts they are about.
        max_tokens: most tokens in one pass, unless a sentence alone has more.
        packed: sentences stand one after the other instead of padded to a width.
    """
    found: list[list[Pass]] = []
    table: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    filled = 0
    for asks, weight in steps:
        first = np.cumsum([0, *(len(ask.layout) for ask in asks)])
        rows = np.concatenate([ask.rows + at for ask, at in zip(asks, first, strict=False)])
        offset = np.concatenate([ask.offset for ask in asks])
        share = np.concatenate([ask.share * weight[ask.owner] for ask in asks])
        lengths = np.concatenate([ask.layout.lengths[ask.rows] for ask in asks])
        if packed:
            split = split_packed(lengths, max_tokens)
        else:
            widest = max(ask.layout.ids.shape[1] for ask in asks)
            split = split_padded(lengths, max_tokens, widest)
        passes = []
        for shape, members in split:
            passes.append(Pass(shape, filled))
            more = shape.sentences - len(members)
            table.append(
                (
                    np.pad(rows[members], (0, more), mode="edge"),
                    np.pad(offset[members], (0, more), constant_values=-1),
                    np.pad(share[members], (0, more)),
                )
            )
            filled += shape.sentences
        found.append(passes)
    return EpochPasses(
        found,
        *(
            torch.from_numpy(np.concatenate(column)).to(device)
            for column in zip(*table, strict=True)
        ),
    )


def split_packed(lengths: np.ndarray, max_tokens: int) -> list[tuple[Shape, np.ndarray]]:
    """Return the passes of sentences one after the other: shape and members."""
    passes = []
    for members, _ in make_batches(lengths, max_tokens, order="given", packed=True):
        own = lengths[members]
        tokens = int(own.sum())
        size = max(tokens, min(room_for(tokens, least=64, bits=6), max_tokens))
        longest = 1 << (int(own.max()) - 1).bit_length()
        passes.append((Shape(room_for(len(members)), 0, size, max(16, longest)), members))
    return passes


def split_padded(
    lengths: np.ndarray, max_tokens: int, widest: int
) -> list[tuple[Shape, np.ndarray]]:
    """Return the passes of sentences padded to widths: shape and members."""
    widths = join_few(np.minimum(multiples_of_8(lengths), widest), _FEW)
    passes = []
    for members, width in make_batches(widths, max_tokens, width=lambda own: own, apart=0.0):
        room = min(room_for(len(members)), max(1, max_tokens // width))
        passes.append((Shape(room, width, width * room), members))
    return passes


def room_for(count: int, *, least: int = 16, bits: int = 4) -> int:
    """Return how many a pass is made for: few sizes, an eighth or ``least`` too large.

    Args:
        bits: how many leading ones tell sizes apart; each further one halves what is too much.
    """
    grain = max(least, 1 << max(0, count.bit_length() - bits))
    return -(-count // grain) * grain
